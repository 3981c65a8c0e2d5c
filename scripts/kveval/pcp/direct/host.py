"""The kernel's counters of this host and of some processes, under the names and in the units of PCP's own agents."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from kveval.pcp.direct.samples import About, DirectSample

_MS, _US = About("counter", "millisec"), About("counter", "microsec")
_KBYTES, _KBYTES_MOVED, _BYTES_MOVED = (
    About("instant", "Kbyte"),
    About("counter", "Kbyte"),
    About("counter", "byte"),
)
_NUMBER = About("instant", "")
_CPU = {
    **{
        "user": ("user",),
        "nice": ("nice",),
        "sys": ("system",),
        "idle": ("idle",),
        "wait.total": ("iowait",),
    },
    **{"intr": ("irq", "softirq"), "steal": ("steal",)},
}


def host_samples(processes: Sequence[int]) -> Iterator[DirectSample]:
    """Yield the current values; `processes` are process ids, and those that have ended are left out."""
    yield from _cpus()
    yield from _memory()
    yield from _pressure()
    yield from _traffic()
    for pid in processes:
        try:
            yield from _process(psutil.Process(pid))
        except psutil.Error:
            continue


def _cpus() -> Iterator[DirectSample]:
    per_cpu = [
        (f"cpu{number}", times)
        for number, times in enumerate(psutil.cpu_times(percpu=True))
    ]
    for instance, times in [(None, psutil.cpu_times()), *per_cpu]:
        place = "kernel.all.cpu" if instance is None else "kernel.percpu.cpu"
        for name, parts in _CPU.items():
            spent_s = sum(getattr(times, part, 0.0) for part in parts)
            yield DirectSample(f"{place}.{name}", instance, 1000 * spent_s, _MS)
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("procs_running"):
            yield DirectSample(
                "kernel.all.runnable", None, float(line.split()[1]), _NUMBER
            )


def _memory() -> Iterator[DirectSample]:
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    kib = {row[0].rstrip(":"): float(row[1]) for row in rows if len(row) > 1}
    values = {
        "used": kib["MemTotal"] - kib["MemFree"],
        "free": kib["MemFree"],
        "available": kib.get("MemAvailable"),
        "cached": kib.get("Cached"),
        "shmem": kib.get("Shmem"),
    }
    for name, value in values.items():
        if value is not None:
            yield DirectSample(f"mem.util.{name}", None, value, _KBYTES)


def _pressure() -> Iterator[DirectSample]:
    for resource in ("cpu", "memory", "io"):
        try:
            lines = Path("/proc/pressure", resource).read_text().splitlines()
        except OSError:
            continue  # a kernel without pressure stall information
        for kind, *rest in (line.split() for line in lines):
            if kind == "some":
                total = dict(word.split("=") for word in rest)["total"]
                yield DirectSample(
                    f"kernel.all.pressure.{resource}.some.total",
                    None,
                    float(total),
                    _US,
                )


def _traffic() -> Iterator[DirectSample]:
    for name, moved in psutil.net_io_counters(pernic=True).items():
        yield DirectSample(
            "network.interface.in.bytes", name, moved.bytes_recv, _BYTES_MOVED
        )
        yield DirectSample(
            "network.interface.out.bytes", name, moved.bytes_sent, _BYTES_MOVED
        )
    disks = {
        name: counters
        for name, counters in (psutil.disk_io_counters(perdisk=True) or {}).items()
        if _is_disk(name)
    }
    if disks:
        read = sum(disk.read_bytes for disk in disks.values())
        written = sum(disk.write_bytes for disk in disks.values())
        yield DirectSample("disk.all.read_bytes", None, read / 1024, _KBYTES_MOVED)
        yield DirectSample("disk.all.write_bytes", None, written / 1024, _KBYTES_MOVED)
    for name, counters in disks.items():
        yield DirectSample(
            "disk.dev.avactive", name, float(getattr(counters, "busy_time", 0)), _MS
        )


def _is_disk(name: str) -> bool:
    """Whether a block device is a physical disk: not a partition, a loop device or a volume made of others."""
    return Path("/sys/block", name, "device").exists()


def _process(process: psutil.Process) -> Iterator[DirectSample]:
    with process.oneshot():
        instance, times = f"{process.pid:06d} {process.name()}", process.cpu_times()
        yield DirectSample("proc.psinfo.utime", instance, 1000 * times.user, _MS)
        yield DirectSample("proc.psinfo.stime", instance, 1000 * times.system, _MS)
        yield DirectSample(
            "proc.memory.rss", instance, process.memory_info().rss / 1024, _KBYTES
        )

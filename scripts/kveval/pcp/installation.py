"""The installed Performance Co-Pilot (PCP) and the configuration of one private instance of it.

Paths come from ``pcp.conf`` (Debian, Ubuntu and others differ); nothing here starts a lasting process.
"""

import functools
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.host.errors import Failure
from kveval.host.http import free_port

PACKAGES = "pcp python3-pcp python3-requests"
MINIMUM_VERSION = (6, 0, 0)  # the first release that writes version 3 archives


def _below(subtree: str, names: str) -> tuple[str, ...]:
    return tuple(f"{subtree}.{name}" for name in names.split())


DEFAULT_METRICS: tuple[str, ...] = (
    "openmetrics",
    *_below(
        "kernel.all", "load cpu nprocs runnable blocked pswitch intr sysfork pressure"
    ),
    "kernel.percpu.cpu",
    *_below("mem", "physmem util numa.util.used numa.util.free"),
    *_below(
        "mem.vmstat",
        "pgfault pgmajfault pgpgin pgpgout pswpin pswpout oom_kill allocstall compact_stall",
    ),
    *_below("mem.vmstat", "numa_miss pgscan_direct pgscan_kswapd"),
    *_below("disk", "all dev"),
    *_below("network.interface", "in out"),
    *_below("filesys", "capacity used free"),
    "swap",
    "pmcd.agent.status",
    # Not nvidia.proc: its instances are other users' processes.
    *_below(
        "nvidia",
        "temperature perfstate gpuactive memactive memused memtotal memfree energy power nprocs samples",
    ),
    *_below("nvidia", "gpuutilaccum memutilaccum memusedaccum"),
)
"""Metrics, or subtrees of the name space, that are sampled; an archive lacks those that its host lacks."""

ONCE_METRICS: tuple[str, ...] = (
    *_below("hinv", "ncpu physmem pagesize nnode cpu.model_name"),
    "network.interface.speed",
    "kernel.uname",
    *_below("nvidia", "numcards cardname carduuid busid"),
)
"""Facts about the host, logged once; the first of them also tells that logging has begun."""

# Neither psargs, cmd nor environ: command lines and environments may hold secrets.
PROCESS_METRICS: tuple[str, ...] = (
    *_below(
        "proc.psinfo", "rss vsize utime stime threads minflt maj_flt vctxsw nvctxsw"
    ),
    *_below("proc.memory", "rss vmhwm vmlock vmswap"),
    *_below("proc.io", "rchar wchar read_bytes write_bytes"),
    "proc.schedstat.run_delay",
    "proc.fd.count",
)

_SOURCE_NAME = re.compile(r"^[A-Za-z]\w*$")


class RecordingError(Failure):
    """A recording could not start, did not last or is not usable: what is wrong, where, and the log file."""


@dataclass(frozen=True)
class Pcp:
    """An installation of PCP: its directories, from ``pcp.conf``, and a Python that can run its agents."""

    version: str
    programs: Path
    admin_programs: Path
    agents: Path
    agent_help: Path
    name_spaces: tuple[Path, ...]
    python: str

    def program(self, name: str) -> str:
        """Path of one of PCP's programs; RecordingError where it is not installed."""
        for directory in (self.programs, self.admin_programs):
            if (directory / name).is_file():
                return str(directory / name)
        message = (
            f"PCP's {name} is not in {self.programs}: install the packages {PACKAGES}"
        )
        raise RecordingError(message, code="no_program", program=name)

    def name_space(self, agent: str) -> Path:
        """File with the metric names of a kernel agent; RecordingError where it is not installed."""
        for directory in self.name_spaces:
            if (directory / f"root_{agent}").is_file():
                return directory / f"root_{agent}"
        raise RecordingError(
            f"PCP's root_{agent} is not in {self.name_spaces[0]}: install the package pcp"
        )


def read_pcp_conf(environment: Mapping[str, str]) -> dict[str, str]:
    """Return PCP's settings: ``pcp.conf`` with the PCP_* variables of the environment on top, as libpcp does.

    The file is $PCP_CONF, else $PCP_DIR/etc/pcp.conf, else /etc/pcp.conf. RecordingError when there is none.
    """
    path = Path(
        environment.get("PCP_CONF") or f"{environment.get('PCP_DIR', '')}/etc/pcp.conf"
    )
    try:
        text = path.read_text()
    except OSError as error:
        raise RecordingError(
            f"Performance Co-Pilot is not installed ({path}: {error.strerror}): install the packages {PACKAGES}",
            code="not_installed",
        ) from error
    settings = dict(re.findall(r'^(PCP_\w+)="?([^"\n]*)"?$', text, flags=re.MULTILINE))
    return settings | {
        key: value for key, value in environment.items() if key in settings
    }


def base_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what PCP's programs need of an environment, and nothing that may hold a secret.

    Python's variables are left out because the agents run under the system's Python, proxies because the
    endpoints are scraped directly. Times are UTC and messages English.
    """
    kept = ("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "PCP_CONF", "PCP_DIR")
    return {key: environment[key] for key in kept if key in environment} | {
        "TZ": "UTC",
        "LC_ALL": "C",
    }


def find_pcp() -> Pcp:
    """Find PCP and check that it can record; RecordingError that names the packages to install if not."""
    settings = read_pcp_conf(os.environ)
    missing = {
        "PCP_BIN_DIR",
        "PCP_BINADM_DIR",
        "PCP_PMDAS_DIR",
        "PCP_PMDASADM_DIR",
        "PCP_VAR_DIR",
    } - set(settings)
    if missing:
        message = f"pcp.conf lacks {', '.join(sorted(missing))}: reinstall the packages {PACKAGES}"
        raise RecordingError(
            message, code="incomplete_pcp_conf", missing=sorted(missing)
        )
    version = settings.get("PCP_VERSION", "0")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if numbers < MINIMUM_VERSION:
        minimum = ".".join(map(str, MINIMUM_VERSION))
        message = f"PCP {version} is too old, {minimum} or newer is needed: packages {PACKAGES}"
        raise RecordingError(message, code="too_old", version=version)
    agents = Path(settings["PCP_PMDASADM_DIR"])
    pcp = Pcp(
        version=version,
        programs=Path(settings["PCP_BIN_DIR"]),
        admin_programs=Path(settings["PCP_BINADM_DIR"]),
        agents=agents,
        agent_help=Path(settings["PCP_PMDAS_DIR"]),
        name_spaces=(Path(settings["PCP_VAR_DIR"]) / "pmns", agents.parent / "pmns"),
        python=_agent_python(settings.get("PCP_PYTHON_PROG", "python3")),
    )
    for name in ("pmcd", "pmlogger", "pminfo", "pmprobe", "pmnsmerge"):
        pcp.program(name)
    for name in (
        "linux/pmdalinux",
        "proc/pmdaproc",
        "openmetrics/pmdaopenmetrics.python",
    ):
        if not (agents / name).is_file():
            raise RecordingError(
                f"PCP's agent {agents / name} is missing: install the packages {PACKAGES}"
            )
    return pcp


def require_pcp() -> str:
    """Return the version of PCP; RecordingError naming the distribution's packages if missing or too old."""
    return find_pcp().version


def installed_pcp() -> str | None:
    """Return the version of PCP, None where there is none; RecordingError for one that cannot record."""
    try:
        return require_pcp()
    except RecordingError as error:
        if error.code == "not_installed":
            return None
        raise


@functools.cache
def _agent_python(configured: str) -> str:
    """Find a Python with the modules of the openmetrics agent, which that of a virtual environment lacks."""
    environment = base_environment(os.environ)
    candidates = ("/usr/bin/python3", configured, "python3")
    for candidate in dict.fromkeys(
        path for path in map(shutil.which, candidates) if path
    ):
        probe = [candidate, "-c", "import pcp.pmda, requests"]
        if subprocess.run(probe, env=environment, capture_output=True).returncode == 0:
            return candidate
    raise RecordingError(
        f"no Python has PCP's modules pcp and requests: install the packages {PACKAGES}"
    )


def user_name() -> str:
    """Return the name of the current user, which pmcd requires; RecordingError if there is none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise RecordingError(
            f"PCP needs a user name, and user id {os.getuid()} has none"
        ) from error


def instance_environment(pcp: Pcp, root: Path) -> dict[str, str]:
    """Return the environment that keeps a private PCP, and its clients, inside the folder ``root``."""
    return (
        base_environment(os.environ)
        | {
            "PCP_VAR_DIR": f"{root}/var",
            "PCP_RUN_DIR": f"{root}/run",
            "PCP_LOG_DIR": f"{root}/log",
            "PCP_ARCHIVE_DIR": f"{root}/log",
            "PCP_TMP_DIR": f"{root}/tmp",
            "PCP_TMPFILE_DIR": f"{root}/tmp",
            "PCP_PMDAS_DIR": f"{root}/var/pmdas",
            "PCP_PMCDCONF_PATH": f"{root}/pmcd.conf",
            "PCP_PYTHON_PROG": pcp.python,
            "PMCD_SOCKET": f"{root}/run/pmcd.socket",
            # Clients use the socket. pmcd requires a port too, but refuses every client there (see pmcd_conf),
            # and continues without it if another process takes the port first.
            "PMCD_PORT": str(free_port()),
            "PMLOGGER_PORT": str(free_port()),
            "PMLOGGER_LOCAL": "1",
            "PMCD_CONNECT_TIMEOUT": "20",
            "PMCD_REQUEST_TIMEOUT": "60",  # longer than pmcd waits for an agent: a slow one must not end the log
        }
    )


def pmcd_conf(pcp: Pcp, root: Path, *, user: str, endpoints: bool, nvidia: bool) -> str:
    """Return pmcd's configuration: its agents, and access through the Unix socket alone."""
    agents = [
        f"pmcd 2 dso pmcd_init {pcp.agents}/pmcd/pmda_pmcd.so",
        f"linux 60 pipe binary {pcp.agents}/linux/pmdalinux -d 60 -U {user} -l {root}/log/linux.log",
        f"proc 3 pipe binary {pcp.agents}/proc/pmdaproc -d 3 -U {user} -l {root}/log/proc.log",
    ]
    if nvidia:
        header = pcp.agents / "nvidia/domain.h"
        match = re.search(r"#define\s+NVML\s+(\d+)", header.read_text())
        if match is None:
            raise RecordingError(
                f"no NVML domain number in {header}", code="no_nvml_domain"
            )
        domain = match[1]
        agents.append(
            f"nvidia {domain} pipe binary {pcp.agents}/nvidia/pmdanvidia -d {domain} -l {root}/log/nvidia.log"
        )
    if endpoints:
        agents.append(
            f"openmetrics 144 pipe binary notready {pcp.python}"
            f" {pcp.agents}/openmetrics/pmdaopenmetrics.python"
            f" -u {user} -c {root}/var/pmdas/openmetrics/config.d -l {root}/log/openmetrics.log"
        )
    access = ['disallow ".*" : all;', 'disallow ":*" : all;', 'allow "unix:*" : all;']
    return "\n".join([*agents, "", "[access]", *access, ""])


def log_block(when: str, metrics: Iterable[str]) -> str:
    """Return the part of pmlogger's configuration that logs metrics `when`: once or default, at every interval."""
    return "\n".join(
        [f"log mandatory on {when} {{", *(f"    {name}" for name in metrics), "}", ""]
    )


def process_block(processes: Sequence[int]) -> str:
    """Return the part that logs these processes, empty for none; in PCP's proc domain, an instance is a pid."""
    instances = ", ".join(str(int(pid)) for pid in processes)
    return (
        log_block(
            "default", (f"{metric} [ {instances} ]" for metric in PROCESS_METRICS)
        )
        if processes
        else ""
    )


def pmlogger_conf(processes: Sequence[int], *, nvidia: bool) -> str:
    """Return pmlogger's configuration: host facts once; the default metrics and the processes' at every interval."""

    def recorded(names: Iterable[str]) -> list[str]:
        return [name for name in names if nvidia or not name.startswith("nvidia")]

    access = "[access]\ndisallow * : all;\n"
    return (
        log_block("once", recorded(ONCE_METRICS))
        + log_block("default", recorded(DEFAULT_METRICS))
        + process_block(processes)
        + access
    )


def check_endpoint(name: str, url: str) -> None:
    """Raise RecordingError for a name or URL that the openmetrics agent would refuse or misread."""
    if not _SOURCE_NAME.match(name) or not re.match(r"^https?://\S+$", url):
        raise RecordingError(
            f"endpoint {name!r}: {url!r} needs a plain name and an http(s) URL"
        )


def write_instance(
    pcp: Pcp, root: Path, *, endpoints: Mapping[str, str], nvidia: bool
) -> None:
    """Write the folders, configuration and name space of a private PCP into the folder ``root``.

    ``endpoints`` maps a source's name to the URL of its OpenMetrics text.
    """
    for folder in (
        "run",
        "log",
        "tmp/pmlogger",
        "var/pmns",
        "var/config/pmda",
        "var/pmdas/openmetrics/config.d",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "run").chmod(0o700)  # pmcd lets everybody connect to its socket
    for agent in ("linux", "proc", "pmcd", "nvidia"):  # their help texts
        link = root / "var/pmdas" / agent
        if not link.is_symlink():
            link.symlink_to(pcp.agent_help / agent)
    for name, url in endpoints.items():
        (root / f"var/pmdas/openmetrics/config.d/{name}.url").write_text(url + "\n")
    configuration = pmcd_conf(
        pcp, root, user=user_name(), endpoints=bool(endpoints), nvidia=nvidia
    )
    (root / "pmcd.conf").write_text(configuration)
    parts = [pcp.name_space("pmcd"), pcp.name_space("linux"), pcp.name_space("proc")]
    if endpoints:
        parts.append(root / "tmp/openmetrics.pmns")
        parts[-1].write_text("root {\n    openmetrics 144:*:*\n}\n")
    if nvidia:
        source = pcp.agents / "nvidia"
        parts.append(root / "tmp/nvidia.pmns")
        parts[-1].write_text(
            (source / "domain.h").read_text()
            + "root {\n    nvidia\n}\n"
            + (source / "pmns").read_text()
        )
    target = root / "var/pmns/root"
    target.unlink(missing_ok=True)
    command = [pcp.program("pmnsmerge"), "-f", *map(str, parts), str(target)]
    result = subprocess.run(
        command, env=base_environment(os.environ), capture_output=True, text=True
    )
    if result.returncode != 0 or not target.is_file():
        raise RecordingError(
            f"pmnsmerge cannot build {target}: {result.stderr.strip()}"
        )


def has_nvidia(pcp: Pcp) -> bool:
    """Whether there is an NVIDIA driver and PCP's agent for it."""
    return (
        Path("/dev/nvidiactl").exists() and (pcp.agents / "nvidia/pmdanvidia").is_file()
    )

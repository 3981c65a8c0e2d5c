"""Speed of copying files from a pod with verification, compared with ways without it: `cat` and `tar`.

KUBECONFIG=... python benchmarks/bench_transfer.py [--mebibytes 100] [--files 200] [--repeats 3]
                                                   [--namespace NAME --pod NAME --container NAME]

Without --pod a pod of the tests' stand-in node is made in a namespace of its own, and removed. Prints, for one large
file and for a folder of many small ones, MiB/s of each way (median of the repeats, lowest and highest), and what the
verification costs: the time of sha256sum in the pod.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from tests.support.pod_waits import wait_for_pod  # noqa: E402
from tests.support.testbed import a_namespace, a_pod, pod_template  # noqa: E402

from kveval.engines.kubernetes.api.client import Api  # noqa: E402
from kveval.engines.kubernetes.api.download import collect  # noqa: E402

MEBI = 1024 * 1024
FOLDER = "/tmp/kveval-bench-transfer"
PREPARE = f"""rm -rf {FOLDER}; mkdir -p {FOLDER}/small && head -c $1 /dev/urandom >{FOLDER}/big.bin &&
for i in $(seq $2); do head -c 40000 /dev/urandom >{FOLDER}/small/$i.json; done"""


class Bench:
    """Ways to bring files from one container."""

    def __init__(self, api: Api, namespace: str, pod: str, container: str) -> None:
        self.api, self.where = api, (namespace, pod, container)

    def run(self, *argv: str) -> bytes:
        """Run a command, whose exit code must be 0, and return its output."""
        done = self.api.exec(*self.where, argv, 600.0)
        if done.returncode:
            raise SystemExit(
                f"{argv[0]} failed in the pod: {done.stderr.decode(errors='replace')}"
            )
        return done.stdout

    def cat(self, _: Path) -> int:
        """One command that prints the file."""
        return len(self.run("cat", f"{FOLDER}/big.bin"))

    def tar_big(self, _: Path) -> int:
        """One archive with the large file, as `kubectl cp` does."""
        return self._tar("big.bin")

    def tar_small(self, _: Path) -> int:
        """One archive with all the small ones."""
        return self._tar("small")

    def _tar(self, name: str) -> int:
        with tarfile.open(
            fileobj=io.BytesIO(self.run("tar", "cf", "-", "-C", FOLDER, name))
        ) as archive:
            return sum(member.size for member in archive.getmembers())

    def big(self, folder: Path) -> int:
        """The large file, verified."""
        return collect(
            self.api, *self.where, f"{FOLDER}/big.bin", folder / "big.bin"
        ).received

    def small(self, folder: Path) -> int:
        """The folder of small ones, verified."""
        return collect(
            self.api, *self.where, f"{FOLDER}/small", folder / "small"
        ).received


def measured(way: Callable[[Path], int], repeats: int) -> tuple[list[float], int]:
    """Return MiB/s of each repeat, and the bytes of the last."""
    speeds, size = [], 0
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="bench-transfer-") as folder:
            begin = time.perf_counter()
            size = way(Path(folder))
            speeds.append(size / MEBI / (time.perf_counter() - begin))
    return speeds, size


@contextlib.contextmanager
def a_container(api: Api, options: argparse.Namespace) -> Iterator[Bench]:
    """Offer the container that was named, or one of the tests' stand-in node."""
    if options.pod:
        yield Bench(api, options.namespace, options.pod, options.container)
        return
    with a_namespace(api) as namespace:
        api.apply([a_pod(namespace, "bench", pod_template("serve"))])
        wait_for_pod(api, namespace, "bench", 120.0)
        yield Bench(api, namespace, "bench", "main")


def main() -> None:
    """Measure all ways, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mebibytes", type=int, default=100)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--pod")
    parser.add_argument("--container", default="main")
    options = parser.parse_args()
    with a_container(Api.connect(), options) as session:
        session.run(
            "sh",
            "-c",
            PREPARE,
            "prepare",
            str(options.mebibytes * MEBI),
            str(options.files),
        )
        begin = time.perf_counter()
        session.run("sha256sum", f"{FOLDER}/big.bin")
        summing_s = time.perf_counter() - begin
        print(
            f"{options.mebibytes} MiB: sha256sum in the pod {summing_s:.2f} s; {os.cpu_count()} CPUs on this side"
        )
        ways = {
            "one file, cat (unverified)": session.cat,
            "one file, tar (unverified)": session.tar_big,
            "one file, collect": session.big,
            f"{options.files} files, tar (unverified)": session.tar_small,
            f"{options.files} files, collect": session.small,
        }
        for name, way in ways.items():
            speeds, size = measured(way, options.repeats)
            median = statistics.median(speeds)
            print(
                f"{name:32} {size / MEBI:7.1f} MiB  {median:7.1f} MiB/s ({min(speeds):.1f} to {max(speeds):.1f})"
            )
        session.run("rm", "-rf", FOLDER)


if __name__ == "__main__":
    main()

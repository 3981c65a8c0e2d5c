"""Releases of servers for GPUs, each with the torch and CUDA that it was built for: config/gpu_releases.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from kveval.host.errors import Failure
from kveval.host.findings import FindingRow, error, ok, warning

_FIX = "bash scripts/setup.sh workflow server-gpu"


@dataclass(frozen=True)
class GpuRelease:
    """A release of a server, and what it was built for.

    `tried`: how it is known to work; `locks`: suffix of its lock files in envs/, "" for none.
    """

    program: str
    version: str
    torch: str
    tried: str
    cuda: str = ""
    lmcache: str = ""
    locks: str = ""
    sources: Sequence[str] = ()


def read_releases(path: Path) -> list[GpuRelease]:
    """Read the table of releases. Raises Failure if it is unreadable or an entry is invalid."""
    try:
        entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return [GpuRelease(**entry) for entry in entries]
    except (OSError, yaml.YAMLError, TypeError) as problem:
        raise Failure(
            f"{path}: not a valid table of releases ({problem})", code="no_releases"
        ) from problem


def built_for(
    torch: str, releases: Sequence[GpuRelease], program: str
) -> list[GpuRelease]:
    """Return the releases of a program that fit a host's torch: those with locks first, then the newest first."""
    fits = [
        release
        for release in releases
        if release.program == program and same_release(release.torch, torch)
    ]
    return sorted(
        fits,
        key=lambda release: (bool(release.locks), Version(release.version)),
        reverse=True,
    )


def judge_release(
    releases: Sequence[GpuRelease],
    program: str,
    version: str | None,
    torch: str | None,
    driver_cuda: str | None,
) -> FindingRow | None:
    """Judge whether the installed program, torch and the driver's CUDA fit together; None without torch."""
    if torch is None:
        return None
    fits = built_for(torch, releases, program)
    if version is None:
        names = ", ".join(release.version for release in fits)
        message = f"torch {torch} is installed and no {program}; of {program}, {names or 'no release that is known'} fits it"
        return warning(
            "torch",
            message,
            _FIX,
            "none_there",
            fitting=[release.version for release in fits],
        )
    known = [
        release
        for release in releases
        if release.program == program and same_release(release.version, version)
    ]
    if not known:
        message = f"{program} {version} with torch {torch}: not in config/gpu_releases.yaml, used as it is"
        return ok("torch", message, "unknown")
    entry = known[0]
    if not same_release(entry.torch, torch):
        fix = f"install torch {entry.torch}" + (
            f", or {program} {fits[0].version}" if fits else ""
        )
        return error(
            "torch",
            f"{program} {version} is built for torch {entry.torch}, not {torch}",
            fix,
            "other_torch",
        )
    if entry.cuda and driver_cuda and Version(driver_cuda) < Version(entry.cuda):
        message = f"torch {torch} is built for CUDA {entry.cuda}, the driver runs {driver_cuda} at most"
        return error(
            "torch",
            message,
            "a newer driver, or a torch for an older CUDA and a server that fits it",
            "old_driver",
        )
    return ok(
        "torch",
        f"{program} {version} with torch {torch}, as it was published for (known by: {entry.tried})",
    )


def same_release(version: str, other: str) -> bool:
    """Whether two versions have the same number, whatever follows it, such as +cu130 or a0."""
    try:
        return Version(version).base_version == Version(other).base_version
    except InvalidVersion:
        return version == other

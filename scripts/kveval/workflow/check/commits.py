"""The builds between a good and a bad one, in order: commits of a checkout, or a list; wheels built from commits."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.campaign.builds import BESIDE, BuildError, git
from kveval.host.hashing import content_hash
from kveval.workflow.check.campaign import CheckError

_BUILD_S = 6 * 3600.0


@dataclass(frozen=True)
class BisectBuild:
    """A build that may be the first slower one: as --candidate names it, and its title."""

    build: str
    title: str


@dataclass(frozen=True)
class BuildRange:
    """The builds to search: from `good` to `bad`, or those listed; `command`: what makes a wheel of a commit."""

    good: str = ""
    bad: str = ""
    listed: Sequence[str] = ()
    command: str = ""


def candidates(build_range: BuildRange, program: str) -> list[BisectBuild]:
    """Return the builds from the good to the bad one, both included, oldest first.

    They are the listed ones; or those of `good`, FOLDER@COMMIT, and `bad`, FOLDER@COMMIT or FOLDER of the same
    checkout, with the commits between. Without a command that builds them only commits that touch the Python package of
    `program`, or LMCache's, are builds of their own. Raises CheckError, BuildError.
    """
    if build_range.listed:
        if len(build_range.listed) < 2:
            raise CheckError(
                "--build names one build: name the good one, those in between, the bad one",
                code="no_builds",
            )
        return [BisectBuild(build, build) for build in build_range.listed]
    folder, first = _commit_of(build_range.good, "good")
    bad = build_range.bad
    if bad == folder:
        last = "HEAD"
    else:
        other, last = _commit_of(bad, "bad")
        if other != folder:
            message = f"--good is of {folder} and --bad of {other}: name commits of one checkout, or all builds (--build)"
            raise CheckError(message, code="two_checkouts")
    commits = _between(
        Path(folder).expanduser(),
        first,
        last,
        () if build_range.command else (program, BESIDE),
    )
    builds = [
        BisectBuild(f"{folder}@{commit}", f"{commit[:10]} {subject}")
        for commit, subject in commits
    ]
    if (
        bad == folder
        and git(
            Path(folder).expanduser(), "status", "--porcelain", "--", program, BESIDE
        ).strip()
    ):
        builds.append(BisectBuild(folder, f"the working tree of {folder}"))
    if len(builds) < 2:
        raise CheckError(
            f"no commit between {first} and {last} of {folder} changes {program}",
            code="nothing_between",
        )
    return builds


def _commit_of(text: str, name: str) -> tuple[str, str]:
    folder, at, commit = text.rpartition("@")
    if not (at and commit and (Path(folder).expanduser() / ".git").exists()):
        message = f"--{name} is {text!r}, not FOLDER@COMMIT of a checkout under git; or list all builds (--build)"
        raise CheckError(message, code="no_commit_given")
    return folder, commit


def _between(
    folder: Path, first: str, last: str, paths: Sequence[str]
) -> list[tuple[str, str]]:
    """Return (commit, subject) from `first` to `last` along first parents, of those in between that touch `paths`."""
    try:
        git(folder, "merge-base", "--is-ancestor", first, last)
    except BuildError:
        message = f"{first} is not an ancestor of {last} in {folder}: name a good commit that the bad one is based on"
        raise CheckError(message, code="no_ancestor") from None
    form = ["--format=%H%x09%s", "--end-of-options"]
    begin = git(folder, "log", "-1", *form, first)
    after = git(
        folder,
        "log",
        "--first-parent",
        "--reverse",
        *form,
        f"{first}..{last}",
        "--",
        *paths,
    )
    lines = (begin + after).decode(errors="replace").splitlines()
    parts = [line.partition("\t") for line in lines]
    return [(commit, subject) for commit, _, subject in parts]


def built(candidate: BisectBuild, command: str, keep: Path) -> str:
    """Build the wheel of a commit, unless it exists; return its path.

    `command`: run by the shell in a clone of the checkout at that commit, must leave one wheel in the folder $WHEELS;
    `keep`: folder in which wheels are kept, by commit and command. Raises BuildError.
    """
    folder, at, commit = candidate.build.rpartition("@")
    if not at:
        message = f"{candidate.title}: --build-command builds commits; commit the changes first"
        raise BuildError(message, code="not_a_commit")
    place = keep / f"{commit[:16]}-{content_hash(command, 8)}"
    if not place.exists():
        keep.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=keep) as scratch:
            source, wheels = Path(scratch, "source"), Path(scratch, "wheels")
            wheels.mkdir()
            git(
                Path(folder).expanduser(),
                "clone",
                "--quiet",
                "--shared",
                "--no-checkout",
                ".",
                str(source),
            )
            git(source, "checkout", "--quiet", "--detach", commit)
            _build(command, source, wheels, keep / f"{place.name}.log", candidate.title)
            shutil.move(wheels, place)
    return str(next(place.glob("*.whl")))


def _build(command: str, source: Path, wheels: Path, log: Path, title: str) -> None:
    with log.open("w") as output:
        environment = {**os.environ, "WHEELS": str(wheels.resolve())}
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=source,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_BUILD_S,
            )
            problem = f"ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_BUILD_S / 3600:g} h"
    count = len(list(wheels.glob("*.whl")))
    if not problem and count != 1:
        problem = f"left {count} wheels in $WHEELS, and one is needed"
    if problem:
        raise BuildError(
            f"{title}: --build-command {problem}; see {log}", code="build_failed"
        )

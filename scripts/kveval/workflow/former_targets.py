"""Targets of snakemake that are commands of kveval now: for one release they name the command that answers instead."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

FORMER_TARGETS = {
    "plan": "plan",
    "curve": "curve",
    "doctor": "doctor",
    "deploy_one": "deploy-one",
    "teardown": "teardown",
    "verify": "verify",
    "prune": "prune",
    "check": "check",
    "bisect_builds": "bisect",
    "history": "history",
}
"""Name of the target -> command."""
_MISTAKE = 2
_BUILD_OPTIONS = {
    "base": "--base",
    "candidate": "--candidate",
    "good": "--good",
    "bad": "--bad",
    "builds": "--build",
    "build_command": "--build-command",
    "check_arms": "--arm",
    "check_blocks": "--blocks",
}
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "deploy_one": {"cell": "--cell"},
    "check": _BUILD_OPTIONS,
    "bisect_builds": _BUILD_OPTIONS,
    "history": {"history": "--folder", "history_of": "--program"},
    "prune": {"prune_days": "--older-than", "prune_also": "--also"},
}
"""Target -> the keys of --config that were its own, with the options of its command."""
_KINDS, _EVERYTHING = "prune", "delete"
CONFIG_KEYS = frozenset({_KINDS}.union(*_OPTIONS.values()))
"""The keys of --config that were of targets; they are no part of a campaign."""


@dataclass(frozen=True)
class SnakemakeCall:
    """A call of snakemake, as far as a command depends on it.

    `configfiles`: those of --configfile; `settings`: the values of --config; `directory`: that of --directory, None if
    not given; `cores`: the most threads; `slots`: the measurements at once that a profile or --resources allows, None
    where neither says so.
    """

    configfiles: Sequence[Path] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    cores: int = 1
    slots: int | None = None


def command_instead(target: str, call: SnakemakeCall) -> str:
    """Return the command of kveval that does what a former target did, with the options that snakemake was given.

    A command takes one campaign; of several, of which later ones overrode earlier ones, the last is named.
    """
    words = ["kveval", FORMER_TARGETS[target]]
    words += [_shown(file, call.directory) for file in call.configfiles[-1:]]
    if call.directory is not None:
        words += ["--directory", str(call.directory)]
    if target == "verify":
        words += ["--cores", str(call.cores)]
    if target == "doctor" and call.slots is not None:
        words += ["--slots", str(call.slots)]
    own = _OPTIONS.get(target, {})
    for key, value in call.settings.items():
        if key == "site":
            words += ["--site", str(value)]
        elif key == _KINDS:
            words += _deleting(value)
        elif key in own:
            words += _repeated(own[key], value)
        elif key not in CONFIG_KEYS:
            words += ["--set", f"{key}={_yaml(value)}"]
    return shlex.join(words)


def end_with_command(target: str, call: SnakemakeCall) -> NoReturn:
    """Name the command on standard error and end with 2.

    For input functions: Snakemake prints a traceback for their errors, but not for the end of the program.
    """
    print(
        f"{target} is a command of its own now, no target of snakemake:"
        f"\n  {command_instead(target, call)}",
        file=sys.stderr,
    )
    raise SystemExit(_MISTAKE)


def _shown(file: Path, directory: Path | None) -> str:
    # Outside of the user's own folder only an absolute path is right.
    return os.path.relpath(file) if directory is None else str(file)


def _deleting(value: Any) -> list[str]:
    kinds = value if isinstance(value, list | tuple) else str(value).split(",")
    names = [str(kind).strip() for kind in kinds]
    if names == [_EVERYTHING]:
        return ["--delete"]
    return ["--delete", *_repeated("--kind", names)]


def _repeated(option: str, value: Any) -> list[str]:
    values: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
    words: list[str] = []
    for item in values:
        words += [option, str(item)]
    return words


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)

"""Hashes of what ran, and the server's build.

Two cells with the same hash are replicates, whatever their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.campaign.builds import BESIDE
from kveval.host.hashing import content_hash
from kveval.stacks.registry import SERVERS, server_version
from kveval.store.run_file import Run

# The fields of a specification that say what ran; the cell's name and its declared size do not.
_FACTS = (
    "engine",
    "weights",
    "model",
    "versions",
    "build",
    "block_size",
    "companions",
    "workload",
    "reset_caches",
)
# The facts that identify the build only.
_OF_BUILD = ("versions", "build", "source", "images")


def effective_configuration(run: Run) -> str:
    """Return 12 hex digits of the SHA-256 of what ran: arguments, environment, images, versions, model, workload.

    The CPU tier is part of it through arguments and environment; for a run that records neither, through its budget.
    """
    return content_hash(_what_ran(run), 12, spaced=True)


def arm_settings(run: Run) -> str:
    """Return 12 hex digits, equal for runs that differ in nothing but the build; "" if the run has no arguments."""
    facts = _what_ran(run)
    settings = {name: value for name, value in facts.items() if name not in _OF_BUILD}
    return (
        content_hash(settings, 12, spaced=True) if facts["argv"] or facts["env"] else ""
    )


def _what_ran(run: Run) -> dict[str, Any]:
    specification = run.specification
    argv = specification.get("argv") or run.server.get("argv") or ()
    env = specification.get("env") or run.server.get("env") or {}
    facts: dict[str, Any] = {
        **{name: specification.get(name) for name in _FACTS},
        "argv": _without_start_flags(argv),
        "env": dict(env),
        "images": run.server.get("images") or specification.get("images"),
        "hardware": run.hardware.get("fingerprint"),
    }
    if not argv and not env:
        facts["budget"] = run.budget.get("tier_bytes")
    for name in ("source", "load_from_tier"):
        if name in specification:
            facts[name] = specification[name]
    return facts


def server_build(run: Run) -> str:
    """Return what the run records of the server's build: image, build, version, the content hash of a build that the
    arm names; "" if nothing is recorded.
    """
    images = run.server.get("images") or run.specification.get("images") or {}
    image = images.get("server", "") if isinstance(images, Mapping) else ""
    parts = [
        image,
        run.specification.get("build"),
        server_version(run.versions),
        run.specification.get("source"),
    ]
    # The release of a program beside the server, such as LMCache, if the arm's build is one of that program.
    key = str(run.build.get("key", ""))
    parts.append(key if key.startswith(f"{BESIDE}-") else "")
    return " ".join(str(part) for part in parts if part)


def _without_start_flags(argv: Sequence[str]) -> list[str]:
    """Return the arguments without those that differ from start to start; JSON values with their keys sorted."""
    per_start = {flag for server in SERVERS.values() for flag in server.flags_per_start}
    kept: list[str] = []
    skip = False
    for argument in argv:
        if not skip and argument not in per_start:
            kept.append(_canonical(argument))
        skip = argument in per_start
    return kept


def _canonical(argument: str) -> str:
    if not argument.startswith("{"):
        return argument
    try:
        return json.dumps(json.loads(argument), sort_keys=True)
    except ValueError:
        return argument

"""One hash of all that actually ran: two cells with the same one are replicates, whatever their names say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kveval.spec.servers.registry import SERVERS, server_version
from kveval.store.run_file import Run

# What of a specification is software under load; the cell's name and its declared size are not.
_FACTS = ("engine", "weights", "model", "versions", "build", "block_size", "companions", "workload", "reset_caches")


def effective_configuration(run: Run) -> str:
    """Return 12 hex digits of the SHA-256 of what ran: arguments, environment, images, versions, model, workload.

    A CPU tier counts as the arguments and the environment set it. Only where a run says neither, its budget does.
    """
    specification = run.specification
    argv = specification.get("argv") or run.server.get("argv") or ()
    env = specification.get("env") or run.server.get("env") or {}
    facts: dict[str, Any] = {name: specification.get(name) for name in _FACTS}
    facts |= {
        "argv": _steady(argv),
        "env": dict(env),
        "images": run.server.get("images") or specification.get("images"),
    }
    facts["hardware"] = run.hardware.get("fingerprint")
    if not argv and not env:
        facts["budget"] = _size(run.budget)
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def server_build(run: Run) -> str:
    """Return what the server was built from as far as the run says: image, build, version; "" where it says nothing."""
    images = run.server.get("images") or run.specification.get("images") or {}
    image = images.get("server", "") if isinstance(images, Mapping) else ""
    parts = [image, run.specification.get("build") or "", server_version(run.versions)]
    return " ".join(str(part) for part in parts if part)


def _steady(argv: Sequence[str]) -> list[str]:
    """Return the arguments without those that differ from start to start; JSON in them in one order of keys."""
    per_start = {flag for software in SERVERS.values() for flag in software.flags_per_start}
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


def _size(budget: Mapping[str, Any]) -> Any:
    return budget.get("tier_bytes", budget.get("requested_bytes"))

"""Verification of one entry of a store: checksums, description, id, hardware."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kveval.host import hardware
from kveval.host.hashing import content_hash
from kveval.store.listing import StoreEntry, size_bytes
from kveval.store.run_file import IMPORTED, SCHEMA, RunFileError, read_run
from kveval.store.store import REASON, RUN, Defect, StoreError, extra_files, listed, verify_file

State = Literal["sound", "damaged", "arriving", "kept"]
"""arriving: it may still be being copied. kept: it has a problem that setting it aside would not solve."""
Arriving = Callable[[Path, StoreError], bool]
_FIXES: Mapping[Defect, str] = {
    "unreadable": "chmod -R g+rX the entry as its owner, or see to the disk",
    "original missing": "put the results that were imported back, or import them with copy: true",
}


@dataclass(frozen=True)
class Verdict:
    """The state of an entry, and why; `extra` are files that its checksums do not cover.

    `code`: a fixed name for the kind of reason; `wrong`: how many of its files do not match its checksums.
    """

    entry: StoreEntry
    state: State
    reason: str = ""
    fix: str = ""
    code: str = ""
    wrong: int = 0
    extra: list[str] = field(default_factory=list)
    bytes: int = 0
    label: str = ""
    fingerprint: str = ""
    imported: bool = False


def judge(entry: StoreEntry, arriving: Arriving) -> Verdict:
    """Check an entry thoroughly; `arriving` tells whether an error may come from an unfinished copy."""
    facts = entry.facts
    errors = _wrong_files(entry.place)
    state, reason, fix, code = _wrong_state(entry, errors, arriving) if errors else _state(entry, facts)
    recorded = facts.get("hardware")
    return Verdict(
        entry,
        state,
        reason,
        fix,
        code,
        len(errors),
        extra=[] if state == "arriving" else [name for name in extra_files(entry.place) if name != REASON],
        bytes=size_bytes(entry.place),
        label=entry.label,
        fingerprint=str(recorded.get("fingerprint", "")) if isinstance(recorded, dict) else "",
        imported=facts.get("engine") == IMPORTED,
    )


def _wrong_state(entry: StoreEntry, errors: Sequence[StoreError], arriving: Arriving) -> tuple[State, str, str, str]:
    """Return the state of an entry with wrong files, the reason, what mends it, and the reason's code."""
    # Files that are still arriving or cannot be read are not damage; a single file that differs is.
    worst = next((error for error in errors if error.defect in ("differs", "missing")), errors[0])
    more = f", and {len(errors) - 1} more files" if len(errors) > 1 else ""
    reason = f"{str(worst).removeprefix(f'{entry.place}/').removeprefix(f'{entry.place}: ')}{more}"
    if worst.defect in _FIXES:
        return "kept", reason, _FIXES[worst.defect], worst.code
    return ("arriving" if arriving(entry.place, worst) else "damaged"), reason, "", worst.code


def _state(entry: StoreEntry, facts: Mapping[str, Any]) -> tuple[State, str, str, str]:
    """Return the state of an entry whose files are as its checksums say, as `_wrong_state` does."""
    if facts.get("schema", SCHEMA) != SCHEMA:
        said = f"{RUN} has schema {facts['schema']}, this version knows {SCHEMA}"
        return "kept", said, "use the version that wrote it", "other_schema"
    try:
        read_run(entry.place)
    except RunFileError as error:
        return "damaged", str(error).removeprefix(f"{entry.place}/"), "", "no_description"
    fingerprint = str(facts.get("hardware", {}).get("fingerprint"))
    folder = rf"run-{entry.run}(@{re.escape(fingerprint)}(-[0-9]+)?)?"
    hashed, covered = content_hash(specification(facts)), listed(entry.place)
    reports = [level["report"] for level in facts["levels"] if level.get("report")]
    uncovered = [report for report in reports if report not in covered]
    described = f"{RUN} describes run {facts['run']} of {facts['measurement']}"
    elsewhere = f"{RUN} names hardware {fingerprint}, its folder another"
    for wrong, said, code in (
        ((facts["measurement"], facts["run"]) != (entry.measurement, entry.run), described, "other_run"),
        (not re.fullmatch(folder, entry.place.name), elsewhere, "other_hardware"),
        (hashed != entry.measurement, f"the specification in {RUN} hashes to {hashed}", "other_specification"),
        (bool(uncovered), f"{RUN} refers to {', '.join(uncovered[:1])}, which is missing", "report_missing"),
    ):
        if wrong:
            return "damaged", said, "", code
    with contextlib.suppress(KeyError, TypeError):
        computed = hardware.fingerprint(facts["hardware"])
        if facts["engine"] == "local" and computed != fingerprint:
            # How fingerprints are computed may change with the program, so this need not be damage.
            said = f"its hardware has the fingerprint {computed}, but {fingerprint} is recorded"
            return "kept", said, "find out which program wrote it; it is adopted all the same", "other_fingerprint"
    return "sound", "", "", ""


def _wrong_files(place: Path) -> list[StoreError]:
    try:
        names = listed(place)
    except StoreError as error:
        return [error]
    errors = []
    for name, expected in names.items():
        try:
            verify_file(place, name, expected)
        except StoreError as error:
            errors.append(error)
    return errors


def specification(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's id is the hash of; of an imported run the checksums of its sources and its levels as well."""
    given: dict[str, Any] = facts["specification"]
    if facts["engine"] != IMPORTED:
        return given
    sources = {source["path"]: source["sha256"] for source in facts["sources"]}
    levels = [[level["level"], level.get("benchmark", 0), level["status"] == "ok"] for level in facts["levels"]]
    return {**given, "sources": sorted(sources.values()), "levels": levels}

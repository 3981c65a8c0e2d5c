"""`kveval prune`: finds the entries of a store that nothing refers to, and deletes them on request.

Nothing that a campaign or a pointer refers to is ever deleted, and nothing at all while a campaign cannot be read. An
entry is moved away, checked for references once more, then deleted, under a lock that adopting jobs share; so no job
loses an entry that it adopts, even where the file system has no locks.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.host.files import clock_s, last_change_s, make_folder
from kveval.host.findings import aligned
from kveval.store.entries import (
    PRUNED,
    Contents,
    StoreEntry,
    contents,
    pointers,
    size_text,
    written_s,
)
from kveval.store.lock import abandoned, store_lock
from kveval.store.run_file import IMPORTED
from kveval.store.store import SUMS, Store
from kveval.workflow.upkeep.references import References, campaign_files, references

KINDS = {
    "measurement": "no campaign and no result refers to it",
    "import": "no campaign and no result refers to it",
    "failed": "a failed attempt, kept for its logs",
    "damaged": "set aside; its REASON says why",
    "partial": "its job has ended",
    "incoming": "an interrupted copy",
    "pruned": "an earlier prune was interrupted",
}
_STAYS = {
    "not_mine": "another user's",
    "hidden": "cannot be read",
    "in_progress": "a measurement in progress, or another host's",
    "arriving": "it may still be being copied",
    "young": "it is less than an hour old",
    "not_deletable": "this user may not delete it",
    "referred_to": "referred to in the meantime",
    "place_taken": "a result refers to it now, and another entry has taken its path",
    "left_over": "what is left of it in {place} cannot be deleted",
}
_DAY_S = 86400.0
# A pointer to a new entry may be about to be written; work of other hosts counts as ended after a day without changes.
_YOUNG_S = 3600.0
_SILENT_S = _DAY_S
_GRACE_S = 2.0


class PruneError(Failure):
    """Nothing can be deleted as asked; the message says what would be right."""


@dataclass(frozen=True)
class Workflow:
    """A copy of the workflow that uses the store: its folder, and what its campaigns refer to."""

    folder: Path
    references: References


@dataclass(frozen=True)
class Candidate:
    """An entry that may be deleted: its kind, size in bytes, and age in days."""

    kind: str
    entry: StoreEntry
    label: str
    bytes: int
    days: float


@dataclass(frozen=True)
class Spared:
    """An entry that stays although nothing referred to it; `code`: why, a key of _STAYS; `place`: where it is."""

    entry: StoreEntry
    code: str
    place: Path | None = None


@dataclass(frozen=True)
class Pruning:
    """The entries that may be deleted, and those that stay although nothing refers to them, with the reason."""

    candidates: list[Candidate] = field(default_factory=list)
    spared: list[Spared] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        entries = [
            {
                "kind": candidate.kind,
                "bytes": candidate.bytes,
                "days": candidate.days,
                "run": candidate.label,
                "place": str(candidate.entry.place),
            }
            for candidate in self.candidates
        ]
        spared = [
            {"place": str(spared_entry.entry.place), "code": spared_entry.code}
            for spared_entry in self.spared
        ]
        return {"entries": entries, "spared": spared, "unreadable": self.unreadable}

    def text(self) -> str:
        """Return the table of what may be deleted, by kind, the largest first."""
        rows = [("what", "size", "days", "run", "why", "where")]
        for candidate in sorted(
            self.candidates, key=lambda candidate: (candidate.kind, -candidate.bytes)
        ):
            why = KINDS[candidate.kind]
            rows.append(
                (
                    candidate.kind,
                    size_text(candidate.bytes),
                    f"{candidate.days:.0f}",
                    candidate.label,
                    why,
                    str(candidate.entry.place),
                )
            )
        total = size_text(sum(candidate.bytes for candidate in self.candidates))
        table = [*aligned(rows), "", f"{len(self.candidates)} entries, {total}"]
        lines = table if self.candidates else ["Nothing to prune."]
        lines += [
            f"kept: {spared_entry.entry.place}: {_STAYS[spared_entry.code].format(place=spared_entry.place)}"
            for spared_entry in self.spared
        ]
        unknown = "cannot be read, so its references are not known"
        lines += [f"{unknown}: {name}: {why}" for name, why in self.unreadable.items()]
        return "\n".join(lines)


def plan_pruning(
    store: Store,
    workflows: Sequence[Workflow],
    kinds: Collection[str] = tuple(KINDS),
    older_than_days: float = 0.0,
) -> Pruning:
    """Return what may be deleted: entries of these kinds that were finished at least `older_than_days` ago."""
    pruning = Pruning(
        unreadable={
            name: why
            for flow in workflows
            for name, why in flow.references.unreadable.items()
        }
    )
    now = clock_s(store.root)
    for kind, entry in _unreferred(
        contents(store.root), workflows, _pointed(store, workflows)
    ):
        days = max(0.0, now - written_s(entry)) / _DAY_S
        if kind not in kinds or days < older_than_days:
            continue
        code = _spared(kind, entry, now)
        if code:
            pruning.spared.append(Spared(entry, code))
        else:
            pruning.candidates.append(
                Candidate(kind, entry, entry.label, entry.bytes(), days)
            )
    return pruning


def prune(
    store: Store,
    workflows: Sequence[Workflow],
    kinds: Collection[str] = tuple(KINDS),
    older_than_days: float = 0.0,
    grace_s: float = _GRACE_S,
) -> Pruning:
    """Delete what `plan_pruning` names and return it.

    Raises PruneError, and deletes nothing, when a campaign cannot be read; StoreInUse when others are adopting for too
    long.
    """
    with store_lock(store.root, exclusive=True):
        pruning = plan_pruning(store, workflows, kinds, older_than_days)
        if pruning.unreadable:
            names = "; ".join(
                f"{name}: {why}" for name, why in pruning.unreadable.items()
            )
            message = f"these campaigns cannot be read, so their references are not known and nothing is deleted: {names}"
            raise PruneError(
                message, code="references_unknown", campaigns=[*pruning.unreadable]
            )
        moved = [_moved(store, candidate) for candidate in pruning.candidates]
        time.sleep(grace_s if any(moved) else 0.0)
        pointed = _pointed(store, workflows)
        gone = []
        for candidate, place in zip(pruning.candidates, moved, strict=True):
            if place is None:
                pruning.spared.append(Spared(candidate.entry, "not_deletable"))
                continue
            entry = replace(candidate.entry, place=_origin(store, place))
            if entry.place != place and _referred(entry, place, workflows, pointed):
                occupied = entry.place.exists()
                if not occupied:
                    make_folder(entry.place.parent, store.root)
                    place.rename(entry.place)
                pruning.spared.append(
                    Spared(
                        candidate.entry, "place_taken" if occupied else "referred_to"
                    )
                )
                continue
            shutil.rmtree(place, ignore_errors=True)
            if place.exists():
                pruning.spared.append(Spared(candidate.entry, "left_over", place))
            else:
                gone.append(candidate)
        _remove_empty_folders(store)
    return Pruning(gone, pruning.spared)


def workflows(
    folder: Path,
    catalogues: Path,
    campaign: Path | Mapping[str, Any],
    also: Sequence[Path] = (),
) -> list[Workflow]:
    """Return the workflow that works in `folder`, with the campaign that was asked for, and others with the same store.

    `catalogues`: its folder config; `also`: further campaign files, or folders of other copies of the workflow with
    campaigns, catalogues and results of their own. Raises PruneError for a path that is neither.
    """
    unknown = [
        path for path in also if not (path.is_file() or (path / "config").is_dir())
    ]
    if unknown:
        message = f"--also names {unknown[0]}: neither a campaign's file nor a copy of the workflow"
        raise PruneError(message, code="unknown_path", path=unknown[0])
    own = [
        *campaign_files(catalogues),
        campaign,
        *(path for path in also if path.is_file()),
    ]
    others = [path for path in also if path.is_dir()]
    return [
        Workflow(folder, references(own, catalogues)),
        *(
            Workflow(
                other, references(campaign_files(other / "config"), other / "config")
            )
            for other in others
        ),
    ]


def outcome_text(pruning: Pruning, *, deleted: bool) -> str:
    """Return what is printed of entries that were deleted, or only shown: then also how to delete them."""
    text = pruning.text()
    if not pruning.candidates:
        return text
    if deleted:
        return f"Deleted:\n{text}"
    kinds = dict.fromkeys(
        f"--kind {candidate.kind}" for candidate in pruning.candidates
    )
    return (
        f"{text}\n\nNothing was deleted. All of this: kveval prune --delete"
        f"\nSome of it: kveval prune --delete {' '.join(kinds)} --older-than 30"
    )


def _unreferred(
    listing: Contents, workflows: Sequence[Workflow], pointed: Collection[str]
) -> Iterable[tuple[str, StoreEntry]]:
    for entry in listing.measurements:
        if not _referred(entry, entry.place, workflows, pointed):
            yield (
                ("import" if entry.facts.get("engine") == IMPORTED else "measurement"),
                entry,
            )
    for kind in ("failed", "damaged", "partial", "incoming", "pruned"):
        for entry in getattr(listing, kind):
            yield kind, entry


def _referred(
    entry: StoreEntry,
    place: Path,
    workflows: Iterable[Workflow],
    pointed: Collection[str],
) -> bool:
    """Return whether anything refers to an entry whose files are in `place` at the moment."""
    facts = StoreEntry(place, None, None).facts
    needed = any(
        flow.references.referrers(entry.measurement, entry.run, facts)
        for flow in workflows
    )
    return needed or os.path.realpath(entry.place) in pointed


def _pointed(store: Store, workflows: Iterable[Workflow]) -> set[str]:
    links = (
        link
        for flow in workflows
        for link in pointers(
            flow.references.roots(flow.folder), store.root, flow.folder
        )
    )
    return {os.path.realpath(link.place) for link in links if link.place is not None}


def _spared(kind: str, entry: StoreEntry, now: float) -> str:
    """Return why, as a key of _STAYS, an entry that nothing refers to stays; empty if it may be deleted."""
    try:
        if entry.place.lstat().st_uid != os.geteuid():
            return "not_mine"
    except OSError:
        return "hidden"
    silent_s = now - last_change_s(entry.place)
    if kind == "partial":
        return "" if abandoned(entry.place) or silent_s > _SILENT_S else "in_progress"
    if kind == "incoming" or (
        kind in ("measurement", "import") and not (entry.place / SUMS).exists()
    ):
        return "" if silent_s > _SILENT_S else "arriving"
    if kind in ("measurement", "import") and silent_s < _YOUNG_S:
        return "young"
    return ""


def _moved(store: Store, candidate: Candidate) -> Path | None:
    """Move an entry to where no job looks for it; return the new place, None if this user may not move it."""
    place = candidate.entry.place
    if candidate.kind not in ("measurement", "import"):
        return place
    target = store.root / PRUNED / place.relative_to(store.root)
    with contextlib.suppress(OSError):
        make_folder(target.parent, store.root)
        shutil.rmtree(target, ignore_errors=True)
        place.rename(target)
        return target
    return None


def _origin(store: Store, place: Path) -> Path:
    """Return where an entry was before it was moved away; for any other entry, where it is."""
    away = store.root / PRUNED
    return store.root / place.relative_to(away) if place.is_relative_to(away) else place


def _remove_empty_folders(store: Store) -> None:
    for folder in [
        *store.root.glob("*"),
        *(store.root / PRUNED).glob("*"),
        store.root / PRUNED,
    ]:
        if folder.is_dir() and folder.name not in ("partial", "failed"):
            with contextlib.suppress(OSError):
                folder.rmdir()

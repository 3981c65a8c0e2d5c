"""`kveval verify`: checks a store and the pointers to it, and removes what can be made again.

Damaged entries are set aside with the reason, never deleted. Wrong pointers and tables, which are made from the store,
are removed, because the next run of the workflow makes them again in seconds.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kveval.host import findings
from kveval.host.files import clock_s, last_change_s, sha256_file
from kveval.host.findings import FindingRow
from kveval.stacks.registry import wrong_answers
from kveval.store.derived import damage_in, derived_files, remove_derived
from kveval.store.entries import (
    Contents,
    Pointer,
    Verdict,
    contents,
    judge,
    pointers,
    size_text,
)
from kveval.store.store import SUMS, Store, key_of
from kveval.workflow.upkeep.references import References

COPY_AGAIN = "when no copying is in progress any more: copy it again, see docs/store.md"
REPORT = "snakemake --cores 4 report"


@dataclass
class Checked:
    """The findings, what was done, and which runs the next start of the workflow measures again."""

    findings: list[FindingRow] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong."""
        return findings.worst(self.findings) != "error"

    def text(self) -> str:
        """Return the table, and what is measured again."""
        lines = [findings.table(self.findings)]
        if self.again:
            lines += [
                "",
                "The next run measures again, or imports:",
                *(f"  {run}" for run in self.again),
            ]
        return "\n".join(lines)


def verify_store(
    store: Store, workflow: Path, references: References, threads: int | None = None
) -> Checked:
    """Check every entry of a store, every pointer of a workflow's folder to it and every table; add what has arrived.

    `references`: what the workflow's campaigns refer to; `threads`: how many hash files, by default the number of CPUs.
    """
    began = time.monotonic()
    checked = Checked()
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        _take_in(store, pool, checked)
        listing = contents(store.root)
        verdicts = list(
            pool.map(lambda entry: judge(entry, store.arriving), listing.measurements)
        )
        lost = _entries(store, verdicts, checked)
        links = pointers(references.roots(workflow), store.root, workflow)
        dead = _links(links, verdicts, checked)
        _tables([link.path for link in links if link not in dead], pool, checked)
    _rest(listing, checked)
    checked.again = runs_again(lost, dead, verdicts, references)
    sound = [verdict for verdict in verdicts if verdict.state == "sound"]
    summary = (
        f"{len(sound)} of {len(verdicts)} entries are sound ({sum(v.imported for v in sound)} imported),"
        f" {len(links) - len(dead)} of {len(links)} pointers; {size_text(sum(v.bytes for v in verdicts))} read in"
        f" {time.monotonic() - began:.1f} s"
    )
    counts = {
        "entries": len(verdicts),
        "sound": len(sound),
        "imported": sum(verdict.imported for verdict in sound),
    }
    counts |= {"pointers": len(links), "dead_pointers": len(dead)}
    checked.findings.insert(
        0, findings.ok(store.root.as_posix(), summary, "checked", **counts)
    )
    return checked


def runs_again(
    lost: Iterable[Verdict],
    dead: Iterable[Pointer],
    verdicts: Iterable[Verdict],
    references: References,
) -> list[str]:
    """Return the runs that campaigns want and the store no longer has, by the campaigns' names for them.

    `lost`: damaged entries; `dead`: pointers to nothing; another sound entry of the same run takes a lost one's place,
    if it is of the same hardware.
    """
    sound = [verdict for verdict in verdicts if verdict.state == "sound"]
    there = {
        (verdict.entry.measurement, verdict.entry.run, verdict.fingerprint)
        for verdict in sound
    }
    anywhere = {key[:2] for key in there}
    labels = {verdict.label for verdict in sound}
    texts_of_runs: dict[tuple[str | None, int | None], list[str]] = {}
    for verdict in lost:
        key = (verdict.entry.measurement, verdict.entry.run)
        if (*key, verdict.fingerprint) not in there:
            texts_of_runs.setdefault(
                key, references.referrers(*key, verdict.entry.facts) or [verdict.label]
            )
    for link in dead:
        key = (link.measurement, link.run)
        # A pointer that cannot be read still has its path, which names the cell.
        if key not in anywhere and not (
            link.measurement is None and link.cell in labels
        ):
            texts_of_runs.setdefault(key, references.referrers(*key, {}) or [link.cell])
    return sorted({text for texts in texts_of_runs.values() for text in texts})


def _take_in(store: Store, pool: Executor, checked: Checked) -> None:
    """Move what was copied into `incoming/` and is complete by now to its place."""
    for verdict in pool.map(
        lambda entry: judge(entry, store.arriving), contents(store.root).incoming
    ):
        place = verdict.entry.place
        if verdict.state == "sound":
            there = store.move_into_place(place, key_of(verdict.entry.facts))
            checked.findings.append(
                findings.ok(verdict.label, f"arrived: {there}", "arrived")
            )
        elif verdict.bytes:
            message = f"{place} is damaged or incomplete: {verdict.reason}"
            checked.findings.append(
                findings.warning(
                    verdict.label, message, verdict.fix or COPY_AGAIN, "not_whole"
                )
            )
        elif clock_s(store.root) - last_change_s(place) > store.settled_s:
            _remove_empty(place)


def _remove_empty(folder: Path) -> None:
    """Remove folders that a copying program made for files that it then did not have to copy."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()
        folder.parent.rmdir()


def _entries(
    store: Store, verdicts: Sequence[Verdict], checked: Checked
) -> list[Verdict]:
    """Add findings on wrong entries, set the damaged ones aside and return them."""
    lost = []
    for verdict in verdicts:
        place, done, fix, judged = (
            verdict.entry.place,
            "it stays where it is",
            verdict.fix,
            findings.error,
        )
        if verdict.state == "damaged":
            lost.append(verdict)
            aside = store.set_aside(place, verdict.reason)
            done, fix = (
                f"set aside as {aside}"
                if aside
                else "this user may not set it aside; it is not adopted",
                "",
            )
        elif verdict.state == "arriving":
            done, fix = (
                "it is not adopted: it is still being copied, or its copying was interrupted",
                COPY_AGAIN,
            )
            judged = findings.warning
        if verdict.state != "sound":
            facts = {"reason": verdict.code, "files": verdict.wrong}
            message = f"{place}: {verdict.reason}; {done}"
            checked.findings.append(
                judged(verdict.label, message, fix, verdict.state, **facts)
            )
        reason = wrong_answers(verdict.entry.facts.get("specification") or {})
        if reason:
            message = f"{place}: invalid, a known defect of this workflow: {reason}; no cell of today refers to it"
            fix = "measure the cell again; kveval prune removes the run"
            checked.findings.append(
                findings.warning(verdict.label, message, fix, "wrong_answers")
            )
        if verdict.extra:
            message = f"{place}: {_few(verdict.extra)} not covered by its checksums; nothing reads that"
            fix = "see who put it there"
            checked.findings.append(
                findings.warning(
                    verdict.label, message, fix, "extra_files", files=verdict.extra
                )
            )
    return lost


def _links(
    links: Iterable[Pointer], verdicts: Iterable[Verdict], checked: Checked
) -> list[Pointer]:
    """Remove pointers to what is not there, or not what they say, and return them: the next run makes them again."""
    known = {os.path.realpath(verdict.entry.place): verdict for verdict in verdicts}
    dead = []
    for link in links:
        wrong = _wrong_link(link, known)
        if wrong is None:
            continue
        link.path.unlink()
        dead.append(link)
        message, code = wrong
        if message:
            message = f"{link.path} {message}; removed"
            checked.findings.append(
                findings.error(
                    link.cell, message, REPORT, f"pointer_{code}", path=link.path
                )
            )
    return dead


def _wrong_link(link: Pointer, known: Mapping[str, Verdict]) -> tuple[str, str] | None:
    """Return what is wrong with a pointer, and a code for it; None if nothing is.

    Both are empty if it points to a damaged entry, which has a finding of its own.
    """
    if link.place is None:
        return "cannot be read", "unreadable"
    verdict = known.get(os.path.realpath(link.place))
    if verdict is None:
        return (
            None
            if link.place.exists()
            else (f"points to {link.place}, which no longer exists", "to_nothing")
        )
    if verdict.state == "damaged":
        return "", ""
    try:
        matches = link.sha256 == sha256_file(link.place / SUMS)
    except OSError:
        return None
    return (
        None
        if matches
        else (f"points to {link.place}, which now holds another run", "to_another")
    )


def _tables(links: Iterable[Path], pool: Executor, checked: Checked) -> None:
    """Remove tables that cannot be read, with what was made from them."""
    paths = derived_files(links)
    for path, damage in zip(paths, pool.map(damage_in, paths), strict=True):
        if damage is not None:
            beside = [
                removed.name for removed in remove_derived(path) if removed != path
            ]
            more = f" with {' and '.join(beside)} of its cell" if beside else ""
            message = (
                f"{path} cannot be read: {damage}; removed{more}, made again in seconds"
            )
            checked.findings.append(
                findings.error("a table", message, REPORT, "table_removed", path=path)
            )


def _rest(listing: Contents, checked: Checked) -> None:
    for path in listing.strange:
        message = f"{path} does not belong in a store; nothing reads it"
        checked.findings.append(
            findings.warning(
                "no entry", message, "see who put it there", "no_entry", path=path
            )
        )
    kinds = {
        "failed": listing.failed,
        "damaged": listing.damaged,
        "partial": listing.partial,
        "pruned": listing.pruned,
    }
    kept = {name: len(entries) for name, entries in kinds.items() if entries}
    if kept:
        message = ", ".join(f"{count} in {name}/" for name, count in kept.items())
        finding = findings.ok(
            "never adopted",
            f"{message}; kveval prune shows them",
            "never_adopted",
            **kept,
        )
        checked.findings.append(finding)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"

"""Checking a store and what points to it, and putting right what costs nothing: `snakemake verify`.

What is damaged is set aside with its reason, never deleted. What is made from the store - pointers, tables - is removed
where it is wrong, because the next run makes it again in seconds.
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
from kveval.host.findings import Finding
from kveval.store.derived import damage_in, derived_files, remove_derived
from kveval.store.entry_check import Verdict, judge
from kveval.store.listing import Contents, Pointer, contents, pointers, size_text
from kveval.store.store import SUMS, Store, key_of
from kveval.workflow.upkeep.references import References

COPY_AGAIN = "when nothing is being copied any more: copy again, see docs/store.md"
REPORT = "snakemake --cores 4 report"


@dataclass
class Checked:
    """The findings, what was done, and which runs the next start of the workflow measures again."""

    findings: list[Finding] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong."""
        return findings.worst(self.findings) != "error"

    def text(self) -> str:
        """Return the table, and what is measured again."""
        lines = [findings.table(self.findings)]
        if self.again:
            lines += ["", "The next run measures again, or imports:", *(f"  {run}" for run in self.again)]
        return "\n".join(lines)


def verify_store(store: Store, workflow: Path, wanted: References, threads: int | None = None) -> Checked:
    """Check every entry of a store, every pointer of a workflow's folder to it and every table; take in what arrived.

    `wanted`: what the workflow's campaigns refer to; `threads` hash files, by default as many as there are CPUs.
    """
    began = time.monotonic()
    checked = Checked()
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        _take_in(store, pool, checked)
        found = contents(store.root)
        verdicts = list(pool.map(lambda entry: judge(entry, store.arriving), found.measurements))
        lost = _entries(store, verdicts, checked)
        links = pointers(wanted.roots(workflow), store.root, workflow)
        dead = _links(links, verdicts, checked)
        _tables([link.path for link in links if link not in dead], pool, checked)
    _rest(found, checked)
    checked.again = runs_again(lost, dead, verdicts, wanted)
    sound = [verdict for verdict in verdicts if verdict.state == "sound"]
    said = (
        f"{len(sound)} of {len(verdicts)} entries are sound ({sum(v.imported for v in sound)} imported),"
        f" {len(links) - len(dead)} of {len(links)} pointers; {size_text(sum(v.bytes for v in verdicts))} read in"
        f" {time.monotonic() - began:.1f} s"
    )
    checked.findings.insert(0, findings.ok(store.root.as_posix(), said))
    return checked


def runs_again(
    lost: Iterable[Verdict], dead: Iterable[Pointer], verdicts: Iterable[Verdict], wanted: References
) -> list[str]:
    """Return which runs nothing in the store stands for any more: those that campaigns want, as they call them.

    `lost`: damaged entries; `dead`: pointers to nothing; another sound entry of the same run takes a lost one's place,
    if it is of the same hardware.
    """
    sound = [verdict for verdict in verdicts if verdict.state == "sound"]
    there = {(verdict.entry.measurement, verdict.entry.run, verdict.fingerprint) for verdict in sound}
    anywhere = {key[:2] for key in there}
    labels = {verdict.label for verdict in sound}
    found: dict[tuple[str | None, int | None], list[str]] = {}
    for verdict in lost:
        key = (verdict.entry.measurement, verdict.entry.run)
        if (*key, verdict.fingerprint) not in there:
            found.setdefault(key, wanted.wanting(*key, verdict.entry.facts) or [verdict.label])
    for link in dead:
        key = (link.measurement, link.run)
        # One that cannot be read still has its place, which says what it was about.
        if key not in anywhere and not (link.measurement is None and link.cell in labels):
            found.setdefault(key, wanted.wanting(*key, {}) or [link.cell])
    return sorted({text for texts in found.values() for text in texts})


def _take_in(store: Store, pool: Executor, checked: Checked) -> None:
    """Move what was copied into `incoming/` and is whole by now to its place."""
    for verdict in pool.map(lambda entry: judge(entry, store.arriving), contents(store.root).incoming):
        place = verdict.entry.place
        if verdict.state == "sound":
            there = store.bring_in(place, key_of(verdict.entry.facts))
            checked.findings.append(findings.ok(verdict.label, f"arrived: {there}"))
        elif verdict.bytes:
            said = f"{place} is not whole: {verdict.reason}"
            checked.findings.append(findings.warning(verdict.label, said, verdict.fix or COPY_AGAIN))
        elif clock_s(store.root) - last_change_s(place) > store.settled_s:
            _remove_empty(place)


def _remove_empty(folder: Path) -> None:
    """Remove folders that a copying program made for files that it then did not have to copy."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()
        folder.parent.rmdir()


def _entries(store: Store, verdicts: Sequence[Verdict], checked: Checked) -> list[Verdict]:
    """Say what is wrong with entries, set the damaged ones aside and return them."""
    lost = []
    for verdict in verdicts:
        place, said = verdict.entry.place, f"{verdict.entry.place}: {verdict.reason}"
        if verdict.state == "damaged":
            lost.append(verdict)
            aside = store.set_aside(place, verdict.reason)
            done = f"set aside as {aside}" if aside else "this user may not set it aside; it is not adopted"
            checked.findings.append(findings.error(verdict.label, f"{said}; {done}", ""))
        elif verdict.state == "kept":
            checked.findings.append(findings.error(verdict.label, f"{said}; it stays where it is", verdict.fix))
        elif verdict.state == "arriving":
            said += "; it is not adopted: it is still being copied, or its copying was cut off"
            checked.findings.append(findings.warning(verdict.label, said, COPY_AGAIN))
        if verdict.extra:
            said = f"{place}: {_few(verdict.extra)} beyond what its checksums cover; nothing reads that"
            checked.findings.append(findings.warning(verdict.label, said, "see who put it there"))
    return lost


def _links(links: Iterable[Pointer], verdicts: Iterable[Verdict], checked: Checked) -> list[Pointer]:
    """Remove pointers to what is not there, or not what they say, and return them: the next run makes them again."""
    known = {os.path.realpath(verdict.entry.place): verdict for verdict in verdicts}
    dead = []
    for link in links:
        wrong = _wrong_link(link, known)
        if wrong is None:
            continue
        link.path.unlink()
        dead.append(link)
        if wrong:
            checked.findings.append(findings.error(link.cell, f"{link.path} {wrong}; removed", REPORT))
    return dead


def _wrong_link(link: Pointer, known: Mapping[str, Verdict]) -> str | None:
    """Return what is wrong with a pointer, "" where that was said of what it points to, None where nothing is."""
    if link.place is None:
        return "cannot be read"
    verdict = known.get(os.path.realpath(link.place))
    if verdict is None:
        return None if link.place.exists() else f"points to {link.place}, which is gone"
    if verdict.state == "damaged":
        return ""
    try:
        matches = link.sha256 in (None, sha256_file(link.place / SUMS))
    except OSError:
        return None
    return None if matches else f"points to {link.place}, which holds another run by now"


def _tables(links: Iterable[Path], pool: Executor, checked: Checked) -> None:
    """Remove tables that cannot be read, with what was made from them."""
    paths = derived_files(links)
    for path, damage in zip(paths, pool.map(damage_in, paths), strict=True):
        if damage is not None:
            beside = [removed.name for removed in remove_derived(path) if removed != path]
            more = f" with {' and '.join(beside)} of its cell" if beside else ""
            said = f"{path} cannot be read: {damage}; removed{more}, made again in seconds"
            checked.findings.append(findings.error("a table", said, REPORT))


def _rest(found: Contents, checked: Checked) -> None:
    for path in found.strange:
        said = f"{path} has no place in a store; nothing reads it"
        checked.findings.append(findings.warning("no entry", said, "see who put it there"))
    kinds = {"failed": found.failed, "damaged": found.damaged, "partial": found.partial, "pruned": found.pruned}
    kept = [f"{len(entries)} in {name}/" for name, entries in kinds.items() if entries]
    if kept:
        checked.findings.append(findings.ok("never adopted", f"{', '.join(kept)}; snakemake prune shows them"))


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"

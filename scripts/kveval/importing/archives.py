"""The PCP archives that cover a level: chosen by the times that the archives themselves name, never by file names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.host.files import is_lfs_pointer
from kveval.pcp.archive.files import split_name
from kveval.pcp.archive.index import read_index
from kveval.pcp.archive.member import Member
from kveval.pcp.archive.problems import ProblemLog

# The index of a logger that was killed ends before its data does.
_UNINDEXED_NS = 120 * 10**9


@dataclass(frozen=True)
class Span:
    """An archive and the time it covers (ns since 1970 UTC); `end_ns` is None if it is not known.

    `paths` are relative to the tree, as given.
    """

    base: str
    host: str
    start_ns: int
    end_ns: int | None
    paths: tuple[str, ...]


def spans(root: Path, paths: Iterable[str]) -> tuple[list[Span], list[str]]:
    """Return the archives among `paths` in order of their starts, and what of them cannot be read, in words."""
    bases: dict[str, dict[str, Member]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if (parts := split_name(name)) is not None:
            base, part, suffix = parts
            bases.setdefault(f"{folder}/{base}", {})[path] = Member(root / path, suffix, part)
    found, problems = [], []
    for base, members in sorted(bases.items()):
        labels = [label for member in members.values() if (label := member.label()) is not None]
        if labels:
            first = min(labels, key=lambda label: label.start_ns)
            index = next((member for member in members.values() if member.name == "index"), None)
            times = [entry.time_ns for entry in read_index(index, first.version, ProblemLog())]
            # A logger that was killed before its second entry leaves an index of one, which does not give the end.
            end_ns = max((time for time in times if time > first.start_ns), default=None)
            found.append(Span(base, first.host, first.start_ns, end_ns, tuple(members)))
        else:
            pointer = any(is_lfs_pointer(_head(root / path)) for path in members)
            lacking = "Git LFS pointers, not the files: git lfs pull" if pointer else "no file starts with a label"
            problems.append(f"{base}: no PCP archive ({lacking})")
    return sorted(found, key=lambda span: (span.start_ns, span.base)), problems


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def covering(found: Sequence[Span], start_s: float, end_s: float) -> list[Span]:
    """Return the archives that may hold samples of a window in epoch seconds.

    An archive lasts until its index ends, and at most until the next one of its host begins; one that is alone is taken
    unless it begins after the window.
    """
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    chosen = []
    for number, span in enumerate(found):
        if span.start_ns > end_ns:
            continue
        later = [other.start_ns for other in found[number + 1 :] if other.host == span.host]
        limits = [min(later)] if later else []
        if span.end_ns is not None and len(found) > 1:
            limits.append(span.end_ns + _UNINDEXED_NS)
        if not limits or min(limits) >= start_ns:
            chosen.append(span)
    return chosen

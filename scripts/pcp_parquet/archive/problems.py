"""Problems of an archive, as data: each loss is reported, once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# A damaged archive may hold millions of bad records; each kind and file keeps this many in full, the rest is counted.
KEPT_PER_KIND = 20

# Kinds that mean that something recorded could not be read (the others describe the recording itself).
DAMAGE = frozenset(
    {
        "missing file",
        "truncated",
        "bad record",
        "bad metadata",
        "bad index",
        "unreadable",
        "foreign file",
        "too large",
    }
)
# A record may be missing, or have been left out by a program that copied the archive: nobody can tell.
PERHAPS_LOST = "odd index"


class ArchiveError(Exception):
    """The source is no PCP archive, or nothing in it can be read."""


@dataclass(frozen=True, slots=True)
class ArchiveProblem:
    """One finding: `kind` is a fixed word, `where` a file name, `offset` bytes from the start of that file."""

    kind: str
    where: str
    message: str
    offset: int | None = None

    @property
    def damage(self) -> bool:
        """True where data is lost; False where the recording has a gap, a clock step or a value without a column."""
        return self.kind in DAMAGE

    def __str__(self) -> str:
        at = "" if self.offset is None else f" at byte {self.offset:,}"
        return f"{self.kind}: {self.where}{at}: {self.message}"


@dataclass
class ProblemLog:
    """Collects problems in bounded memory."""

    items: list[ArchiveProblem] = field(default_factory=list)
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(
        self, kind: str, where: str, message: str, offset: int | None = None
    ) -> None:
        """Record a problem; after the first `KEPT_PER_KIND` of a kind in a file only count it."""
        self._seen[kind, where] += 1
        if self._seen[kind, where] <= KEPT_PER_KIND:
            self.items.append(ArchiveProblem(kind, where, message, offset))

    def all(self) -> list[ArchiveProblem]:
        """Every problem kept, and one line for each kind and file of which more were found."""
        more = [
            ArchiveProblem(kind, where, f"{count - KEPT_PER_KIND:,} more of this kind")
            for (kind, where), count in self._seen.items()
            if count > KEPT_PER_KIND
        ]
        return [*self.items, *more]

"""Names of metrics and instances in libpcp's order, and the lifetimes of instances, over the archives of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.meta import INDOM_NULL, Desc, InstanceList, Metadata

# For smaller domains libpcp does not consider when an instance appeared and disappeared.
LARGE_DOMAIN = 16


@dataclass(frozen=True)
class DomainInstances:
    """The instances of a domain: names in libpcp's order, and in large domains each one's lifetime (ns; -1: open)."""

    names: list[str]
    born_ns: dict[str, int]
    died_ns: dict[str, int]


class Inventory:
    """Names in the archives of a source: metrics in the order of libpcp's name space, instances of each domain."""

    def __init__(self, archives: Sequence[Metadata]) -> None:
        self._archives = archives
        self.descs: dict[int, Desc] = {}
        for metadata in archives:
            for pmid, desc in metadata.descs.items():
                self.descs.setdefault(pmid, desc)
        by_name = {
            name: desc.pmid for desc in self.descs.values() for name in desc.names
        }
        self.pmids: dict[str, int] = {}
        """PMID of each metric, under the first of its names, in order."""
        seen = set()
        for name in traversed(
            [name for metadata in archives for name in metadata.names]
        ):
            if name in by_name and by_name[name] not in seen:
                seen.add(by_name[name])
                self.pmids[name] = by_name[name]
        self._domains: dict[int, DomainInstances] = {}

    def instances(self, desc: Desc) -> DomainInstances | None:
        """The instances of a metric's domain, None for a singular metric."""
        if desc.indom == INDOM_NULL:
            return None
        if desc.indom not in self._domains:
            lists = [
                instance_list
                for metadata in self._archives
                for instance_list in metadata.instance_lists.get(desc.indom, [])
            ]
            names: dict[int, str] = {}
            for metadata in self._archives:
                if (history := metadata.domains.get(desc.indom)) is not None:
                    names.update(history.current)
            self._domains[desc.indom] = _instances(
                sorted(lists, key=lambda instance_list: instance_list.time), names
            )
        return self._domains[desc.indom]

    def lifetime(self, desc: Desc, name: str | None) -> tuple[int, int]:
        """Return when (ns) an instance of a metric entered and left its domain; -1: open, or not considered."""
        domain = self.instances(desc)
        if domain is None or name is None:
            return -1, -1
        return domain.born_ns.get(name, -1), domain.died_ns.get(name, -1)


def traversed(names: Sequence[str]) -> list[str]:
    """Names in the order in which libpcp walks its tree of them: at every branch the one created last comes first."""
    tree: dict[str, dict] = {}  # type: ignore[type-arg]
    for name in dict.fromkeys(names):
        node = tree
        for part in name.split("."):
            node = node.setdefault(part, {})
    ordered: list[str] = []
    waiting = list(tree.items())
    while waiting:
        name, node = waiting.pop()
        if not node:
            ordered.append(name)
        waiting += [(f"{name}.{part}", child) for part, child in node.items()]
    return ordered


def _instances(lists: Sequence[InstanceList], names: dict[int, str]) -> DomainInstances:
    """Instances in order of the last list that has them, the latest first, then of their number (signed)."""
    if not lists:
        return DomainInstances([], {}, {})
    universe = np.unique(
        np.concatenate([instance_list.instances for instance_list in lists])
    )
    first, last = (np.full(len(universe), -1, dtype=np.int64) for _ in range(2))
    current: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    largest = 0
    for number, instance_list in enumerate(lists):
        current = (
            instance_list.instances
            if instance_list.gone is None
            else _changed(current, instance_list.instances, instance_list.gone)
        )
        largest = max(largest, len(current))
        at = np.searchsorted(universe, current)
        first[at[first[at] < 0]] = number
        last[at] = number
    order = np.lexsort((universe.astype(np.uint32).view(np.int32), -last))
    numbers = universe[order[last[order] >= 0]].tolist()
    named = [(number, names[number]) for number in numbers if number in names]
    result = DomainInstances(list(dict.fromkeys(name for _, name in named)), {}, {})
    if largest >= LARGE_DOMAIN:
        times = [instance_list.time for instance_list in lists] + [-1]
        for number, name in named:
            slot = int(np.searchsorted(universe, number))
            born, died = times[first[slot]], times[last[slot] + 1]
            known = result.died_ns.get(name, 0)
            result.born_ns[name] = min(born, result.born_ns.get(name, born))
            result.died_ns[name] = -1 if -1 in (died, known) else max(died, known)
    return result


def _changed(
    current: NDArray[np.int64], instances: NDArray[np.int64], gone: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The instances after a list of changes to `current`, sorted."""
    kept = current[~np.isin(current, instances[gone])]
    return np.union1d(kept, instances[~gone])

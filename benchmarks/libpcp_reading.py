"""One archive as libpcp reads it, record by record: python libpcp_reading.py ARCHIVE OUT.pickle.

Runs under a Python that has the module `pcp` of PCP 7.2 or later. OUT holds a dictionary: arrays `times` (ns), `series`
(numbers of `names`, pairs of metric and instance) and `bits` (a double's bits, an integer's lowest 64), `texts` (time,
series, text), `metrics`, `labels` and `instances` (at some times of the recording), `marks`, `error` (of libpcp, where
it stopped before the end).
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from array import array
from ctypes import POINTER, byref, c_char_p, c_void_p, create_string_buffer, pointer
from pathlib import Path
from typing import Any

import cpmapi as c
from pcp import pmapi

LIBPCP = pmapi.LIBPCP
FIELDS = {
    **{
        c.PM_TYPE_32: "l",
        c.PM_TYPE_U32: "ul",
        c.PM_TYPE_64: "ll",
        c.PM_TYPE_U64: "ull",
    },
    **{c.PM_TYPE_FLOAT: "f", c.PM_TYPE_DOUBLE: "d", c.PM_TYPE_STRING: "cp"},
}
SEMANTICS = {
    c.PM_SEM_COUNTER: "counter",
    c.PM_SEM_INSTANT: "instant",
    c.PM_SEM_DISCRETE: "discrete",
}
LABEL_TIMES = 24
# Metrics of libpcp itself, in no archive.
OWN = ("event.flags", "event.missed")
MERGED_SIZE = 65536


def text(raw: bytes) -> str:
    """Decode bytes that may not be valid UTF-8."""
    return raw.decode("utf-8", "backslashreplace")


def taken(pointer_to_text: c_char_p) -> str:
    """Return a text that libpcp allocated, and free it."""
    found = text(pointer_to_text.value or b"")
    pmapi.LIBC.free(pointer_to_text)
    return found


class Reading:
    """The values of an archive; `result` is what OUT holds."""

    def __init__(self, archive: str) -> None:
        self.context = pmapi.pmContext(c.PM_CONTEXT_ARCHIVE, archive)
        self.numbers: dict[tuple[str, str | None], int] = {}
        self.descs: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        self.times, self.series, self.bits = array("q"), array("q"), array("Q")
        self.texts: list[tuple[int, int, str]] = []
        self.marks: list[int] = []
        self.moments: list[int] = []
        self.first: dict[str, int] = {}
        self.errors: dict[tuple[str, int], int] = {}
        self.others: dict[str, int] = {}

    def read(self) -> int:
        """Read every record; return the status code with which libpcp ended."""
        while True:
            record = POINTER(pmapi.pmResult)()
            status = int(LIBPCP.pmFetchArchive(byref(record)))
            if status < 0:
                return status
            found = record.contents
            time = found.timestamp.tv_sec * 10**9 + found.timestamp.tv_nsec
            self.moments.append(time)
            if not found.numpmid:
                self.marks.append(time)
            now: dict[tuple[int, int], str] = {}
            for number in range(found.numpmid):
                self.take(found, number, time, now)
            LIBPCP.pmFreeResult(record)

    def take(
        self, record: Any, number: int, time: int, now: dict[tuple[int, int], str]
    ) -> None:
        """Add the values of one value set."""
        pmid, count = record.get_pmid(number), record.get_numval(number)
        if (desc := self.desc(pmid)) is None:
            return
        metric = self.names[pmid]
        self.first.setdefault(metric, time)
        if count < 0:
            self.errors[metric, count] = self.errors.get((metric, count), 0) + 1
        if count <= 0:
            return
        if desc.type not in FIELDS:
            self.others[metric] = self.others.get(metric, 0) + count
            return
        values, form = record.get_vset(number).contents, record.get_valfmt(number)
        listed = pmapi.cast(values.vlist, POINTER(pmapi.pmValue))
        atom, field = pmapi.pmAtomValue(), FIELDS[desc.type]
        for place in range(count):
            value = listed[place]
            name: str | None = None
            if desc.indom != c.PM_INDOM_NULL:
                key = desc.indom, value.inst & 0xFFFFFFFF
                if key not in now:
                    now[key], _ = self.instance(*key)
                name = now[key]
            series = self.numbers.setdefault((metric, name), len(self.numbers))
            status = LIBPCP.pmExtractValue(
                form, byref(value), desc.type, byref(atom), desc.type
            )
            if status < 0:
                # Recorded in a block that is none of the metric's type: there is no value.
                self.others[metric] = self.others.get(metric, 0) + 1
                continue
            if desc.type == c.PM_TYPE_STRING:
                raw = (
                    pmapi.cast(atom.cp, c_char_p)
                    if not isinstance(atom.cp, bytes)
                    else c_char_p(atom.cp)
                )
                self.texts.append((time, series, text(raw.value or b"")))
                continue
            number_found = getattr(atom, field)
            if desc.type in (c.PM_TYPE_FLOAT, c.PM_TYPE_DOUBLE):
                bits = struct.unpack("Q", struct.pack("d", number_found))[0]
            else:
                bits = number_found & 0xFFFFFFFFFFFFFFFF
            self.times.append(time)
            self.series.append(series)
            self.bits.append(bits)

    def desc(self, pmid: int) -> Any:
        """Descriptor of a metric that the archive describes and names."""
        if pmid not in self.descs:
            desc, name = pmapi.pmDesc(), c_char_p()
            good = (
                LIBPCP.pmLookupDesc(pmid, byref(desc)) >= 0
                and LIBPCP.pmNameID(pmid, byref(name)) >= 0
            )
            self.descs[pmid] = desc if good else None
            if good:
                self.names[pmid] = taken(name)
        return self.descs[pmid]

    def instance(self, indom: int, number: int) -> tuple[str, bool]:
        """Name of an instance now, else at another time, else [NUMBER]; and whether it is the one of now."""
        name = c_char_p()
        if LIBPCP.pmNameInDom(indom, number, byref(name)) >= 0:
            return taken(name), True
        if LIBPCP.pmNameInDomArchive(indom, number, byref(name)) >= 0:
            return taken(name), False
        return f"[{number}]", False

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Every metric of the archive."""
        pmids: list[bytes] = []
        self.context.pmTraversePMNS(
            "",
            lambda name: pmids.append(name.encode() if isinstance(name, str) else name),
        )
        found: dict[str, dict[str, Any]] = {}
        for one in pmids:
            names, number = (c_char_p * 1)(one), (pmapi.c_uint * 1)()
            if text(one) in OWN:
                continue
            if (
                LIBPCP.pmLookupName(1, names, number) < 0
                or (desc := self.desc(number[0])) is None
            ):
                continue
            pmid = number[0]
            entry = found.setdefault(self.names[pmid], {"names": set(), "pmid": pmid})
            entry["names"].add(text(one))
            entry["type"] = text(LIBPCP.pmTypeStr(desc.type))
            entry["semantics"] = SEMANTICS.get(
                desc.sem, f"unknown semantics {desc.sem}"
            )
            entry["units"] = text(LIBPCP.pmUnitsStr(byref(desc.units)))
            entry["indom"] = (
                None
                if desc.indom == c.PM_INDOM_NULL
                else text(LIBPCP.pmInDomStr(desc.indom))
            )
            # If only one of the two texts exists, libpcp returns it for both.
            helps = self.help(pmid, c.PM_TEXT_ONELINE), self.help(pmid, c.PM_TEXT_HELP)
            entry["help"] = "\n".join(filter(None, dict.fromkeys(helps)))
        return found

    def help(self, pmid: int, kind: int) -> str:
        """Help text of a metric, "" if there is none."""
        found = c_char_p()
        return (
            taken(found) if LIBPCP.pmLookupText(pmid, kind, byref(found)) >= 0 else ""
        )

    def labels(self, metrics: dict[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
        """Merged labels of all metrics, and those of all instances, at some times of the recording.

        A metric's labels count from its first value on.
        """
        moments = sorted(set(self.moments))
        chosen = sorted(
            {*moments[:: max(1, len(moments) // LABEL_TIMES)], *moments[-1:]}
        )
        of_metrics, of_instances = [], []
        indoms = {desc.indom for desc in self.descs.values() if desc is not None} - {
            c.PM_INDOM_NULL
        }
        for time in chosen:
            origin = pmapi.timespec(time // 10**9, time % 10**9)
            self.context.pmSetMode(c.PM_MODE_FORW, origin, None)
            known = {
                name: entry
                for name, entry in metrics.items()
                if self.first.get(name, time + 1) <= time
            }
            of_metrics.append(
                (time, {name: merged(entry["pmid"]) for name, entry in known.items()})
            )
            for indom in indoms:
                sets = POINTER(pmapi.pmLabelSet)()
                count = LIBPCP.pmGetInstancesLabels(indom, byref(sets))
                found, elsewhere = {}, []
                for number in range(max(0, count)):
                    if sets[number].nlabels >= 0 and sets[number].json:
                        held = json.loads(text(sets[number].json))
                        name, now = self.instance(indom, sets[number].inst)
                        if now or name.startswith("["):
                            found[name] = held
                        else:
                            elsewhere.append(held)
                if count > 0:
                    LIBPCP.pmFreeLabelSets(sets, count)
                of_instances.append(
                    (time, text(LIBPCP.pmInDomStr(indom)), found, elsewhere)
                )
        return of_metrics, of_instances

    def result(self) -> dict[str, Any]:
        """What OUT holds."""
        status = self.read()
        metrics = self.metrics()
        labels, instances = self.labels(metrics)
        label = self.context.pmGetArchiveLabel()
        return {
            **{
                "times": self.times,
                "series": self.series,
                "bits": self.bits,
                "texts": self.texts,
            },
            **{"names": list(self.numbers), "marks": self.marks},
            **{"metrics": metrics, "labels": labels, "instances": instances},
            **{"errors": self.errors, "others": self.others},
            **{"host": text(label.hostname), "timezone": text(label.timezone)},
            "error": None
            if status == c.PM_ERR_EOL
            else text(pmapi.pmErr(status).message().encode()),
        }


def merged(pmid: int) -> dict[str, Any]:
    """Labels of a metric as pmLookupLabels and pmMergeLabelSets give them at the context's time."""
    sets = POINTER(pmapi.pmLabelSet)()
    count = LIBPCP.pmLookupLabels(pmid, byref(sets))
    if count <= 0:
        return {}
    listed = (POINTER(pmapi.pmLabelSet) * count)(
        *(pointer(sets[number]) for number in range(count))
    )
    room = create_string_buffer(MERGED_SIZE)
    size = MERGE(listed, count, room, MERGED_SIZE, None, None)
    LIBPCP.pmFreeLabelSets(sets, count)
    return json.loads(text(room.value)) if size > 0 else {}


MERGE = LIBPCP["pmMergeLabelSets"]
MERGE.argtypes = [c_void_p, pmapi.c_int, c_void_p, pmapi.c_int, c_void_p, c_void_p]


def main() -> None:
    """Read the archive; an error of libpcp at its opening is the only entry then."""
    archive, out = sys.argv[1:]
    for name in ("pmTypeStr", "pmUnitsStr", "pmInDomStr"):
        getattr(LIBPCP, name).restype = c_char_p
    LIBPCP.pmLookupLabels.argtypes = [pmapi.c_uint, POINTER(POINTER(pmapi.pmLabelSet))]
    LIBPCP.pmGetInstancesLabels.argtypes = [
        pmapi.c_uint,
        POINTER(POINTER(pmapi.pmLabelSet)),
    ]
    try:
        result = Reading(archive).result()
    except pmapi.pmErr as error:
        result = {"refused": error.message()}
    Path(out).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()

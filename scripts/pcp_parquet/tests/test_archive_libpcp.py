"""Equality with libpcp's own reading, value by value, on real archives (KVEVAL_TEST_DATA) and on recorded ones."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pcp_parquet.conversion.conversion import convert
from pcp_parquet.parquet.reading import describe
from pcp_parquet.tests.test_archive_writer import (
    STRING,
    U64,
    Metric,
    Writer,
    all_types,
    indom,
    pmid,
)

pytestmark = pytest.mark.workflow
DATA = os.environ.get("KVEVAL_TEST_DATA")
ARCHIVES = (
    sorted({path.name.split(".")[0] for path in Path(DATA, "pcp").glob("*.meta*")})
    if DATA
    else []
)

# Runs under the Python that has PCP's own module. One line per value: time ns, metric, instance, value; then per metric
# units, type, semantics. Integers are exact, doubles in hexadecimal.
LIBPCP = r"""
import json, sys
from ctypes import byref, cast, POINTER, c_char_p
import cpmapi as c
from pcp import pmapi
from pcp.pmapi import pmContext, pmErr
ctx = pmContext(c.PM_CONTEXT_ARCHIVE, sys.argv[1])
kinds = {c.PM_TYPE_32: "l", c.PM_TYPE_U32: "ul", c.PM_TYPE_64: "ll", c.PM_TYPE_U64: "ull", c.PM_TYPE_FLOAT: "f",
         c.PM_TYPE_DOUBLE: "d", c.PM_TYPE_STRING: "cp"}
descs, names, out = {}, {}, sys.stdout
while True:
    result = pmapi.POINTER(pmapi.pmHighResResult)()
    if pmapi.LIBPCP.pmFetchHighResArchive(byref(result)) < 0:
        break
    r = result.contents
    time, now = r.timestamp.tv_sec * 10**9 + r.timestamp.tv_nsec, {}
    for i in range(r.numpmid):
        pmid, count = r.get_pmid(i), r.get_numval(i)
        if count <= 0:
            continue
        if pmid not in descs:
            descs[pmid] = ctx.pmLookupDesc(pmid)
            names[pmid] = ctx.pmNameID(pmid)
        desc = descs[pmid]
        for j in range(count):
            inst = r.get_inst(i, j) & 0xffffffff
            if desc.contents.indom == c.PM_INDOM_NULL:
                name = None
            else:
                key = desc.contents.indom, inst
                if key not in now:
                    # A number not in the domain at that time has the name of another time, if the archive has one.
                    now[key] = "[%d]" % inst
                    for lookup in (ctx.pmNameInDom, ctx.pmNameInDomArchive):
                        try:
                            now[key] = lookup(desc, inst)
                            break
                        except pmErr:
                            pass
                name = now[key]
            kind = desc.contents.type
            if kind not in kinds:
                continue
            atom = ctx.pmExtractValue(r.get_valfmt(i), r.get_vlist(i, j), kind, kind)
            value = getattr(atom, kinds[kind])
            if kind == c.PM_TYPE_STRING:
                value = value.decode()
            elif kind in (c.PM_TYPE_FLOAT, c.PM_TYPE_DOUBLE):
                value = float(value).hex()
            out.write(json.dumps([time, names[pmid], name, value]) + "\n")
    pmapi.LIBPCP.pmFreeHighResResult(result)
print(json.dumps({names[p]: [ctx.pmUnitsStr(d.contents.units), ctx.pmTypeStr(d.contents.type), d.contents.sem]
                  for p, d in descs.items()}))
"""


def python_with_pcp() -> str:
    for python in (sys.executable, "/usr/bin/python3"):
        if (
            shutil.which(python)
            and not subprocess.run(
                [python, "-c", "import pcp.pmapi"], capture_output=True
            ).returncode
        ):
            return python
    pytest.skip(
        "no Python with PCP's module pcp.pmapi (Debian: python3-pcp) on this machine"
    )
    return ""


def libpcp_reading(archive: Path) -> tuple[Counter, dict]:
    run = subprocess.run(
        [python_with_pcp(), "-c", LIBPCP, str(archive)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    return Counter(map(tuple, lines[:-1])), lines[-1]


def our_reading(parquet: Path) -> Counter:
    table = pq.read_table(parquet)
    kinds = {name: info.type for name, info in describe(parquet).items()}
    rows = Counter()
    times = (
        table["timestamp"].cast(pa.timestamp("ns", tz="UTC")).cast("int64").to_pylist()
    )
    columns = [
        table[name].to_pylist()
        for name in ("metric", "instance", "value", "value_int", "text")
    ]
    for time, metric, instance, value, exact, text in zip(times, *columns, strict=True):
        kind = kinds[metric]
        shown = (
            text
            if kind == "string"
            else value.hex()
            if kind in ("float", "double")
            else int(exact or value)
        )
        rows[time, metric, instance, shown] += 1
    return rows


def assert_equal(archive: Path, tmp_path: Path) -> None:
    expected, descs = libpcp_reading(archive)
    summary = convert(archive, tmp_path / "ours.parquet")
    actual = our_reading(tmp_path / "ours.parquet")
    assert sum(expected.values()) > 0
    missing, invented = expected - actual, actual - expected
    assert not missing, (
        f"{sum(missing.values())} values of libpcp are not in ours, such as {next(iter(missing))}"
    )
    assert not invented, (
        f"{sum(invented.values())} values of ours are not in libpcp's, such as {next(iter(invented))}"
    )
    assert not summary.damaged
    semantics = {1: "counter", 3: "instant", 4: "discrete"}
    for name, (units, kind, sem) in descs.items():
        info = summary.metrics[name]
        assert (info.units, info.semantics) == (units, semantics[sem])
        assert (
            info.type.replace(" ", "").upper()
            == kind.replace("PM_TYPE_", "").replace(" ", "").upper()
        )


@pytest.mark.skipif(not DATA, reason="KVEVAL_TEST_DATA is not set: no real archives")
@pytest.mark.parametrize("name", ARCHIVES)
def test_real_archives(name: str, tmp_path: Path) -> None:
    assert_equal(Path(DATA or "", "pcp", name), tmp_path)


@pytest.mark.parametrize("version", [2, 3])
def test_every_type(version: int, tmp_path: Path) -> None:
    assert_equal(all_types(tmp_path, version).close(), tmp_path)


@pytest.mark.parametrize("version", [2, 3])
def test_volumes_reused_numbers_and_late_names(version: int, tmp_path: Path) -> None:
    writer = Writer(tmp_path, version=version)
    processes, second = indom(3, 9), 10**9
    writer.metric(Metric(pmid(3, 0, 0), ("proc.rss",), U64, processes))
    writer.metric(Metric(pmid(3, 0, 1), ("proc.cmd",), STRING, processes))
    names = {
        step: {10: f"000010 a{step // 3}", 20 + step: f"{20 + step:06} b"}
        for step in range(12)
    }
    for step in range(12):
        if step % 4 == 3:
            writer.volume()
        time = writer.start + step * second
        if step != 5:  # number 25 gets its name only with the next record
            writer.domain(
                time,
                processes,
                {**names[step], **({25: "000025 late"} if step == 6 else {})},
            )
        values = {number: 2**60 + number for number in names[step]}
        texts = {number: "x" * (number % 7) for number in names[step]}
        writer.record(time, {pmid(3, 0, 0): values, pmid(3, 0, 1): texts})
        if step == 7:
            writer.record(time + second // 2, {})
    assert_equal(writer.close(), tmp_path)


# PCP's own writer: every type, instances that come later, values that are left out.
LOGIMPORT = r"""
import sys
import cpmapi as c
from pcp import pmi
log = pmi.pmiLogImport(sys.argv[1])
if hasattr(log, "pmiSetVersion"):
    log.pmiSetVersion(int(sys.argv[2]))
log.pmiSetHostname("importer")
log.pmiSetTimezone("AEST-10")
domain = log.pmiInDom(60, 7)
units = log.pmiUnits(1, -1, 0, c.PM_SPACE_KBYTE, c.PM_TIME_SEC, 0)
kinds = ("32", "U32", "64", "U64", "FLOAT", "DOUBLE", "STRING")
for item, kind in enumerate(kinds):
    code = getattr(c, "PM_TYPE_" + kind)
    log.pmiAddMetric("import.one.k" + kind, log.pmiID(60, 0, item), code, c.PM_IN_NULL, c.PM_SEM_INSTANT, units)
    log.pmiAddMetric("import.many.k" + kind, log.pmiID(60, 1, item), code, domain, c.PM_SEM_COUNTER, units)
for step in range(40):
    if step % 10 == 0:
        log.pmiAddInstance(domain, "instance-%d" % step, step)
    for number, kind in enumerate(kinds):
        value = {"FLOAT": step / 7, "DOUBLE": step / 3e9, "STRING": "text " * (step % 5), "U64": 2**64 - 1 - step,
                 "64": -(2**63) + step, "32": -step}.get(kind, step)
        if (step + number) % 6:
            log.pmiPutValue("import.one.k" + kind, "", str(value))
        for instance in range(0, step + 1, 10):
            log.pmiPutValue("import.many.k" + kind, "instance-%d" % instance, str(value))
    log.pmiWrite(1700000000 + step, step * 1000)
log.pmiEnd()
"""


@pytest.mark.parametrize("version", [2, 3])
def test_an_archive_that_pcp_wrote_and_a_joined_one(
    version: int, tmp_path: Path
) -> None:
    python, sources = python_with_pcp(), [tmp_path / "first", tmp_path / "later"]
    for number, base in enumerate(sources):
        program = LOGIMPORT.replace("1700000000", f"17000{number}0000")
        subprocess.run(
            [python, "-c", program, str(base), str(version)],
            check=True,
            capture_output=True,
        )
    assert_equal(sources[0], tmp_path)
    if not shutil.which("pmlogextract"):
        pytest.skip("no pmlogextract on this machine (Debian: pcp)")
    # Several volumes, and a mark where one archive ends and the next begins.
    joined = tmp_path / "joined"
    subprocess.run(
        ["pmlogextract", "-v", "20", *map(str, sources), str(joined)],
        check=True,
        capture_output=True,
    )
    assert_equal(joined, tmp_path)
    info = convert(joined, tmp_path / "joined.parquet").info
    assert (len(info.marks_ns), info.timezone, info.host) == (1, "AEST-10", "importer")
    assert info.archives[0]["volumes"] > 1
    assert info.archives[0]["version"] == version

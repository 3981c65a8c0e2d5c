"""The other converter: PCP's own tool, here a stand-in that writes what `pcp2arrow -r` writes."""

import stat
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pcp_parquet.conversion.conversion import convert
from pcp_parquet.conversion.pcp2arrow import ToolError, from_pcp2arrow
from pcp_parquet.tests.test_archive_damage import archive
from pcp_parquet.tests.test_archive_writer import all_types

# As PCP 7 does in raw mode: one row a record, singular metrics null, a naive time stamp, a folder that must not exist.
TOOL = """#!{python}
import sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from pcp_parquet.conversion.conversion import convert
source, output = Path(sys.argv[sys.argv.index("-a") + 1]), Path(sys.argv[sys.argv.index("-o") + 1])
if "broken" in str(source):
    sys.exit("pcp2arrow: no such archive")
convert(source, output.with_suffix(".long"))
rows = pq.read_table(output.with_suffix(".long")).to_pylist()
kinds = {{"i32": pa.int32(), "u32": pa.uint32(), "i64": pa.int64(), "u64": pa.uint64(), "float": pa.float32(),
         "double": pa.float64(), "string": pa.string()}}
times = sorted({{row["timestamp"] for row in rows}})
columns = {{}}
for row in rows:
    name = row["metric"] + ("[%s]" % row["instance"] if row["instance"] else "")
    cells = columns.setdefault(name, [None] * len(times))
    value = row["text"] if row["text"] is not None else row["value_int"] or row["value"]
    if row["instance"]:
        cells[times.index(row["timestamp"])] = value if isinstance(value, (str, float)) else int(value)
arrays = [pa.array([time.replace(tzinfo=None) for time in times], pa.timestamp("ns"))]
for name, cells in columns.items():
    kind = kinds.get(name.split("[")[0].split(".")[1], pa.uint32())
    if not pa.types.is_string(kind) and not pa.types.is_floating(kind):
        cells = [None if cell is None else int(cell) for cell in cells]
    arrays.append(pa.array(cells, kind))
if "twice" in str(source):
    arrays[1:1] = [pa.nulls(len(times), array.type) for array in arrays[1:]]
    columns = [*columns, *columns]
output.mkdir()
pq.write_table(pa.Table.from_arrays(arrays, ["timestamp", *columns]), output / "part-0.parquet")
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bin" / "pcp2arrow"
    path.parent.mkdir()
    scripts = str(Path(__file__).resolve().parents[2])
    path.write_text(TOOL.format(python=sys.executable, scripts=scripts))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")


@pytest.mark.usefixtures("tool")
def test_the_same_long_form(tmp_path: Path) -> None:
    base = all_types(tmp_path, 3).close()
    theirs = from_pcp2arrow(base, tmp_path / "theirs.parquet")
    convert(base, tmp_path / "ours.parquet")
    ours = pq.read_table(tmp_path / "ours.parquet")
    expected = [row for row in ours.to_pylist() if row["instance"] is not None]
    read = pq.read_table(tmp_path / "theirs.parquet")
    assert read.schema.remove_metadata() == ours.schema.remove_metadata()
    assert read.to_pylist() == expected
    left_out = [problem for problem in theirs.problems if problem.where == "pcp2arrow"]
    assert {problem.kind for problem in left_out} == {"not converted"}
    assert len(left_out) == 7
    assert (
        sum(
            problem.message.startswith("5 of 5 ") and " one.u64 " in problem.message
            for problem in left_out
        )
        == 1
    )
    assert theirs.metrics["disk.u32"].units == "byte"


@pytest.mark.usefixtures("tool")
def test_of_columns_with_the_same_name_the_last_is_read(tmp_path: Path) -> None:
    for folder in ("once", "twice"):
        from_pcp2arrow(archive(tmp_path / folder), tmp_path / f"{folder}.parquet")
    assert pq.read_table(tmp_path / "twice.parquet").equals(
        pq.read_table(tmp_path / "once.parquet")
    )


@pytest.mark.usefixtures("tool")
def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no such archive"):
        from_pcp2arrow(archive(tmp_path / "broken"), tmp_path / "failed.parquet")
    assert not (tmp_path / "failed.parquet").exists()


def test_a_missing_tool_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match="not installed"):
        from_pcp2arrow(archive(tmp_path), tmp_path / "out.parquet")

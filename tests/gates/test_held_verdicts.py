"""Verdicts, intervals and codes stay the same whatever their tables are called: verdicts/ has them for every comparison.

So does what each peak is. Numbers are compared with a relative tolerance of 1e-9. The campaigns are those of campaigns.py:
made-up ones, those that an earlier version measured, and, with KVEVAL_TEST_DATA, results that were published.
KVEVAL_UPDATE_GOLDEN=1 holds what is made now.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.gates.campaigns import NAMES, PUBLISHED, STORED, real_data
from tests.gates.library import verdicts

pytestmark = pytest.mark.workflow
HELD = Path(__file__).resolve().parent / "verdicts"
COMPARED = ("table", "cell", "baseline", "level", "metric")
"""What names a verdict."""
NUMBERS = ("estimate", "low", "high")
TOLERANCE = 1e-9
Row = Mapping[str, str]
Verdicts = dict[tuple[str, ...], Row]


def by_name(rows: Iterable[Row]) -> Verdicts:
    listed = list(rows)
    named = {tuple(row[key] for key in COMPARED): row for row in listed}
    assert len(named) == len(listed)
    return dict(sorted(named.items()))


def equal(held: str, made: str) -> bool:
    """Whether two numbers are, of which one or both may be missing."""
    if not (held and made):
        return held == made
    return math.isclose(float(held), float(made), rel_tol=TOLERANCE, abs_tol=1e-12)


def differences(held: Verdicts, made: Verdicts) -> Iterator[str]:
    """Yield a line for each verdict that is missing or new, and for each value that is another."""
    for name in sorted(held.keys() | made.keys()):
        said = ", ".join(filter(None, name))
        if name not in made:
            yield f"missing: {said}"
        elif name not in held:
            yield f"new: {said}"
        else:
            for key, value in held[name].items():
                other = made[name][key]
                if not (equal(value, other) if key in NUMBERS else value == other):
                    yield f"{said}: {key} {value!r} -> {other!r}"


@pytest.mark.parametrize(
    "name", [*NAMES, *STORED, pytest.param(PUBLISHED, marks=real_data)]
)
def test_a_campaign_gets_the_verdicts_that_it_got(name: str, results: Path) -> None:
    folder = results / name / "results" / "campaigns" / name
    made = by_name(verdicts(folder))
    path = HELD / f"{name}.csv"
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        write(path, made.values())
    with path.open(newline="") as file:
        held = by_name(csv.DictReader(file))
    assert {name[0] for name in held} >= {"comparison", "peaks"}
    if said := [*differences(held, made)]:
        pytest.fail("\n".join(said), pytrace=False)


def write(path: Path, rows: Iterable[Row]) -> None:
    listed = list(rows)
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, listed[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)

"""Names and labels: legal, readable, and different for different things."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.engines.kubernetes.api.names import (
    OBJECT_LENGTH,
    label_value,
    labels,
    object_name,
    selector,
)

NAMES = st.text("abcXYZ0189._+-/", min_size=1, max_size=90)
LEGAL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


@given(NAMES)
def test_every_name_becomes_a_legal_label(text):
    value = label_value(text)
    assert len(value) <= 63
    assert LEGAL.fullmatch(value)


@given(NAMES, NAMES)
def test_different_names_stay_different(one, other):
    assert (one == other) == (label_value(one) == label_value(other))


def test_what_is_legal_stays_as_it_is():
    assert label_value("feb-2026") == "feb-2026"
    assert label_value("Qwen3-0.6B/native-offload/2000").startswith(
        "Qwen3-0.6B.native-offload.2000-"
    )


@given(NAMES, st.integers(1, 999), st.sampled_from(["epp", "model-server", "load-12"]))
def test_every_object_has_a_legal_name(cell, run, component):
    name = object_name(cell, run, component, "campaign")
    assert len(name) <= OBJECT_LENGTH
    # As a Service's name has to be.
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_cells_side_by_side_share_no_object():
    cells = [
        "m/native-offload/500",
        "m/native-offload/5000",
        "m/native.offload/500",
        "M/native-offload/500",
    ]
    names = {
        object_name(cell, run, component, campaign)
        for cell in cells
        for run in (1, 2)
        for component in ("epp", "model-server")
        for campaign in ("a", "b")
    }
    assert len(names) == len(cells) * 2 * 2 * 2


@pytest.mark.parametrize(
    "parts", [{}, {"cell": "m/s/1"}, {"campaign": "c", "run": 2, "component": "epp"}]
)
def test_a_selector_finds_what_it_names(parts):
    found = dict(term.split("=") for term in selector(**parts).split(","))
    assert found.items() <= labels("c", "m/s/1", 2, "0123", "epp").items()
    assert len(found) == 1 + len(parts)

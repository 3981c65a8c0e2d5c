"""Cores divided between the server and what stands beside it, and processes that keep to theirs."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.host.cores import divided, on_cores, usable


@given(st.sets(st.integers(0, 200), min_size=1))
def test_every_core_is_somebodys_and_none_is_boths_where_there_are_two(cores):
    found = divided(cores)
    assert found.server | found.beside == cores
    assert found.server
    assert found.beside
    assert not (found.server & found.beside) or len(cores) == 1
    assert len(found.beside) <= max(1, len(cores) // 4)


def test_the_division_is_the_same_every_time():
    assert divided([1, 0]) == divided({0, 1})
    assert divided(range(16)).beside == {12, 13, 14, 15}


def cores_of_a_child():
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_processes_started_meanwhile_keep_to_the_cores_and_this_one_gets_its_own_back():
    before = usable()
    one = {min(before)}
    with on_cores(one):
        assert os.sched_getaffinity(0) == one
        assert cores_of_a_child() == str(sorted(one))
    assert usable() == before


def test_cores_come_back_after_a_failure():
    before = usable()
    with pytest.raises(KeyError), on_cores({max(before)}):
        raise KeyError
    assert usable() == before

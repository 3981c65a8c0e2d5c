"""The fixed piece of work: on whose cores it is done, and that it never fails a run."""

import os

import pytest

from kveval.host import work


def test_the_time_of_the_work_grows_with_it_and_leaves_this_thread_on_its_cores() -> (
    None
):
    before = os.sched_getaffinity(0)
    own = [os.getpid()]
    short, long = (work.work_ms(own, rounds) for rounds in (1_000, 40_000))
    assert short is not None and long is not None
    assert 0 < 5 * short < long
    assert os.sched_getaffinity(0) == before


def test_it_is_done_on_the_cores_of_these_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(work, "_cores_of", lambda process: {core})
    seen = []

    def done(*_: object) -> bytes:
        seen.append(os.sched_getaffinity(0))
        return b""

    monkeypatch.setattr(work.hashlib, "pbkdf2_hmac", done)
    assert work.work_ms([1]) is not None
    assert seen == [{core}]


def test_what_fails_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work.work_ms([]) is None
    assert work.work_ms([2**22 + 1]) is None

    def refuse(*_: object) -> bytes:
        raise ValueError("not with this library")

    monkeypatch.setattr(work.hashlib, "pbkdf2_hmac", refuse)
    assert work.work_ms([os.getpid()]) is None

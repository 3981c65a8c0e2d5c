"""What the smallest environments leave out, and what they take from the host."""

import json
import struct
import tomllib
from pathlib import Path

import pytest
from tests.support.paths import REPOSITORY

from kveval.host.setup.gpu_code import MAGIC
from kveval.host.setup.smallest import (
    choose,
    main,
    packages_of_host,
    read_rules,
    require_torch,
    trim,
)
from kveval.host.setup.wheels import applicable_entries, environment_of

RULES = REPOSITORY / "envs" / "smallest.toml"
LOCKS = ("workflow", "server-gpu", "lmcache-gpu")


def entries(*locks: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for lock in locks:
        text = (REPOSITORY / "envs" / f"{lock}.lock").read_text()
        found |= applicable_entries(text, environment_of("3.12"))
    return found


def test_every_package_named_is_locked_and_every_omission_has_a_reason() -> None:
    rules = read_rules(RULES)
    known = entries(*LOCKS).keys()
    assert rules.left_out.keys() | rules.of_host.keys() <= known
    assert not rules.left_out.keys() & rules.of_host.keys()
    for table in (rules.left_out, rules.of_host, rules.files, rules.environment):
        assert all(table.values())


def test_what_the_workflow_and_load_need_is_never_left_out() -> None:
    rules = read_rules(RULES)
    assert not rules.left_out.keys() & entries("workflow").keys()
    assert {"vllm", "guidellm", "lmcache", "nvidia-ml-py"} <= (
        choose(entries("server-gpu", "lmcache-gpu"), rules, {}).included.keys()
    )


def test_only_large_packages_are_taken_from_the_host_and_only_if_it_has_them() -> None:
    rules = read_rules(RULES)
    locked = {
        "numpy": "numpy==2.4.6",
        "requests": "requests==2.34.2",
        "scipy": "scipy==1",
    }
    host = {"numpy": "2.5.2", "requests": "2.0"}
    choice = choose(locked, rules, host)
    assert choice.of_host == {"numpy": ("2.4.6", "2.5.2")}
    assert choice.included.keys() == {"requests", "scipy"}


def test_a_list_of_packages_is_read_as_pip_prints_it() -> None:
    text = "# comment\nTorch==2.11.0+cu130\nopencv_python==5\nmine @ file:///x\n-e /here\n\n"
    assert packages_of_host(text) == {"torch": "2.11.0+cu130", "opencv-python": "5"}
    with pytest.raises(ValueError, match="line 1 is not NAME==VERSION"):
        packages_of_host("Package    Version\n")


@pytest.mark.parametrize("there", [{}, {"torch": "2.10.0", "triton": "3.6.0"}])
def test_a_host_without_the_torch_is_refused(there: dict[str, str]) -> None:
    locked = {"torch": "torch==2.11.0", "triton": "triton==3.6.0"}
    require_torch({"torch": "2.11.0+cu130", "triton": "3.6.0"}, locked)
    with pytest.raises(ValueError, match=r"torch, and the server needs 2\.11\.0"):
        require_torch(there, locked)


def test_the_files_of_a_tree_are_made_few(tmp_path: Path) -> None:
    tree = tmp_path / "server"
    code = b"".join(
        struct.pack("<HHIQ12xI", 2, 0x101, 32, 8, capability) + b"abcdefgh"
        for capability in (80, 90)
    )
    library = struct.pack("<4sHHQ", MAGIC, 1, 16, len(code)) + code
    files = {
        "vllm/_C.abi3.so": b"\x7fELF" + library,
        "vllm/module.py": b"pass",
        "vllm/a.cpython-312-x86_64-linux-gnu.so": b"own",
        "vllm/a.cpython-311-x86_64-linux-gnu.so": b"other",
        "vllm/lib/static.a": b"x",
        "vllm/tests/test_a.py": b"x",
        "vllm/third_party/fmha_sm100/kernel.so": b"x",
        "vllm.dist-info/RECORD": b"x",
        "bin/vllm": b"x",
    }
    for name, content in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(content)
    freed = trim(tree, read_rules(RULES), "9.0", "3.12")
    left = {
        path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()
    }
    assert left == {
        "vllm/_C.abi3.so",
        "vllm/module.py",
        "vllm/a.cpython-312-x86_64-linux-gnu.so",
        "vllm.dist-info/RECORD",
    }
    assert freed["overwritten"] == 8
    assert (tree / "vllm" / "_C.abi3.so").read_bytes().count(b"abcdefgh") == 1


def test_of_another_gpu_other_files_stay(tmp_path: Path) -> None:
    kernel = tmp_path / "vllm" / "third_party" / "fmha_sm100" / "kernel.py"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    trim(tmp_path, read_rules(RULES), "10.0", "3.12")
    assert kernel.exists()


def test_requirements_and_facts_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = applicable_entries(
        (REPOSITORY / "envs" / "torch-gpu.lock").read_text(), environment_of("3.12")
    )
    host = tmp_path / "host.txt"
    versions = [torch[name].split()[0] for name in ("torch", "triton")]
    host.write_text("\n".join([*versions, "numpy==2.5.2", ""]))
    lock = tmp_path / "some.lock"
    lock.write_text(
        "numpy==2.4.6 ; python_version >= '3.12' --hash=sha256:00\nvllm==0.26.0\ntilelang==1\n"
    )
    arguments = [
        *("requirements", "--environment", "server", "--host-has", str(host)),
        *("--torch-lock", str(REPOSITORY / "envs" / "torch-gpu.lock")),
        *("--rules", str(RULES), "--python", "3.12", "--out", str(tmp_path), str(lock)),
    ]
    assert main([*arguments, "--gpu-code", "9.0"]) == 0
    assert (tmp_path / "server.txt").read_text() == "vllm==0.26.0\n"
    facts = json.loads((tmp_path / "server.json").read_text())
    assert facts["included"] == {"vllm": "0.26.0"}
    assert facts["of_host"] == {"numpy": "2.4.6"}
    assert facts["left_out"].keys() == {"tilelang"}
    assert facts["environment"] == tomllib.loads(RULES.read_text())["environment"]
    assert "numpy 2.5.2 (2.4.6)" in capsys.readouterr().out
    assert main([*arguments, "--gpu-code", "ninety"]) == 1
    assert "9.0, for example" in capsys.readouterr().err

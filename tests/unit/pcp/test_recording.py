"""The private PCP without a recording: configuration texts, archives that are not there, errors."""

import re
from pathlib import Path

import pytest
from tests.support.fault_chain import needs_pcp

from kveval.host.processes import supervisor
from kveval.pcp import archive_tools as recording_archive
from kveval.pcp import installation as recording_pcp
from kveval.pcp.archive_tools import pack_archives, verify_archive
from kveval.pcp.installation import Pcp, RecordingError, pmcd_conf, pmlogger_conf, read_pcp_conf, require_pcp
from kveval.pcp.recording import RecordingSettings, dead_agents, recording

RUNNING = "openmetrics.vllm.vllm.num_requests_running"


def make_pcp(root: Path) -> Pcp:
    return Pcp(
        "6.3.8",
        root / "bin",
        root / "libexec",
        root / "pmdas",
        root / "var/pmdas",
        (root / "pmns",),
        "/usr/bin/python3",
    )


def test_pmcd_conf_answers_the_socket_only(tmp_path: Path) -> None:
    text = pmcd_conf(make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=True, nvidia=False)
    agents, access = text.split("[access]")
    assert [line.split()[:2] for line in agents.strip().splitlines()] == [
        ["pmcd", "2"],
        ["linux", "60"],
        ["proc", "3"],
        ["openmetrics", "144"],
    ]
    assert "binary notready /usr/bin/python3" in agents
    assert access.split("\n")[1:4] == [
        'disallow ".*" : all;',
        'disallow ":*" : all;',
        'allow "unix:*" : all;',
    ]


def test_pmcd_conf_takes_the_domain_of_the_nvidia_agent_from_its_header(tmp_path: Path) -> None:
    (tmp_path / "pmdas/nvidia").mkdir(parents=True)
    header = tmp_path / "pmdas/nvidia/domain.h"
    header.write_text("/* built */\n#define NVML 120\n")
    text = pmcd_conf(make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=False, nvidia=True)
    assert "nvidia 120 pipe binary" in text
    assert "openmetrics" not in text
    header.write_text("")
    with pytest.raises(RecordingError, match=re.escape(str(header))) as error:
        pmcd_conf(make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=False, nvidia=True)
    assert error.value.code == "no_nvml_domain"


def test_pmlogger_conf_selects_processes_and_leaves_absent_gpus_out() -> None:
    text = pmlogger_conf((12, 345), nvidia=False)
    assert "nvidia" not in text
    assert "    kernel.all.load\n" in text
    assert "    proc.psinfo.rss [ 12, 345 ]\n" in text
    assert "    nvidia.power\n" in pmlogger_conf((), nvidia=True)
    assert "proc." not in pmlogger_conf((), nvidia=True)


def test_no_command_line_is_recorded() -> None:
    text = pmlogger_conf((1,), nvidia=True)
    subtrees = re.findall(r"^ +((?:hot)?proc[\w.]*)", text, re.MULTILINE)
    assert len(subtrees) > 10
    assert not {"proc", "proc.psinfo"} & set(subtrees)
    assert not [name for name in subtrees if name.endswith((".psargs", ".environ", ".cmd", ".labels"))]


def test_dead_agents_are_named() -> None:
    text = '\npmcd.agent.status\n    inst [2 or "pmcd"] value 0\n    inst [144 or "openmetrics"] value 9\n'
    assert dead_agents(text) == ["openmetrics"]


# Finding PCP


def test_pcp_conf_is_overridden_by_the_environment(tmp_path: Path) -> None:
    conf = tmp_path / "pcp.conf"
    conf.write_text('# comment\nPCP_BIN_DIR=/usr/bin\nPCP_AWK_PROG="/usr/bin/gawk --posix"\nPCP_VAR_DIR=/var/lib/pcp\n')
    settings = read_pcp_conf({"PCP_CONF": str(conf), "PCP_VAR_DIR": "/elsewhere", "PATH": "/bin"})
    assert settings == {
        "PCP_BIN_DIR": "/usr/bin",
        "PCP_AWK_PROG": "/usr/bin/gawk --posix",
        "PCP_VAR_DIR": "/elsewhere",
    }


def test_without_pcp_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCP_CONF", str(tmp_path / "none.conf"))
    with pytest.raises(RecordingError, match=recording_pcp.PACKAGES) as required:
        require_pcp()
    with (
        pytest.raises(RecordingError) as wanted,
        supervisor(tmp_path / "processes.json") as processes,
        recording(tmp_path / "w", RecordingSettings(), processes),
    ):
        pass
    assert required.value.code == wanted.value.code == "not_installed"
    assert not (tmp_path / "w").exists()


def test_an_old_pcp_and_a_broken_one_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = tmp_path / "pcp.conf"
    monkeypatch.setenv("PCP_CONF", str(conf))
    conf.write_text("PCP_VERSION=5.3.7\n")
    with pytest.raises(RecordingError) as incomplete:
        require_pcp()
    keys = ("PCP_BIN_DIR", "PCP_BINADM_DIR", "PCP_PMDAS_DIR", "PCP_PMDASADM_DIR", "PCP_VAR_DIR")
    assert (incomplete.value.code, incomplete.value.facts) == ("incomplete_pcp_conf", {"missing": sorted(keys)})
    paths = "".join(f"{key}={tmp_path}\n" for key in keys)
    conf.write_text(paths + "PCP_VERSION=5.3.7\n")
    with pytest.raises(RecordingError, match=r"6\.0\.0") as old:
        require_pcp()
    assert (old.value.code, old.value.facts) == ("too_old", {"version": "5.3.7"})
    monkeypatch.setattr(recording_pcp, "_agent_python", lambda _: "/usr/bin/python3")
    conf.write_text(paths + "PCP_VERSION=6.3.8\n")
    with pytest.raises(RecordingError, match=recording_pcp.PACKAGES) as broken:
        require_pcp()
    assert (broken.value.code, broken.value.facts) == ("no_program", {"program": "pmcd"})


# Errors before anything starts


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as error:
        pack_archives([tmp_path / "pcp"], tmp_path / "pcp.tar.zst")
    assert error.value.code == "no_archive"
    assert list(tmp_path.iterdir()) == []


@needs_pcp
def test_a_level_with_too_few_samples_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that was silent for most of a level, while the archive as a whole looks sound."""

    def samples(pcp: Pcp, base: Path, window_s: tuple[float, float], metrics: list[str]) -> dict[str, int]:
        silent = window_s[0] >= 40
        return dict.fromkeys(metrics, 3 if silent else 20)

    (tmp_path / "pcp.0").touch()
    monkeypatch.setattr(recording_archive, "_run", lambda *_, **__: RUNNING)
    monkeypatch.setattr(recording_archive, "_span", lambda *_: (1000.0, 1070.0))
    monkeypatch.setattr(recording_archive, "_samples", samples)
    levels = [(1010.0, 1030.0), (1040.0, 1060.0)]
    settings = {"start": 1010.0, "end": 1060.0, "required": [RUNNING]}
    verify_archive(tmp_path / "pcp", windows=levels[:1], **settings)
    with pytest.raises(RecordingError, match=r"1970-01-01T00:17:20.*Z") as error:
        verify_archive(tmp_path / "pcp", windows=levels, **settings)
    assert error.value.code == "too_few_samples"
    assert error.value.facts == {"window_s": levels[1], "due": 6, "sparse": {RUNNING: 3}}


@needs_pcp
def test_an_archive_that_is_not_there_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as error:
        verify_archive(tmp_path / "pcp", start=0, end=1, required=[])
    assert error.value.code == "no_archive"

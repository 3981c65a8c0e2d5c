"""The private PCP without a recording: configuration texts, archives that are not there, errors."""

import re
from pathlib import Path
from typing import Any

import pytest

from kveval.host.processes import supervisor
from kveval.pcp import installation as recording_pcp
from kveval.pcp.archive_tools import pack_archives
from kveval.pcp.installation import (
    Pcp,
    RecordingError,
    pmcd_conf,
    pmlogger_conf,
    read_pcp_conf,
    require_pcp,
)
from kveval.pcp.recording import RecordingSettings, dead_agents, recording
from kveval.pcp.verification import verify_recording
from pcp_parquet.tests.test_archive_writer import NULL, U32, Metric, Writer, pmid

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
    text = pmcd_conf(
        make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=True, nvidia=False
    )
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


def test_pmcd_conf_takes_the_domain_of_the_nvidia_agent_from_its_header(
    tmp_path: Path,
) -> None:
    (tmp_path / "pmdas/nvidia").mkdir(parents=True)
    header = tmp_path / "pmdas/nvidia/domain.h"
    header.write_text("/* built */\n#define NVML 120\n")
    text = pmcd_conf(
        make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=False, nvidia=True
    )
    assert "nvidia 120 pipe binary" in text
    assert "openmetrics" not in text
    header.write_text("")
    with pytest.raises(RecordingError, match=re.escape(str(header))) as error:
        pmcd_conf(
            make_pcp(tmp_path), tmp_path / "d", user="me", endpoints=False, nvidia=True
        )
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
    assert not [
        name
        for name in subtrees
        if name.endswith((".psargs", ".environ", ".cmd", ".labels"))
    ]


def test_dead_agents_are_named() -> None:
    text = '\npmcd.agent.status\n    inst [2 or "pmcd"] value 0\n    inst [144 or "openmetrics"] value 9\n'
    assert dead_agents(text) == ["openmetrics"]


# Finding PCP


def test_pcp_conf_is_overridden_by_the_environment(tmp_path: Path) -> None:
    conf = tmp_path / "pcp.conf"
    conf.write_text(
        '# comment\nPCP_BIN_DIR=/usr/bin\nPCP_AWK_PROG="/usr/bin/gawk --posix"\nPCP_VAR_DIR=/var/lib/pcp\n'
    )
    settings = read_pcp_conf(
        {"PCP_CONF": str(conf), "PCP_VAR_DIR": "/elsewhere", "PATH": "/bin"}
    )
    assert settings == {
        "PCP_BIN_DIR": "/usr/bin",
        "PCP_AWK_PROG": "/usr/bin/gawk --posix",
        "PCP_VAR_DIR": "/elsewhere",
    }


def test_without_pcp_the_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_old_pcp_and_a_broken_one_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "pcp.conf"
    monkeypatch.setenv("PCP_CONF", str(conf))
    conf.write_text("PCP_VERSION=5.3.7\n")
    with pytest.raises(RecordingError) as incomplete:
        require_pcp()
    keys = (
        "PCP_BIN_DIR",
        "PCP_BINADM_DIR",
        "PCP_PMDAS_DIR",
        "PCP_PMDASADM_DIR",
        "PCP_VAR_DIR",
    )
    assert (incomplete.value.code, incomplete.value.facts) == (
        "incomplete_pcp_conf",
        {"missing": sorted(keys)},
    )
    paths = "".join(f"{key}={tmp_path}\n" for key in keys)
    conf.write_text(paths + "PCP_VERSION=5.3.7\n")
    with pytest.raises(RecordingError, match=r"6\.0\.0") as old:
        require_pcp()
    assert (old.value.code, old.value.facts) == ("too_old", {"version": "5.3.7"})
    monkeypatch.setattr(recording_pcp, "_agent_python", lambda _: "/usr/bin/python3")
    conf.write_text(paths + "PCP_VERSION=6.3.8\n")
    with pytest.raises(RecordingError, match=recording_pcp.PACKAGES) as broken:
        require_pcp()
    assert (broken.value.code, broken.value.facts) == (
        "no_program",
        {"program": "pmcd"},
    )


# Errors before anything starts


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as error:
        pack_archives([tmp_path / "pcp"], tmp_path / "pcp.tar.zst")
    assert error.value.code == "no_archive"
    assert list(tmp_path.iterdir()) == []


def test_a_level_with_too_few_samples_is_named(tmp_path: Path) -> None:
    """An agent that was silent for most of a level, while the archive as a whole looks sound."""
    running = Metric(pmid(144, 0, 0), (RUNNING,), U32)
    load = Metric(pmid(60, 2, 0), ("kernel.all.load",), U32)
    writer = Writer(tmp_path, "pcp", 3, start=1000 * 10**9)
    writer.metric(running)
    writer.metric(load)
    for second in range(1000, 1071):
        values = {load.pmid: {NULL: second}}
        silent = 1040 <= second <= 1060 and second % 7
        writer.record(
            second * 10**9, values if silent else values | {running.pmid: {NULL: 1}}
        )
    base = writer.close()
    levels = [(1010.0, 1030.0), (1040.0, 1060.0)]
    settings: dict[str, Any] = {
        "start": 1010.0,
        "end": 1060.0,
        "required": [RUNNING, "kernel.all.load"],
    }
    facts = verify_recording(base, windows=levels[:1], **settings)
    assert (facts.start, facts.end, facts.metrics) == (1000, 1070, 2)
    assert facts.samples == {RUNNING: 37, "kernel.all.load": 55}
    with pytest.raises(RecordingError, match=r"1970-01-01T00:17:20.*Z") as error:
        verify_recording(base, windows=levels, **settings)
    assert error.value.code == "too_few_samples"
    assert error.value.facts == {
        "window_s": levels[1],
        "due": 6,
        "sparse": {RUNNING: 3},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pcp.0",
        "pcp.index",
        "pcp.meta",
    ]
    with base.with_name("pcp.0").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 10)
    with pytest.raises(RecordingError, match="truncated") as damaged:
        verify_recording(base, **settings)
    assert damaged.value.code == "damaged"


def test_a_recording_without_its_last_record_is_damaged(tmp_path: Path) -> None:
    load = Metric(pmid(60, 2, 0), ("kernel.all.load",), U32)
    writer = Writer(tmp_path, "pcp", 3, start=1000 * 10**9)
    writer.metric(load)
    for second in range(1000, 1011):
        writer.record(
            second * 10**9, {load.pmid: {NULL: second}}, index=second in (1000, 1010)
        )
    base = writer.close()
    window: dict[str, Any] = {
        "start": 1001.0,
        "end": 1009.0,
        "required": ["kernel.all.load"],
    }
    assert verify_recording(base, **window).end == 1010
    volume = base.with_name("pcp.0").read_bytes()
    size = int.from_bytes(volume[-4:], "big")
    base.with_name("pcp.0").write_bytes(volume[:-size])
    with pytest.raises(
        RecordingError, match="by the index a record of 1970-01-01T00:16:50"
    ) as error:
        verify_recording(base, **window)
    assert error.value.code == "damaged"


def test_an_archive_that_is_not_there_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as error:
        verify_recording(tmp_path / "pcp", start=0, end=1, required=[])
    assert error.value.code == "no_archive"

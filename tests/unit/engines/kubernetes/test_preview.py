"""`snakemake preview` of a cluster campaign: every document of a cell as YAML, and nothing else."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from tests.support.cluster_cells import cells, variants
from tests.support.config_files import RELEASES
from tests.support.paths import copy_parts

from kveval.engines.kubernetes.manifests.recorder import recording_documents
from kveval.engines.kubernetes.manifests.rendering import context_of, render
from kveval.engines.kubernetes.preview import preview_text


def previewed(specification, site):
    return list(
        yaml.load_all(preview_text(specification, site, "c"), Loader=yaml.CSafeLoader)
    )


@pytest.mark.parametrize("release", RELEASES)
def test_the_preview_is_what_would_be_deployed(release):
    specifications, site = cells(release)
    for path in ("Qwen3-14B/llm-d-redis/0", "Qwen3-32B-AWQ/hybrid/20000"):
        found = previewed(specifications[path], site)
        serving = render(context_of(specifications[path], site, 1, "c"))
        for document in (*serving, *recording_documents("c", site)):
            assert document in found
        # A campaign's recorder goes with its own.
        kinds = Counter(document["kind"] for document in found)
        assert (kinds["Job"], kinds["Lease"]) == (4, 3)


def test_the_measurement_is_named_and_what_ends_a_run_with_what_belongs_to_it():
    specifications, site = cells(RELEASES[0])
    specification = specifications["Qwen3-8B/no-offload/0"]
    text = preview_text(specification, site, "c")
    first = text.splitlines()[0]
    assert first.startswith("# Qwen3-8B/no-offload/0: measurement ")
    assert specification.measurement_id in first
    lives = [
        document["metadata"]["name"]
        for document in previewed(specification, site)
        if document["metadata"].get("labels", {}).get("kveval.dev/component")
        in ("lifetime", "recorder")
        and document["kind"] == "Job"
    ]
    assert len(lives) == 2
    assert all(f"Job {name}" in text for name in lives)


def test_the_load_is_the_command_that_would_run():
    specifications, site = variants(RELEASES[1])[3]
    found = previewed(specifications["Qwen3-0.6B/native-offload/2000"], site)
    (job,) = [
        document
        for document in found
        if document["metadata"].get("labels", {}).get("kveval.dev/component") == "load"
        and document["kind"] == "Job"
    ]
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["guidellm", "run"]
    assert any("target=http://127.0.0.1:8000," in part for part in command)
    assert "kind=hf_auto,model=/model" in command


@pytest.mark.workflow
def test_snakemake_writes_the_preview(tmp_path):
    parts = ("Snakefile", "config", "manifests", "profiles", "rules", "scripts", "envs")
    copy_parts(tmp_path, parts)
    # Braces of a site are no wildcards.
    site = {
        "address": "http://10.0.0.9:{port}",
        "recorder": {"sources": {"dcgm": "http://{host}:9400/metrics"}},
    }
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    snakemake = Path(sys.executable).parent / "snakemake"
    campaign = "config/campaigns/cluster-first.yaml"
    done = subprocess.run(
        [
            str(snakemake),
            "--cores",
            "1",
            "preview",
            "--config",
            "site=site.yaml",
            "--configfile",
            campaign,
        ],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{snakemake.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = sorted(
        tmp_path.glob("results/campaigns/cluster-first/*/*/*/deployment.yaml")
    )
    assert len(found) == 2
    for file in found:
        kinds = [document["kind"] for document in yaml.safe_load_all(file.read_text())]
        assert {
            "Deployment",
            "Service",
            "PersistentVolumeClaim",
            "Job",
            "DaemonSet",
        } <= set(kinds)

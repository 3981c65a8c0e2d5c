"""What is asked around a campaign on a cluster, as kveval and snakemake take it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.support.command import kveval
from tests.support.config_files import CONFIG, ROOT

pytestmark = pytest.mark.workflow
FIRST = yaml.safe_load((CONFIG / "campaigns" / "cluster-first.yaml").read_text())


@pytest.fixture
def campaign(tmp_path):
    """A campaign file whose cluster does not exist, its name the test's own; what it logs is removed."""
    name = f"targets-{tmp_path.name}"
    kubeconfig = tmp_path / "kubeconfig"
    server = {"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "clusters": [server],
                "contexts": [context],
                "users": [user],
                "current-context": "c",
            }
        )
    )
    file = tmp_path / "campaign.yaml"
    cluster = {**FIRST["cluster"], "kubeconfig": str(kubeconfig), "slots": 3}
    file.write_text(
        yaml.safe_dump(
            {**FIRST, "name": name, "results": f"results/{name}", "cluster": cluster}
        )
    )
    yield file, ROOT / "logs" / name
    for log in (ROOT / "logs" / name).glob("*"):
        log.unlink()
    if (ROOT / "logs" / name).exists():
        (ROOT / "logs" / name).rmdir()


def snakemake(file, *arguments):
    program = str(Path(sys.executable).parent / "snakemake")
    command = [
        program,
        "--nolock",
        "--configfile",
        str(file),
        "--workflow-profile",
        "profiles/kubernetes",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_cells_on_a_cluster_take_no_more_than_one_core_here(campaign):
    done = snakemake(campaign[0], "--dry-run", "peaks")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Measuring Qwen3-0.6B-small-cache/native-offload/16000, run 1" in said
    # Any number of cores: the job itself only asks and waits.
    assert "threads" not in said


def test_a_cluster_that_is_not_there_is_said_with_a_fix(campaign):
    file, logs = campaign
    code, output = kveval(ROOT, "doctor", str(file))
    assert code == 1
    assert "ERROR    API server" in output
    assert "fix: cluster.context, cluster.kubeconfig" in output
    # As many cells would be measured at once as there are slots, without being told: nothing is said of that.
    assert (logs / "doctor.log").read_text().splitlines()[
        -1
    ] == "1 error, 0 warnings, 1 ok"
    said = " ".join(kveval(ROOT, "doctor", str(file), "--slots", "2")[1].split())
    assert re.search(
        r"warning slots measurement_slot .*\b2\b.*cluster\.slots is 3", said
    )


def test_a_teardown_that_cannot_look_fails(campaign):
    file, _ = campaign
    text = file.read_text()
    file.write_text(text.replace("kubeconfig: ", "context: none\n  kubeconfig: "))
    code, output = kveval(ROOT, "teardown", str(file))
    assert code == 1
    assert "FAILED: context 'none' " in output

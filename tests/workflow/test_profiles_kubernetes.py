"""The analysis in pods, by the profile as it is, with a bucket between; measurements beside snakemake.

The pods are processes of this machine that see no folder of the workflow's: a bucket is all that they share with it.
"""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import import_sheets, plugins, s3_server
from tests.support.fault_chain import ADOPTED
from tests.support.paths import copy_parts
from tests.support.report_text import whole_report
from tests.support.result_trees import write_campaign_tree
from tests.support.stored_campaign import CAMPAIGN, MODEL, fill_store, write_campaign
from tests.support.testbed import Testbed, a_namespace, own_testbed, wait_until
from tests.workflow.test_reruns import PARTS

from kveval.engines.kubernetes.api.client import Api

LOCK = "execution-kubernetes"
PLUGINS = ("snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_s3")
absent = plugins.missing(LOCK, *PLUGINS) or s3_server.missing()
pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(absent is not None, reason=str(absent)),
]

# For what hangs: each pod starts a snakemake of its own, a minute on a busy machine.
PATIENCE_S = 600.0
LEVELS = (1, 50, 100)
BUCKET = "kveval"
FIGURES = (
    *(
        "throughput/throughput_curve_Qwen3-0.6B_all",
        "effects/effect_plot",
        "caches/pcp_kv_cache_usage",
    ),
    "recordings/level_timeline_Qwen3-0.6B",
)
# What people read of what both cells and the campaign come to.
TABLES = (
    "complete_metrics",
    "comparison",
    "contrasts",
    "averages",
    "checks",
    "peak_comparison",
    "summary",
    "detailed",
)


@dataclass(frozen=True)
class Site:
    """A copy of the workflow whose runs are all stored, a namespace, and a bucket of its own."""

    folder: Path
    results: Path
    api: Api
    namespace: str
    kubeconfig: Path
    s3: str

    def command(self, *arguments: str) -> list[str]:
        return [
            *(
                "snakemake",
                "--profile",
                "profiles/kubernetes-executor",
                "--workflow-profile",
                "profiles/kubernetes",
            ),
            *(
                "--default-storage-prefix",
                f"s3://{BUCKET}/{self.namespace}",
                "--storage-s3-endpoint-url",
                self.s3,
            ),
            *(
                "--kubernetes-namespace",
                self.namespace,
                "--seconds-between-status-checks",
                "1",
            ),
            *(*arguments, "--configfile", CAMPAIGN),
        ]

    @property
    def environment(self) -> dict[str, str]:
        credentials = {
            "SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "nobody",
            "SNAKEMAKE_STORAGE_S3_SECRET_KEY": "asks",
        }
        return (
            plugins.environment(LOCK)
            | credentials
            | {"KUBECONFIG": str(self.kubeconfig)}
        )

    def snakemake(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == code, done.stdout[-6000:]
        return done.stdout

    def shared(self) -> set[str]:
        """What the bucket holds of this site, by the path that it would have here."""
        return {
            key.removeprefix(f"{self.namespace}/")
            for key in s3_server.keys(self.s3, BUCKET)
        }

    def pods(self) -> list[str]:
        items = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        return [
            item["metadata"]["name"]
            for item in items
            if item["status"].get("phase") == "Running"
        ]

    def left(self) -> list[str]:
        """What of Snakemake's is left in the namespace once no pod runs.

        Not pods that have ended: the testbed's Job controller makes one anew for a pod that Snakemake deletes, and
        without credentials it fails.
        """
        wait_until(lambda: not self.pods(), "the pods' end", PATIENCE_S)
        jobs = self.api.get(f"/apis/batch/v1/namespaces/{self.namespace}/jobs")["items"]
        secrets = self.api.get(f"/api/v1/namespaces/{self.namespace}/secrets")["items"]
        return [
            item["metadata"]["name"]
            for item in [*jobs, *(s for s in secrets if s["type"] == "Opaque")]
        ]


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """A control plane whose pods have what an image brings: a `python` with the workflow's packages and the plugins."""
    folder = tmp_path_factory.mktemp("testbed")
    image = folder / "image"
    image.mkdir()
    found = f"PYTHONPATH={shlex.quote(str(plugins.folder(LOCK) or ''))} exec {shlex.quote(sys.executable)}"
    (image / "python").write_text(f'#!/bin/sh\n{found} "$@"\n')
    (image / "python").chmod(0o755)
    with own_testbed(
        folder / "run", f"--job-mode exec --shim {shlex.quote(str(image))}"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def bucket_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server.s3(tmp_path_factory.mktemp("s3") / "moto.log") as address:
        yield address


@pytest.fixture
def site(tmp_path: Path, testbed: Testbed, bucket_address: str) -> Iterator[Site]:
    folder = tmp_path / "repository"
    folder.mkdir()
    copy_parts(folder, PARTS)
    results = write_campaign(folder, LEVELS)
    # What git knows is what the jobs get.
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    fill_store(folder, LEVELS, tmp_path / "recording")
    api = testbed.api()
    with a_namespace(api) as namespace:
        yield Site(folder, results, api, namespace, testbed.kubeconfig, bucket_address)


def test_a_report_is_made_in_pods(site: Site) -> None:
    output = site.snakemake("report")
    # Two cells' tables in a pod each, the campaign's in one, six families of figures, the report.
    assert output.count("Get status with: kubectl describe job") == 10
    assert output.count(ADOPTED) == 2
    text = whole_report(site.results)
    assert "2 of 2" in text
    assert "failed its own checks" not in text
    for figure in FIGURES:
        assert (
            (site.results / "figures" / f"{figure}.png")
            .read_bytes()
            .startswith(b"\x89PNG")
        )
        assert f"figures/{figure}.png" in text
    for table in TABLES:
        assert (site.results / "analysis" / f"{table}.csv").stat().st_size > 100, table
    exported = (site.results / "analysis" / "benchmark_reports.txt").read_text().split()
    assert len(exported) == 2
    assert all((site.folder / path).is_file() for path in exported)
    # The store has not moved, and nobody else has a pointer into it.
    assert not [key for key in site.shared() if key.startswith("results/measurements/")]
    assert not [key for key in site.shared() if key.endswith("/measurement.json")]
    assert site.left() == []
    assert "Nothing to be done" in site.snakemake("report")


def test_what_an_interruption_and_a_failing_pod_leave_is_gone_on_with(
    site: Site,
) -> None:
    cells = site.results.relative_to(site.folder) / MODEL
    peaks = {
        scenario: str(cells / scenario / "peak.csv")
        for scenario in ("no-offload/0", "native-offload/500")
    }

    script = site.folder / "scripts" / "extract_peak.py"
    good = script.read_text()
    # As long as it takes for the pods of both to run at the same time.
    script.write_text(f"import time\ntime.sleep(600)\n{good}")
    process = subprocess.Popen(
        site.command("peaks"),
        cwd=site.folder,
        env=site.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # While it still plans jobs, Snakemake takes an interruption for a mistake in the rules.
    wait_until(lambda: len(site.pods()) == len(peaks), "a pod of each cell", PATIENCE_S)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "Terminating processes on user request" in output
    assert site.left() == []
    assert not set(peaks.values()) & site.shared()

    script.write_text(
        f'import sys\nif "native-offload" in str(sys.argv):\n    sys.exit("no such peak")\n{good}'
    )
    output = site.snakemake("peaks", code=1)
    assert "Error in rule extract_peak" in output
    (log,) = re.findall(r"(\S+/kubernetes-logs/snakejob-\S+\.log)", output)[:1]
    assert "no such peak" in Path(log).read_text()
    assert set(peaks.values()) & site.shared() == {peaks["no-offload/0"]}
    assert site.left() == []

    script.write_text(good)
    output = site.snakemake("peaks")
    assert output.count(ADOPTED) == 0
    assert set(peaks.values()) <= site.shared()


def test_results_that_only_this_machine_has_are_no_work_for_pods(site: Site) -> None:
    campaign = site.folder / CAMPAIGN
    campaign.write_text(
        "name: stored\nresults: results/imported\nimport: imports.csv\n"
    )
    write_campaign_tree(site.folder / "tree", runs=1, rates=(4,))
    import_sheets.update(site.folder / "imports.csv", site.folder / "tree")
    before = sorted((site.folder / "tree").rglob("*"))
    output = site.snakemake("-n", "report", code=1)
    assert "only this machine" in output
    assert sorted((site.folder / "tree").rglob("*")) == before

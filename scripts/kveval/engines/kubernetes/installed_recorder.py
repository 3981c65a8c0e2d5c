"""A recorder that an administrator has installed: its pods are asked by HTTP, and never run a command of the account's.

So the account needs no right to make pods, or to run commands, where pods are privileged.
"""

import base64
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import recorder_agent, recorder_scripts
from kveval.engines.kubernetes.api.download import Transfer, TransferError, copy
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.exec import Executed
from kveval.engines.kubernetes.api.kinds import NODE, POD, SECRET, Document, described
from kveval.engines.kubernetes.api.names import NAME
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.recorder import (
    INSTALLED,
    configuration_of,
    installed_documents,
)
from kveval.engines.kubernetes.manifests.requirements import accepts, node_of
from kveval.engines.kubernetes.nodes import fitting
from kveval.engines.kubernetes.pods import direct_url
from kveval.engines.kubernetes.wait.diagnosis import is_ready, not_terminating
from kveval.engines.protocol import Log
from kveval.host.http import HttpError, fetch

_ANSWER_S = 150.0
_PIECE_BYTES = 8 * 2**20
_POLL_S = 2.0
_REPEAT_S = 30.0
INSTALL = "python scripts/print_permissions.py CAMPAIGN.yaml site=FILE recorder | kubectl apply -f -"
"""With what an administrator installs and updates it."""


@dataclass
class InstalledRecorder:
    """The recorder's pod on a node, as one run asks it; `mark`: the name of the run's recording."""

    context: RunContext
    pod: Document
    mark: str
    _key: bytes = b""

    def run(self, script: str, arguments: Sequence[str]) -> Executed:
        """Have one of the recorder's scripts run. Raises ClusterError."""
        api, metadata = self.context.api, self.pod["metadata"]
        namespace, name = self.context.site.pcp_namespace, str(metadata["name"])
        self._key = self._key or key_of(self.context)
        request = {
            "script": recorder_scripts.NAMES[script],
            "mark": self.mark,
            "arguments": list(arguments),
            "time": api.now().timestamp(),
        }
        body = recorder_agent.signed(self._key, request)
        target = f"{POD.path(namespace, f'{name}:{recorder_agent.PORT}')}/proxy/"
        if direct := direct_url(self.context, recorder_agent.PORT):
            try:
                content = fetch(direct, method="POST", body=body, timeout_s=_ANSWER_S)
            except HttpError as error:
                raise ClusterError(str(error)) from error
        else:
            content = api.of_pod(
                namespace,
                name,
                lambda: api.once("POST", target, body=body, timeout_s=_ANSWER_S),
            ).body
        answer = json.loads(content)
        return Executed(
            base64.b64decode(answer["stdout"]),
            base64.b64decode(answer["stderr"]),
            int(answer["returncode"]),
        )

    def bring(self, folder: str, target: Path) -> None:
        """Copy the files of a folder of the recording to another. Raises ClusterError."""
        what = f"collecting recording {self.mark} from {described(self.pod)}"
        copy(Transfer(self._output, what, folder, _PIECE_BYTES), target)

    def _output(
        self, script: str, arguments: Sequence[str], stall_s: float
    ) -> Iterator[bytes]:
        done = self.run(script, arguments)
        if done.returncode:
            raise TransferError(f"recording {self.mark}: {done.error_text}")
        yield done.stdout


def key_of(context: RunContext) -> bytes:
    """Return the key that the recorder and the account have. Raises ClusterError."""
    namespace = context.site.pcp_namespace
    secret = context.api.read(SECRET, INSTALLED, namespace)
    if secret is None or "key" not in (secret.get("data") or {}):
        raise ClusterError(
            f"there is no Secret {namespace}/{INSTALLED} with a key: docs/cluster-site.md, The account, says how to make it"
        )
    return base64.b64decode(secret["data"]["key"]).strip()


def listed_pods(context: RunContext) -> list[Document]:
    """Return the recorder's pods that are not being deleted, ready or not. Raises ClusterError."""
    return not_terminating(_pods(context))


def _pods(context: RunContext) -> list[Document]:
    namespace, chosen = context.site.pcp_namespace, f"{NAME}={INSTALLED}"
    return context.api.list(POD, namespace, chosen)


def outdated(site: Cluster, pod: Document) -> str:
    """Return that a pod has another configuration than the site's runs demand, "" if it has theirs."""
    demanded = configuration_of(installed_documents(site)[-1]["spec"]["template"])
    there = configuration_of(pod)
    if there == demanded:
        return ""
    return f"its configuration is {there or 'without a hash'}, and this campaign's is {demanded}"


def require_installed(context: RunContext) -> None:
    """Raise ClusterError where the recorder certainly cannot record a run.

    That is: without its key, where it has no pod although there are nodes for servers, or if one of its pods has another
    configuration than demanded.
    """
    key_of(context)
    # One that is being deleted is about to be replaced.
    pods = _pods(context)
    if not pods and (nodes := _serving_nodes(context)):
        raise _missing(context, "has no pod", nodes)
    for pod in not_terminating(pods):
        if why := outdated(context.site, pod):
            message = f"the installed recorder cannot be used, {described(pod)}: {why}"
            fix = f"an administrator updates it by {INSTALL}"
            raise ClusterError(f"{message}; {fix}", code="recorder_outdated")


def _serving_nodes(context: RunContext) -> list[str]:
    """Return the nodes that servers may run on now; on one that the autoscaler adds, a recorder may come with it."""
    site, gpus = context.site, context.deployment.gpus > 0
    tolerations = [one.model_dump(exclude_none=True) for one in site.tolerations]
    nodes = map(node_of, fitting(context.api.list(NODE), site, gpus=gpus))
    return [node.name for node in nodes if accepts(node, {"tolerations": tolerations})]


def installed_pods(
    context: RunContext, nodes: Sequence[str], limit_s: float, say: Log
) -> list[Document]:
    """Return the recorder's ready pods on `nodes`, in their order, once there are some: on a new node they take a while.

    Says now and then what it waits for. Raises ClusterError after `limit_s` seconds.
    """
    begin, said_at = time.monotonic(), float("-inf")
    while True:
        pods = filter(is_ready, listed_pods(context))
        ready = {str(pod["spec"].get("nodeName")): pod for pod in pods}
        lacking = [node for node in nodes if node not in ready]
        if not lacking:
            return [ready[node] for node in nodes]
        now, lack = time.monotonic(), f"has no ready pod on {', '.join(lacking)}"
        if now - begin > limit_s:
            raise _missing(context, f"{lack} after {limit_s:.0f} s", lacking)
        if now - said_at >= _REPEAT_S:
            place = context.site.pcp_namespace
            say(
                f"the recorder that is installed in {place} {lack} yet ({now - begin:.0f} s)"
            )
            said_at = now
        time.sleep(_POLL_S)


def _missing(context: RunContext, lack: str, nodes: Sequence[str]) -> ClusterError:
    return ClusterError(
        f"the recorder that is installed in {context.site.pcp_namespace} {lack}: do its node_selector and tolerations"
        f" match? An administrator installs it by {INSTALL}",
        code="recorder_missing",
        nodes=nodes,
    )

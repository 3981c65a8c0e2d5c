"""A test deployment of one cell: a few requests through the whole path, and what became of every pod.

It is a run like any other (servers, load, recorder, report and archive copied here) with a few seconds of load, and is
not kept as a measurement. It shows whether all pods fit at the same time, which only the cluster's scheduler knows.
"""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kveval.campaign.site import Cluster
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import POD, Document, condition
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.manifests.context import component_of
from kveval.engines.kubernetes.manifests.recorder import COMPONENT as RECORDER
from kveval.engines.kubernetes.manifests.recorder import recorder_selector
from kveval.host.errors import Failure
from kveval.host.findings import aligned
from kveval.host.redaction import Redactor
from kveval.measure.progress import Progress
from kveval.measure.transaction import Job, measure

_LOOK_S = 1.0
_OUTAGE_S = 30.0
_PROMPT_TOKENS, _OUTPUT_TOKENS, _SECONDS = 256, 32, 5.0
_HEADER = ("pod", "for", "node", "placed after", "ready after", "last seen")


class TrialError(Failure):
    """There is no cell to deploy."""


@dataclass
class PodStory:
    """A pod's last seen state. `placed_s`, `ready_s`: seconds after creation; `waits`: last event while Pending."""

    name: str
    component: str
    node: str = ""
    placed_s: float | None = None
    ready_s: float | None = None
    phase: str = ""
    waits: str = ""

    def row(self) -> tuple[str, ...]:
        """Return its row of the table."""
        times = (
            "" if value is None else f"{value:.0f} s"
            for value in (self.placed_s, self.ready_s)
        )
        return (
            self.name,
            self.component,
            self.node,
            *times,
            f"{self.phase} {self.waits}".strip(),
        )


def trial_of(specification: Specification) -> Specification:
    """Return the specification with a few short requests, one after another, as its load."""
    workload = specification.workload
    return specification.with_workload(
        profile="concurrent",
        levels=(1,),
        seconds=_SECONDS,
        warmup_s=0.0,
        turns=1,
        prompt_tokens=min(workload.prompt_tokens, _PROMPT_TOKENS),
        output_tokens=min(workload.output_tokens, _OUTPUT_TOKENS),
        prefix_tokens=0,
        prefix_count=0,
        prime=False,
        **dict.fromkeys(("bursts", "sweep_size", "prompt_spread", "output_spread")),
    )


def demand(specification: Specification) -> tuple[int, int]:
    """Return what a cell's servers request, to sort by: GPUs in all, and bytes of memory of each server."""
    deployment = specification.on_cluster
    return deployment.gpus * deployment.replicas, deployment.memory_bytes


def deploy_one(
    config: Config, cell: str, folder: Path, server_environment: Path
) -> tuple[bool, str]:
    """Deploy a cell (MODEL/SCENARIO/BLOCKS; empty: the largest); return whether that succeeded, and the text to print.

    `folder`: is emptied and gets the files. Raises TrialError if there is no such cell, or no cluster.
    """
    site = config.campaign.cluster
    if site is None or not config.cells:
        raise TrialError(
            "deploy-one needs a cluster: a campaign with engine: kubernetes",
            code="no_cluster",
        )
    cells = [config.cell(cell)] if cell else config.cells
    chosen = max(
        cells,
        key=lambda candidate: demand(config.specification(candidate)),
    )
    specification = trial_of(config.specification(chosen))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    redact = Redactor.of(config.campaign.secrets).text
    progress = Progress(
        f"{chosen.path} trial", 0.0, folder / "progress.log", redact=redact
    )
    job = Job(
        specification=specification,
        measurement=specification.measurement_id,
        run=1,
        store=folder,
        server_environment=server_environment,
        required=config.required_counters(chosen),
        stall_limit_s=config.campaign.stall_limit_s,
        secrets=config.campaign.secrets,
        campaign=config.campaign.name,
        site=site,
    )
    with watched(site, config.campaign.name, progress.say) as pods:
        try:
            measure(job, folder / "measurement.json", progress)
            failure = ""
        except Failure as error:
            failure = redact(str(error))
    text = "\n".join(
        [*aligned([_HEADER, *(pod.row() for pod in pods.values())]), "", ""]
    )
    if failure:
        return False, f"{text}FAILED: {failure}\nIts files: {folder}"
    kept = (
        " All was removed, except the volume of the model cache."
        if site.model_cache
        else " All was removed."
    )
    return (
        True,
        f"{text}{chosen.path} was deployed, answered, and was recorded.{kept}\nIts files: {folder}",
    )


@contextlib.contextmanager
def watched(
    site: Cluster, campaign: str, say: Callable[[str], None]
) -> Iterator[dict[str, PodStory]]:
    """Watch the campaign's pods while the body runs; say what they wait for, and yield their stories by uid."""
    api = Api.connect(site.kubeconfig, site.context, outage_s=_OUTAGE_S)
    seen: dict[str, PodStory] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            with contextlib.suppress(ClusterError):
                for pod in (
                    *api.list(POD, site.namespace, selector(campaign)),
                    *api.list(
                        POD, site.pcp_namespace, recorder_selector(campaign, site)
                    ),
                ):
                    note(api, pod, seen, say)

    thread = threading.Thread(target=look, name="pods", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(timeout=_OUTAGE_S)


def note(
    api: Api, pod: Document, seen: dict[str, PodStory], say: Callable[[str], None]
) -> None:
    """Record a pod's present state in `seen`; say what it waits for if that changed."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    # The recorder's pods of nodes without a server are to wait.
    if component_of(pod) == RECORDER and not pod["spec"].get("nodeName"):
        return
    if metadata.get("deletionTimestamp"):
        return
    story = seen.setdefault(
        metadata["uid"], PodStory(metadata["name"], component_of(pod))
    )
    story.node, story.phase = (
        str(pod["spec"].get("nodeName") or ""),
        str(status.get("phase") or ""),
    )
    story.placed_s = (
        _after(pod, "PodScheduled") if story.placed_s is None else story.placed_s
    )
    story.ready_s = _after(pod, "Ready") if story.ready_s is None else story.ready_s
    events: Sequence[Document] = api.events(pod) if story.phase == "Pending" else ()
    waits = (
        " ".join(
            f"{events[-1].get('reason')}: {events[-1].get('message') or ''}".split()
        )
        if events
        else ""
    )
    if waits and waits != story.waits and not waits.startswith("Scheduled: "):
        say(f"{story.component} waits: {waits}")
    story.waits = waits


def _after(pod: Document, kind: str) -> float | None:
    state = condition(pod, kind)
    if state.get("status") != "True":
        return None
    made, since = pod["metadata"]["creationTimestamp"], state["lastTransitionTime"]
    return (
        datetime.fromisoformat(since) - datetime.fromisoformat(made)
    ).total_seconds()

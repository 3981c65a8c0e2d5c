"""Every object that a run of a cell makes on a cluster, as text to be read before anything is made."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kveval.campaign.site import Cluster
from kveval.campaign.specification import Specification
from kveval.engines.kubernetes import leases, neighbours, recordings
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.load_jobs import packed_files
from kveval.engines.kubernetes.manifests.context import RenderContext
from kveval.engines.kubernetes.manifests.lifetime import run_lifetime
from kveval.engines.kubernetes.manifests.recorder import (
    full_name,
    recorder_name,
    recorder_with_lifetime,
)
from kveval.engines.kubernetes.manifests.rendering import (
    context_of,
    download_job,
    load_command,
    load_job,
    serving,
    storage,
    target_url,
)
from kveval.engines.kubernetes.manifests.templates import to_text
from kveval.load import guidellm as load

_HOLDER = "HOST-AND-PROCESS-OF-THE-JOB"
_OWNED = "ownerReferences, with the uid that the API server gives it"


def preview_text(specification: Specification, site: Cluster, campaign: str) -> str:
    """Return the documents of a cell's first run and its measurement id, as YAML with a heading for each part."""
    context = context_of(specification, site, 1, campaign)
    level = load.levels_of(specification.workload, 1)[0]
    # Only the cluster knows the address of a Gateway.
    command = load_command(
        context, level, target_url(context) or "http://ADDRESS-OF-THE-GATEWAY"
    )
    life = run_lifetime(context)
    run, recorder = life["metadata"]["name"], recorder_name(campaign, site)
    parts: dict[str, Iterable[Document]] = {
        f"By which a run ends: the Lease that the job renews, Job {run} of the Lease, and the run's objects of that"
        f" Job ({_OWNED})": [_leased(leases.run_metadata(context)), life],
        "Kept between cells": storage(context),
        "Fetches the weights, once": [download_job(context)]
        if context.model_claim
        else (),
        "What serves. The servers' NetworkPolicy gets addresses of nodes: with API servers, with servers": serving(
            context
        ),
        "The load of the first level; each has such a Job, and where it reads files a ConfigMap, here without them": load_job(
            context,
            level.index,
            command,
            {},
            dict.fromkeys(packed_files(context, level), ""),
        ),
        f"The recorder, shared by all cells: its objects are of Job {recorder} ({_OWNED})": recorder_with_lifetime(
            campaign, site
        ),
        "Held in the recorder's namespace for a while: by a run that is recorded, on its nodes; by who removes the"
        " recorder": _leases_beside_recorder(context),
    }
    head = f"# {context.cell}: measurement {context.measurement}, as run 1 of campaign {campaign} would be deployed.\n"
    texts = {title: to_text(tuple(documents)) for title, documents in parts.items()}
    return head + "".join(
        f"---\n# {title}.\n{text}" for title, text in texts.items() if text
    )


def _leases_beside_recorder(context: RenderContext) -> Iterator[Document]:
    site = context.site
    shared = replace(context, campaign=full_name(context.campaign, site))
    place = site.pcp_namespace
    yield _leased(leases.run_metadata(shared, neighbours.COMPONENT, place))
    if not site.recorder.installed:
        yield _leased(recordings.removal_metadata(context.campaign, site))


def _leased(metadata: Document) -> Document:
    return leases.lease_document(metadata, _HOLDER)

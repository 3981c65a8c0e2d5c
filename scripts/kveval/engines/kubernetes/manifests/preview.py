"""The documents of a cell as one text for people."""

from kveval.config.site import Cluster
from kveval.engines.kubernetes.manifests.context import RenderContext
from kveval.engines.kubernetes.manifests.recorder import recording_documents
from kveval.engines.kubernetes.manifests.rendering import (
    context_of,
    download_job,
    load_command,
    load_job,
    render,
    target_url,
)
from kveval.engines.kubernetes.manifests.templates import Document, to_text
from kveval.load import guidellm as load
from kveval.spec.specification import Specification


def preview_text(specification: Specification, site: Cluster, campaign: str) -> str:
    """Return the documents of a cell's first run and its measurement id, as YAML with a heading for each part."""
    context = context_of(specification, site, 1, campaign)
    rendered = render(context)
    parts: dict[str, tuple[Document, ...]] = {
        "Kept between cells": rendered.storage,
        "Fetches the weights, once": (download_job(context),) if context.model_claim else (),
        "What serves": rendered.serving,
        "The load of the first level; every level has such a Job": _first_load(context),
        "The recorder, shared by all cells": recording_documents(campaign, site),
    }
    head = f"# {context.cell}: measurement {context.measurement}, as run 1 of campaign {campaign} would be deployed.\n"
    return head + "".join(f"---\n# {title}.\n{to_text(found)}" for title, found in parts.items() if found)


def _first_load(context: RenderContext) -> tuple[Document, ...]:
    level = load.levels_of(context.specification.workload, 1)[0]
    # The address of a Gateway is not known before it is asked.
    url = target_url(context) or "http://ADDRESS-OF-THE-GATEWAY"
    return load_job(context, level.index, load_command(context, level, url), {})

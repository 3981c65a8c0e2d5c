"""The recorder of a campaign: PCP on every node, with its configuration of endpoints and logged metrics."""

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.manifests.lifetime import owner_job
from kveval.engines.kubernetes.manifests.templates import MANIFESTS, documents
from kveval.pcp.installation import DEFAULT_METRICS, ONCE_METRICS, log_block
from kveval.stacks.picker import Picker
from kveval.stacks.registry import SERVERS, SIDECARS

COMPONENT = "recorder"
CONTAINER = "pmcd"
STATE = "/var/lib/kveval"
"""Writable folder of the container, on the node's disk."""
CONFIGURATION = "/etc/kveval/pmlogconf"
"""Folder of the container with the configuration of logged metrics, one file a group."""
SOURCE_GROUPS = tuple(
    dict.fromkeys((*SERVERS, Picker.name, "gateway", "dcgm", *SIDECARS))
)
"""What a metrics URL may be of, each once."""
PLACE = "@SOURCE@"
"""Placeholder for a source's name in the text of a group."""


def logged_groups() -> dict[str, str]:
    """Return parts of a pmlogger configuration by group: facts logged once, the host's metrics, each kind of source.

    In a source's group @SOURCE@ stands for the source's name. `access`, the last part, denies all access to pmlogger.
    """
    host = [
        metric
        for metric in DEFAULT_METRICS
        if not metric.startswith(("openmetrics", "nvidia"))
    ]
    once = [metric for metric in ONCE_METRICS if not metric.startswith("nvidia")]
    groups = {"once": log_block("once", once), "host": log_block("default", host)}
    groups |= {
        group: log_block("default", [f"openmetrics.{PLACE}"]) for group in SOURCE_GROUPS
    }
    return {**groups, "access": "[access]\ndisallow * : all;\n"}


def full_name(campaign: str, site: Cluster) -> str:
    """Return the campaign's name in the recorder's namespace, which campaigns of several namespaces share."""
    return f"{site.namespace}/{campaign}"


def recorder_name(campaign: str, site: Cluster) -> str:
    """Return the name of the campaign's DaemonSet."""
    return names.object_name("", None, COMPONENT, full_name(campaign, site))


def recorder_labels(campaign: str, site: Cluster) -> dict[str, str]:
    """Return the labels of all objects of the campaign's recorder."""
    own = names.labels(full_name(campaign, site), "", None, "", COMPONENT)
    return {**site.labels, **own}


def recorder_selector(campaign: str, site: Cluster) -> str:
    """Return the label selector of the campaign's recorder."""
    return names.selector(full_name(campaign, site), component=COMPONENT)


def recorder_lifetime(campaign: str, site: Cluster) -> Document:
    """Return the Job that owns the campaign's recorder."""
    name, labels = recorder_name(campaign, site), recorder_labels(campaign, site)
    return owner_job(site, site.pcp_namespace, name, labels)


def recording_documents(campaign: str, site: Cluster) -> tuple[Document, ...]:
    """Return the documents of a campaign's recorder: namespace, one pod per node, endpoints and logged metrics."""
    labels = recorder_labels(campaign, site)
    selector = {
        key: labels[key]
        for key in (f"{names.PREFIX}/campaign", f"{names.PREFIX}/component")
    }
    return documents(
        "recorder.yaml.j2",
        site=site,
        name=recorder_name(campaign, site),
        labels=labels,
        selector=selector,
        annotations=site.annotations_of(COMPONENT),
        start=(MANIFESTS / "start-pmcd.sh").read_text(encoding="utf-8"),
        sources={
            f"{name}.url": f"{url}\n" for name, url in site.recorder.sources.items()
        },
        groups=logged_groups(),
        pcp=f"{STATE}/pcp",
    )

"""The recorder of a campaign: PCP beside its servers, with its configuration of endpoints and logged metrics."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kveval.campaign.site import Cluster
from kveval.engines import merge_metrics
from kveval.engines.kubernetes import recorder_agent, recorder_scripts
from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.api.kinds import Document, annotations_of
from kveval.engines.kubernetes.manifests.lifetime import owner_job
from kveval.engines.kubernetes.manifests.templates import MANIFESTS, documents
from kveval.pcp.installation import DEFAULT_METRICS, ONCE_METRICS, log_block
from kveval.stacks.picker import Picker
from kveval.stacks.registry import SERVERS, SIDECARS

COMPONENT = "recorder"
INSTALLED = "kveval-recorder"
"""Name of a recorder that an administrator installs, and of the Secret with its key."""
CONFIGURED = f"{names.PREFIX}/configuration"
"""Annotation of an installed recorder's pods: a hash of what their programs, endpoints and logged metrics are."""
CONTAINER = "pmcd"
STATE = "/var/lib/kveval"
"""Writable folder of the container, on the node's disk."""
CONFIGURATION = "/etc/kveval/pmlogconf"
"""Folder of the container with the configuration of logged metrics, one file a group."""
SOURCE_GROUPS = tuple(
    dict.fromkeys((*SERVERS, Picker.name, "gateway", "dcgm", *SIDECARS))
)
"""What a metrics URL may be of, each once."""
# AppArmor's profile of container runtimes denies reading the processes of a node, whatever a pod's capabilities
# (containerd#2679). The field in its place is there from Kubernetes 1.30 on; the API server fills it from this.
UNCONFINED = {
    f"container.apparmor.security.beta.kubernetes.io/{CONTAINER}": "unconfined"
}
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


def campaign_selectors(campaign: str, site: Cluster) -> dict[str, str]:
    """Return the namespaces of a campaign -> the label selector of all that is the campaign's there."""
    return {
        site.namespace: names.selector(campaign),
        site.pcp_namespace: names.selector(full_name(campaign, site)),
    }


def recorder_lifetime(campaign: str, site: Cluster) -> Document:
    """Return the Job that owns the campaign's recorder."""
    name, labels = recorder_name(campaign, site), recorder_labels(campaign, site)
    return owner_job(site, site.pcp_namespace, name, labels)


def recording_documents(campaign: str, site: Cluster) -> tuple[Document, ...]:
    """Return the documents of a campaign's recorder: namespace, one pod per node that serves, endpoints, metrics.

    There are none where an administrator has installed one.
    """
    if site.recorder.installed:
        return ()
    labels = recorder_labels(campaign, site)
    selector = {
        key: labels[key]
        for key in (f"{names.PREFIX}/campaign", f"{names.PREFIX}/component")
    }
    servers = {
        f"{names.PREFIX}/campaign": names.label_value(campaign),
        f"{names.PREFIX}/component": "model-server",
    }
    name = recorder_name(campaign, site)
    return _recorder(site, name, labels, selector, servers)


def recorder_with_lifetime(campaign: str, site: Cluster) -> tuple[Document, ...]:
    """Return the documents of a campaign's recorder and the Job that owns them; none of an installed one."""
    recorder = recording_documents(campaign, site)
    return (recorder_lifetime(campaign, site), *recorder) if recorder else ()


def installed_documents(site: Cluster) -> tuple[Document, ...]:
    """Return the documents of a recorder for an administrator to install, which all campaigns may use.

    What it reads is in the hash of its pods' annotation CONFIGURED, so that another configuration starts them anew.
    """
    selector = {names.NAME: INSTALLED}
    scripts = {name: text for text, name in recorder_scripts.NAMES.items()}
    files = {
        "agent.py": Path(recorder_agent.__file__).read_text(encoding="utf-8"),
        "scripts.json": json.dumps(scripts),
    }
    _, *own = _recorder(
        site, INSTALLED, {**site.labels, **selector}, selector, {}, files
    )
    read = json.dumps([document.get("data") for document in own], sort_keys=True)
    digest = hashlib.sha256(read.encode()).hexdigest()[:12]
    own[-1]["spec"]["template"]["metadata"]["annotations"][CONFIGURED] = digest
    return tuple(own)


def configuration_of(pod: Document) -> str:
    """Return the hash of the configuration that an installed recorder's pod, or the template of its pods, has."""
    return str(annotations_of(pod).get(CONFIGURED, ""))


def _recorder(
    site: Cluster,
    name: str,
    labels: Mapping[str, str],
    selector: Mapping[str, str],
    servers: Mapping[str, str],
    files: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Document, ...]:
    """Return the documents of a recorder.

    `servers`: the labels of the servers beside which it runs, none for every node; `files`: of what answers in the place
    of commands in it, if something does.
    """
    start = (MANIFESTS / "start-pmcd.sh").read_text(encoding="utf-8")
    merge = Path(merge_metrics.__file__).read_text(encoding="utf-8")
    return documents(
        "recorder.yaml.j2",
        site=site,
        name=name,
        labels=labels,
        selector=selector,
        servers=servers,
        annotations=UNCONFINED | site.annotations_of(COMPONENT),
        files={"start-pmcd.sh": start, "merge.py": merge, **files},
        sources={
            f"{source}.url": f"{url}\n" for source, url in site.recorder.sources.items()
        },
        groups=logged_groups(),
        state=STATE,
        configuration=CONFIGURATION,
        installed=bool(files),
        port=recorder_agent.PORT,
    )

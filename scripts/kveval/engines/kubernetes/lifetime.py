"""Objects that go by themselves: they belong to a Job without pods, which ends when nobody prolongs it.

No controller of ours is needed for that. Kubernetes ends a Job that is active for longer than its
activeDeadlineSeconds, which may be changed while it is; removes one that has ended after its ttlSecondsAfterFinished;
and removes with it what names it as owner.
https://kubernetes.io/docs/concepts/workloads/controllers/job/, .../ttlafterfinished/ and
https://kubernetes.io/docs/concepts/architecture/garbage-collection/
Needs job controllers of 1.25 and newer: kubernetes#110294 has them look again at a deadline that was moved.
"""

import time
from collections.abc import Mapping
from datetime import datetime

from kveval.engines.kubernetes.api.client import Api, reference_to
from kveval.engines.kubernetes.api.errors import ClusterError, Refused
from kveval.engines.kubernetes.api.kinds import JOB, Document, condition
from kveval.engines.kubernetes.manifests.templates import documents

COMPONENT = "lifetime"
EXPIRY_S = 900
"""After how long without a sign of its job what a run has on a cluster goes by itself, seconds."""
_LIMIT_S = 60.0
_POLL_S = 0.5


def begin(
    api: Api,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    owner: Document | None = None,
    expiry_s: int = EXPIRY_S,
) -> Document:
    """Make the Job, or find the one that lives, and have what is applied of its run from now on belong to it.

    `owner`: what it goes with in its turn.
    """
    deadline = time.monotonic() + _LIMIT_S
    while True:
        found = api.read(JOB, name, namespace)
        if found is None:
            metadata: Document = {"name": name, "namespace": namespace, "labels": dict(labels)}
            metadata |= {"ownerReferences": [reference_to(owner)]} if owner else {}
            [found] = api.apply(documents("lifetime.yaml.j2", metadata=metadata, expiry_s=expiry_s))
        if not _over(found):
            try:
                prolong(api, found, expiry_s)
            except Refused as error:
                if error.status != 404:
                    raise
            else:
                api.belongs_to(found)
                return found
        # It has ended, and goes; then another one is made.
        api.delete(JOB, name, namespace, uid=found["metadata"]["uid"])
        if time.monotonic() > deadline:
            raise ClusterError(f"Job {namespace}/{name} has ended and does not go", code="lifetime_stays")
        time.sleep(_POLL_S)


def prolong(api: Api, job: Document, expiry_s: int = EXPIRY_S) -> None:
    """Let a lifetime end `expiry_s` from now. Raises ClusterError where it is gone."""
    metadata = job["metadata"]
    active_s = (api.now() - datetime.fromisoformat(metadata["creationTimestamp"])).total_seconds()
    body = {"spec": {"activeDeadlineSeconds": round(active_s) + expiry_s}}
    api.patch(JOB, metadata["name"], metadata["namespace"], body)


def _over(job: Document) -> bool:
    ended = any(condition(job, kind).get("status") == "True" for kind in ("Failed", "Complete"))
    return ended or bool(job["metadata"].get("deletionTimestamp"))

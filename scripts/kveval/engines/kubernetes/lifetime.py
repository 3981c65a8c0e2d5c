"""Objects that Kubernetes removes by itself: their owner is a Job without pods, which ends unless it is prolonged.

This needs no controller. Kubernetes ends a Job that is active for longer than its activeDeadlineSeconds, which may be
changed meanwhile; removes an ended Job after its ttlSecondsAfterFinished; and removes the objects that name the Job
as owner.
https://kubernetes.io/docs/concepts/workloads/controllers/job/, .../ttlafterfinished/ and
https://kubernetes.io/docs/concepts/architecture/garbage-collection/
Needs the job controller of 1.25 or newer, which notices a changed deadline (kubernetes#110294).
"""

import time
from datetime import datetime

from kveval.engines.kubernetes.api.client import Api, reference_to
from kveval.engines.kubernetes.api.errors import (
    CREDENTIAL_REFUSED,
    ClusterError,
    Refused,
)
from kveval.engines.kubernetes.api.kinds import JOB, Document, condition
from kveval.engines.kubernetes.manifests.lifetime import EXPIRY_S

_LIMIT_S = 60.0
_POLL_S = 0.5


def how_it_goes(error: ClusterError | None = None) -> str:
    """Return how what is left is removed, by itself or at once; `error`: what kept it from being removed."""
    refused = error is not None and error.code == CREDENTIAL_REFUSED
    account = " with a kubeconfig that the cluster accepts" if refused else ""
    return (
        f"Kubernetes removes it {EXPIRY_S / 60:.0f} minutes after the job's last sign of life; to remove it now, run"
        f" kveval teardown{account}"
    )


def ensure_owner_job(
    api: Api,
    document: Document,
    owner: Document | None = None,
    expiry_s: int = EXPIRY_S,
) -> Document:
    """Create the Job, or find the active one, and make it the owner of what is applied of its run from now on.

    `owner`: the Job's own owner, with which it is removed. Raises ClusterError.
    """
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    document["spec"]["activeDeadlineSeconds"] = expiry_s
    if owner:
        document["metadata"]["ownerReferences"] = [reference_to(owner)]
    deadline = time.monotonic() + _LIMIT_S
    while True:
        job = api.read(JOB, name, namespace)
        if job is None:
            [job] = api.apply([document])
        if not _over(job):
            try:
                prolong(api, job, expiry_s)
            except Refused as error:
                if error.status != 404:
                    raise
            else:
                api.belongs_to(job)
                return job
        # It has ended: delete it, then create another one.
        api.delete(JOB, name, namespace, uid=job["metadata"]["uid"])
        if time.monotonic() > deadline:
            raise ClusterError(
                f"Job {namespace}/{name} has ended but cannot be deleted",
                code="lifetime_stays",
            )
        time.sleep(_POLL_S)


def prolong(api: Api, job: Document, expiry_s: int = EXPIRY_S) -> None:
    """Set the end of a lifetime to `expiry_s` seconds from now. Raises ClusterError if it no longer exists."""
    metadata = job["metadata"]
    active_s = (
        api.now() - datetime.fromisoformat(metadata["creationTimestamp"])
    ).total_seconds()
    body = {"spec": {"activeDeadlineSeconds": round(active_s) + expiry_s}}
    api.patch(JOB, metadata["name"], metadata["namespace"], body)


def _over(job: Document) -> bool:
    ended = any(
        condition(job, kind).get("status") == "True" for kind in ("Failed", "Complete")
    )
    return ended or bool(job["metadata"].get("deletionTimestamp"))

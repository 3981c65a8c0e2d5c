"""One holder per run of a cell: a Lease that two jobs, wherever they run, cannot both hold.

A holder counts as dead when a waiting process has looked at its Lease for the Lease's duration and found it unchanged;
the time for which the API server does not answer does not count. A holder on this host counts as dead as soon as its
process has ended.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kveval.engines.kubernetes import lifetime
from kveval.engines.kubernetes.api.client import OUTAGE_S, Api
from kveval.engines.kubernetes.api.errors import (
    CREDENTIAL_REFUSED,
    ClusterError,
    Refused,
)
from kveval.engines.kubernetes.api.kinds import LEASE, Document, annotations_of
from kveval.engines.kubernetes.api.names import PREFIX, selector
from kveval.engines.kubernetes.manifests.context import RenderContext, RunContext
from kveval.host.processes import signals_deferred
from kveval.store.lock import abandoned, owner

COMPONENT = "lease"
MARK_ANNOTATION = f"{PREFIX}/recording"
DURATION_S = 40.0
# Twice the duration, because clocks of other hosts may be off, and the longest outage of the API server, which a holder
# survives without renewing. Nobody takes over a Lease because of this.
LIVING_S = OUTAGE_S + 2 * DURATION_S
_RENEW_S = 10.0
_PROLONG_S = 60.0
_RELEASE_S = 10.0
_POLL_S = 1.0
_REMIND_S = 30.0
# The format of the API server; such texts sort by time.
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class LeaseLost(ClusterError):
    """Another job holds the run now, or may at any moment."""


class HeldLease:
    """A Lease that this process holds and renews once it has it; `check` raises LeaseLost when it is lost.

    `document`: what it is to be until it is held, then as the API server has it.
    """

    def __init__(self, api: Api, metadata: Document) -> None:
        self._api, self.document = api, lease_document(metadata, owner())
        self._holder = holder_of(self.document)
        self._place = metadata["name"], metadata["namespace"]
        self._label = f"{metadata['namespace']}/{metadata['name']}"
        self._over = threading.Event()
        self._lost: LeaseLost | None = None
        self._lifetimes: list[Document] = []
        self._renewal: threading.Thread | None = None

    def acquire(self, awaited: str, say: Callable[[str], None]) -> None:
        """Wait until this process holds the Lease; from then on it is renewed. The parameters are those of `hold`."""
        seen, unchanged_s, reminded = "", 0.0, float("-inf")
        while (held := self._created()) is None:
            # None if its holder has just deleted it.
            if (lease := self._api.read(LEASE, *self._place)) is not None:
                other = holder_of(lease)
                if other == self._holder:
                    held = lease
                    break
                if lease["metadata"]["resourceVersion"] != seen:
                    seen, unchanged_s = lease["metadata"]["resourceVersion"], 0.0
                if gone(other) or unchanged_s > DURATION_S:
                    if (held := self._taken_over(seen)) is not None:
                        break
                elif time.monotonic() - reminded >= _REMIND_S:
                    holder = awaited.format(holder=other)
                    say(f"waiting for {holder}, or was until {DURATION_S:.0f} s ago")
                    reminded = time.monotonic()
            time.sleep(_POLL_S)
            # Not by the clock: while the API server is away, no holder can renew its Lease.
            unchanged_s += _POLL_S
        self.document = held
        renewal = threading.Thread(target=self._renew, name="lease", daemon=True)
        renewal.start()
        self._renewal = renewal

    def _created(self) -> Document | None:
        """Return the Lease, made for this process; None if there is one."""
        self.document["spec"] |= renewed()
        try:
            return self._api.create(self.document)
        except Refused as error:
            if error.status != 409:
                raise
        return None

    def _taken_over(self, version: str) -> Document | None:
        """Return a dead holder's Lease, now of this process; None if it was changed or deleted meanwhile."""
        metadata = {
            "resourceVersion": version,
            "annotations": dict(annotations_of(self.document)),
        }
        body = {"metadata": metadata, "spec": self.document["spec"]}
        try:
            return self._api.patch(LEASE, *self._place, body)
        except Refused as error:
            if error.status not in (404, 409):
                raise
        return None

    def check(self) -> None:
        """Raise LeaseLost if the Lease is no longer held."""
        if self._lost is not None:
            raise self._lost

    def keep_alive(self, job: Document) -> None:
        """Prolong a lifetime, the Job of kveval.engines.kubernetes.lifetime, as long as the Lease is renewed."""
        self._lifetimes.append(job)

    def end(self, say: Callable[[str], None]) -> None:
        """Stop renewing, and delete the Lease unless another process holds it; if that fails, the Lease expires.

        Where `acquire` was interrupted, the API server may have made it all the same.
        """
        # A second Ctrl-C, as a job gets one from the terminal and one from snakemake, would leave it.
        with signals_deferred():
            self._over.set()
            held = self._renewal is not None
            if self._renewal is not None:
                self._renewal.join()
            else:
                # Whoever stops a job that waits is not to wait for the API server's return.
                self._api = Api(self._api.transport, outage_s=_RELEASE_S)
            try:
                uid = self.read()["metadata"]["uid"]
                self._api.delete(LEASE, *self._place, uid=uid)
            except LeaseLost:
                return
            except ClusterError as error:
                # A refused credential is told with what does not expire within a minute.
                if not held or error.code == CREDENTIAL_REFUSED:
                    return
                # With its namespace it goes, and so does the right to delete it.
                if not self._api.lacks_namespace(self._place[1]):
                    say(
                        f"Lease {self._label} could not be deleted ({error.aside}) and expires by itself"
                    )

    def read(self) -> Document:
        """Return the Lease as it is now. Raises LeaseLost if this process no longer holds it."""
        lease = self._api.read(LEASE, *self._place)
        if lease is not None and holder_of(lease) == self._holder:
            return lease
        by = "was deleted" if lease is None else f"was taken over by {holder_of(lease)}"
        message = f"this run's Lease {self._label} {by}: stopped, so as not to measure it twice"
        raise LeaseLost(message, holder=None if lease is None else holder_of(lease))

    def other(self) -> str:
        """Return who else holds the Lease by now, "" if nobody does. Raises ClusterError."""
        try:
            self.read()
        except LeaseLost as error:
            return str(error.facts["holder"] or "")
        return ""

    def _renew(self) -> None:
        # A Lease that still names this process after an outage was never another's: the run goes on.
        prolonged, refused_at = time.monotonic(), float("inf")
        while not self._over.wait(_RENEW_S):
            try:
                version = self.read()["metadata"]["resourceVersion"]
                body = {"metadata": {"resourceVersion": version}, "spec": renewed()}
                self._api.patch(LEASE, *self._place, body)
                refused_at = float("inf")
                if time.monotonic() - prolonged >= _PROLONG_S:
                    for job in self._lifetimes:
                        lifetime.prolong(self._api, job)
                    prolonged = time.monotonic()
            except LeaseLost as error:
                self._lost = error
                return
            except Refused as error:
                refused_at = min(refused_at, time.monotonic())
                lasted_s = time.monotonic() - refused_at
                if lasted_s > DURATION_S:
                    self._lost = LeaseLost(
                        f"this run's Lease {self._label} could not be renewed for {lasted_s:.0f} s"
                        f" ({error}): stopped, because another job may take the run over",
                        code="lease_not_renewed",
                    )
                    return
            except ClusterError:
                # The API server is away; if that lasts, the main thread reports it.
                continue


def hold_for_run(
    context: RunContext,
    say: Callable[[str], None],
    annotations: Mapping[str, str],
    component: str = COMPONENT,
    namespace: str | None = None,
) -> AbstractContextManager[HeldLease]:
    """Hold a Lease of the run while the body runs; while another process holds it, wait and report that with `say`.

    `annotations`: of the Lease, such as the mark of the run's recording, which other processes must not remove meanwhile.
    """
    metadata = run_metadata(context, component, namespace, annotations)
    return hold(context.api, metadata, "this run: {holder} is measuring it", say)


@contextlib.contextmanager
def hold(
    api: Api,
    metadata: Document,
    awaited: str,
    say: Callable[[str], None],
) -> Iterator[HeldLease]:
    """Hold the Lease with this metadata while the body runs; while another process holds it, wait.

    `awaited`: what is waited for, and what {holder} does with it, for the message to `say`.
    """
    lease = HeldLease(api, metadata)
    try:
        lease.acquire(awaited, say)
        yield lease
    finally:
        lease.end(say)


def run_metadata(
    context: RenderContext,
    component: str = COMPONENT,
    namespace: str | None = None,
    annotations: Mapping[str, str] = MappingProxyType({}),
) -> Document:
    """Return the metadata of a Lease of a run; `namespace`: by default that of the campaign."""
    return {
        "name": context.name(component),
        "namespace": namespace or context.site.namespace,
        "labels": context.labels(component),
        "annotations": dict(annotations),
    }


def lease_document(metadata: Document, holder: str) -> Document:
    """Return a Lease as it is made."""
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": metadata,
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": round(DURATION_S)},
    }


def living_leases(
    api: Api, namespace: str, campaign: str | None, component: str = COMPONENT
) -> list[Document]:
    """Return a campaign's Leases whose holders live: renewed lately, and not held by an ended process of this host."""
    since = (api.now() - timedelta(seconds=LIVING_S)).strftime(_TIME)
    leases = api.list(LEASE, namespace, selector(campaign, component=component))
    return [
        lease
        for lease in leases
        if not gone(holder_of(lease))
        and str(lease["spec"].get("renewTime") or "") > since
    ]


def mark_of(lease: Mapping[str, Any]) -> str:
    """Return the mark of the recording of a Lease's run."""
    return str(annotations_of(lease).get(MARK_ANNOTATION, ""))


def holder_of(lease: Mapping[str, Any]) -> str:
    """Return who holds a Lease."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def gone(holder: str) -> bool:
    """Tell whether a holder is a process of this host that has ended."""
    return abandoned(Path(f"lease-run-0-{holder}"))


def renewed() -> dict[str, str]:
    """Return the part of a Lease's spec that shows that its holder lives."""
    return {"renewTime": datetime.now(UTC).strftime(_TIME)}

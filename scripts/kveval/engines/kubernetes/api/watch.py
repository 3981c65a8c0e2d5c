"""Waiting for something on a cluster to change, without asking for it all the time.

What is watched only wakes the waiter, who then reads the present state anew. So nothing depends on a watch being
complete: a stream that ends without a word, an API server that is restarted, a version that is too old (410), an
object that is deleted and made again all look the same, as a reason to look.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import Kind
from kveval.engines.kubernetes.api.transport import Lines

_LONGEST_S = 240.0
_PAUSE_S = 1.0


class Watched(NamedTuple):
    """Some objects of one kind in one namespace."""

    kind: Kind
    namespace: str
    selector: str = ""
    fields: str = ""


class Changes:
    """Tells when any of the watched objects changes."""

    def __init__(self, api: Api, watched: Iterable[Watched]) -> None:
        self._api = api
        self._happened = threading.Event()
        self._over = threading.Event()
        self._open: dict[Watched, Lines] = {}
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._follow, args=(what,), name=f"watch-{what.kind.kind}", daemon=True)
            for what in watched
        ]

    def wait(self, timeout_s: float) -> None:
        """Return at the next change, or when `timeout_s` is over; changes since the last call count."""
        self._happened.wait(timeout_s)
        self._happened.clear()

    def _follow(self, what: Watched) -> None:
        while not self._over.is_set():
            with contextlib.suppress(ClusterError):
                self._read(what)
            # Ended: either its time was over, or the API server is gone. The waiter, who looks anew, will be told.
            self._happened.set()
            self._over.wait(_PAUSE_S)

    def _read(self, what: Watched) -> None:
        lines = self._api.watch(what.kind, what.namespace, what.selector, what.fields, timeout_s=_LONGEST_S)
        with self._lock:
            self._open[what] = lines
            over = self._over.is_set()
        try:
            if not over:
                for _ in lines:
                    self._happened.set()
        finally:
            with self._lock:
                del self._open[what]
            lines.close()

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all watches."""
        self._over.set()
        with self._lock:
            for lines in self._open.values():
                lines.interrupt()
        for thread in self._threads:
            thread.join(5.0)


@contextlib.contextmanager
def changes(api: Api, *watched: Watched) -> Iterator[Changes]:
    """Offer the changes of what is watched, until the context ends."""
    found = Changes(api, watched)
    found.start()
    try:
        yield found
    finally:
        found.stop()

"""The logs of pods, copied while they are written: what a pod that is gone had said is here."""

import contextlib
import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import POD, Document
from kveval.engines.kubernetes.api.transport import FollowedLog, Query

_AGAIN_S = 1.0
# Longer than any server is silent; a connection that died meanwhile is found by TCP.
_SILENCE_S = 24 * 3600.0


class Follower:
    """Copies one container's log into a file until it is closed or the pod is gone."""

    def __init__(self, api: Api, pod: Mapping[str, Any], container: str, log: Path) -> None:
        self._api = api
        self._namespace, self._pod = str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"])
        self._container = container
        self.log = log
        # A second deployment of a run goes on in the file of the first.
        self.offset = log.stat().st_size if log.exists() else 0
        """Where this container's log begins in the file, bytes."""
        self._stream: FollowedLog | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"log-{log.stem}", daemon=True)
        log.touch()
        self._thread.start()

    def complete(self) -> None:
        """Read the log once more, whole, where that can still be done; what was followed stays otherwise."""
        self.close()
        with contextlib.suppress(ClusterError):
            text = self._api.logs(self._namespace, self._pod, self._container).encode()
            if len(text) >= self.log.stat().st_size - self.offset:
                self._write(text)

    def before_restart(self) -> Path | None:
        """Bring the log that the container wrote before it was last started; None where there is none any more.

        The file that is followed has only what it wrote since.
        """
        with contextlib.suppress(ClusterError):
            text = self._api.logs(self._namespace, self._pod, self._container, previous=True)
            if text:
                log = self.log.with_suffix(".before-restart.log")
                log.write_text(text)
                return log
        return None

    def close(self) -> None:
        """Follow no more; may be called again."""
        self._over.set()
        if self._stream is not None:
            self._stream.interrupt()
        self._thread.join(timeout=2.0)

    def _write(self, content: bytes) -> None:
        with self.log.open("r+b") as file:
            file.truncate(self.offset)
            file.seek(self.offset)
            file.write(content)

    def _follow(self) -> None:
        query: Query = {"container": self._container, "follow": True}
        while not self._over.is_set():
            with contextlib.suppress(ClusterError, OSError):
                path = f"{self._api.resource(POD).path(self._namespace, self._pod)}/log"
                self._stream = self._api.transport.stream(path, query, _SILENCE_S)
                # Every answer begins with the first line: an answer that was cut off is read anew, whole.
                self._write(b"")
                with contextlib.closing(self._stream), self.log.open("ab", buffering=0) as file:
                    for part in self._stream:
                        if self._over.is_set():
                            return
                        file.write(part)
            if self._over.wait(_AGAIN_S) or self._ended():
                return

    def _ended(self) -> bool:
        try:
            found = self._api.read(POD, self._pod, self._namespace)
        except ClusterError:
            return False
        return found is None or (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def keep_evidence(error: Exception, folder: Path, words: str = "") -> str:
    """Return an error's first line, with `words` of the program's, and where the rest of it is kept in `folder`.

    The rest are events and last log lines.
    """
    first, _, rest = str(error).partition("\n")
    if not rest:
        return f"{first}{words}"
    log = folder / "cluster.log"
    with log.open("a") as file:
        file.write(f"{error}\n")
    return f"{first}{words}; see {log}"


def keep_logs(api: Api, pod: Document, folder: Path) -> None:
    """Bring the logs of a pod that will not run here, under their containers' names, as far as there are any."""
    metadata = pod["metadata"]
    for name, previous in itertools.product((entry["name"] for entry in pod["spec"]["containers"]), (True, False)):
        with contextlib.suppress(ClusterError):
            # Where it was started anew, what it has written since is kept, if that is anything.
            if text := api.logs(metadata["namespace"], metadata["name"], name, previous):
                (folder / f"{name}.log").write_text(text)

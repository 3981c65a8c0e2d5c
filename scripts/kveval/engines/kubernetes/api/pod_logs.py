"""The logs of pods, copied while they are written, so that they outlive their pods."""

import contextlib
import itertools
import threading
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import urllib3

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import POD, Document, status_of
from kveval.engines.kubernetes.api.transport import Query

_AGAIN_S = 1.0
# Longer than any server is silent; TCP keep-alive detects a dead connection.
_SILENCE_S = 24 * 3600.0


class Follower:
    """Copies one container's log into a file until it is closed or the pod is gone."""

    def __init__(
        self, api: Api, pod: Mapping[str, Any], container: str, log: Path
    ) -> None:
        self._api = api
        self._namespace, self.pod = (
            str(pod["metadata"]["namespace"]),
            str(pod["metadata"]["name"]),
        )
        self.container = container
        self.log = log
        # A run's second deployment appends to the file of the first.
        self.offset = log.stat().st_size if log.exists() else 0
        """Where this container's log begins in the file, bytes."""
        self._stream: urllib3.BaseHTTPResponse | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._follow, name=f"log-{log.stem}", daemon=True
        )
        log.touch()
        self._thread.start()

    def complete(self) -> None:
        """Replace the copy by the complete log if it can still be read; otherwise keep what was followed."""
        self.close()
        with contextlib.suppress(ClusterError):
            text = self._api.logs(self._namespace, self.pod, self.container).encode()
            if len(text) >= self.log.stat().st_size - self.offset:
                self._write(text)

    def before_restart(self) -> Path | None:
        """Save the log from before the container's last restart and return its path, None if it no longer exists.

        The followed file has only what was written since the restart.
        """
        with contextlib.suppress(ClusterError):
            text = self._api.logs(
                self._namespace, self.pod, self.container, previous=True
            )
            if text:
                log = self.log.with_suffix(".before-restart.log")
                log.write_text(text)
                return log
        return None

    def close(self) -> None:
        """Stop following; may be called again."""
        self._over.set()
        if self._stream is not None:
            with contextlib.suppress(
                OSError, RuntimeError, ValueError
            ):  # it ended by itself meanwhile
                self._stream.shutdown()
        self._thread.join(timeout=2.0)

    def _write(self, content: bytes) -> None:
        with self.log.open("r+b") as file:
            file.truncate(self.offset)
            file.seek(self.offset)
            file.write(content)

    def _follow(self) -> None:
        query: Query = {"container": self.container, "follow": True}
        while not self._over.is_set():
            with contextlib.suppress(
                ClusterError, OSError, urllib3.exceptions.HTTPError, HTTPException
            ):
                path = f"{POD.path(self._namespace, self.pod)}/log"
                self._stream = self._api.transport.stream(path, query, _SILENCE_S)
                # Every answer begins with the log's first line: after a lost connection the whole log is read again.
                self._write(b"")
                with (
                    contextlib.closing(self._stream),
                    self.log.open("ab", buffering=0) as file,
                ):
                    for part in self._stream.stream(None, decode_content=False):
                        if self._over.is_set():
                            return
                        file.write(part)
            if self._over.wait(_AGAIN_S) or self._ended():
                return

    def _ended(self) -> bool:
        try:
            document = self._api.read(POD, self.pod, self._namespace)
        except ClusterError:
            return False
        return document is None or status_of(document).get("phase") in (
            "Succeeded",
            "Failed",
        )


def keep_logs(api: Api, pod: Document, folder: Path) -> None:
    """Save the logs of a pod that does not run in `folder`, one CONTAINER.log each, as far as there are any."""
    metadata = pod["metadata"]
    for name, previous in itertools.product(
        (entry["name"] for entry in pod["spec"]["containers"]), (True, False)
    ):
        with contextlib.suppress(ClusterError):
            # After a restart the newer log overwrites the older one, unless it is empty.
            if text := api.logs(
                metadata["namespace"], metadata["name"], name, previous
            ):
                (folder / f"{name}.log").write_text(text)

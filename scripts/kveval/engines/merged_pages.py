"""Serves the metrics pages of several servers as one, because a recording has one source for all replicas."""

import http.server
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kveval.engines.merge_metrics import merged
from kveval.host.http import HttpError


class MergedPages:
    """An address of this host's loopback interface with the metrics of all replicas, told apart by a label `replica`.

    `pages`: read one page each. Where one cannot be read there is no answer (502), so that no total is incomplete.
    """

    def __init__(self, pages: Sequence[Callable[[], str]]) -> None:
        readers = ThreadPoolExecutor(len(pages), thread_name_prefix="metrics")

        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    texts = list(readers.map(lambda page: page(), pages))
                    status, body = 200, merged(texts).encode()
                except HttpError as error:
                    status, body = 502, str(error).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._readers = readers
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, name="merged-pages", daemon=True
        ).start()

    @property
    def url(self) -> str:
        """The address, without a path: every path has the page."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._readers.shutdown(wait=False, cancel_futures=True)

"""Requests to an API server, one at a time: what `Api` retries, and what its tests replace.

The package `kubernetes` reads the kubeconfig, renews credentials, and makes the connections with TLS. Not used are

- its generated models, which know no custom kinds;
- its dynamic client (see `kinds`), which would form the same requests, but lose the body of a refusal that is no UTF-8,
  and put headers and a traceback into the text of an error;
- its WebSocket helper, which replaces methods of a shared object while a command starts, and connects without a time
  limit.
"""

import base64
import contextlib
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import urllib3
import websocket
from kubernetes import client, config
from kubernetes.stream.ws_client import websocket_proxycare

from kveval.engines.kubernetes.api.errors import (
    CREDENTIAL_REFUSED,
    ClusterError,
    Refused,
    Unreachable,
)

# v5 only adds the closing of stdin, and the newest servers translate it; older servers use v4.
EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    # A peer that vanished without closing the connection is detected after 15 + 4 x 5 s.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
]
_FORBIDDEN = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"(?:.*namespace "(?P<namespace>[^"]+)")?'
)
_NO_CONTAINER = (
    "container not found",
    "is not running",
    "not created or running",
    "completed pod",
)
_CONTENT_TYPES = {
    "json": "application/json",
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
}

Query = Mapping[str, str | int | bool | Sequence[str]]


@dataclass(frozen=True)
class Reply:
    """An API server's answer, whatever it says."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the answer's JSON object, {} if it is none (an error page)."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def refusal(self, server: str, request: str) -> Refused:
        """Return the error for an answer that refuses; `request`: its method and path."""
        content, code, facts = self.json(), "", {}
        text = " ".join(
            str(
                content.get("message") or self.body[:400].decode(errors="replace")
            ).split()
        )
        reason = str(content.get("reason") or "")
        answer = ": ".join(part for part in (reason, text) if part)
        message = f"cluster {server} refused {request}: {self.status} {answer}"
        if self.status == 401:
            code = CREDENTIAL_REFUSED
            message = (
                f"cluster {server} rejects the credential ({request}: 401 {answer}): has the token "
                "expired? Log in again, or create a new token (docs/cluster.md)"
            )
        elif self.status == 403 and reason:
            # Without a reason the answer is not the API server's, but that of a proxy, or of the pod that was asked.
            code = "right_missing"
            match = _FORBIDDEN.search(text)
            facts = {
                name: value
                for name, value in (match.groupdict() if match else {}).items()
                if value
            }
            message += "; `kveval doctor` lists the rights that are missing, and the command that gives them"
        return Refused(
            message,
            self.status,
            reason,
            code=code,
            server=server,
            request=request,
            said=text,
            **facts,
        )


class Frames:
    """The frames of a command running in a pod."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection

    def receive(self, timeout_s: float) -> bytes | None:
        """Return the next frame, None if the server closed the connection. Raises TimeoutError or Unreachable."""
        self._connection.settimeout(timeout_s)
        try:
            while True:
                code, frame = self._connection.recv_data_frame(True)
                if code == websocket.ABNF.OPCODE_CLOSE:
                    return None
                if code in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT):
                    return bytes(frame.data)
        except websocket.WebSocketTimeoutException as error:
            raise TimeoutError from error
        except (websocket.WebSocketException, OSError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError, websocket.WebSocketException):
            self._connection.shutdown()


class KubernetesTransport:
    """The connection to the API server of a kubeconfig, or of the pod that this process runs in.

    Every method raises Unreachable if the request or its answer is lost.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        # `Api` does the retries: it knows for how long, and what to report meanwhile.
        configuration.retries = False
        configuration.socket_options = _OPTIONS
        configuration.connection_pool_maxsize = 16
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self.server: str = configuration.host

    @classmethod
    def configured(
        cls, kubeconfig: str | Path | None = None, context: str | None = None
    ) -> "KubernetesTransport":
        """Read the kubeconfig (default: KUBECONFIG, ~/.kube/config, else the pod's account). Raises ClusterError."""
        configuration = client.Configuration()
        # The client read KUBECONFIG when it was imported; the variable may have several paths.
        named = (
            str(Path(kubeconfig).expanduser())
            if kubeconfig
            else os.environ.get("KUBECONFIG") or None
        )
        try:
            config.load_kube_config(
                named, context, client_configuration=configuration, persist_config=False
            )
        except (config.ConfigException, OSError) as error:
            if named is None and context is None:
                with contextlib.suppress(config.ConfigException):
                    config.load_incluster_config(client_configuration=configuration)
                    return cls(configuration)
            prefix = f"context {context!r} of " if context else ""
            raise ClusterError(
                f"{prefix}{named or 'the kubeconfig (KUBECONFIG or ~/.kube/config)'} cannot be used: "
                f"{' '.join(str(error).split())}; `kubectl config get-contexts` shows what there is",
                code="kubeconfig_unusable",
                kubeconfig=named,
                context=context,
            ) from error
        return cls(configuration)

    def credential_ends(self) -> datetime | None:
        """Return when the bearer token expires, None unless it is a JWT that says so (RFC 7519, 4.1.4)."""
        setting: Any
        for setting in self._configuration.auth_settings().values():
            parts = str(setting["value"]).removeprefix("Bearer ").split(".")
            with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
                claims = json.loads(
                    base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
                )
                return datetime.fromtimestamp(claims["exp"], UTC)
        return None

    def _url(self, path: str, query: Query, headers: dict[str, str]) -> str:
        """Return the whole URL, and add the credentials to `headers`."""
        # The client's own method is not used, because its parameters change from release to release.
        setting: Any
        for setting in self._configuration.auth_settings().values():
            headers[setting["key"]] = setting["value"]
        pairs = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
        }
        return f"{self.server}{path}" + (
            f"?{urlencode(pairs, doseq=True)}" if pairs else ""
        )

    def _open(
        self,
        method: str,
        path: str,
        query: Query,
        body: bytes | None,
        content: str,
        timeout: urllib3.Timeout,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "kveval"}
        if body is not None:
            headers["Content-Type"] = _CONTENT_TYPES[content]
        url = self._url(path, query, headers)
        pool: urllib3.PoolManager = self._client.rest_client.pool_manager
        with _lost(f"{method} {path}"):
            return pool.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=timeout,
                preload_content=False,
                redirect=False,
            )

    def request(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any,
        content: str,
        timeout_s: float,
    ) -> Reply:
        """Send one request and return its whole answer; a wait for a part of it may last `timeout_s` seconds.

        `content` says what `body` is: json, apply or merge.
        """
        data = None if body is None else json.dumps(body).encode()
        answer = self._open(
            method,
            path,
            query,
            data,
            content,
            urllib3.Timeout(connect=min(10, timeout_s), read=timeout_s),
        )
        with contextlib.closing(answer), _lost(f"the answer to {method} {path}"):
            return Reply(answer.status, answer.headers, answer.data)

    def stream(
        self, path: str, query: Query, timeout_s: float
    ) -> urllib3.BaseHTTPResponse:
        """Open an answer that goes on, as a log that is followed; `timeout_s` is the longest silence in it, seconds."""
        answer = self._open(
            "GET",
            path,
            query,
            None,
            "json",
            urllib3.Timeout(connect=10, read=timeout_s),
        )
        if answer.status != 200:
            with contextlib.closing(answer), _lost(f"the answer to GET {path}"):
                raise Reply(answer.status, {}, answer.data).refusal(
                    self.server, f"GET {path}"
                )
        return answer

    def command(self, path: str, query: Query, timeout_s: float) -> Frames:
        """Start a command in a pod. A refusal raises ClusterError with its status."""
        headers: dict[str, str] = {}
        split = urlsplit(self._url(path, query, headers))
        url = urlunsplit(
            split._replace(scheme={"https": "wss", "http": "ws"}[split.scheme])
        )
        options: dict[str, Any] = {}
        if self._configuration.proxy or self._configuration.proxy_headers:
            websocket_proxycare(options, self._configuration, url, headers)
        try:
            connection = websocket.create_connection(
                url,
                timeout=timeout_s,
                header=[f"{name}: {value}" for name, value in headers.items()],
                subprotocols=list(EXEC_PROTOCOLS),
                sslopt=self._tls(),
                sockopt=_OPTIONS,
                enable_multithread=False,
                **options,
            )
        except websocket.WebSocketBadStatusException as error:
            reply = Reply(error.status_code, {}, error.resp_body or str(error).encode())
            refusal = reply.refusal(self.server, f"exec {path}")
            # 500 means that the node cannot be reached, which is temporary, or that no such container runs.
            if any(words in refusal.facts["said"] for words in _NO_CONTAINER):
                refusal.status, refusal.reason = 404, "ContainerNotRunning"
            raise refusal from error
        except (websocket.WebSocketException, OSError, HTTPException) as error:
            raise Unreachable(
                f"{path} at {self.server}: {type(error).__name__}: {error}"
            ) from error
        return Frames(connection)

    def _tls(self) -> dict[str, Any]:
        configuration = self._configuration
        options = {
            "certfile": configuration.cert_file,
            "keyfile": configuration.key_file,
            "ca_certs": configuration.ssl_ca_cert,
            "cert_reqs": None if configuration.verify_ssl else ssl.CERT_NONE,
            "check_hostname": configuration.assert_hostname
            if configuration.verify_ssl
            else False,
            "server_hostname": configuration.tls_server_name or None,
        }
        return {name: value for name, value in options.items() if value is not None}


@contextlib.contextmanager
def _lost(what: str) -> Iterator[None]:
    """Raise Unreachable for a failed connection, ClusterError for a certificate that is not trusted."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError, HTTPException) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(
            error
        ) or "certificate verify failed" in str(error):
            raise ClusterError(
                f"{what}: the API server's certificate is not trusted ({error}); "
                "is the kubeconfig's certificate-authority that of this cluster?"
            ) from error
        raise Unreachable(f"{what}: {type(error).__name__}: {error}") from error

"""Requests to one address: counted, timed to their first token, and stopped at bounds. Keys appear in no message."""

import contextlib
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from kveval.host.errors import Failure
from kveval.host.http import HttpError, decoded

_MOST_REDIRECTS = 3
_COMPLETIONS = "/v1/completions"
_MESSAGE_CHARACTERS = 300
_TRANSPORT = (OSError, http.client.HTTPException)


class AddressError(Failure):
    """An address, a key or a model's name with which no server can be asked; the message says what would be right."""


class SurveyStopped(Failure):
    """A bound was reached, or a request failed: nothing more is sent."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what is asked of a server: requests for tokens, and seconds to the first token of one."""

    most_requests: int = 200
    most_ttft_s: float = 10.0


@dataclass(frozen=True)
class StreamedAnswer:
    """A streamed answer.

    `tokens`: ids, or the whole text as one where the server does not tell ids; `cached_tokens`: of the prompt, as the
    answer's usage has them, None where it does not.
    """

    prompt_tokens: int
    tokens: tuple[str, ...]
    ttft_ms: float
    cached_tokens: int | None = None


@dataclass
class Client:
    """Asks the server at `url`; its metrics are at `metrics_url`, or at the same address."""

    url: str
    key: str = field(default="", repr=False)
    metrics_url: str = ""
    limits: Limits = field(default_factory=Limits)
    requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0

    def __post_init__(self) -> None:
        self.url = base_address(self.url)
        if self.metrics_url:
            self.metrics_url = base_address(self.metrics_url).removesuffix("/metrics")

    def fetch(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> bytes:
        """Send one request and return the body of a 2xx answer. Raises HttpError."""
        with self._answered(self.url, path, method, body, timeout_s) as (answer, _):
            return answer.read()

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> Any:
        """Send one request and return the decoded JSON, None for other answers. Raises HttpError, SurveyStopped.

        One that asks for tokens counts as a request.
        """
        if path == _COMPLETIONS:
            self._count_request()
        return decoded(self.fetch(path, method, body, timeout_s))

    def metrics_page(self, path: str) -> str:
        """Return the page of metrics, also where this server has it elsewhere than at `path`. Raises HttpError."""
        base = self.metrics_url or self.url
        url = f"{base}{path}"
        for _ in range(_MOST_REDIRECTS):
            try:
                with self._answered(url, "", "GET", None, 10.0) as (answer, _begin):
                    return answer.read().decode(errors="replace")
            except HttpError as error:
                place = error.facts.get("place")
                if not place:
                    raise
                url = urljoin(url, str(place))
                if urlsplit(url)[:2] != urlsplit(base)[:2]:
                    # A key is not passed on to somebody else.
                    message = f"the metrics of {base} are at {url}: --metrics {url}"
                    raise HttpError(message, status=error.facts["status"]) from error
        raise HttpError(f"{base}{path} is redirected in a circle", status=None)

    def complete(self, body: Mapping[str, Any]) -> StreamedAnswer:
        """Send one text and return its streamed answer.

        The time to the first token begins when the request is sent on an open connection. Raises SurveyStopped: if the server
        refuses, if the first token is later than the bound, or if no request is left.
        """
        self._count_request()
        bound_s = self.limits.most_ttft_s
        try:
            with self._answered(self.url, _COMPLETIONS, "POST", body, bound_s) as (
                stream,
                begin,
            ):
                answer = _read_stream(stream, begin)
        except HttpError as error:
            if isinstance(error.__cause__, TimeoutError):
                message = f"no token within {bound_s:g} s: the server is too busy or too slow for this"
                raise SurveyStopped(message, code="late_token") from error
            raise SurveyStopped(
                str(error), code="request_failed", **error.facts
            ) from error
        if answer.ttft_ms > 1000 * bound_s:
            message = f"the first token took {answer.ttft_ms / 1000:.1f} s, the bound is {bound_s:g} s"
            raise SurveyStopped(message, code="late_token")
        self.prompt_tokens += answer.prompt_tokens
        self.generated_tokens += len(answer.tokens)
        return answer

    @property
    def requests_left(self) -> int:
        """How many more requests for tokens may be sent."""
        return self.limits.most_requests - self.requests

    def _count_request(self) -> None:
        if self.requests_left < 1:
            message = f"{self.limits.most_requests} requests were sent, which is the bound: --max-requests"
            raise SurveyStopped(message, code="requests_spent")
        self.requests += 1

    @contextlib.contextmanager
    def _answered(
        self, url: str, path: str, method: str, body: object, timeout_s: float
    ) -> Iterator[tuple[http.client.HTTPResponse, float]]:
        """Yield a 2xx answer, and when its request was sent (monotonic, s). Raises HttpError."""
        parts = urlsplit(url)
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if content else {}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        what = f"{method} {url}{path}"
        connection = _connection(parts, timeout_s)
        try:
            connection.connect()
            begin = time.monotonic()
            query = f"?{parts.query}" if parts.query else ""
            connection.request(method, f"{parts.path}{path}{query}", content, headers)
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise _refusal(what, answer)
            yield answer, begin
        except ssl.SSLCertVerificationError as error:
            message = f"{what} failed: {error}; SSL_CERT_FILE=FILE names the certificate of an authority of your own"
            raise HttpError(message, status=None) from error
        except _TRANSPORT as error:
            raise HttpError(f"{what} failed: {error}", status=None) from error
        finally:
            connection.close()


def base_address(url: str) -> str:
    """Return an address as a user has it without what follows from /v1 on, and with a scheme. Raises AddressError."""
    address = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(address)
        port = parts.port
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise AddressError(f"no address of a server: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise AddressError(f"{url} is no address of a server: http://HOST:PORT")
    if parts.username or parts.password or parts.query:
        raise AddressError(
            "an address has no user, password or query: name the environment variable of a key with --key-env"
        )
    return re.sub(r"/v1(/(chat/)?completions|/models)?$", "", address.rstrip("/"))


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            host, parts.port, timeout=timeout_s, context=context
        )
    return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)


def _refusal(what: str, answer: http.client.HTTPResponse) -> HttpError:
    """Return the error of an answer other than 2xx; redirects are not followed, as they would pass the key on."""
    place = answer.getheader("Location")
    if place:
        return HttpError(
            f"{what} is redirected to {place}: use that address",
            status=answer.status,
            place=place,
        )
    text = answer.read(4 * _MESSAGE_CHARACTERS).decode(errors="replace")
    return HttpError(
        f"{what} failed: {answer.status} {_message_of(text)[:_MESSAGE_CHARACTERS]}",
        status=answer.status,
    )


def _message_of(text: str) -> str:
    """Return the message of an error's JSON, as servers in OpenAI's form have it, else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return " ".join(text.split())
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return str(value)


def _read_stream(stream: http.client.HTTPResponse, begin: float) -> StreamedAnswer:
    """Read the events of a streamed completion. Raises HttpError if it has no token or no usage."""
    ttft_ms: float | None = None
    tokens: list[int] = []
    texts: list[str] = []
    usage: Mapping[str, Any] = {}
    for line in stream:
        event = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or event == b"[DONE]":
            continue
        chunk = decoded(event)
        if not isinstance(chunk, dict) or "error" in chunk:
            raise HttpError(f"the stream failed: {_message_of(event.decode())}")
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or []:
            if ttft_ms is None:
                ttft_ms = 1000 * (time.monotonic() - begin)
            tokens += choice.get("token_ids") or []
            texts.append(choice.get("text") or "")
    if ttft_ms is None:
        raise HttpError("the stream ended without a token")
    if not usage.get("prompt_tokens"):
        raise HttpError(
            "the stream ended without usage: how long a prompt is stays unknown"
        )
    details = usage.get("prompt_tokens_details") or {}
    return StreamedAnswer(
        prompt_tokens=int(usage["prompt_tokens"]),
        tokens=tuple(map(str, tokens)) or ("".join(texts),),
        ttft_ms=round(ttft_ms, 3),
        cached_tokens=details.get("cached_tokens"),
    )

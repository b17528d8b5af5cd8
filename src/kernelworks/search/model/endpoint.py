"""A language model behind an endpoint that speaks OpenAI's chat completions, as most servers of models do."""

from __future__ import annotations

import datetime
import email.utils
import http.client
import ipaddress
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any, NoReturn

from kernelworks.search.model.ask import (
    MOST_BYTES,
    Message,
    NoAnswer,
    Patience,
    Reply,
    Text,
    TransientFailure,
    until_answered,
)

__all__ = ["Endpoint", "asked_wait"]

PATH = "/chat/completions"
MAY_PASS = {408, 409, 425, 429}  # and all from 500
# Of those that look as if they passed: there is no money left.
FOR_GOOD = ("insufficient_quota", "billing", "credit", "spend")
MOST_SAID = 400
CHUNK = 1 << 16


class _Still(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: a key is for the host that was named."""

    def redirect_request(self, *given: Any, **named: Any) -> None:
        return None


def _checked(url: str) -> str:
    """The address of the completions. Raises ValueError."""
    accepted = "http://HOST[:PORT][/PATH] or https://..., without a user or a query, such as http://127.0.0.1:8000/v1"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"endpoint must be {accepted}; got {url!r}") from None
    whole = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if "@" in parts.netloc:  # whose password is not repeated
        raise ValueError(f"endpoint must be {accepted}; got one with a user: a key belongs in a variable")
    if not whole or parts.query or parts.fragment or not url.isascii() or any(c <= " " for c in url):
        raise ValueError(f"endpoint must be {accepted}; got {url!r}")
    path = parts.path.rstrip("/")
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path if path.endswith(PATH) else path + PATH, "", ""))


def _here(host: str) -> bool:
    """Whether a host is this machine, which no proxy leads to."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Endpoint:
    """``ask`` sends a conversation and returns what comes back.

    A request that is refused for now (408, 409, 425, 429), a server's own fault (5xx), a connection that cannot be made
    or breaks, a reply that ends too soon or is no reply is asked for again, after as long as the other end asks for.
    Redirects are not followed. The key is shown to the endpoint alone.

    Raises:
        ValueError: an address, a name or a number that is none.
    """

    def __init__(
        self, url: str, model: str, *, key: str = "", patience: Patience | None = None,
        temperature: float | None = None, most_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.url, self.model, self.patience = _checked(url), model, patience or Patience()
        if not model or any(c < " " for c in model):
            raise ValueError(f"model must be the name of a model at the endpoint, got {model!r}")
        if not all("!" <= c <= "~" for c in key):
            raise ValueError("the key of the endpoint must be printable ASCII without spaces; it holds something else")
        if temperature is not None and not 0 <= temperature <= 2:
            raise ValueError(f"temperature must be from 0 to 2, got {temperature!r}")
        if most_tokens is not None and most_tokens < 1:
            raise ValueError(f"most_tokens must be a whole number from 1, got {most_tokens!r}")
        self._key = key
        given = {"temperature": temperature, "max_tokens": most_tokens}
        self._asked = {name: value for name, value in given.items() if value is not None}
        host = urllib.parse.urlsplit(self.url).hostname or ""
        straight = [urllib.request.ProxyHandler({})] if _here(host) else []
        self._opener = urllib.request.build_opener(_Still, *straight)
        self.said = f"{model} at {self.url}"

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Raises Unanswered."""
        said = {"model": self.model, "messages": [dict(one) for one in messages], **self._asked}
        body = json.dumps(said).encode()
        return until_answered(lambda: self._once(body), self.patience, self.said)

    def _once(self, body: bytes) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "kernelworks"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
        until = time.monotonic() + self.patience.seconds
        try:
            with self._opener.open(request, timeout=self.patience.seconds) as response:
                return _reply(_whole(response, until))
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error, until)
        except TimeoutError:
            raise TransientFailure(f"no answer within {self.patience.seconds:g} s") from None
        except http.client.IncompleteRead as error:
            raise TransientFailure(f"the reply broke off after {len(error.partial)} bytes") from None
        except urllib.error.URLError as error:
            why = error.reason
            late = isinstance(why, TimeoutError)
            said = f"no answer within {self.patience.seconds:g} s" if late else f"no connection: {why}"
            raise TransientFailure(said) from None
        except (OSError, http.client.HTTPException) as error:
            raise TransientFailure(f"the connection broke: {type(error).__name__}: {error}") from None

    def _refused(self, error: urllib.error.HTTPError, until: float) -> NoReturn:
        """Raises TransientFailure if another attempt may be taken, else Unanswered."""
        try:
            text, kind = _error(_whole(error, until))
        except (OSError, TransientFailure, http.client.HTTPException):
            text, kind = "", ""
        text = text.replace(self._key, "[key]") if self._key else text
        said = f"status {error.code}{f': {text}' if text else ''}"
        if (error.code in MAY_PASS and not any(w in kind for w in FOR_GOOD)) or error.code >= 500:
            raise TransientFailure(said, asked_wait(error.headers.get("Retry-After", "")))
        if 300 <= error.code < 400:
            to = str(error.headers.get("Location", ""))[:MOST_SAID]
            raise NoAnswer(f"{self.said} sends on to {to!r}; name that as the endpoint", permanent=True)
        raise NoAnswer(f"{self.said} answers with {said}", permanent=True)


def _whole(response: Any, until: float) -> bytes:
    """All that a response holds. Raises TransientFailure if that is too much, or takes too long."""
    parts, count = list[bytes](), 0
    while part := response.read1(CHUNK):
        parts.append(part)
        count += len(part)
        if count > MOST_BYTES:
            raise TransientFailure(f"a reply of more than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > until:
            raise TransientFailure(f"a reply that was not there in time, {count} bytes of it")
    promised = response.headers.get("Content-Length", "")
    if promised.isdigit() and count < int(promised):
        raise TransientFailure(f"the reply broke off after {count} of {promised} bytes")
    return b"".join(parts)


def asked_wait(text: str) -> float | None:
    """Seconds that a Retry-After asks for: a number, or a date."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        then = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    then = then.replace(tzinfo=then.tzinfo or datetime.UTC)  # where it names no zone
    return max(0.0, (then - datetime.datetime.now(datetime.UTC)).total_seconds())


def _error(body: bytes) -> tuple[str, str]:
    """What an error's body says in a line, and its kind: ``{"error": {"message", "type", "code"}}``, or any text."""
    text = body.decode("utf-8", "replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())[:MOST_SAID], ""
    error = said.get("error", said) if isinstance(said, dict) else said
    if not isinstance(error, dict):
        return " ".join(str(error).split())[:MOST_SAID], ""
    kind = f"{error.get('type')} {error.get('code')}".lower()
    return " ".join(str(error.get("message") or error.get("detail") or "").split())[:MOST_SAID], kind


def _reply(body: bytes) -> Reply:
    """Raises TransientFailure if it is no reply."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise TransientFailure(f"a reply that is no JSON: {body[:80]!r}") from None
    choices = said.get("choices") if isinstance(said, dict) else None
    texts = [_text(one) for one in choices] if isinstance(choices, list) else []
    if not texts:
        raise TransientFailure(f"a reply without choices: {_error(body)[0] or str(body[:80])}")
    used = said.get("usage")
    counts = used.items() if isinstance(used, dict) else ()
    tokens = {str(name): value for name, value in counts if type(value) is int}
    return Reply(tuple(texts), tokens)


def _text(choice: Any) -> Text:
    """Raises TransientFailure."""
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise TransientFailure("a reply with a choice that has no message")
    content, refused = message.get("content"), message.get("refusal")
    if isinstance(content, list):  # of parts
        content = "".join(str(p.get("text", "")) for p in content if isinstance(p, dict) and p.get("type") == "text")
    if not content and isinstance(refused, str) and refused:
        return Text(refused, "refusal")
    whole = content if isinstance(content, str) else ""
    return Text(whole.encode("utf-8", "replace").decode(), str(choice.get("finish_reason") or ""))  # no half characters

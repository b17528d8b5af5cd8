"""Asking a language model, whatever the way to it: what it answers, and how often it is asked where that fails."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "MOST_BYTES",
    "FailedAttempt",
    "Message",
    "NoAnswer",
    "Patience",
    "Reply",
    "Text",
    "TransientFailure",
    "Way",
    "until_answered",
]

MOST_BYTES = 8 << 20  # of one reply: a hundred times the longest kernel anybody wrote

Message = Mapping[str, str]  # "role" ("system", "user", "assistant") and "content"


@dataclass(frozen=True)
class Text:
    """One text of a reply, and why it ended, in the words of the endpoint: "stop", "length", "refusal", ""."""

    text: str
    ended: str = ""


@dataclass(frozen=True)
class FailedAttempt:
    """One attempt that failed: what was said, and after how long."""

    said: str
    seconds: float


@dataclass(frozen=True)
class Reply:
    texts: tuple[Text, ...]
    tokens: Mapping[str, int] = field(default_factory=dict)  # as the other end counts them, where it does
    seconds: float = 0.0  # with all waits
    failed: tuple[FailedAttempt, ...] = ()


class TransientFailure(Exception):
    """An attempt failed, and another may not; ``wait_s`` is what the other end asks to wait."""

    def __init__(self, said: str, wait_s: float | None = None) -> None:
        super().__init__(said)
        self.wait_s = wait_s


class NoAnswer(RuntimeError):
    """There is no answer. ``permanent``: asking again cannot help, a setting must change first."""

    def __init__(self, said: str, *, permanent: bool = False, failed: Sequence[FailedAttempt] = ()) -> None:
        super().__init__(said)
        self.permanent, self.failed = permanent, tuple(failed)


class Way(Protocol):
    """One way to ask."""

    said: str  # what is asked: "NAME at URL", "the command CMD"
    model: str

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Raises Unanswered."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long an answer is waited for, and how often it is asked for.

    Raises:
        ValueError: a number that is none, not finite or too small.
    """

    seconds: float = 600.0  # one attempt may take: models that think take minutes
    tries: int = 6
    wait: float = 1.0  # seconds before the second attempt; each is twice the one before
    most_s: float = 60.0  # the longest, whatever the other end asks for

    def __post_init__(self) -> None:
        for name in ("seconds", "wait", "most_s"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 < value < float("inf")):
                raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
        if type(self.tries) is not int or self.tries < 1:
            raise ValueError(f"tries must be a whole number from 1, got {self.tries!r}")

    def before(self, number: int, asked: float | None) -> float:
        """Seconds before attempt ``number`` + 1: doubled each time, and spread, so that several that were sent away
        together do not come back together."""
        own = min(self.most_s, self.wait * 2.0 ** min(number, 32)) * random.uniform(0.75, 1.25)
        return min(self.most_s, max(own, asked or 0.0))


def until_answered(once: Callable[[], Reply], patience: Patience, said: str) -> Reply:
    """``once`` until it answers. Raises Unanswered if it does not in as many tries as there are."""
    begin, failed = time.monotonic(), list[FailedAttempt]()
    for number in range(patience.tries):
        started = time.monotonic()
        try:
            found = once()
        except TransientFailure as error:
            failed.append(FailedAttempt(str(error), time.monotonic() - started))
            if number + 1 < patience.tries:
                time.sleep(patience.before(number, error.wait_s))
        except NoAnswer as error:
            raise NoAnswer(str(error), permanent=error.permanent, failed=failed) from None
        else:
            return Reply(found.texts, found.tokens, time.monotonic() - begin, tuple(failed))
    raise NoAnswer(f"{said} did not answer in {patience.tries} tries: {failed[-1].said}", failed=failed)

"""What compilers make beside a search, in processes of their own, and what the search knows of it.

A form is one candidate on top of what comes beneath it. A process of its own compiles it, so that inductor's caches on
disk hold it; when the search puts it in place, its compiler finds it there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelworks.diagnose.fix.channel import Channel
from kernelworks.diagnose.optimization import Candidate, Site

__all__ = [
    "FORM_ASKED", "FORM_FAILED", "FORM_READY", "CompileForm", "Compilers", "CompilersBeside", "FormState",
    "candidate_of", "plain_candidate",
]  # fmt: skip

FORM_ASKED, FORM_READY, FORM_FAILED = "asked", "ready", "failed"
HALTING_S = 10.0  # for the word that they stand
STILL_S = 0.05  # until a device has done what it was given before

State = dict[str, Any]  # of JSON's types


def plain_candidate(candidate: Candidate) -> State:
    """A candidate in JSON's types."""
    site = candidate.site
    return {
        **{name: getattr(candidate, name) for name in Candidate.__dataclass_fields__},
        "site": {name: getattr(site, name) for name in Site.__dataclass_fields__},
        "options": dict(candidate.options), "touches": sorted(candidate.touches),
    }  # fmt: skip


def candidate_of(plain: Mapping[str, Any]) -> Candidate:
    options, touches = tuple(plain["options"].items()), frozenset(plain["touches"])
    return Candidate(**{**plain, "site": Site(**plain["site"]), "options": options, "touches": touches})


@dataclass(frozen=True)
class CompileForm:
    """``key`` is all of it as text. ``says`` is for a reader."""

    key: str
    says: str

    @classmethod
    def of(cls, candidate: Candidate, beneath: Sequence[Candidate], *, random: bool) -> CompileForm:
        """``random``: with the random numbers of the original, for the verification."""
        whole = {
            "candidate": plain_candidate(candidate), "beneath": [plain_candidate(one) for one in beneath],
            "random": random,
        }  # fmt: skip
        on_top = f" on top of {', '.join(one.optimization for one in beneath)}" if beneath else ""
        alike = ", with the original's random numbers" if random else ""
        return cls(json.dumps(whole, sort_keys=True), f"{candidate.says}{on_top}{alike}")


@dataclass
class FormState:
    """``cold_s`` is what the compiler took, ``loads_s`` what it is expected to take once more with its caches."""

    state: str = FORM_ASKED
    loads_s: float = 0.0
    cold_s: float = 0.0


class Compilers:
    """No compilers beside: the search compiles all by itself, one after the other."""

    number = 0  # how many work at the same time, at the most

    def begin(self, needs: Mapping[str, Any], drains_s: float) -> None:
        """Said once, before anything is asked: what a copy of the program needs, and after how many seconds a device
        has done what it was given."""

    def ask(self, form: CompileForm, batch: int) -> None:
        """Has it compiled, if that was not asked yet. What is asked in a later batch comes first: the search is there
        by then."""

    def form_state(self, form: CompileForm) -> FormState | None:
        """None if it was not asked for."""
        return None

    def wait(self, forms: Iterable[CompileForm], seconds: float, say: Callable[[], None]) -> None:
        """Until one of these is not ``FORM_ASKED`` any more, or for so many seconds."""

    def halt(self) -> None:
        """Returns once they stand still, and the device is done with what they gave it."""

    def go_on(self) -> None:
        """They may work."""


class CompilersBeside(Compilers):
    """Those of a supervisor."""

    SAYS_S = 5.0

    def __init__(self, channel: Channel, number: int) -> None:
        self.number = number
        self._channel, self._states, self._drains_s = channel, dict[str, FormState](), 0.0
        self._may_work = False
        if number:  # an earlier worker's forms may be at work
            self.halt()

    def begin(self, needs: Mapping[str, Any], drains_s: float) -> None:
        self._drains_s = drains_s
        if self.number:
            self._channel.send("compilers", **needs)

    def ask(self, form: CompileForm, batch: int) -> None:
        if self.number and form.key not in self._states:
            self._states[form.key] = FormState()
            self._channel.send("compile", key=form.key, says=form.says, batch=batch)
            if self._may_work:
                self._channel.send("go on")

    def form_state(self, form: CompileForm) -> FormState | None:
        while (message := self._channel.receive(0.0)) is not None:
            self._take(message)
        return self._states.get(form.key)

    def wait(self, forms: Iterable[CompileForm], seconds: float, say: Callable[[], None]) -> None:
        waited = [form.key for form in forms if form.key in self._states]
        ends = time.monotonic() + seconds
        while all(self._states[key].state == FORM_ASKED for key in waited) and (left := ends - time.monotonic()) > 0:
            say()
            message = self._channel.receive(min(left, self.SAYS_S))
            if message is not None:
                self._take(message)

    def halt(self) -> None:
        self._may_work = False
        self._channel.send("halt")
        ends = time.monotonic() + HALTING_S
        while (left := ends - time.monotonic()) > 0:
            message = self._channel.receive(left)
            if message is None:
                return
            if message["kind"] == "halted":
                if message["worked"]:
                    time.sleep(STILL_S + self._drains_s)
                return
            self._take(message)

    def go_on(self) -> None:
        self._may_work = True
        self._channel.send("go on")  # also before anything was asked for: what is built beside began without

    def _take(self, message: Mapping[str, Any]) -> None:
        if message["kind"] == "form":
            self._states[message["key"]] = FormState(message["state"], message["loads_s"], message["cold_s"])

"""The proposer "any language model": asks one for candidates, with all that the judge knows of those before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelworks.judge.problem import Problem
from kernelworks.machine import environment
from kernelworks.search.feedback import shorten_text
from kernelworks.search.model.ask import Message, NoAnswer, Patience, Way
from kernelworks.search.model.command import Command
from kernelworks.search.model.endpoint import Endpoint
from kernelworks.search.model.lineage import Lineage, mark
from kernelworks.search.model.prompt import LANGUAGES, conversation, retry_message
from kernelworks.search.model.replies import ReplyCandidate, parse_reply
from kernelworks.search.model.transcripts import Transcripts, exchange
from kernelworks.search.proposer import Draft, Setting, StoredCandidate, UnfitProposer

__all__ = ["KEY", "OPTIONS", "Model", "make_model", "way_to"]

OPTIONS: dict[str, type] = {
    "endpoint": str, "model": str, "command": str, "key": str, "language": str, "temperature": float,
    "most_tokens": int, "seconds": float, "tries": int, "wait": float, "transcripts": str,
}  # fmt: skip
KINDS = {float: "a number", int: "a whole number"}
KEY = "KERNELWORKS_MODEL_KEY"
MOST_A_REPLY = 4  # candidates that are asked for at once: more are shallower
REPLIES = 3  # that may hold nothing before the model has nothing more to propose
MOST_BEFORE = 4000  # characters of a useless reply that the model is shown again


def way_to(
    *, endpoint: str | None = None, model: str | None = None, command: str | None = None, key: str = KEY,
    patience: Patience | None = None, temperature: float | None = None, most_tokens: int | None = None,
) -> Way:  # fmt: skip
    """An endpoint with a model's name, or a command.

    ``key`` names the variable that holds what the endpoint is shown. Raises ValueError that names the setting, what
    came and what is accepted.
    """
    if (endpoint is None) == (command is None):
        got = "both" if endpoint else "neither"
        raise ValueError(f"a language model is asked through an endpoint or through a command, got {got}")
    if command is not None:
        for name, value in (("model", model), ("temperature", temperature), ("most_tokens", most_tokens)):
            if value is not None:
                raise ValueError(f"{name} is for an endpoint; a command takes its own arguments, got {value!r}")
        return Command(command, patience=patience)
    if not model:
        raise ValueError(f"model must name a model at the endpoint, got {model!r}")
    held = environment.secret(key)
    if not held and key != KEY:
        raise ValueError(f"key must name a variable that holds the endpoint's key; {key!r} is unset or empty")
    return Endpoint(
        endpoint or "", model, key=held, patience=patience, temperature=temperature, most_tokens=most_tokens
    )


def make_model(setting: Setting) -> Model:
    """The proposer for a search, by the options that were given for it. Raises UnfitProposer if no model is named,
    ValueError that names the option, what came and what is accepted."""
    given = dict(setting.options)
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise ValueError(f"model takes the options {', '.join(OPTIONS)}, got {unknown[0]!r}")
    if not given:
        raise UnfitProposer("it needs a language model: --endpoint URL --model NAME, or --command 'CMD ARGUMENTS'")
    values: dict[str, Any] = {name: _number(name, text, OPTIONS[name]) for name, text in given.items()}
    patience = Patience(**{name: values.pop(name) for name in ("seconds", "tries", "wait") if name in values})
    language, place = values.pop("language", ""), values.pop("transcripts", "")
    if not place and setting.store is not None:
        place = setting.store.with_name(f"{setting.store.name}.transcripts.jsonl")
    way = way_to(**values, patience=patience)
    return Model(way, transcripts=Path(place) if place else None, language=language, seed=setting.seed)


def _number(name: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be {KINDS[kind]}, got {text!r}") from None


class Model:
    """Asks for new candidates, to better one that is right, or to mend one that was refused.

    Each exchange is kept in ``transcripts``, and ``detail["transcript"]`` of a draft says which one it is from.
    ``language`` is what candidates are asked to be written in; without it the parent's, or what fits the device.

    Raises:
        ValueError: a language that none is asked for in.
    """

    name = "model"

    def __init__(self, way: Way, *, transcripts: Path | None = None, language: str = "", seed: int = 0) -> None:
        if language and language not in LANGUAGES:
            raise ValueError(f"language must be one of {', '.join(LANGUAGES)}, got {language!r}")
        self.way, self.language = way, language
        self._kept = Transcripts(transcripts) if transcripts is not None else None
        self._draw = random.Random(seed)
        self.remark = ""  # why it proposes nothing
        self._has_permanent_failure = False
        self._lineage = Lineage(self.name)

    def propose(self, problem: Problem, seen: Sequence[StoredCandidate], most: int) -> list[Draft]:
        """Candidates of one reply; none where ``REPLIES`` replies held nothing new, or nobody answers: ``remark`` says
        why."""
        if most < 1 or self._has_permanent_failure:
            return []
        self._lineage.read(seen)
        at = self._lineage.parent(self._draw)
        parent, tried = None if at is None else seen[at], self._lineage.summary_lines(at)
        wanted = min(most, MOST_A_REPLY)
        messages = conversation(problem, parent, wanted, language=self.language, tried=tried)
        for _ in range(REPLIES):
            try:
                drafts, told, why = self._asked(problem, messages, parent, wanted)
            except NoAnswer as error:
                self._has_permanent_failure, self.remark = error.permanent, str(error)
                return []
            if drafts:
                self.remark = ""
                return drafts
            self.remark = f"{self.way.said}: no candidate in {REPLIES} replies; of the last one: {why[-1]}"
            messages = [
                *messages[:2],
                {"role": "assistant", "content": shorten_text(told, MOST_BEFORE)},
                retry_message(why, wanted),
            ]
        return []

    def observe_verdict(self, seen: StoredCandidate) -> None:
        """All that the next prompt says is in what was seen."""

    def _asked(
        self, problem: Problem, messages: list[Message], parent: StoredCandidate | None, most: int
    ) -> tuple[list[Draft], str, list[str]]:
        """The drafts of one reply, its first text, and why the rest of it is none. Raises Unanswered."""
        try:
            reply = self.way.ask(messages)
        except NoAnswer as error:
            self._keep(exchange(self.way.said, problem.name, messages, failed=error.failed, why=[str(error)]))
            raise
        found, why = list[ReplyCandidate](), list[str]()
        for one in reply.texts:
            read = parse_reply(one, problem, most)
            why += read.why
            for candidate in read.found:
                its = mark(candidate.code)
                if its in self._lineage.marks:
                    why.append("a candidate that was judged before")
                elif len(found) < most:
                    found.append(candidate)
                    self._lineage.marks.add(its)
        kept = self._keep(
            exchange(
                self.way.said, problem.name, messages, texts=reply.texts, failed=reply.failed, tokens=reply.tokens,
                seconds=reply.seconds, candidates=len(found), why=why,
            )
        )  # fmt: skip
        parents = (parent.id,) if parent is not None else ()
        detail: dict[str, Any] = {"asked": self.way.said, "transcript": kept, "seconds": round(reply.seconds, 3)}
        if reply.tokens:
            detail["tokens"] = dict(reply.tokens)
        if found and parent is not None:
            self._lineage.mark_mended(parent.id)
        drafts = [Draft(one.code, one.language, self.name, parents, one.note, detail) for one in found]
        return drafts, reply.texts[0].text, why or ["it holds none"]

    def _keep(self, line: dict[str, object]) -> str:
        return self._kept.keep(line) if self._kept is not None else ""

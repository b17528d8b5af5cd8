"""What a model's reply holds: candidates, or a clear word why none. Nothing of a reply runs here; it is only parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kernelworks.judge.formats import candidate_of, text
from kernelworks.judge.problem import Misread, Problem
from kernelworks.search.model.ask import Text

__all__ = ["ParsedReply", "ReplyCandidate", "fence_code", "parse_reply"]

NAME = "candidate"
MOST_CODE = 256 << 10  # characters of one candidate
MOST_BLOCKS = 64  # of one reply that are looked at
MOST_CLOSINGS = 4  # a fence inside a text of the code does not close its block
MOST_NOTE = 240

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.M)
THINKING_BLOCK = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.S | re.I)
REFUSES = re.compile(r"\b(I(['’]m| am)? (can(['’]|no)t|unable|won['’]t|not able)|I(['’]m| am) sorry|as an AI)\b", re.I)
OTHER_TONGUES = {"bash", "sh", "shell", "console", "text", "json", "diff", "output", "markdown", "md", "yaml", "toml"}


@dataclass(frozen=True)
class ReplyCandidate:
    """A candidate in a reply: the whole text of a file, its language, and the line before it."""

    code: str
    language: str
    note: str


@dataclass(frozen=True)
class ParsedReply:
    """``why`` says of each block, or of the whole reply, why it is no candidate."""

    found: tuple[ReplyCandidate, ...]
    why: tuple[str, ...]


def parse_reply(said: Text, problem: Problem, most: int) -> ParsedReply:
    """At most ``most`` candidates of a reply, in its order."""
    whole = THINKING_BLOCK.sub("", said.text)
    if not whole.strip():
        return ParsedReply((), ("it is empty" if not said.text.strip() else "it holds thoughts and no answer",))
    if said.ended == "refusal":
        return ParsedReply((), (f"it refuses: {_first(whole)}",))
    found, why = list[ReplyCandidate](), list[str]()
    for code, note, closed in _blocks(whole, problem, why):
        if not closed and said.ended == "length":
            why.append("its last block is cut short: the reply ended at the limit of its length")
        elif len(found) < most and all(code != one.code for one in found):
            found.append(ReplyCandidate(code, text.language(code), note))
    if not found and not why:
        why.append(_without_blocks(whole, problem, found))
    return ParsedReply(tuple(found), tuple(line for line in why if line))


def _without_blocks(whole: str, problem: Problem, found: list[ReplyCandidate]) -> str:
    """A reply that is code and nothing else, as commands write it; else what it is."""
    if _why_not(problem, whole) == "":
        found.append(ReplyCandidate(whole.strip() + "\n", text.language(whole), ""))
        return ""
    kind = "refuses" if REFUSES.search(whole) else "holds no block of code"
    return f"it {kind}: {_first(whole)}"


def _blocks(whole: str, problem: Problem, why: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Blocks that read as candidates: the code, the line before it, whether its fence is closed."""
    fences = list(FENCE.finditer(whole))
    at = number = 0
    while at < len(fences) and number < MOST_BLOCKS:
        number += 1
        opening = fences[at]
        code, after, closed, said = _block(whole, fences, at, problem)
        if not said:
            yield code, _note(whole[: opening.start()], code), closed
        elif opening[2].lower() not in OTHER_TONGUES:
            why.append(f"block {number} is no candidate: {said}")
        at = after


def _block(whole: str, fences: list[re.Match[str]], at: int, problem: Problem) -> tuple[str, int, bool, str]:
    """The text of the block that a fence opens, the fence after it, whether it is closed, and why it is no candidate.

    The first closing fence with which it reads counts: a text within the code may hold one too.
    """
    opening = fences[at]
    mark = opening[1]
    closings = [
        n
        for n in range(at + 1, len(fences))
        if fences[n][1][0] == mark[0] and len(fences[n][1]) >= len(mark) and not fences[n][2]
    ]
    tries = [(whole[opening.end() + 1 : fences[n].start()], n + 1, True) for n in closings[:MOST_CLOSINGS]]
    if not tries:
        tries = [(whole[opening.end() + 1 :], len(fences), False)]
    first = ""
    for code, after, closed in tries:
        why = _why_not(problem, code)
        if not why:
            return code, after, closed, ""
        first = first or why
    return tries[0][0], tries[0][1], tries[0][2], first


def _why_not(problem: Problem, code: str) -> str:
    """Why a text is no candidate; "" where it is one."""
    if not code.strip():
        return "it is empty"
    if len(code) > MOST_CODE:
        return f"{len(code)} characters, at most {MOST_CODE} are taken"
    try:
        candidate_of(NAME, code, problem, text.language(code))
    except Misread as error:
        return str(error).replace(f"{NAME}.py:", "line ", 1).removeprefix("line  ")[:400]
    except (ValueError, RecursionError, MemoryError) as error:  # of a text that no parser takes
        return f"not valid Python: {type(error).__name__}: {str(error)[:200]}"
    return ""


def _note(before: str, code: str) -> str:
    """The last line of words before a block, or the comment that its code begins with."""
    lines = [line.strip(" #*_>-\t") for line in FENCE.split(before)[-1].splitlines()]
    said = next((line for line in reversed(lines) if line), "")
    if not said:
        first = code.lstrip().splitlines()[0].strip()
        said = first.strip("#\"' ") if first.startswith(("#", '"""')) else ""
    said = re.sub(r"^\**(hypothesis|idea|note)\**\s*:\**\s*", "", said, flags=re.I)
    return said[:MOST_NOTE]


def _first(whole: str) -> str:
    return " ".join(whole.split())[:MOST_NOTE]


def fence_code(code: str, tongue: str = "python") -> str:
    """A text as a block of code, whatever fences it holds itself."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}{tongue}\n{code}{'' if code.endswith(chr(10)) else chr(10)}{mark}"

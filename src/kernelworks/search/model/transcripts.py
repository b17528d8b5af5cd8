"""What was asked and what came back, kept: one line of JSON an exchange, appended whole beside the store."""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelworks.records.json_text import parse_json
from kernelworks.search.model.ask import FailedAttempt, Message, Text

__all__ = ["Transcripts", "exchange"]


def exchange(
    said: str, problem: str, messages: Sequence[Message], *, texts: Sequence[Text] = (),
    failed: Sequence[FailedAttempt] = (),
    tokens: Mapping[str, int] | None = None, seconds: float = 0.0, candidates: int = 0, why: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """A line: whom (``said``), on what problem, the prompt, every text that came with why it ended, attempts that
    failed before, tokens as the other end counts them, seconds with all waits, and why a text holds no candidate."""
    return {
        "asked": said, "problem": problem, "messages": [dict(one) for one in messages],
        "replies": [{"text": one.text, "ended": one.ended} for one in texts],
        "failed": [{"said": one.said, "seconds": round(one.seconds, 3)} for one in failed],
        "tokens": dict(tokens or {}), "seconds": round(seconds, 3), "candidates": candidates, "why": list(why),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }  # fmt: skip


class Transcripts:
    """A file of lines that several processes may append to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, line: Mapping[str, Any]) -> str:
        """Appends a line in one write; its id, by which a candidate's ``detail`` names it. Raises OSError."""
        name = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:16]
        data = (json.dumps({"id": name, **line}) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            end = os.fstat(handle).st_size
            if end and os.pread(handle, 1, end - 1) != b"\n":  # a kill left half a line
                data = b"\n" + data
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
        finally:
            os.close(handle)
        return name

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every whole line, in order; none where there is no file."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                for text in file:
                    try:
                        line = parse_json(text)
                    except ValueError:
                        continue
                    if isinstance(line, dict):
                        yield line
        except FileNotFoundError:
            return

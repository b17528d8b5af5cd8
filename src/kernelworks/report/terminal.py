"""The two consoles: results go to stdout, progress and remarks to stderr, so ``kernelworks ... --json | jq`` works."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from kernelworks.machine import environment

__all__ = ["Notice", "bar", "claim_stdout", "document", "progress", "stderr", "stdout", "style_of"]

PIPED_WIDTH = 132  # where neither a terminal nor COLUMNS says how wide it is; rich itself would take 80 then
SPEAK_S = 8.0  # between lines of progress where no line can be written over
PATIENCE = 2.0  # times as long as before, until a step that goes on is told of once more
LOOK_S = 1.0  # how often it is asked whether one is due

# One colour for one cause, on the terminal as on the page.
STYLES = {
    "at peak": "green",
    "memory": "blue",
    "compute": "yellow",
    "transcendental": "magenta",
    "dispatch": "red",
    "launch": "red",
    "host": "bright_red",
    "sync": "bright_yellow",
    "fusion": "magenta",
    "allocation": "cyan",
    "latency": "bright_black",
    "cause unknown": "bright_black",
    "its own": "bright_magenta",
    "input": "bright_blue",
    "communication": "bright_cyan",
    "compiling": "bright_red",
    "native": "bright_magenta",
    "waiting": "bright_blue",
    "threads": "bright_cyan",
    "attributed": "bright_black",
    "contention": "bright_green",
    "unmodelled": "bright_black",
    "unexplained": "bright_black",
    "ambiguous": "bright_black",
}


def style_of(text: str) -> str:
    """The colour of a part of the time breakdown or a regime, by the first word of the list that its name holds."""
    lowered = text.lower()
    return next((style for word, style in STYLES.items() if word in lowered), "white")


def _console(*, error: bool) -> Console:
    """It keeps the stream that it finds: while the program under diagnosis runs, there is one of the program's own."""
    file = sys.stderr if error else sys.stdout
    probe = Console(file=file)
    width = None if probe.is_terminal or environment.columns() else PIPED_WIDTH
    return Console(file=file, width=width, no_color=environment.no_color() or None, highlight=False, markup=False)


_documents: TextIO | None = None  # what stdout was, once it was claimed


def claim_stdout() -> None:
    """Keeps stdout for documents alone: from here on all that is written to the file descriptor goes to stderr."""
    global _documents
    if _documents is None:
        sys.stdout.flush()
        with contextlib.suppress(OSError):  # a closed stdout has nothing to be kept from
            _documents = os.fdopen(os.dup(1), "w", encoding="utf-8")
            os.dup2(2, 1)


def document(text: str) -> None:
    """One document on stdout."""
    to = _documents or sys.stdout
    to.write(text + "\n")
    to.flush()


def stdout() -> Console:
    return _console(error=False)


def stderr() -> Console:
    return _console(error=True)


def bar(share: float, width: int) -> str:
    """A bar of eighths of a cell, ``width`` cells long; what is missing to a share of 1 is shaded."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")


class Notice(str):
    """A line of progress that stays on the terminal, and is written at once if there is none."""

    __slots__ = ()


class Advance(Protocol):
    """Says what is being done, and how far the work is where that is known."""

    def __call__(self, what: str, done: float = 0, total: float = 0) -> None: ...


def elapsed_text(step_s: float, whole_s: float) -> str:
    """For how long a step has run, and the whole command if that is more."""
    if whole_s - step_s < 1:
        return f"{whole_s:.0f} s"
    return f"{step_s:.0f} s, {whole_s:.0f} s in all" if step_s >= 1 else f"{whole_s:.0f} s in all"


def _step_of(text: str) -> str:
    """A line of progress without its seconds: that time goes on makes no other step of it."""
    return re.sub(r"\d+ s\b", "", text)


class _Elapsed(ProgressColumn):
    """Seconds of the step, which move on while nothing else is said."""

    max_refresh = 0.5

    def __init__(self, step_s: Callable[[], float]) -> None:
        super().__init__()
        self._step_s = step_s

    def render(self, task: Task) -> Text:
        return Text(elapsed_text(self._step_s(), task.elapsed or 0.0), style="dim")


class _Bar(BarColumn):
    """None as long as it is not known how much there is to do."""

    def render(self, task: Task) -> Any:
        return super().render(task) if task.total else Text()


@contextlib.contextmanager
def progress(title: str) -> Iterator[Advance]:
    """A progress line on stderr that goes away when the work is done: what is being done, how much of it where that is
    known, and for how long, which moves on. Where stderr is no terminal, such a line before ten seconds are over
    without one."""
    console = stderr()
    spoken = begun = whole = time.monotonic()
    text, wait, over = title, SPEAK_S, threading.Event()
    part = Column(ratio=1, overflow="ellipsis", no_wrap=True)  # one line, however narrow the terminal is
    columns = (
        SpinnerColumn(), TextColumn("{task.description}", table_column=part), _Bar(bar_width=12),
        _Elapsed(lambda: time.monotonic() - begun),
    )  # fmt: skip

    def speak(line: str) -> None:
        nonlocal spoken
        spoken = time.monotonic()
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    def remind() -> None:
        nonlocal wait
        while not over.wait(LOOK_S):
            now = time.monotonic()
            if now - spoken > wait:
                wait *= PATIENCE
                speak(f"{text} ({elapsed_text(now - begun, now - whole)})" if now - begun >= 1 else text)

    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, expand=True
    ) as shown:  # fmt: skip
        task = shown.add_task(title, total=None)

        def advance(what: str, done: float = 0, total: float = 0) -> None:
            nonlocal text, begun, wait
            if isinstance(what, Notice):
                speak(what)
                return
            said = f"{title}: {what}" if what else title
            if said != text:
                if _step_of(said) != _step_of(text):
                    wait = SPEAK_S
                text, begun = said, time.monotonic()
            shown.update(task, description=escape(text), completed=done, total=total or None)
            if not console.is_terminal and time.monotonic() - spoken > wait:
                wait *= PATIENCE
                speak(text)

        if not console.is_terminal:
            threading.Thread(target=remind, name="kernelworks progress", daemon=True).start()
        try:
            yield advance
        finally:
            over.set()

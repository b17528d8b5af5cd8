"""A language model behind a command: the prompt on its stdin, candidates on its stdout."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO

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

__all__ = ["Command"]

CHUNK = 1 << 16
MOST_ERRORS = 4000  # of what it writes to stderr: the end
LINGER_S = 1.0  # for what is still in a pipe that somebody else holds open


class Command:
    """``ask`` runs the command once, in a group of processes of its own that ends with it.

    ``line`` is split as a shell splits words, and no shell is run. A command that ends with another code than 0, writes
    nothing, or takes too long is run again.

    Raises:
        ValueError: a line that cannot be split, or names no command that is there.
    """

    model = ""

    def __init__(self, line: str, *, patience: Patience | None = None) -> None:
        try:
            self._words = shlex.split(line)
        except ValueError as error:
            raise ValueError(f"command cannot be split into words ({error}): {line!r}") from None
        if not self._words:
            raise ValueError(f"command must name a program and its arguments, got {line!r}")
        if shutil.which(self._words[0]) is None:
            raise ValueError(f"command must name a program that is there; {self._words[0]!r} is not")
        self.patience = patience or Patience()
        self.said = f"the command {self._words[0]}"

    def ask(self, messages: Sequence[Message]) -> Reply:
        """Raises Unanswered."""
        prompt = "\n\n".join(_shown(one) for one in messages) + "\n"
        return until_answered(lambda: self._once(prompt.encode("utf-8", "replace")), self.patience, self.said)

    def _once(self, prompt: bytes) -> Reply:
        try:
            process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise NoAnswer(f"{self.said} cannot be run: {error.strerror}", permanent=True) from None
        try:
            written, errors = _exchanged(process, prompt, time.monotonic() + self.patience.seconds)
        except TimeoutError:
            raise TransientFailure(f"not done within {self.patience.seconds:g} s") from None
        finally:
            code = _ended(process)
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        if code:
            how = f"ended by signal {-code}" if code < 0 else f"exited with code {code}"
            raise TransientFailure(f"{how}{f': {last[0][:400]}' if last else ''}")
        text = written.decode("utf-8", "replace")
        if not text.strip():
            raise TransientFailure(f"wrote nothing{f': {last[0][:400]}' if last else ''}")
        return Reply((Text(text),))


def _shown(message: Message) -> str:
    """What the model itself said before is marked as that."""
    return f"You answered:\n\n{message['content']}" if message["role"] == "assistant" else message["content"]


def _exchanged(process: subprocess.Popen[bytes], prompt: bytes, until: float) -> tuple[bytes, bytes]:
    """What it writes to stdout, and the end of what it writes to stderr, while it is given the prompt.

    Raises TimeoutError, and TransientFailure where it writes too much.
    """
    assert process.stdin and process.stdout and process.stderr
    found = {"out": bytearray(), "errors": bytearray()}
    left, lingers = memoryview(prompt), float("inf")
    with selectors.DefaultSelector() as ready:
        for stream, what in ((process.stdout, "out"), (process.stderr, "errors"), (process.stdin, "in")):
            os.set_blocking(stream.fileno(), False)
            ready.register(stream, selectors.EVENT_WRITE if what == "in" else selectors.EVENT_READ, what)
        while any(key.data != "in" for key in ready.get_map().values()):
            now = time.monotonic()
            if now > until:
                raise TimeoutError
            if now > lingers:  # it has ended, and what it has started goes on
                break
            for key, _ in ready.select(min(0.2, until - now)):
                if key.data == "in":
                    left = _given(process.stdin, left)
                    done = not left
                else:
                    done = _taken(key.fileobj, found[key.data])  # type: ignore[arg-type]
                if done:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
            if len(found["out"]) > MOST_BYTES:
                raise TransientFailure(f"wrote more than {MOST_BYTES >> 20} MiB")
            del found["errors"][:-MOST_ERRORS]
            if lingers == float("inf") and _over(process):
                lingers = time.monotonic() + LINGER_S
        while not _over(process):  # its pipes are closed, it is not gone yet
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(0.01)
    return bytes(found["out"]), bytes(found["errors"])


def _given(stream: IO[bytes], left: memoryview) -> memoryview:
    try:
        return left[os.write(stream.fileno(), left[:CHUNK]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:  # it has read enough
        return left[:0]


def _taken(stream: IO[bytes], into: bytearray) -> bool:
    """Whether that was all."""
    try:
        part = os.read(stream.fileno(), CHUNK)
    except BlockingIOError:
        return False
    into += part
    return not part


def _over(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; it stays known, so that its number is nobody else's."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Ends it and all of its group; how it had ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    return code

"""Lines of JSON between a fix's supervisor and its workers."""

from __future__ import annotations

import socket
import sys
from typing import Any

from kernelworks.machine.descriptors import is_readable
from kernelworks.machine.parent_process import die_with_parent
from kernelworks.profile.standard_input import kept_input
from kernelworks.records import to_json
from kernelworks.records.json_text import json_messages

__all__ = ["Channel", "started_worker"]


class Channel:
    """A worker's end of the socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._rest, self._waiting = b"", list[dict[str, Any]]()

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None if none comes within so many seconds (None: for ever), or the other end is closed."""
        while not self._waiting:
            received = self._socket.recv(1 << 20) if is_readable(self._socket, seconds) else b""
            if not received:
                return None
            *whole, self._rest = (self._rest + received).split(b"\n")
            self._waiting += json_messages(line.decode() for line in whole)
        return self._waiting.pop(0)

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: str, **fields: Any) -> None:
        self._socket.sendall((to_json({"kind": kind, **fields}, line=True) + "\n").encode())


def started_worker() -> tuple[Channel, dict[str, Any] | None]:
    """What a worker begins with: its supervisor, with whom it ends, and what that asks; None if it has ended. The
    process was given the numbers of a socket and of the file that keeps the program's standard input."""
    die_with_parent()
    channel = Channel(int(sys.argv[1]))
    kept_input(int(sys.argv[2]))
    return channel, channel.receive()

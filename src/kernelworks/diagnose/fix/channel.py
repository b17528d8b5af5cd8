"""Lines of JSON between a fix's supervisor and its workers."""

from __future__ import annotations

import select
import socket
from typing import Any

from kernelworks.records import to_json
from kernelworks.records.json_text import json_messages

__all__ = ["Channel"]


class Channel:
    """A worker's end of the socket."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._rest, self._waiting = b"", list[dict[str, Any]]()

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None if none comes within so many seconds (None: for ever), or the other end is closed."""
        while not self._waiting:
            ready, _, _ = select.select([self._socket], [], [], seconds)
            received = self._socket.recv(1 << 20) if ready else b""
            if not received:
                return None
            *whole, self._rest = (self._rest + received).split(b"\n")
            self._waiting += json_messages(line.decode() for line in whole)
        return self._waiting.pop(0)

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: str, **fields: Any) -> None:
        self._socket.sendall((to_json({"kind": kind, **fields}, line=True) + "\n").encode())

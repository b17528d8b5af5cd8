"""A language model's endpoint that says what it was told to say: a process of its own, with a real server in it.

``python scripted.py STEPS LOG`` serves on a port of 127.0.0.1 that it prints. Each request takes the next of the steps
(the last one again and again) and is written to the log, a line of JSON each.

| step | what is done |
|---|---|
| ``{"reply": text}`` | a completion with this text; ``"ended"``: why it ended; ``"tokens"``: a count; a list: choices |
| ``{"status": 429, "headers": {...}, "body": text}`` | that |
| ``{"half": text}`` | a completion of which half is sent, then the connection is closed |
| ``{"raw": text}`` | a body that is none, with status 200 |
| ``{"drop": true}`` | the connection is closed before a word |
| ``{"late": seconds}`` | nothing for as long, then a completion without code |
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def completion(step: dict[str, Any]) -> bytes:
    texts = step["reply"] if isinstance(step["reply"], list) else [step["reply"]]
    choices = [
        {"index": n, "message": {"role": "assistant", "content": text}, "finish_reason": step.get("ended", "stop")}
        for n, text in enumerate(texts)
    ]
    used = {"prompt_tokens": 7, "completion_tokens": step.get("tokens", 11)}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": choices, "usage": used}).encode()


def handler(steps: list[dict[str, Any]], log: Path) -> type[BaseHTTPRequestHandler]:
    asked: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with log.open("a", encoding="utf-8") as file:
                line = {"path": self.path, "headers": dict(self.headers), "body": json.loads(body)}
                file.write(json.dumps(line) + "\n")
            step = steps[min(len(asked), len(steps) - 1)]
            asked.append(1)
            self._play(step)

        def _play(self, step: dict[str, Any]) -> None:
            if "drop" in step:
                self.close_connection = True
                return
            if "late" in step:
                time.sleep(step["late"])
            if "status" in step:
                self._send(step["status"], step.get("body", "").encode(), step.get("headers", {}))
            elif "raw" in step:
                self._send(200, step["raw"].encode(), {})
            elif "half" in step:
                whole = completion({"reply": step["half"]})
                self._send(200, whole[: len(whole) // 2], {"Content-Length": str(len(whole))})
            else:
                self._send(200, completion({"reply": "well", **step}), {})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # who asked has given up
                self.wfile.write(body)
            self.close_connection = True

    return Handler


class Scripted:
    """The endpoint as a test holds it."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log = url, log

    @property
    def requests(self) -> list[dict[str, Any]]:
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]

    def prompt(self, number: int) -> str:
        """What the model was asked, without the rules."""
        return str(self.requests[number]["body"]["messages"][-1]["content"])


@contextlib.contextmanager
def serving(steps: Sequence[dict[str, Any]], folder: Path) -> Iterator[Scripted]:
    """An endpoint in a process of its own, which ends with the block."""
    script, log = folder / "steps.json", folder / "requests.jsonl"
    script.write_text(json.dumps(list(steps)), encoding="utf-8")
    command = [sys.executable, __file__, str(script), str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Scripted(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", log)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


if __name__ == "__main__":
    known = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(known, Path(sys.argv[2])))
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()

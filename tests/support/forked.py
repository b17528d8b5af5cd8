"""Programs in a process of their own, without the seconds that every process takes to import torch: one process imports
what programs begin with, and a fork of it runs each. It has run nothing before, and no thread of it is running."""

from __future__ import annotations

import atexit
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

# What programs load sooner or later, which takes each of them more than a second.
PACKAGE = ("kernelworks.cli", "kernelworks.diagnose", "kernelworks.verify", "torch._dynamo")
INTERPRETER = (
    "kernelworks.verify.triton_interpreter", "kernelworks.learn.worker", "triton.runtime.interpreter",
    "triton.language", "torch._dynamo",
)  # fmt: skip
_starting = threading.Lock()
PYTHON = sys.executable  # which a test may have replaced by what is made here

# Run by a Python that loads nothing of ours. It says what it was given, hands on its files and the signals that it is
# sent, and ends as the fork does.
CLIENT = """\
import json, os, signal, socket, struct, sys

path, *command = sys.argv[1:]
files = []
for name in os.listdir("/proc/self/fd"):
    try:
        files += [int(name)] * os.get_inheritable(int(name))
    except OSError:
        pass  # that of the listing itself
told = {"command": command, "variables": dict(os.environ), "folder": os.getcwd(), "files": files}
text = json.dumps(told).encode()
server = socket.socket(socket.AF_UNIX)
server.connect(path)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: server.send(bytes([number])))
socket.send_fds(server, [struct.pack("<I", len(text))], files)
server.sendall(text)
code = int(server.recv(16) or b"1")
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def interpreter(loaded: tuple[str, ...] = PACKAGE, interpreting: bool = False) -> str:
    """What stands in the place of ``sys.executable`` where a test is not about how its processes start. Each is a fork
    with the files, variables and folder that it is given; a kill of it is a kill of the fork. The modules of those
    names are there already, with kernels of Triton's for its interpreter or not. Whoever asks for the same modules,
    from whatever thread, has the same one: each takes seconds to load them."""
    with _starting:
        return _server(loaded, interpreting)


@functools.cache
def _server(loaded: tuple[str, ...], interpreting: bool) -> str:
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    path, client, command = folder / "socket", folder / "client.py", folder / "python"
    client.write_text(CLIENT, encoding="utf-8")
    words = map(shlex.quote, (PYTHON, "-IS", str(client), str(path)))
    command.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    env = {**os.environ, **({"TRITON_INTERPRET": "1"} if interpreting else {})}
    server = subprocess.Popen(
        [PYTHON, str(Path(__file__).with_name("forking_server.py")), str(path), *loaded],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.kill)
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    return str(command)


def python(
    *args: str, code: str = "", module: str = "", loaded: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """What ``python -c code args`` or ``python -m module args`` gives, with ``env`` added to the environment.
    ``loaded`` are the modules that are there already, if not those that such programs begin with."""
    interpreting = env.get("TRITON_INTERPRET") == "1"
    own = interpreter(loaded or (INTERPRETER if interpreting else PACKAGE), interpreting)
    command = [own, *(("-m", module) if module else ("-c", code)), *args]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**os.environ, **env}, check=False
    )

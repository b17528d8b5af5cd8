"""The process that `forked.interpreter` forks: it has imported what programs begin with, and has run nothing.

Each connection brings a command line of Python's, its variables, folder and open files. A keeper, forked for it, forks
the process that runs it, hands on its end or the signals that the client is sent, and ends it if the client is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

MOST_FILES = 64
OWN, GIVEN = 100, 300  # file descriptors of a keeper's own and of a client's begin here, out of each other's way


def received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, files, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
    (length,) = struct.unpack("<I", head)
    text = b""
    while len(text) < length:
        text += connection.recv(length - len(text)) or sys.exit(1)
    return json.loads(text), [fcntl.fcntl(file, fcntl.F_DUPFD, GIVEN) for file in files]


FOLDER, USERS = Path(sys.argv[1]).parent, os.environ.get("KERNELWORKS_CACHE")


def measure_beside_others() -> None:
    """What runs here does not wait until another worker of the tests has measured, or a user of this machine: the lock
    lies beside this server's socket, but where a test has a cache of its own."""
    environment: Any = sys.modules.get("kernelworks.machine.environment")
    if environment is not None and os.environ.get("KERNELWORKS_CACHE") == USERS:
        cache_dir = environment.cache_dir
        environment.cache_dir = lambda kind: FOLDER / kind if kind == "locks" else cache_dir(kind)


def run(told: dict[str, Any], files: list[int]) -> NoReturn:
    code = 1
    os.closerange(0, GIVEN)
    for file, number in zip(files, told["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    try:
        os.chdir(told["folder"])
        os.environ.clear()
        os.environ.update(told["variables"])
        measure_beside_others()
        own_folder = told["command"][0] != "-P"  # what Python begins its path with
        command = told["command"][not own_folder :]
        kind, what, *rest = command if command[0] in ("-c", "-m") else ("", *command)
        sys.argv = [what if kind != "-c" else "-c", *rest]
        sys.path[0] = {"-c": "", "-m": told["folder"], "": os.path.dirname(os.path.abspath(what))}[kind]
        if not own_folder:
            del sys.path[0]
        if kind == "-c":
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
        elif kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(what, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def keep(connection: socket.socket) -> None:
    told, files = received(connection)
    child = os.fork()
    if not child:
        os.setsid()
        run(told, files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while ended not in (ready := [key.fd for key, _ in selector.select()]):
            assert ready
            sent = connection.recv(1)
            os.kill(child, sent[0] if sent else signal.SIGKILL)
            if not sent:
                selector.unregister(connection)
    connection.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def reap(*_: Any) -> None:
    """Keepers that have ended are waited for, so that what they took is told of this process."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(path: str, *loaded: str) -> None:
    for name in loaded:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, reap)
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.bind(path)
        server.listen(64)
        print("ready", flush=True)
        selector.register(server, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while sys.stdin not in [key.fileobj for key, _ in selector.select()]:  # whose end is that of the tests
            connection, _ = server.accept()
            if not os.fork():
                own = socket.socket(fileno=fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, OWN))
                for each in (connection, server, selector):
                    each.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    keep(own)
                finally:
                    os._exit(0)
            connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

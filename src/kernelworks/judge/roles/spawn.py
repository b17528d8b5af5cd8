"""Where a judge's processes are born: one that has loaded torch and nothing of anybody's, and forks.

``python -m kernelworks.judge.roles.spawn FD FOLDER MODULE...`` loads these modules too, and listens on a socket. A
request names a role; the fork of it is apart from all else (``sandbox``) before the first line of foreign code runs in
it. A keeper stays between the two: it says what the process's number is, and how it ended.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kernelworks.contract.bounds import bound_of
from kernelworks.judge.process import sandbox
from kernelworks.judge.process.cleanup import remove_folder
from kernelworks.judge.process.driver_walls import driver_starts_behind, walls_to_leave_out
from kernelworks.judge.process.ipc import hear, read_papers, say
from kernelworks.judge.roles import candidate, examiner, operators, oracle, reachable, system_state
from kernelworks.machine.parent_process import die_with_parent

GPU_CONTROL = "/dev/nvidiactl"
ROLES = {"caller": candidate.serve, "examiner": examiner.serve, "oracle": oracle.serve}


def _keeper(request: dict[str, Any], control: int, status: int, papers: int) -> None:
    """Goes apart, forks the process, tells of it, and waits for its end."""
    die_with_parent()
    os.setsid()
    sandbox.keep_only((control, status, papers))
    apart = sandbox.Isolation(request["left_out"])
    folder = Path(request["folder"])
    sandbox.leave_others(apart, folder)
    die_with_parent()  # which the kernel forgets with another user's rights
    if "processes" not in apart.kept:
        sandbox.keep_orphans()
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()  # a signal to its group is one to itself
        os.close(told)
        os.close(status)
        filtered = request["role"] == "caller"  # the others hand on descriptors
        seen = sandbox.enclose(folder, apart, float(request["cpu_s"]), str(request["device"]), filtered=filtered)
        sandbox.caches(seen)
        with os.fdopen(tells, "w", encoding="utf-8") as file:
            file.write("\n".join([*(f"+{w}" for w in apart.kept), *(f"-{w}" for w in apart.open)]))
        code = 1
        try:
            given = read_papers(papers)
            os.close(papers)
            ROLES[request["role"]](socket.socket(fileno=control), given, seen)
            code = 0
        finally:
            os._exit(code)
    os.close(tells)
    os.close(control)
    with os.fdopen(told, encoding="utf-8") as file:
        lines = file.read().splitlines()
    end = socket.socket(fileno=status)
    kept, others = ([w[1:] for w in lines if w.startswith(sign)] for sign in "+-")
    say(end, {"pid": child, "kept": kept, "open": others}, (os.pidfd_open(child),))  # before it can be reaped
    _, how = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        say(end, {"ended": os.waitstatus_to_exitcode(how)})


@functools.cache
def _left_out() -> frozenset[str]:
    """Walls that this machine's GPU driver does not start behind: asked once, in processes of their own."""
    return walls_to_leave_out(driver_starts_behind) if os.path.exists(GPU_CONTROL) else frozenset()


def _loaded(modules: Sequence[str]) -> None:
    """What is loaded when a bound is derived for the first time, a second's worth, is loaded here, once for all; and
    these modules, of torch's and ours, as far as they are there. setuptools, which builds extensions, adds a folder of
    its own to the path of modules while it is loaded: no candidate changes the path by building one."""
    torch.set_num_threads(1)  # a pool of threads would not survive a fork
    with torch.no_grad():
        bound_of(torch.relu, [torch.zeros(1)])
    for name in ("setuptools", *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    tempfile.tempdir = None  # it is another one in each
    system_state.count_audit_hooks()
    reachable.mark_all()
    operators.mark_operators()
    gc.collect()
    gc.freeze()  # no child goes through all that again, and copies it by doing so


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    _loaded(sys.argv[3:])
    say(end, "ready")  # torch is loaded, and children find it so
    while True:
        try:
            request, (control, status, papers) = hear(end)
        except EOFError:
            remove_folder(Path(sys.argv[2]))  # where the supervisor was killed, nobody else does
            return
        request["left_out"] = _left_out() if request["device"] != "cpu" else frozenset()
        if os.fork() == 0:
            code = 1
            try:
                end.close()
                _keeper(request, control, status, papers)
                code = 0
            finally:
                os._exit(code)
        for number in (control, status, papers):
            os.close(number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()

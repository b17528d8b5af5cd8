"""Programs in a process of their own, without the seconds that every process takes to import torch: one process imports
what programs begin with, and a fork of it runs each. It has run nothing before, and no thread of it is running."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = """
import importlib, json, os, runpy, sys, traceback

for name in sys.argv[1:]:
    importlib.import_module(name)

def run(told):
    for fd, name in enumerate((os.devnull, told["out"], told["err"])):
        file = os.open(name, os.O_RDWR)
        os.dup2(file, fd)
        os.close(file)
    os.environ.clear()
    os.environ.update(told["env"])
    sys.argv = told["argv"]
    if told["module"]:
        runpy.run_module(told["module"], run_name="__main__", alter_sys=True)
    else:
        exec(compile(told["code"], "<string>", "exec"), {"__name__": "__main__"})

for line in sys.stdin:
    child = os.fork()
    if not child:
        code = 1
        try:
            run(json.loads(line))
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


# What programs load sooner or later, which takes each of them more than a second.
PACKAGE = ("kernelworks.cli", "kernelworks.diagnose", "kernelworks.verify", "torch._dynamo")
INTERPRETER = (
    "kernelworks.verify.triton_interpreter", "triton.runtime.interpreter", "triton.language", "torch._dynamo",
)  # fmt: skip


@functools.cache
def _server(loaded: tuple[str, ...], interpreting: bool) -> subprocess.Popen[str]:
    """Has imported the modules of those names, with kernels of Triton's for its interpreter or not. Ends when this
    process does, since its input ends then."""
    env = {**os.environ, **({"TRITON_INTERPRET": "1"} if interpreting else {})}
    command = [sys.executable, "-c", SERVER, *loaded]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def python(
    *args: str, code: str = "", module: str = "", loaded: tuple[str, ...] = (), **env: str
) -> subprocess.CompletedProcess[str]:
    """What ``python -c code args`` or ``python -m module args`` gives, with ``env`` added to the environment.
    ``loaded`` are the modules that are there already, if not those that such programs begin with."""
    interpreting = env.get("TRITON_INTERPRET") == "1"
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch()
        err.touch()
        told = {
            "code": code, "module": module, "argv": [module or "-c", *args], "env": {**os.environ, **env},
            "out": str(out), "err": str(err),
        }  # fmt: skip
        server = _server(loaded or (INTERPRETER if interpreting else PACKAGE), interpreting)
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(told) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
        assert status, f"the process that forks ended with {server.wait()}"
        return subprocess.CompletedProcess(told["argv"], int(status), out.read_text(), err.read_text())

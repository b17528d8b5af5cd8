"""The process in which a problem's code runs to have its nest derived: ``python -m kernelworks.search.schedule.trace
FOLDER``.

The problem comes as JSON on stdin, the nest goes as JSON to stdout. The code is as far apart from all else as a
candidate's (``judge.sandbox``).
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelworks.judge.problem import Problem, Shape
from kernelworks.judge.process import sandbox
from kernelworks.machine import environment
from kernelworks.search.schedule.nest import Kernel, kernel_as_json, kernel_from_json
from kernelworks.search.schedule.values import NotDerivable

__all__ = ["nest_of"]

PATIENCE_S = 180.0  # torch is loaded, and a graph traced without its contents
CPU_S = 120.0
MOST_BYTES = 1 << 24  # of the nest


def nest_of(problem: Problem) -> Kernel:
    """The nest of a problem's reference at its own shape; found once in a process. Raises NotDerivable."""
    key = json.dumps(dataclasses.asdict(problem))
    if key not in _known:
        try:
            _known[key] = _asked(key)
        except NotDerivable as error:
            _known[key] = str(error)
    found = _known[key]
    if isinstance(found, str):
        raise NotDerivable(found)
    return found


_known: dict[str, Kernel | str] = {}  # a problem -> its nest, or why it has none


def _asked(problem: str) -> Kernel:
    """What the process says."""
    paths = os.pathsep.join(p for p in sys.path if p)
    with tempfile.TemporaryDirectory(prefix="kernelworks-trace-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "kernelworks.search.schedule.trace", folder],
                input=problem, capture_output=True, text=True, timeout=PATIENCE_S,
                env={**environment.variables(), "PYTHONPATH": paths},
            )  # fmt: skip
            said = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            raise NotDerivable(f"it was not traced within {PATIENCE_S:.0f} s") from None
        except json.JSONDecodeError:
            raise NotDerivable(f"its tracing ended with code {done.returncode}: {done.stderr[-400:]}") from None
    if "declined" in said:
        raise NotDerivable(said["declined"])
    return kernel_from_json(said)


def _read(said: dict[str, Any]) -> Problem:
    shapes = tuple(Shape(s["name"], s["sizes"], s["required"]) for s in said["shapes"])
    return Problem(**(said | {"shapes": shapes, "remarks": tuple(said["remarks"])}))


def _answer(problem: Problem, folder: Path) -> str:
    import torch

    from kernelworks.search.schedule.derive import derive_nest

    torch.set_num_threads(1)
    try:
        loaded = importlib.import_module(problem.loader).load(problem, problem.shapes[0], folder)
        return json.dumps(kernel_as_json(derive_nest(loaded.reference(*loaded.init()), loaded.inputs())))
    except NotDerivable as error:
        return json.dumps({"declined": str(error)})
    except Exception as error:  # the problem's
        return json.dumps({"declined": f"the problem raised {type(error).__name__}: {error}"})


def main() -> None:
    problem, folder = _read(json.load(sys.stdin)), Path(sys.argv[1])
    apart = sandbox.Isolation()
    hears, tells = os.pipe()
    sandbox.leave_others(apart, folder)
    child = os.fork()
    if child == 0:
        try:
            sandbox.keep_only((tells,))
            seen = sandbox.enclose(folder, apart, CPU_S, "cpu", filtered=True)
            sandbox.caches(seen)
            with os.fdopen(tells, "w", encoding="utf-8") as file:
                file.write(_answer(problem, seen))
        finally:
            os._exit(0)
    os.close(tells)
    with os.fdopen(hears, encoding="utf-8") as file:
        said = file.read(MOST_BYTES)
    os.waitpid(child, 0)
    sys.stdout.write(said or json.dumps({"declined": "its process ended"}))


if __name__ == "__main__":
    main()

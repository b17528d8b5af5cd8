"""The process in which rungs run: one that crashes takes this one down and not the climb.

``python -m kernelworks.climb.worker FD`` reads a task as JSON from its input and writes a line of JSON to the file
descriptor for all that happens: ``{"beat": what}``, ``{"begin": rung}``, ``{"result": ...}``, ``{"notes": [...]}``,
``{"error": words}``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from kernelworks.climb.climber import Climber, DeviceStopped
from kernelworks.climb.ladder import Ladder, Rung, ladder_named
from kernelworks.climb.on_cpu import OnCpu
from kernelworks.climb.on_gpu import OnGpu
from kernelworks.climb.task import Task
from kernelworks.records import from_json, to_json


def _right_before(c: Climber, task: Task, rungs: dict[int, Rung]) -> Rung | None:
    for number in reversed(task.before):
        rung = rungs[number]
        if number in task.trusted or (not c.missing_reason(rung) and not c.verify_rung(rung)[1]):
            return rung
    return None


def _climber(task: Task, ladder: Ladder, say: Any) -> Climber:
    kind = OnGpu if ladder.problem.device == "cuda" else OnCpu
    return kind(ladder, task.size, task.known, task.budget_s, task.watch, task.rough, lambda what: say(beat=what))


def main() -> None:
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")

    task = from_json(Task, sys.stdin.read())
    try:
        ladder = ladder_named(task.folder)
        rungs = {rung.number: rung for rung in ladder.rungs}
        c = _climber(task, ladder, say)
        with torch.inference_mode():
            right = _right_before(c, task, rungs)
            for number in task.rungs:
                say(begin=number)
                result = c.climb_rung(rungs[number], right)
                say(notes=c.notes, result=json.loads(to_json(result)))
                if result.status in ("verified", "ambiguous"):
                    right = rungs[number]
    except DeviceStopped as error:
        say(stopped=str(error))
        out.flush()
        os._exit(0)  # what would be tidied up is on a device that no longer answers
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

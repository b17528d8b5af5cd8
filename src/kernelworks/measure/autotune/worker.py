"""The two steps of ``autotune OP --configs``, each in a process of its own: trying configurations, and the race.

A process keeps the tables that it has read and the plans that it has made with them. The race must time the table that
was just written, so it runs in a process that starts afterwards. A candidate that corrupts the CUDA context ends its
own process and no other.

The request is one JSON argument. The worker writes JSON lines: ``{"progress": ...}`` at each step, at last
``{"result": ...}``, or ``{"refused": ...}`` for a ValueError.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelworks.build import background
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import environment
from kernelworks.measure.autotune.configs import try_configs
from kernelworks.records import AutotuneResult, to_json
from kernelworks.records.json_text import build_record, json_messages

__all__ = ["main", "race_in_worker", "try_configs_in_worker"]

WORKER = (sys.executable, "-c", "from kernelworks.measure.autotune.worker import main; main()")

Progress = Callable[[str], None]


def try_configs_in_worker(
    op: Op, kernel: str, *, cases: Sequence[str] | None, keep: bool, progress: Progress
) -> AutotuneResult:
    """``try_configs`` in a process of its own: a result without calls.

    Raises: RuntimeError if the process dies.
    """
    request = {"step": "configs", "ops": [op.name], "kernel": kernel, "cases": cases, "keep": keep}
    return _run(request, progress)


def race_in_worker(ops: Sequence[Op], *, device: str, again: bool, progress: Progress) -> AutotuneResult:
    """``autotune_cases`` in a process of its own, which reads the tables as they are now.

    Raises: RuntimeError if the process dies.
    """
    return _run({"step": "race", "ops": [op.name for op in ops], "device": device, "again": again}, progress)


def _run(request: dict[str, Any], progress: Progress) -> AutotuneResult:
    result: AutotuneResult | None = None
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            [*WORKER, json.dumps(request)], stdout=subprocess.PIPE, stderr=errors, text=True,
            env=environment.passive_wait_variables(),
        ) as worker:  # fmt: skip
            assert worker.stdout is not None
            for message in json_messages(worker.stdout):
                if "progress" in message:
                    progress(message["progress"])
                elif "refused" in message:
                    raise ValueError(message["refused"])
                elif "result" in message:
                    result = build_record(AutotuneResult, message["result"])
        if result is None or worker.returncode:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["it said nothing"])[-1][:500]
            what = f"{request['step']} step of {', '.join(request['ops'])}"
            raise RuntimeError(f"the process of the {what} ended with {worker.returncode}: {last}")
    return result


def _emit(**message: Any) -> None:
    print(to_json(message, line=True), flush=True)


def main() -> None:
    from kernelworks import ops  # noqa: F401  fills OPS
    from kernelworks.measure.autotune import autotune_cases

    background.forbid()
    begin = time.perf_counter()
    request = json.loads(sys.argv[1])
    named = [OPS[name] for name in request["ops"]]

    def progress(text: str) -> None:
        _emit(progress=text)

    try:
        if request["step"] == "race":
            result = autotune_cases(named, device=request["device"], again=request["again"], progress=progress)
        else:
            configs, verifications = try_configs(
                named[0], request["kernel"], cases=request["cases"], keep=request["keep"], progress=progress
            )
            result = AutotuneResult(
                kinds=(), threads=torch.get_num_threads(), calls=(), seconds=time.perf_counter() - begin,
                configs=tuple(configs), verifications=tuple(verifications),
            )  # fmt: skip
    except ValueError as error:
        _emit(refused=str(error))
        return
    _emit(result=result)


if __name__ == "__main__":
    main()

"""One launch of each rung, for ``ncu`` to look at: ``python -m kernelworks.climb.single_launch FOLDER SIZE RUNGS``."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from kernelworks.climb.judge import draw_inputs
from kernelworks.climb.ladder import ladder_named
from kernelworks.climb.launching import rung_loader


def main() -> None:
    ladder, size, numbers = ladder_named(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    problem, loads = ladder.problem, rung_loader(ladder.problem)
    given = {
        format_name: draw_inputs(problem, size, format_name, seed=0) for format_name in {r.format for r in ladder.rungs}
    }
    out = torch.empty(problem.shape(size), dtype=problem.dtype, device="cuda")
    calls = [loads.call(r, size, given[r.format], out) for r in ladder.rungs if r.number in numbers]
    torch.cuda.synchronize()
    torch_cuda: Any = torch.cuda  # without annotations
    runtime = torch_cuda.cudart()
    runtime.cudaProfilerStart()
    for call in calls:
        call()
    torch.cuda.synchronize()
    runtime.cudaProfilerStop()


if __name__ == "__main__":
    main()

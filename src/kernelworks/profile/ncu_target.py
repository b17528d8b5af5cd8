"""``python -m kernelworks.profile.ncu_target TARGET [ARGUMENTS]``: the program, one run of it between the marks that
``counters`` has ncu look between."""

from __future__ import annotations

import contextlib
import io
import sys

import torch

from kernelworks.profile.on_gpu import waiting
from kernelworks.profile.program import from_target


def main(arguments: list[str]) -> None:
    program = from_target(arguments[0], arguments[1:])
    run = waiting(program.run)
    with contextlib.redirect_stdout(io.StringIO()):  # ncu's table goes there
        run()
        run()
        torch.cuda.cudart().cudaProfilerStart()
        run()
        torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main(sys.argv[1:])

"""What kernel_matmul is benchmarked against: KeOps, and torch by parts of rows, as quick as torch's users write it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.ops.baselines import Args

__all__ = ["BASELINES"]

PART = {"cpu": 16, "cuda": 2048}  # rows: the quickest of 8 to 512 on a CPU; K's part fills a GPU


def _by_parts(args: Args) -> Callable[[], Tensor] | None:
    """``|x|^2 + |y|^2 - 2 x.y``, in place: what is quickest, and has no digit left far from the origin."""
    x, y, v = (args[name] for name in "xyv")
    if x.dtype != torch.float32 or not x.numel() or not y.numel():
        return None
    rate = -0.5 / args["length_scale"].reshape(()).square()
    rows = PART[x.device.type]
    doubled = -2.0 * rate * y.T
    of_x, of_y = x.square().sum(1, keepdim=True) * rate, y.square().sum(1)[None] * rate

    def run() -> Tensor:
        output: Tensor = x.new_empty(x.shape[0], v.shape[1])
        for i in range(0, x.shape[0], rows):
            k = torch.addmm(of_y, x[i : i + rows], doubled).add_(of_x[i : i + rows]).exp_()
            torch.mm(k, v, out=output[i : i + rows])
        return output

    return run


def _keops(args: Args) -> Callable[[], Any] | None:
    """KeOps, which compiles the formula for these sizes of points and weights."""
    x, y, v = (args[name] for name in "xyv")
    if x.dtype != torch.float32 or not (x.numel() and v.numel()) or importlib.util.find_spec("pykeops") is None:
        return None
    d, e = x.shape[1], v.shape[1]
    symbolic: Any = importlib.import_module("pykeops.torch").Genred
    names = [f"X=Vi({d})", f"Y=Vj({d})", f"V=Vj({e})", "S=Pm(1)"]
    reduction = symbolic("Exp(-SqDist(X,Y)*S)*V", names, reduction_op="Sum", axis=1)
    rate = (0.5 / args["length_scale"].reshape(1).square()).contiguous()
    given = (x.contiguous(), y.contiguous(), v.contiguous(), rate)
    backend = "GPU" if x.is_cuda else "CPU"
    return lambda: reduction(*given, backend=backend)


BASELINES = {
    device: {"torch by parts": _by_parts, "keops": _keops} for device in PART
}  # fmt: skip

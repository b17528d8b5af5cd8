"""What adamw_ is benchmarked against on a GPU: torch's fused AdamW, which a user asks for with ``fused=True``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernelworks.ops.baselines import Args, Maker

__all__ = ["BASELINES"]


def _fused(args: Args) -> Callable[[], Any] | None:
    beta1, beta2 = args["beta1"], args["beta2"]
    lists = [list(args[name]) for name in ("params", "grads", "exp_avgs", "exp_avg_sqs")]
    if any(t.dtype != lists[0][0].dtype for group in lists for t in group):
        return None
    # the operator counts a step before it uses it only in the optimiser; here the number is that of this step
    steps = [torch.full((), float(args["step"]), device=lists[0][0].device) for _ in lists[0]]
    function: Any = torch._fused_adamw_
    return functools.partial(
        function, *lists, [], steps, lr=args["lr"], beta1=beta1, beta2=beta2, weight_decay=args["weight_decay"],
        eps=args["eps"], amsgrad=False, maximize=False,
    )  # fmt: skip


BASELINES: dict[str, dict[str, Maker]] = {"cuda": {"fused": _fused}}

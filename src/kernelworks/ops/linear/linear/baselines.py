"""What linear is benchmarked against on a CPU: oneDNN with a packed weight, and NumPy's BLAS."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.ops.baselines import Args, Maker

__all__ = ["BASELINES", "mkldnn"]


def mkldnn(args: Args) -> Callable[[], Any] | None:
    """oneDNN through torch's own ``to_mkldnn``: a weight packed once. It has its own code paths for Zen 5."""
    x, weight, bias = args["x"], args["weight"], args.get("bias")
    if x.dtype not in (torch.float32, torch.bfloat16) or not torch._C._has_mkldnn:
        return None
    if x.dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # AVX2 alone
        return None
    from torch.utils import mkldnn as packing

    convert: Any = packing.to_mkldnn  # without annotations

    with torch.device("meta"):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias.float(), requires_grad=False)
    packed = convert(layer.eval(), x.dtype)
    return functools.partial(packed, x)


def _numpy(args: Args) -> Callable[[], Any] | None:
    """NumPy's BLAS. Needs threadpoolctl to be held to the same threads as everyone."""
    x, weight, bias = args["x"], args["weight"], args.get("bias")
    if x.dtype is not torch.float32 or importlib.util.find_spec("threadpoolctl") is None:
        return None
    import numpy as np
    from threadpoolctl import threadpool_limits

    a, b = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).numpy(), weight.numpy().T
    offset = None if bias is None else bias.numpy()
    shape = (*x.shape[:-1], weight.shape[0])
    threadpool_limits(torch.get_num_threads(), "blas")

    def run() -> Tensor:
        product = np.matmul(a, b)
        if offset is not None:
            product += offset
        return torch.from_numpy(product).view(shape)

    return run


BASELINES: dict[str, dict[str, Maker]] = {"cpu": {"mkldnn": mkldnn, "numpy": _numpy}}

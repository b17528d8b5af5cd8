"""sgd_ on the GPU: one launch for all tensors of a pair of dtypes (``tile/lists.py``)."""

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.tile.lists import ListLaunch, block_of, elements

CONFIGS = configs(__file__)


@triton.jit
def _forward(
    owners, firsts, sizes, table, T, rate, momentum, take, decay, PARAM: tl.constexpr, STATE: tl.constexpr,
    BLOCK: tl.constexpr, SIGN: tl.constexpr, WHOLE: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr,
    FIRST: tl.constexpr, DECAYS: tl.constexpr,
):  # fmt: skip
    owner, at, inside = block_of(owners, firsts, sizes, BLOCK, WHOLE)
    p_at = elements(table, owner, at, PARAM, WHOLE)
    g_at = elements(table, owner + (2 * T if MOMENTUM else T), at, PARAM, WHOLE)
    p = tl.load(p_at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(g_at, mask=inside, other=0.0).to(tl.float32) * SIGN
    size = tl.maximum(tl.abs(p), tl.abs(g))
    b = tl.zeros_like(p)
    if MOMENTUM:
        b_at = elements(table, owner + T, at, STATE, WHOLE)
        if not FIRST:
            b = tl.load(b_at, mask=inside, other=0.0).to(tl.float32)
            size = tl.maximum(size, tl.abs(b))
    huge = (
        size > 1.152921504606847e18
    )  # 2^60: a step is linear, so where a product could leave float32 all is 2^-64 of it
    down, up = tl.where(huge, 5.421010862427522e-20, 1.0), tl.where(huge, 1.8446744073709552e19, 1.0)
    p *= down
    d = g * down
    if DECAYS:
        d += decay * p
    update = d
    if MOMENTUM:
        if FIRST:
            b = d
        else:
            b = momentum * (b * down) + take * d
        if NESTEROV:
            update = d + momentum * b
        else:
            update = b
        tl.store(b_at, b * up, mask=inside)
    tl.store(p_at, (p - rate * update) * up, mask=inside)


FORWARD = Kernel(_forward)


class Step:
    """Steps over lists of tensors that look like these."""

    def __init__(self, params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor]) -> None:
        self.momentum = bool(momentum_buffers)
        states = {"momentum_buffers": momentum_buffers} if self.momentum else {}
        self.launch = ListLaunch(FORWARD, {"params": params, **states, "grads": grads}, 1 + self.momentum, CONFIGS)

    def __call__(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor], lr: float,
        momentum: float, dampening: float, weight_decay: float, nesterov: bool, maximize: bool, is_first_step: bool,
        out: Any = None,
    ) -> None:  # fmt: skip
        numbers = [(float(lr), float(momentum), 1.0 - dampening, float(weight_decay))] * len(self.launch.groups)
        self.launch(
            (params, momentum_buffers, grads) if self.momentum else (params, grads), numbers,
            SIGN=-1.0 if maximize else 1.0, MOMENTUM=self.momentum, NESTEROV=nesterov, FIRST=is_first_step,
            DECAYS=weight_decay != 0.0,
        )  # fmt: skip


def prepare_forward(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor], *numbers: Any
) -> Callable[..., None]:
    return Step(params, grads, momentum_buffers)


def forward(
    params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor], *numbers: Any,
    out: Any = None,
) -> None:  # fmt: skip
    Step(params, grads, momentum_buffers)(params, grads, momentum_buffers, *numbers)

"""adamw_ on the GPU: one launch for all tensors of a pair of dtypes (``tile/lists.py``)."""

import math
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
    owners, firsts, sizes, table, T, beta1, beta2, fresh1, fresh2, decay, rate, scale, eps,
    PARAM: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, SIGN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    owner, at, inside = block_of(owners, firsts, sizes, BLOCK, WHOLE)
    p_at = elements(table, owner, at, PARAM, WHOLE)
    m_at = elements(table, owner + T, at, STATE, WHOLE)
    v_at = elements(table, owner + 2 * T, at, STATE, WHOLE)
    g_at = elements(table, owner + 3 * T, at, PARAM, WHOLE)
    g = tl.load(g_at, mask=inside, other=0.0).to(tl.float32) * SIGN
    m = tl.load(m_at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(p_at, mask=inside, other=0.0).to(tl.float32)
    m = beta1 * m + fresh1 * g
    huge = tl.abs(g) > 1.152921504606847e18  # 2^60: its square would leave float32, so all is 2^-64 of itself
    down, up = tl.where(huge, 5.421010862427522e-20, 1.0), tl.where(huge, 1.8446744073709552e19, 1.0)
    g *= down
    v = beta2 * (v * down * down) + fresh2 * g * g
    below = tl.sqrt_rn(v) * up * scale + eps
    p = p * decay - tl.div_rn(rate * m, below)
    tl.store(m_at, m, mask=inside)
    tl.store(v_at, v * up * up, mask=inside)
    tl.store(p_at, p, mask=inside)


FORWARD = Kernel(_forward)


class Step:
    """Steps over lists of tensors that look like these: the same dtypes, shapes and strides."""

    def __init__(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
    ) -> None:  # fmt: skip
        lists = {"params": params, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs, "grads": grads}
        self.launch = ListLaunch(FORWARD, lists, 3, CONFIGS)

    def __call__(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor], step: int, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, maximize: bool, out: Any = None,
    ) -> None:  # fmt: skip
        corrections = 1.0 - math.pow(beta1, step), 1.0 - math.pow(beta2, step)
        numbers = (
            float(beta1), float(beta2), 1.0 - beta1, 1.0 - beta2, 1.0 - lr * weight_decay, lr / corrections[0],
            1.0 / math.sqrt(corrections[1]), float(eps),
        )  # fmt: skip
        lists = (params, exp_avgs, exp_avg_sqs, grads)
        self.launch(lists, [numbers] * len(self.launch.groups), SIGN=-1.0 if maximize else 1.0)


def prepare_forward(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    *scalars: Any,
) -> Callable[..., None]:  # fmt: skip
    return Step(params, grads, exp_avgs, exp_avg_sqs)


def forward(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    *scalars: Any, out: Any = None,
) -> None:  # fmt: skip
    Step(params, grads, exp_avgs, exp_avg_sqs)(params, grads, exp_avgs, exp_avg_sqs, *scalars)

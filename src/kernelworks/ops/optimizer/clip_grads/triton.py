"""clip_grads_ on the GPU: two launches for all gradients of a dtype (``tile/lists.py``), and nothing that waits."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.ops.optimizer.clip_grads.contract import scale_of
from kernelworks.tile.lists import ListLaunch, block_of, elements

CONFIGS = configs(__file__)


@triton.jit
def _norm(
    owners, firsts, sizes, table, T, sums, PARAM: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    owner, at, inside = block_of(owners, firsts, sizes, BLOCK, WHOLE)
    g = tl.load(elements(table, owner, at, PARAM, WHOLE), mask=inside, other=0.0).to(tl.float64)
    if LARGEST:
        found = tl.max(tl.where(g == g, tl.abs(g), float("inf")), 0)
        found = tl.where(tl.max((g != g).to(tl.int32), 0) > 0, float("nan"), found)
    else:
        found = tl.sum(g * g, 0)
    tl.store(sums + tl.program_id(0), found)


@triton.jit
def _scale(
    owners, firsts, sizes, table, T, scales, PARAM: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    scale = tl.load(scales)
    if scale != 1.0:
        owner, at, inside = block_of(owners, firsts, sizes, BLOCK, WHOLE)
        g_at = elements(table, owner, at, PARAM, WHOLE)
        g = tl.load(g_at, mask=inside, other=0.0).to(tl.float32)
        tl.store(g_at, g * scale, mask=inside)


NORM, SCALE = Kernel(_norm), Kernel(_scale)


class Clip:
    """Clippings of gradients that look like these."""

    def __init__(self, grads: Sequence[Tensor]) -> None:
        self.lists = {"grads": grads}
        self.norm = ListLaunch(NORM, self.lists, 0, CONFIGS)
        self.scale = ListLaunch(SCALE, self.lists, 1, CONFIGS)
        self.blocks = [group.blocks for group in self.norm.groups]

    def __call__(
        self, grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool, out: Any = None
    ) -> Tensor:
        from kernelworks.ops.optimizer.clip_grads import refuse_nonfinite

        largest = norm_type == math.inf
        if not self.blocks:
            total = torch.zeros((), dtype=torch.float64, device=grads[0].device if grads else None)
        else:
            sums = torch.empty(sum(self.blocks), dtype=torch.float64, device=grads[0].device)
            self.norm((grads,), [(part,) for part in sums.split(self.blocks)], LARGEST=largest)
            total = sums.amax() if largest else sums.sum().sqrt()  # the largest of NaN and others is NaN
        if error_if_nonfinite:
            refuse_nonfinite(total.item(), norm_type)
        if self.blocks:
            scale = scale_of(total, max_norm).float()
            self.scale((grads,), [(scale,)] * len(self.blocks))
        result: Tensor = total.float()
        return result if out is None else out.copy_(result)


def prepare_forward(grads: Sequence[Tensor], *numbers: Any) -> Callable[..., Tensor]:
    return Clip(grads)


def forward(
    grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool, out: Any = None
) -> Tensor:
    return Clip(grads)(grads, max_norm, norm_type, error_if_nonfinite, out)

"""adamw_ on the GPU: one launch for all tensors of a pair of dtypes, through a table of their addresses.

The table lies on the device and is written again only when an address changed. Tensors are cut into blocks; a list
says whose block each program takes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs

CONFIGS = configs(__file__)
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
PIECE_SIZE = 16  # elements of a tensor and bytes of an address that go through a thread in one piece


@triton.jit
def _forward(
    owners, firsts, sizes, table, T, beta1, beta2, fresh1, fresh2, decay, rate, scale, eps,
    PARAM: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, SIGN: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    at = (block - tl.load(firsts + owner)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.load(sizes + owner)
    if WHOLE:
        size = tl.multiple_of(size, 16)
    inside = at < size
    p_at = tl.load(table + owner).to(tl.pointer_type(PARAM)) + at
    g_at = tl.load(table + T + owner).to(tl.pointer_type(PARAM)) + at
    m_at = tl.load(table + 2 * T + owner).to(tl.pointer_type(STATE)) + at
    v_at = tl.load(table + 3 * T + owner).to(tl.pointer_type(STATE)) + at
    if WHOLE:  # sizes are multiples of 16 and so are addresses in bytes, which lets a thread move 16 bytes at a time
        p_at, g_at = tl.max_contiguous(tl.multiple_of(p_at, 16), 16), tl.max_contiguous(tl.multiple_of(g_at, 16), 16)
        m_at, v_at = tl.max_contiguous(tl.multiple_of(m_at, 16), 16), tl.max_contiguous(tl.multiple_of(v_at, 16), 16)
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


class Group:
    """Tensors of one pair of dtypes, of whole sizes or of others: how they are cut, and where they lie."""

    def __init__(self, members: list[int], params: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        self.members = members
        self.device = params[members[0]].device
        self.param, self.state = params[members[0]].dtype, states[members[0]].dtype
        sizes = [params[i].numel() for i in members]
        self.even = not any(n % PIECE_SIZE for n in sizes)
        self.settings = CONFIGS.pick("forward", elements=sum(sizes), dtype=self.param)
        counts = [triton.cdiv(n, self.settings["BLOCK"]) for n in sizes]
        self.blocks = sum(counts)
        blocks = torch.tensor(counts)
        self.owners = torch.repeat_interleave(torch.arange(len(members), dtype=torch.int32), blocks).to(self.device)
        self.firsts = (blocks.cumsum(0) - blocks).to(torch.int32).to(self.device)
        self.sizes = torch.tensor(sizes).to(self.device)
        self.addresses: list[int] = []
        self.table: Any = None
        self.kept: list[Any] = []  # tables that a recorded CUDA graph reads when it is replayed

    def address_table(self, addresses: list[int]) -> Tensor:
        """The table of these addresses on the device; copied there only if it is not the last one."""
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        made = self.table
        if addresses != self.addresses:
            here = torch.tensor(addresses)
            if self.device.type == "cuda":
                here = here.pin_memory()
            made = here, here.to(self.device, non_blocking=True)
        if capturing:  # a copy made now happens when the graph is replayed, and each time: nothing else may use it
            self.kept.append(made)
        else:
            self.table, self.addresses = made, addresses
        return made[1]  # type: ignore[no-any-return]


class Step:
    """Steps over lists of tensors that look like these: the same dtypes, shapes and strides."""

    def __init__(self, params: Sequence[Tensor], states: Sequence[Tensor]) -> None:
        pairs: dict[Any, list[int]] = {}
        for i, (p, s) in enumerate(zip(params, states, strict=True)):
            if p.numel():
                pairs.setdefault((p.dtype, s.dtype, p.device, p.numel() % PIECE_SIZE == 0), []).append(i)
        self.groups = [Group(members, params, states) for members in pairs.values()]

    def __call__(
        self, params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor], step: int, lr: float, beta1: float, beta2: float, eps: float,
        weight_decay: float, maximize: bool, out: Any = None,
    ) -> None:  # fmt: skip
        corrections = 1.0 - math.pow(beta1, step), 1.0 - math.pow(beta2, step)
        constants = (
            float(beta1), float(beta2), 1.0 - beta1, 1.0 - beta2, 1.0 - lr * weight_decay, lr / corrections[0],
            1.0 / math.sqrt(corrections[1]), float(eps),
        )  # fmt: skip
        lists, copies = _dense((params, grads, exp_avgs, exp_avg_sqs))
        for group in self.groups:
            addresses = [tensors[i].data_ptr() for tensors in lists for i in group.members]
            whole = group.even and not any(a % PIECE_SIZE for a in addresses)
            launch = FORWARD.at(
                PARAM=DTYPES[group.param], STATE=DTYPES[group.state], SIGN=-1.0 if maximize else 1.0, WHOLE=whole,
                **group.settings,
            )  # fmt: skip
            launch(
                (group.blocks, 1, 1), group.owners, group.firsts, group.sizes, group.address_table(addresses),
                len(group.members), *constants,
            )  # fmt: skip
        for target, copy in copies:
            target.copy_(copy)


def _dense(
    lists: tuple[Sequence[Tensor], ...],
) -> tuple[list[Sequence[Tensor]], list[tuple[Tensor, Tensor]]]:
    """The lists with what is not contiguous replaced by copies, and what to copy back of them."""
    if all(t.is_contiguous() for tensors in lists for t in tensors):
        return list(lists), []
    made: list[Sequence[Tensor]] = [[t.contiguous() for t in tensors] for tensors in lists]
    back = [
        (t, copy) for place in (0, 2, 3) for t, copy in zip(lists[place], made[place], strict=True) if copy is not t
    ]
    return made, back


def prepare_forward(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    *scalars: Any,
) -> Callable[..., None]:  # fmt: skip
    return Step(params, exp_avgs)


def forward(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    *scalars: Any, out: Any = None,
) -> None:  # fmt: skip
    Step(params, exp_avgs)(params, grads, exp_avgs, exp_avg_sqs, *scalars)

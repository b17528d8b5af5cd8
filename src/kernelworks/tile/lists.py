"""One launch for all tensors of a pair of dtypes, through a table of their addresses.

The table lies on the device and is written again only when an address changed. Tensors are cut into blocks; a list says
whose block each program takes. A kernel begins with ``owners, firsts, sizes, table, T`` and finds element ``at`` of
list k at ``table[k * T + owner]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel

__all__ = ["PIECE_SIZE", "ListLaunch", "block_of"]

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
PIECE_SIZE = 16  # elements of a tensor and bytes of an address that go through a thread in one piece


@triton.jit
def block_of(owners, firsts, sizes, BLOCK: tl.constexpr, WHOLE: tl.constexpr):
    """The tensor of a program's block, the elements of the block, and which of them there are."""
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    at = (block - tl.load(firsts + owner)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.load(sizes + owner)
    if WHOLE:
        size = tl.multiple_of(size, 16)
    return owner, at, at < size


@triton.jit
def elements(table, place, at, DTYPE: tl.constexpr, WHOLE: tl.constexpr):
    """Where a tensor's elements lie. WHOLE: sizes are multiples of 16 and so are addresses in bytes, which lets a
    thread move 16 bytes at a time."""
    found = tl.load(table + place).to(tl.pointer_type(DTYPE)) + at
    if WHOLE:
        found = tl.max_contiguous(tl.multiple_of(found, 16), 16)
    return found


class _Group:
    """Tensors of one pair of dtypes, of whole sizes or of others: how they are cut, and where they lie."""

    def __init__(
        self, members: list[int], firsts: Sequence[Tensor], states: Sequence[Tensor], configs: Configs
    ) -> None:
        self.members = members
        self.device = firsts[members[0]].device
        self.param, self.state = firsts[members[0]].dtype, states[members[0]].dtype
        sizes = [firsts[i].numel() for i in members]
        self.even = not any(n % PIECE_SIZE for n in sizes)
        self.settings = configs.pick("forward", elements=sum(sizes), dtype=self.param)
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


class ListLaunch:
    """Launches of a kernel over lists of tensors that look like these: the same dtypes, shapes and strides. Of
    ``lists`` by name the first so many are written; the last of these is the state. ``numbers`` of a call are what a
    kernel takes beside the lists, for each of ``groups``."""

    def __init__(self, kernel: Kernel, lists: Mapping[str, Sequence[Tensor]], written: int, configs: Configs) -> None:
        self.kernel, self.names, self.written = kernel, tuple(lists), written
        firsts, states = lists[self.names[0]], lists[self.names[written - 1]]
        pairs: dict[Any, list[int]] = {}
        for i, (p, s) in enumerate(zip(firsts, states, strict=True)):
            if p.numel():
                pairs.setdefault((p.dtype, s.dtype, p.device, p.numel() % PIECE_SIZE == 0), []).append(i)
        self.groups = [_Group(members, firsts, states, configs) for members in pairs.values()]

    def __call__(self, lists: Sequence[Sequence[Tensor]], numbers: Sequence[Sequence[Any]], **constants: Any) -> None:
        dense, copies = self._dense(lists)
        for group, own in zip(self.groups, numbers, strict=True):
            addresses = [tensors[i].data_ptr() for tensors in dense for i in group.members]
            whole = group.even and not any(a % PIECE_SIZE for a in addresses)
            launch = self.kernel.at(
                PARAM=DTYPES[group.param], STATE=DTYPES[group.state], WHOLE=whole, **constants, **group.settings
            )
            launch(
                (group.blocks, 1, 1), group.owners, group.firsts, group.sizes, group.address_table(addresses),
                len(group.members), *own,
            )  # fmt: skip
        for target, copy in copies:
            target.copy_(copy)

    def _dense(self, lists: Sequence[Sequence[Tensor]]) -> tuple[list[Sequence[Tensor]], list[tuple[Tensor, Tensor]]]:
        """The lists with what is not contiguous replaced by copies, and what to copy back of them."""
        if all(t.is_contiguous() for tensors in lists for t in tensors):
            return list(lists), []
        made: list[Sequence[Tensor]] = [[t.contiguous() for t in tensors] for tensors in lists]
        pairs = (zip(lists[k], made[k], strict=True) for k in range(self.written))
        return made, [(t, copy) for pair in pairs for t, copy in pair if copy is not t]

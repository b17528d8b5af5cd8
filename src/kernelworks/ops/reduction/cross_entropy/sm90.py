"""cross_entropy on Hopper, in CUDA C++: a cluster of blocks keeps a row in registers, so that it is read once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel
from kernelworks.contract import Request
from kernelworks.contract.memory_layout import as_rows
from kernelworks.ops.reduction.cross_entropy.contract import REDUCTIONS

__all__ = ["backward", "forward", "guard", "resumed", "training"]

SOURCE = Path(__file__).with_suffix(".cu")
# As in the source: threads of a block, and how many times how many bytes a thread holds.
THREADS, VECTORS, BYTES = (256, 512), (8, 10), 16
MOST_BLOCKS = 16  # of a cluster
SM_THREADS = 1024  # threads of a multiprocessor
TURNS = 4  # rows of a cluster: what the next needs of memory beside its logits is asked for meanwhile
FEWEST = 4096  # elements of a row; below, a block has too little to do


def _each(dtype: torch.dtype) -> int:
    """Elements in what a thread loads at once."""
    return BYTES // dtype.itemsize


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    logits = request.args["logits"]
    (m, n), each = logits.shape, _each(logits.dtype)
    most = MOST_BLOCKS * THREADS[0] * VECTORS[0] * each
    if not FEWEST <= n <= most:
        return f"takes {FEWEST} to {most} classes in {logits.dtype}"
    if n % each or logits.stride[1] != 1 or (m > 1 and logits.stride[0] % each):
        return "loads 16 bytes at a time: rows must be of whole 16 bytes, classes on end"
    return None


@functools.cache
def _kernel(name: str, dtype: torch.dtype | None, threads: int, cluster: int = 1, vectors: int = 0) -> Kernel:
    suffix = "" if dtype is None else "_" + str(dtype).removeprefix("torch.")
    if name == "rows":
        suffix += f"_{threads}_{vectors}"
    return Kernel(SOURCE, name + suffix, threads=threads, cluster=cluster, overlap=name != "count_rows")


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return 132 if device.type == "meta" else torch.cuda.get_device_properties(device).multi_processor_count


def _shape(n: int, each: int) -> tuple[int, int, int]:
    """For rows of n: threads of a block, what a thread holds in vectors, blocks of a cluster (a power of two)."""
    (few, many), (less, more) = THREADS, VECTORS

    def blocks(vectors: int) -> int:
        return 1 << (-(-n // (few * vectors * each)) - 1).bit_length()

    if blocks(more) < blocks(less):  # half as many blocks, each nearly full
        return few, more, blocks(more)
    if few * less * each < n <= many * less * each:
        return many, less, 1  # one block, which need not tell others anything
    return few, less, blocks(less)


class Rows:
    """Rows of logits as the kernels take them, and how a cluster shares one."""

    def __init__(self, logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> None:
        (self.m, self.n), each = logits.shape, _each(logits.dtype)
        self.logits = as_rows(logits)
        if self.logits.data_ptr() % BYTES:
            self.logits = self.logits.clone(memory_format=torch.contiguous_format)
        self.target, self.ignore_index, self.reduction = target.contiguous(), ignore_index, reduction
        self.stride = self.logits.stride(0) if self.m > 1 else self.n
        self.threads, self.vectors, self.blocks = _shape(self.n, each)
        self.per_block = -(-self.n // (self.blocks * each)) * each
        self.count: Tensor | None = None

    def count_valid_rows(self) -> None:
        """Lets the gradient be divided by the number of rows that are not ignored, where the reduction is a mean."""
        if self.reduction == "mean" and self.m:
            self.count = torch.empty(1, dtype=torch.int32, device=self.logits.device)
            _kernel("count_rows", None, 1024)((1, 1, 1), self.target, self.count, self.m, self.ignore_index)

    def run(
        self, gradient: Tensor | None, losses: Tensor | None, grad: Tensor | None = None, *, ones: bool = False
    ) -> None:  # fmt: skip
        """Row losses and the gradient for ``grad`` (1 where it is None), those that are given. With ``ones``, rows into
        which 1 flows are left as they are."""
        if not self.m:
            return
        # As many clusters as run at once have rows to themselves; of more rows each gets some.
        at_once = max(1, SM_THREADS // self.threads * _multiprocessors(self.logits.device) // self.blocks)
        clusters = max(min(self.m, at_once), -(-self.m // TURNS))
        if ones:  # most often all rows are right already, and blocks that need not start at all cost time
            clusters = min(clusters, at_once)
        _kernel("rows", self.logits.dtype, self.threads, self.blocks, self.vectors)(
            (clusters * self.blocks, 1, 1), self.logits, self.target, grad, self.count, gradient, losses, self.stride,
            int(grad is not None and grad.dim() == 1), self.m, self.n, self.per_block, self.ignore_index, int(ones),
        )  # fmt: skip

    def losses(self) -> Tensor:
        """Room for the rows' losses."""
        return torch.empty(self.m, dtype=torch.float64, device=self.logits.device)

    def reduce_losses(self, losses: Tensor, out: Tensor | None) -> Tensor:
        """The loss from the rows' losses."""
        loss = out
        if loss is None:
            shape = (self.m,) if self.reduction == "none" else ()
            loss = torch.empty(shape, dtype=self.logits.dtype, device=self.logits.device)
        code = REDUCTIONS.index(self.reduction)
        _kernel("reduce", self.logits.dtype, 1024)(
            (1, 1, 1), losses, self.target, loss, self.m, self.ignore_index, code
        )  # fmt: skip
        return loss


def forward(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Tensor | None = None) -> Tensor:
    rows = Rows(logits, target, ignore_index, reduction)
    losses = rows.losses()
    rows.run(None, losses)
    return rows.reduce_losses(losses, out)


def _gradient(logits: Tensor) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def backward(
    grad: Tensor, logits: Tensor, target: Tensor, ignore_index: int, reduction: str, out: Any = None
) -> Tensor:
    rows, gradient, flow = Rows(logits, target, ignore_index, reduction), _gradient(logits), grad.contiguous()
    rows.count_valid_rows()  # the kernel before the next, which relies on that
    rows.run(gradient, None, flow)
    return gradient if out is None else out.copy_(gradient)


def training(
    logits: Tensor, target: Tensor, ignore_index: int, reduction: str, needs: list[bool]
) -> tuple[Tensor, Any]:
    """The loss, and what `resumed` needs: the rows, and the gradient for a 1 that flows in."""
    rows, gradient = Rows(logits, target, ignore_index, reduction), _gradient(logits)
    rows.count_valid_rows()
    losses = rows.losses()
    rows.run(gradient, losses)
    return rows.reduce_losses(losses, None), (rows, gradient)


def resumed(kept: Any, grad: Tensor) -> tuple[Tensor]:
    """The gradient: as it was kept where 1 flows in (the kernel looks), else made again from the logits."""
    rows, gradient = kept
    rows.run(gradient, None, grad.contiguous(), ones=True)
    return (gradient,)

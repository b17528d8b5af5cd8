"""linear for some 17 to 512 rows of x on Hopper, in CUDA C++: one tile a block, all of them at work at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.configs import configs
from kernelworks.build.cuda import Kernel, tensor_map
from kernelworks.contract import Request
from kernelworks.contract.memory_layout import as_rows

__all__ = ["TileConfig", "choose_tile", "forward", "guard", "prepare_forward"]

SOURCE = Path(__file__).with_suffix(".cu")
CONFIGS = configs(__file__)
DTYPES = (torch.bfloat16, torch.float16)
LEAST_ROWS = 17  # of x
BOX = 64  # columns of a bulk copy
ROOMY = 224 * 1024  # bytes of shared memory for what the blocks of a multiprocessor ask for

Launch = Callable[..., Any]


@dataclass(frozen=True)
class TileConfig:
    """The constants of one kernel of ``middle.cuh``, as its template takes them, and whether the weight passes through
    L2: fetched by single lines, which leave first."""

    GROUPS: int
    HEIGHT: int
    LOADED: int
    WIDTH: int
    DEPTH: int
    STAGES: int
    DOWN: int
    ACROSS: int
    PARTS: int
    RESIDENT: int
    STREAMED: int

    @property
    def threads(self) -> int:
        return 128 * self.GROUPS + 32

    @property
    def cluster(self) -> int:
        return self.DOWN * self.ACROSS * self.PARTS

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory: the ring, and sums of other blocks where they fit beside it."""
        ring = self.STAGES * self.DEPTH * 128 * (self.LOADED + self.WIDTH)
        most = -(-(self.WIDTH // 8) // self.PARTS)
        received = self.PARTS * self.HEIGHT * most * 128 * self.GROUPS * 16 if self.PARTS > 1 else 0
        return ring if ring + received > ROOMY // self.RESIDENT else ring + received

    def name(self, dtype: torch.dtype) -> str:
        sizes = (
            self.GROUPS, self.HEIGHT, self.LOADED, self.WIDTH, self.DEPTH, self.STAGES, self.DOWN, self.ACROSS,
            self.PARTS, self.RESIDENT,
        )  # fmt: skip
        return "_".join(("middle", str(dtype).removeprefix("torch."), *map(str, sizes)))

    def blocks(self, m: int, n: int) -> int:
        """Of a launch: whole clusters."""
        return -(-m // (self.LOADED * self.DOWN)) * -(-n // (self.WIDTH * self.ACROSS)) * self.cluster


@functools.lru_cache(maxsize=1024)
def choose_tile(m: int, n: int, k: int, dtype: torch.dtype) -> TileConfig | None:
    """The cut for a product of M rows of x, or None where tuning.toml has none."""
    if m < LEAST_ROWS:
        return None
    try:
        return TileConfig(**CONFIGS.pick("middle", op_kernel="sm90_middle", M=m, N=n, K=k, dtype=dtype))
    except LookupError:
        return None


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    x, weight = request.args["x"], request.args["weight"]
    if x.dtype not in DTYPES:
        return "takes bfloat16 and float16"
    n, k = weight.shape
    if not x.numel or not weight.numel or max(x.numel // k, n, k) >= 2**31:
        return "takes sizes from 1 to 2^31"
    if k % 8 or n % 8 or weight.stride[1] != 1 or weight.stride[0] % 8:
        return "copies 16 bytes at a time: rows of the weight and of the result must be of whole 16 bytes, K on end"
    if choose_tile(x.numel // k, n, k, x.dtype) is None:
        return "takes the numbers of rows, N and K that tuning.toml has a tile for: elsewhere other rows are quicker"
    return None


@functools.cache
def _kernel(cut: TileConfig, dtype: torch.dtype) -> Kernel:
    return Kernel(
        SOURCE, cut.name(dtype), threads=cut.threads, shared=cut.shared_bytes, cluster=cut.cluster, overlap=True
    )  # fmt: skip


def _maps(cut: TileConfig, x: Tensor, weight: Tensor, m: int, x_stride: int) -> tuple[Tensor, Tensor]:
    n, k = weight.shape
    fetched = 128 if cut.STREAMED else 256
    of_weight = tensor_map(weight, n, k, weight.stride(0), cut.WIDTH // cut.DOWN, BOX, fetched)
    return tensor_map(x, m, k, x_stride, cut.LOADED // cut.ACROSS, BOX, fetched), of_weight


def _aligned(x: Tensor) -> Tensor:
    """Rows of whole 16 bytes at an address of whole 16 bytes; a copy where x's are not."""
    rows = as_rows(x)
    stride = rows.stride(0) if rows.dim() == 2 else rows.shape[-1]
    return rows.clone(memory_format=torch.contiguous_format) if stride % 8 or rows.data_ptr() % 16 else rows


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    output = x.new_empty((*x.shape[:-1], weight.shape[0])) if out is None else out
    rows, weight = _aligned(x), _aligned(weight)
    n, k = weight.shape
    m = rows.numel() // k
    target = output if output.data_ptr() % 16 == 0 else torch.empty_like(output)
    if bias is not None and not bias.is_contiguous():
        bias = bias.clone(memory_format=torch.contiguous_format)
    cut = choose_tile(m, n, k, x.dtype)
    if cut is None:
        raise ValueError(f"x: no tile for {m} rows, N {n} and K {k}; tuning.toml has those that there are")
    x_stride = rows.stride(0) if rows.dim() == 2 else k
    maps = _maps(cut, rows, weight, m, x_stride)
    _kernel(cut, x.dtype)((cut.blocks(m, n), 1, 1), target, bias, *maps, m, n, k, cut.STREAMED)
    return output if target is output else output.copy_(target)


def prepare_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Launch | None:
    """What serves calls that look like this one, with nothing to work out again; None where operands are copied."""
    rows, (n, k) = as_rows(x), weight.shape
    m = x.numel() // k
    copied = rows.data_ptr() != x.data_ptr() or (rows.dim() == 2 and rows.stride(0) % 8)
    cut = choose_tile(m, n, k, x.dtype)
    if copied or cut is None or x.device.type != "cuda" or not (bias is None or bias.is_contiguous()):
        return None
    x_stride = rows.stride(0) if rows.dim() == 2 else k
    launch, shape, empty, dtype = _kernel(cut, x.dtype).on(x.get_device()), (*x.shape[:-1], n), torch.empty, x.dtype
    device, blocks, sizes = x.device, cut.blocks(m, n), (m, n, k, cut.STREAMED)

    def call(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
        output = empty(shape, dtype=dtype, device=device) if out is None else out
        to = output.data_ptr()
        if (to | x.data_ptr() | weight.data_ptr()) & 15:
            return forward(x, weight, bias, output)
        launch(blocks, to, 0 if bias is None else bias.data_ptr(), *_maps(cut, x, weight, m, x_stride), *sizes)
        return output

    return call

"""What name and launch of a GPU's kernel tell, whose code is not at hand: torch's own, and NVIDIA's libraries'."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["maker_of", "name_sentences"]

# By what a name holds, the first that does: who wrote it.
MAKERS = (
    (r"^triton_", "inductor"),
    (
        r"^nvjet_|cublas|^cutlass|^void cutlass|gemvNSP|gemv2|^gemv|^void gemv|splitKreduce|_s?gemm_|^sm\d+_xmma",
        "cuBLAS",
    ),
    (r"cudnn", "cuDNN"),
    (r"flash_fwd|flash_bwd|pytorch_flash", "FlashAttention, in torch"),
    (r"fmha_cutlass|AttentionKernel", "memory-efficient attention, in torch"),
    (r"cub::|thrust::", "CUB, in torch"),
    (r"nccl", "NCCL"),
    (r"at::native|at_cuda", "torch"),
)
UNKNOWN_MAKER = "unknown"
KINDS = {
    "poi": "elements, each by itself", "red": "a reduction in a loop", "per": "a reduction held in registers",
    "tem": "a template of inductor's", "mm": "a matrix product", "for": "several tensors in one launch",
}  # fmt: skip


def maker_of(name: str) -> str:
    """Who wrote a kernel, as far as its name tells: "cuBLAS", "torch", "inductor", ...; else "unknown"."""
    return next((maker for pattern, maker in MAKERS if re.search(pattern, name)), UNKNOWN_MAKER)


def name_sentences(name: str) -> tuple[str, ...]:
    """What a kernel's name says of how it works, in sentences; none if it says nothing."""
    for reads in (_nvjet, _split, _tiles, _inductor, _elements):
        said = reads(name)
        if said:
            return said
    return ()


def _nvjet(name: str) -> tuple[str, ...]:
    """``nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT``: cuBLAS's kernels for Hopper. What its fields mean is not published;
    the first two pairs are read as the tile of the output, and as the depth of a step with the number of stages."""
    found = re.match(
        r"nvjet_(?:sm\d+_)?(?P<types>[a-z]+)_(?P<tile>\d+x\d+)_(?P<steps>\d+x\d+)_(?P<cluster>\d+x\d+)_", name
    )
    if found is None:
        return ()
    depth, stages = found["steps"].split("x")
    said = [
        f"its name is read as a tile of {found['tile'].replace('x', ' x ')}, steps of {depth} in {stages} stages,"
        f" clusters of {found['cluster'].replace('x', ' x ')}"
    ]
    if "splitK" in name:
        said.append("split along what is summed: another kernel adds the parts")
    return tuple(said)


def _tiles(name: str) -> tuple[str, ...]:
    """``..._64x64_sliced1x2_ldg8_...``, ``cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn``."""
    if not re.search(r"gemm|xmma|cutlass", name):
        return ()
    tile = re.search(r"_(\d+x\d+)_(?:(\d+)x(\d+)|\D)", name)
    units = "on the matrix units" if re.search(r"tensorop|mma|h1688|s1688|s16816|tensor", name) else ""
    parts = [f"its name says a tile of {tile[1].replace('x', ' x ')}" if tile else "", units]
    said = " ".join(part for part in parts if part)
    return (said,) if said else ()


def _inductor(name: str) -> tuple[str, ...]:
    """``triton_poi_fused_mul_silu_3``: kind, then what is fused."""
    found = re.fullmatch(r"triton_(?P<kind>[a-z]+)_fused_?(?P<ops>.*?)_?(\d+)?", name)
    if found is None:
        return ()
    kind = KINDS.get(found["kind"], found["kind"])
    ops = found["ops"].strip("_")
    return (f"{kind}; it holds {ops.replace('__', ', ').replace('_', ' ')}",) if ops else (kind,)


def _elements(name: str) -> tuple[str, ...]:
    """``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<...>, ...>``."""
    vector = re.search(r"vectorized_elementwise_kernel<(\d+)", name)
    if vector:
        return (f"elements, each by itself, {vector[1]} at once by wide loads",)
    if "unrolled_elementwise_kernel" in name or "elementwise_kernel<" in name:
        return ("elements, each by itself, one at a time: strides, a broadcast or a cast keep it from wide loads",)
    if "reduce_kernel" in name:
        return ("a reduction: threads of a block, then of the grid, meet",)
    if "index_copy" in name or "index_elementwise" in name or "gather" in name.lower() or "indexSelect" in name:
        return ("each element's place is read from an index",)
    if "CatArray" in name:
        return ("copies several tensors into one",)
    return ()


def _split(name: str) -> tuple[str, ...]:
    if "splitKreduce" in name:
        return ("adds the parts of a product that was split along what is summed",)
    if re.search(r"gemv", name):
        return ("a matrix times a vector: reads the matrix once, no matrix units",)
    if "flash_fwd" in name:
        split = "split_kv" in name or "splitkv" in name
        return ("attention without the scores in memory" + (", the keys in parts" if split else ""),)
    return ()


def launch_sentences(grid: Sequence[int], block: Sequence[int], multiprocessors: int) -> tuple[str, ...]:
    """What a launch says of how much of the GPU it fills."""
    if not grid or not block or not multiprocessors:
        return ()
    blocks, threads = 1, 1
    for size in grid:
        blocks *= size
    for size in block:
        threads *= size
    if blocks < multiprocessors:
        return (f"{blocks} block{'s' if blocks > 1 else ''} for {multiprocessors} multiprocessors: the others idle",)
    turns = blocks / multiprocessors
    if threads < 64 and turns < 8:
        return (f"blocks of {threads} threads: a multiprocessor holds few warps to wait with",)
    return ()

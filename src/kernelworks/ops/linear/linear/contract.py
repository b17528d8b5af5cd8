"""What linear promises."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernelworks.templates.product import Product

__all__ = ["CONTRACT", "TEMPLATE"]

BLOCK = 384  # of K, in blocked.hpp
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def _chain(terms: int) -> float:
    """One of up to BLOCK in a block and one per block, or one of K/8 along eight lanes and the tree that joins them,
    whichever the kernel and the shape make of it; then the bias."""
    return min(terms, terms / 8 + BLOCK) + 10


# Rows of x: one, a register tile and around it, the most that stream takes (32) and around it, several panels of 14.
# Columns and K: around the tiles of 16 and 32, around a block, primes, 0 and 1. With more rows than stream takes: K
# beyond 4096, and a weight of which several parts are packed.
SHAPES = (
    (1, 1, 1), (1, 1, 4096), (1, 7, 33), (1, 31, 129), (2, 6, 15), (3, 13, 64), (4, 100, 17), (5, 33, 31),
    (7, 64, 509), (13, 5, 8), (14, 17, 1031), (16, 50, 257), (17, 12, 385), (31, 33, 32), (32, 32, 512), (33, 33, 33),
    (34, 35, 16), (40, 64, 383), (47, 95, 1031), (64, 5, 100), (70, 1, 67), (70, 65, 1), (100, 67, 769), (257, 129, 65),
    (12, 40, 4100), (270, 20, 4100), (300, 600, 800), (0, 3, 4), (3, 0, 4), (3, 5, 0), (40, 50, 0),
)  # fmt: skip

# On a GPU: each GPU kernel of sm90 (1, 2, 8 and 16 rows, and tiles) and each configuration of the Triton kernel, with
# K that is and is not a multiple of a step, more tiles than multiprocessors, tiles that stick out on either side, and
# last turns whose tiles are cut along K: into two and three parts, and two turns at once. Then each kernel of
# sm90_middle, by rows of x: tiles that stick out, and parts of K with fewer steps than stages or with none. At last
# what only sm90's gradients have: one tile alone, tiles that just stick out, and few tiles, of x or of the weight, each
# of which three or four clusters share.
DEVICE_SHAPES = (
    (1, 4096, 4096), (1, 14337, 4096), (1, 1000, 1032), (1, 28672, 8192), (1, 1001, 14344), (2, 4099, 2056),
    (2, 521, 8200), (3, 77, 520), (4, 523, 8200), (8, 4096, 4096), (8, 1001, 264),
    (5, 520, 4616), (6, 6152, 4104), (7, 264, 6152), (11, 1000, 1032), (16, 14336, 4096),
    (17, 8, 8), (129, 72, 64), (300, 520, 264), (1000, 4096, 1032),
    (2048, 2048, 2048), (2049, 8200, 520), (6000, 4096, 1024),
    (2300, 2824, 2056), (2560, 2560, 2048), (4096, 4352, 1032),
    (19, 2056, 2568), (32, 4104, 264), (25, 5128, 4616), (31, 6152, 520), (17, 8200, 1160), (24, 17000, 136),
    (33, 4096, 2056), (64, 5128, 520), (50, 8200, 1032), (40, 7400, 4104),
    (100, 3080, 1032), (127, 5000, 4616), (66, 8456, 2056), (128, 10312, 520), (65, 14344, 264),
    (200, 8200, 520), (300, 3080, 520), (512, 5128, 520), (400, 6152, 264),
    (256, 256, 256), (257, 264, 136), (300, 8200, 264), (5000, 264, 520), (4104, 1032, 776),
)  # fmt: skip

TEMPLATE = Product(
    op_package=__file__,
    formula="output = x weight^T + bias",
    source="torch.nn.functional.linear",
    function=F.linear,
    aten="linear",
    chain=_chain,
    block=BLOCK,
    few=64,
    shapes=SHAPES,
    layouts=((1, 31), (5, 33), (40, 64)),
    kind_shapes=((3, 14, 67), (37, 35, 257)),
    device_shapes=DEVICE_SHAPES,
    device_kind_shapes=((1, 24, 520), (7, 24, 520), (140, 264, 520)),
    bench=(
        ((1, 4096, 4096), (BF16, F32)), ((1, 14336, 4096), (BF16,)), ((16, 4096, 4096), (F32,)),
        ((128, 1536, 384), (F32,)), ((512, 4096, 4096), (BF16, F32)), ((128, 1024, 1024), (F16,)),
    ),
    # sizes that fill a GPU, and one that only its host time limits
    device_bench=(
        (1, 4096, 4096), (1, 14336, 4096), (1, 28672, 8192), (16, 4096, 4096), (64, 14336, 4096), (2048, 2048, 2048),
        (4096, 4096, 4096), (8192, 8192, 8192),
    ),
    targets={"avx512_bf16": "simd.cpp", "avx512": "simd.cpp", "avx2": "simd.cpp", "scalar": "scalar.cpp"},
)  # fmt: skip
CONTRACT = TEMPLATE.contract

"""What is known to pass in public puzzles and is wrong: each class is planted in an exercise, whose tests refuse it.

The sets: GPU-Puzzles (Numba), Triton-Puzzles, the Mojo GPU puzzles, LeetGPU's first problems. Their checks compare one
small output with NumPy or torch, on one array, often on one block, and often in a simulator that runs threads in order.
"""

from __future__ import annotations

import pytest

from kernelworks.learn.exercise import exercise_named

# class -> where it passes, and the exercise and attempt that plant it
CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "no guard": (
        "map, zip: a write past the end is lost",
        (
            "cuda-add: no guard",
            "triton-add: no mask",
        ),
    ),
    "a guard one too far": (
        "guards",
        (
            "cuda-add: guard one too far",
            "triton-add: mask one too far",
        ),
    ),
    "an index without a sign that is to fall below 0": (
        "convolution, pooling",
        ("cuda-halo: an index without a sign is never below 0",),
    ),
    "rows and columns exchanged in the guard": (
        "map in two dimensions, of a square",
        ("cuda-tiled-matmul: the guard asks rows for columns",),
    ),
    "rows and columns exchanged in the index": (
        "broadcast, transpose, matmul, of a square",
        (
            "cuda-coalescing: right for square matrices alone",
            "cuda-tiled-matmul: right for square matrices",
            "triton-matmul: the grid is turned",
        ),
    ),
    "an operand read as its transpose": (
        "matmul of a matrix with itself",
        ("cuda-tiled-matmul: b is read along its rows: right where b is symmetric",),
    ),
    "right where both inputs are equal": (
        "zip, dot",
        (
            "cuda-add: right where x is z",
            "cuda-dot: right where x is z",
        ),
    ),
    "the index in the block in place of the index": (
        "blocks, of one block",
        (
            "cuda-add: every block does the same elements",
            "triton-add: every program does the same block",
        ),
    ),
    "shared memory by the index of the whole array": (
        "shared, of one block",
        (
            "cuda-halo: shared memory by the index of the whole array",
            "cuda-tiled-matmul: shared memory by the index of the whole matrix",
        ),
    ),
    "the grid rounded down": (
        "sizes that divide",
        (
            "cuda-add: blocks rounded down",
            "triton-add: programs rounded down",
        ),
    ),
    "right for one block": (
        "pooling, convolution, prefix sum of one block",
        (
            "cuda-halo: right for one block: zeros at every block's ends",
            "cuda-dot: the sum of the first warp alone",
        ),
    ),
    "a block as large as the array": (
        "all",
        (
            "cuda-add: one block of n threads",
            "cuda-halo: one block",
        ),
    ),
    "no barrier after the load": (
        "shared, dot: threads run in order",
        (
            "cuda-block-sum: no barrier after the load",
            "cuda-halo: no barrier",
        ),
    ),
    "no barrier between steps": (
        "dot, prefix sum",
        (
            "cuda-block-sum: no barrier in the loop",
            "cuda-prefix-sum: read and write in one step",
        ),
    ),
    "no barrier before the tile is loaded again": (
        "matmul",
        ("cuda-tiled-matmul: the second barrier is missing",),
    ),
    "a barrier that some threads do not reach": (
        "a `return` in the guard",
        (
            "cuda-block-sum: the barrier in the if",
            "cuda-tiled-matmul: threads at the edge return early",
        ),
    ),
    "a warp in step by hope": (
        "reduction",
        (
            "cuda-block-sum: no barrier within the last warp",
            "cuda-warp-sum: in shared memory, in step by hope",
        ),
    ),
    "all threads write one element": (
        "dot: `out[0]` by every thread",
        ("cuda-block-sum: every thread writes the sum",),
    ),
    "an addition without an atomic": (
        "dot, histogram",
        (
            "cuda-dot: no atomic at all",
            "cuda-histogram: no atomic at all",
        ),
    ),
    "added to an output that is 0 in the puzzle": (
        "axis sum, matmul",
        (
            "cuda-add: added to what was there",
            "cuda-dot: y as it was",
            "triton-add: added to what was there",
        ),
    ),
    "shared memory as it was": (
        "histogram, prefix sum",
        (
            "cuda-histogram: shared memory as it was",
            "cuda-block-sum: nothing where there is no element",
        ),
    ),
    "lanes that are off are 0 where they should be least": (
        "long softmax",
        (
            "triton-softmax: lanes that are off are 0",
            "triton-softmax: lanes that are off hold anything",
        ),
    ),
    "no maximum": (
        "softmax of small numbers",
        (
            "triton-softmax: no maximum",
            "cuda-softmax: no maximum",
        ),
    ),
    "a maximum that starts at 0": (
        "softmax, attention",
        (
            "cuda-softmax: the maximum starts at 0",
            "triton-attention: the largest begins at 0",
        ),
    ),
    "exp2 without its factor": (
        "softmax, with a tolerance",
        ("triton-softmax: a power of 2 for the exponential",),
    ),
    "what was summed is not shrunk": (
        "flash attention of one tile",
        (
            "triton-attention: values are not shrunk",
            "triton-attention: the sum is not shrunk",
        ),
    ),
    "keys past the end": (
        "flash attention of whole tiles",
        ("triton-attention: keys beyond the end",),
    ),
    "a strided tensor taken for a plain one": (
        "views",
        (
            "triton-softmax: one stride for both",
            "triton-matmul: b lies row by row",
        ),
    ),
    "the last part of K": (
        "matmul of whole tiles",
        (
            "cuda-tiled-matmul: K rounded down to whole tiles",
            "triton-matmul: K has no mask",
        ),
    ),
    "only the last step counts": (
        "matmul of one step",
        ("triton-matmul: only the last step stays",),
    ),
    "one scale for several blocks": (
        "quantised matmul",
        ("triton-gemv-q8: one scale a row",),
    ),
    "codes without their sign": (
        "quantised matmul",
        ("triton-gemv-q8: codes are taken as unsigned",),
    ),
    "the framework computes it": (
        "Triton-Puzzles, LeetGPU",
        (
            "triton-add: torch does it",
            "triton-sum: torch adds up the partials",
        ),
    ),
    "the input handed back": (
        "where the answer is near it",
        ("cuda-vector-loads: x in all four places",),
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_planted(name: str) -> None:
    _, planted = CLASSES[name]
    for one in planted:
        exercise, _, attempt = one.partition(": ")
        found = exercise_named(exercise)
        assert attempt in {wrong.name for wrong in found.wrong}, one

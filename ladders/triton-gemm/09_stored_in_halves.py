# title: Epilogue in halves, four stages
# loads: L2 0.0234375
# hypothesis: Stored whole, a tile of 64 KiB lies in shared memory beside three stages. In two halves of 128 columns,
#   one after the other through the same 32 KiB, it leaves room for a fourth stage: copies are ordered a step earlier,
#   and what waits for memory at the begin of a tile waits less. A thread's sums are split in registers, for nothing.
# predicts: 1.04
# next: The sums are stored by the warps that multiply. In CUDA a producer warp and two consumers that take turns hide
#   that; Triton decides such things by itself.
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

ROWS, COLUMNS, DEPTH = 128, 256, 64
GROUP = 16  # tiles down before the next column


@triton.jit
def place(number, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    down, across = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    first = number // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    return first + number % (GROUP * across) % height, number % (GROUP * across) // height


@triton.jit
def tile(A, B, C, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr):
    tiles = tl.cdiv(M, ROWS) * tl.cdiv(N, COLUMNS)
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        down, across = place(number, M, N, ROWS, COLUMNS, GROUP)
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for k in range(0, K, DEPTH):
            a = A.load([down * ROWS, k])
            b = B.load([k, across * COLUMNS])
            sums = tl.dot(a, b, sums)
        left, right = tl.split(tl.permute(tl.reshape(sums, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))
        C.store([down * ROWS, across * COLUMNS], left.to(tl.float16))
        C.store([down * ROWS, across * COLUMNS + COLUMNS // 2], right.to(tl.float16))


def gemm(A, B, C, M, N, K, multiprocessors):
    a = TensorDescriptor.from_tensor(A, [ROWS, DEPTH])
    b = TensorDescriptor.from_tensor(B, [DEPTH, COLUMNS])
    c = TensorDescriptor.from_tensor(C, [ROWS, COLUMNS // 2])
    grid = (min(multiprocessors, triton.cdiv(M, ROWS) * triton.cdiv(N, COLUMNS)),)
    tile[grid](a, b, c, M, N, K, ROWS, COLUMNS, DEPTH, GROUP, num_warps=8, num_stages=4)

# title: Persistent programs, one flat loop
# loads: L2 0.0234375
# hypothesis: As many programs as multiprocessors, each of which walks over tiles. flatten=True makes one loop of the
#   two, so that the copies of the next tile are ordered while this one is still multiplied, and the pipeline stays full
#   across the store. But 512 tiles among 132 programs are 3.9 turns, and the flat loop pays for its own bookkeeping.
# predicts: 1.05
# next: The store: the sums go through shared memory beside the pipeline's stages, while the matrix units wait.
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
        C.store([down * ROWS, across * COLUMNS], sums.to(tl.float16))


def gemm(A, B, C, M, N, K, multiprocessors):
    a = TensorDescriptor.from_tensor(A, [ROWS, DEPTH])
    b = TensorDescriptor.from_tensor(B, [DEPTH, COLUMNS])
    c = TensorDescriptor.from_tensor(C, [ROWS, COLUMNS])
    grid = (min(multiprocessors, triton.cdiv(M, ROWS) * triton.cdiv(N, COLUMNS)),)
    tile[grid](a, b, c, M, N, K, ROWS, COLUMNS, DEPTH, GROUP, num_warps=8, num_stages=3)

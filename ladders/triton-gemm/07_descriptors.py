# title: Tensor descriptors (TMA)
# loads: L2 0.0234375
# hypothesis: A descriptor says once where a matrix lies and how large it is; then one thread orders a tile by its
#   corner, and the copy unit computes addresses, fills in zeros past the edges and lays the tile out as the matrix
#   instruction wants it. No thread holds pointers or masks any more. In CUDA this step brought 1.26 times, of a rung
#   that waited more.
# predicts: 1.12
# next: Each program begins with an empty pipeline and ends with a store that nothing runs beside.
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
    down, across = place(tl.program_id(0), M, N, ROWS, COLUMNS, GROUP)
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
    grid = (triton.cdiv(M, ROWS) * triton.cdiv(N, COLUMNS),)
    tile[grid](a, b, c, M, N, K, ROWS, COLUMNS, DEPTH, GROUP, num_warps=8, num_stages=3)

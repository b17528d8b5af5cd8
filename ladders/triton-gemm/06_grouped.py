# title: Grouped tile order for L2
# loads: L2 0.0234375
# hypothesis: 132 programs run at a time. Down the columns of C they are 4 columns of 32 tiles, which need all of A,
#   34 MB, and 8 MB of B. In turns of 16 tiles down before the next column they form a block of about 2048 x 2112, which
#   needs 17 MB of each. L2 holds 60 MB either way, so at 4096 little is had: at 8192 it is more.
# predicts: 1.02
# next: Each thread computes addresses and masks for the copies of every step: instructions that are no products.
import triton
import triton.language as tl

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
    rows = down * ROWS + tl.arange(0, ROWS)
    columns = across * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    a_at = A + rows.to(tl.int64)[:, None] * K + depth[None, :]
    b_at = B + depth.to(tl.int64)[:, None] * N + columns[None, :]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        a = tl.load(a_at, mask=(rows < M)[:, None] & (depth < K - k)[None, :], other=0.0)
        b = tl.load(b_at, mask=(depth < K - k)[:, None] & (columns < N)[None, :], other=0.0)
        sums = tl.dot(a, b, sums)
        a_at += DEPTH
        b_at += DEPTH * N
    c_at = C + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(c_at, sums.to(tl.float16), mask=(rows < M)[:, None] & (columns < N)[None, :])


def gemm(A, B, C, M, N, K, multiprocessors):
    grid = (triton.cdiv(M, ROWS) * triton.cdiv(N, COLUMNS),)
    tile[grid](A, B, C, M, N, K, ROWS, COLUMNS, DEPTH, GROUP, num_warps=8, num_stages=3)

# title: Software pipelining: four stages (cp.async)
# loads: L2 0.03125
# hypothesis: num_stages=4 keeps the loads of three further steps on their way, into 128 KiB of shared memory, while the
#   matrix units work at this one: the wait for L2 goes away. One program a multiprocessor fits then, where there were
#   several; the products of one program must now fill the units alone. The CUDA ladder's ring brought 1.45 times.
# predicts: 1.6
# next: One warpgroup issues all products, and a tile of 128 x 128 asks shared memory for a byte too many a product.
import triton
import triton.language as tl

ROWS, COLUMNS, DEPTH = 128, 128, 64


@triton.jit
def tile(A, B, C, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
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
    grid = (triton.cdiv(M, ROWS), triton.cdiv(N, COLUMNS))
    tile[grid](A, B, C, M, N, K, ROWS, COLUMNS, DEPTH, num_warps=4, num_stages=4)

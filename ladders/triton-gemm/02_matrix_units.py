# title: Tensor cores (tl.dot)
# loads: L2 0.125
# hypothesis: tl.dot gives a tile of 32 x 32 x 32 to the matrix units. A program loads 4 KiB and multiplies 32768 pairs
#   with them: each number that is loaded serves 32 products, where a strip's served one. 8.6 GB come from L2, 1.6 ms
#   of the 5.5 TB/s that it gives; nothing is asked for before it is needed, so half of that rate is more likely. From
#   some 5 TFLOP/s to 45.
# predicts: 9
# next: 32 products a number are few: L2 is asked for too much. Larger tiles use each number more often.
import triton
import triton.language as tl

ROWS, COLUMNS, DEPTH = 32, 32, 32


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
    tile[grid](A, B, C, M, N, K, ROWS, COLUMNS, DEPTH, num_warps=4, num_stages=1)

# title: Larger tile: 128 x 256, two warpgroups
# loads: L2 0.0234375
# hypothesis: Two warpgroups of 64 x 256 each: an instruction takes the widest tile of B that there is, so that each
#   number of A which is read from shared memory meets 256 of B and not 128. And three quarters of the bytes come from
#   L2. Three stages of 48 KiB are what fits.
# predicts: 1.2
# next: Programs that run together take tiles down a column of C, and read 33 MB of A for one strip of B.
import triton
import triton.language as tl

ROWS, COLUMNS, DEPTH = 128, 256, 64


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
    tile[grid](A, B, C, M, N, K, ROWS, COLUMNS, DEPTH, num_warps=8, num_stages=3)

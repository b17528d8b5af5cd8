import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a, b, c, M, N, K, a_row, a_column, b_row, b_column, c_row, TILE: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a_tile = tl.load(a + rows[:, None] * a_row + k[None, :] * a_column,
                         mask=(rows[:, None] < M) & (k[None, :] < K), other=0.0)  # fmt: skip
        b_tile = tl.load(b + k[:, None] * b_row + columns[None, :] * b_column,
                         mask=(k[:, None] < K) & (columns[None, :] < N), other=0.0)  # fmt: skip
        total = tl.dot(a_tile, b_tile, total)
    place = c + rows[:, None] * c_row + columns[None, :]
    tl.store(place, total, mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul(a, b, c):
    (M, K), N = a.shape, b.shape[1]
    TILE = 32
    matmul_kernel[(triton.cdiv(M, TILE), triton.cdiv(N, TILE))](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), TILE=TILE, DEPTH=32
    )

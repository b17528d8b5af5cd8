import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a, b, c, M, N, K, a_row, a_column, b_row, b_column, c_row, TILE: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)  # of c, and of a
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)  # of c, and of b
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    # 1. go along K in steps of DEPTH: load a tile of a and one of b
    # 2. total = tl.dot(a_tile, b_tile, total)
    place = c + rows[:, None] * c_row + columns[None, :]
    tl.store(place, total, mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul(a, b, c):
    (M, K), N = a.shape, b.shape[1]
    TILE = 32
    matmul_kernel[(triton.cdiv(M, TILE), triton.cdiv(N, TILE))](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), TILE=TILE, DEPTH=32
    )

import triton
import triton.language as tl


@triton.jit
def matmul_kernel(a, b, c, M, N, K, a_row, b_row, c_row, GROUP: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr):
    number = tl.program_id(0)
    # So far tile by tile along a row of tiles. Which tile is this program's, in groups of GROUP rows of tiles?
    down = number // tl.cdiv(N, TILE)
    across = number % tl.cdiv(N, TILE)

    rows, columns = down * TILE + tl.arange(0, TILE), across * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a_mask, b_mask = (rows[:, None] < M) & (k[None, :] < K), (k[:, None] < K) & (columns[None, :] < N)
        a_tile = tl.load(a + rows[:, None] * a_row + k[None, :], mask=a_mask, other=0.0)
        b_tile = tl.load(b + k[:, None] * b_row + columns[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a_tile, b_tile, total)
    place = c + rows[:, None] * c_row + columns[None, :]
    tl.store(place, total, mask=(rows[:, None] < M) & (columns[None, :] < N))


def matmul(a, b, c):
    (M, K), N = a.shape, b.shape[1]
    TILE = 16
    matmul_kernel[(triton.cdiv(M, TILE) * triton.cdiv(N, TILE),)](
        a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0), GROUP=3, TILE=TILE, DEPTH=32
    )

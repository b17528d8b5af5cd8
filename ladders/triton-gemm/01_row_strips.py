# title: Naive: a strip of one row
# loads: L1 2.016
# hypothesis: The formula as it is written. A program makes 128 numbers of one row of C: for every k it loads one number
#   of A and 128 of B, and adds their products, a number a thread. Each multiply-add waits for its own load of two
#   bytes, so what bounds it are loads from L1 and their latency; the matrix units have nothing to do.
# next: A load for every multiply-add. The matrix units take whole tiles.
import triton
import triton.language as tl

COLUMNS = 128


@triton.jit
def strip(A, B, C, N, K, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((COLUMNS,), tl.float32)
    for k in range(K):
        a = tl.load(A + row * K + k)
        b = tl.load(B + k * N + columns, mask=columns < N, other=0.0)
        sums += a.to(tl.float32) * b.to(tl.float32)
    tl.store(C + row * N + columns, sums.to(tl.float16), mask=columns < N)


def gemm(A, B, C, M, N, K, multiprocessors):
    strip[M, triton.cdiv(N, COLUMNS)](A, B, C, N, K, COLUMNS)

import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x, y, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    # keep an element if tl.rand(seed, its place) is p or more, and divide it by 1 - p; else it is 0
    tl.store(y + offsets, tl.load(x + offsets, mask=mask), mask=mask)


def dropout(x, y, p, seed):
    n = x.numel()
    BLOCK = 256
    dropout_kernel[(triton.cdiv(n, BLOCK),)](x, y, n, p, seed, BLOCK=BLOCK)

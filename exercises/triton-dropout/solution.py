import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x, y, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    keep = tl.rand(seed, offsets) >= p
    tl.store(y + offsets, tl.where(keep, tl.load(x + offsets, mask=mask) / (1 - p), 0.0), mask=mask)


def dropout(x, y, p, seed):
    n = x.numel()
    BLOCK = 256
    dropout_kernel[(triton.cdiv(n, BLOCK),)](x, y, n, p, seed, BLOCK=BLOCK)

import triton
import triton.language as tl


@triton.jit
def add_kernel(x, z, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, tl.load(x + offsets, mask=mask) + tl.load(z + offsets, mask=mask), mask=mask)


def add(x, z, y):
    n = x.numel()
    BLOCK = 1024
    add_kernel[(triton.cdiv(n, BLOCK),)](x, z, y, n, BLOCK=BLOCK)

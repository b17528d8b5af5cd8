import triton
import triton.language as tl


@triton.jit
def add_kernel(x, z, y, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)  # the elements that this program does: so far the first block, whoever asks
    # 1. load these elements of x and of z
    # 2. store their sums in y
    tl.store(y + offsets, 0.0)


def add(x, z, y):
    n = x.numel()
    BLOCK = 1024
    add_kernel[(1,)](x, z, y, n, BLOCK=BLOCK)

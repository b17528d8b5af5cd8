import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(x, y, x_stride, y_stride, n, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    gate = tl.load(x + i * x_stride + offsets, mask=mask)
    value = tl.load(x + i * x_stride + n + offsets, mask=mask)
    tl.store(y + i * y_stride + offsets, gate / (1 + tl.exp(-gate)) * value, mask=mask)


def swiglu(x, y):
    rows, n = y.shape
    BLOCK = 256
    swiglu_kernel[(rows, triton.cdiv(n, BLOCK))](x, y, x.stride(0), y.stride(0), n, BLOCK=BLOCK)

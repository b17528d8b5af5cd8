import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, y, x_stride, y_stride, columns, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        v = tl.load(x + i * x_stride + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
        squares += v * v
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < columns
        v = tl.load(x + i * x_stride + offsets, mask=mask).to(tl.float32)
        tl.store(y + i * y_stride + offsets, v * scale * tl.load(weight + offsets, mask=mask), mask=mask)


def rms_norm(x, weight, y, eps):
    rows, columns = x.shape
    rms_norm_kernel[(rows,)](x, weight, y, x.stride(0), y.stride(0), columns, eps, BLOCK=256)

import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, y, x_stride, y_stride, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    row = tl.load(x + i * x_stride + offsets, mask=mask, other=-float("inf"))
    powers = tl.exp(row - tl.max(row, axis=0))
    tl.store(y + i * y_stride + offsets, powers / tl.sum(powers, axis=0), mask=mask)


def softmax(x, y):
    rows, columns = x.shape
    BLOCK = triton.next_power_of_2(columns)
    softmax_kernel[(rows,)](x, y, x.stride(0), y.stride(0), columns, BLOCK=BLOCK)

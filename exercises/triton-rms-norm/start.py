import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, y, x_stride, y_stride, columns, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0)  # one program for each row
    squares = tl.zeros((BLOCK,), dtype=tl.float32)  # a sum of squares for each lane
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        # 1. load these elements of row i, add their squares
    # 2. scale = 1 / sqrt(mean of squares + eps)
    # 3. a second loop: store x * scale * weight


def rms_norm(x, weight, y, eps):
    rows, columns = x.shape
    rms_norm_kernel[(rows,)](x, weight, y, x.stride(0), y.stride(0), columns, eps, BLOCK=256)

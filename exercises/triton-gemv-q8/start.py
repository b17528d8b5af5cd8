import triton
import triton.language as tl


@triton.jit
def gemv_kernel(codes, scales, x, y, codes_stride, scales_stride, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0)  # one program for each row
    total = tl.zeros((BLOCK,), dtype=tl.float32)  # a sum for each lane
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        # 1. load codes, their scales (one for 32 codes), x
        # 2. total += scale * code * x
    tl.store(y + i, tl.sum(total, axis=0))


def gemv(codes, scales, x, y):
    rows, columns = codes.shape
    gemv_kernel[(rows,)](codes, scales, x, y, codes.stride(0), scales.stride(0), columns, BLOCK=128)

import triton
import triton.language as tl


@triton.jit
def gemv_kernel(codes, scales, x, y, codes_stride, scales_stride, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        mask = offsets < columns
        code = tl.load(codes + i * codes_stride + offsets, mask=mask, other=0).to(tl.float32)
        scale = tl.load(scales + i * scales_stride + offsets // 32, mask=mask, other=0.0).to(tl.float32)
        total += scale * code * tl.load(x + offsets, mask=mask, other=0.0)
    tl.store(y + i, tl.sum(total, axis=0))


def gemv(codes, scales, x, y):
    rows, columns = codes.shape
    gemv_kernel[(rows,)](codes, scales, x, y, codes.stride(0), scales.stride(0), columns, BLOCK=128)

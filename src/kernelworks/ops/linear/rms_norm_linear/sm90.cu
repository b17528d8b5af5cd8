// rms_norm_linear for 16-bit elements on Hopper: the rows' scales by a kernel of their own, and the product, which starts
// early and takes them when its first tile ends.
#include "epilogue.cuh"

// 1 / sqrt(mean of squares + eps) of each row of x, a warp a row. Where the squares leave float32's comfortable range the
// row is read again, divided by a power of two near its largest element.
template <class T>
__device__ __forceinline__ void row_scales(float* scales, const u16* x, i64 stride, i64 M, i64 K, float eps) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // which wait until all of this is written
    i64 row = (blockIdx.x * static_cast<i64>(blockDim.x) + threadIdx.x) / 32;
    int lane = threadIdx.x & 31;
    if (row >= M) return;
    constexpr int DEEP = 4;  // loads under way
    auto sum = [&](float factor, float& largest) {
        float total = 0.0f;
        for (i64 k = lane * 8; k < K; k += 256 * DEEP) {
            Words words[DEEP];
#pragma unroll
            for (int u = 0; u < DEEP; ++u) {
                words[u] = {};
                if (k + 256 * u < K) words[u] = *reinterpret_cast<const Words*>(x + row * stride + k + 256 * u);
            }
#pragma unroll
            for (int u = 0; u < DEEP; ++u) {
                const u32 four[4] = {words[u].a, words[u].b, words[u].c, words[u].d};
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    float v = T::widen(static_cast<u16>(four[e / 2] >> e % 2 * 16)) * factor;
                    total = fmaf(v, v, total), largest = fmaxf(largest, fabsf(v));
                }
            }
        }
#pragma unroll
        for (int across = 16; across; across >>= 1) {
            total += __shfl_xor_sync(~0u, total, across);
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, across));
        }
        return total / static_cast<float>(K);
    };
    float largest = 0.0f, factor = 1.0f, mean = sum(1.0f, largest);
    if ((mean < 0x1p-90f || mean > 0x1p120f) && largest > 0.0f && largest < __int_as_float(0x7f800000)) {
        int exponent = (__float_as_int(largest) >> 23) - 127;                          // of the largest, -127 for subnormals
        factor = __int_as_float((127 - max(min(exponent, 126), -126)) << 23);
        float again = 0.0f;
        mean = sum(factor, again);
    }
    if (lane == 0) scales[row] = factor * rsqrtf(fmaf(eps * factor, factor, mean));
}

#define KW_SCALES(name, T)                                                                                        \
    extern "C" __global__ __launch_bounds__(256) void name(float* scales, const u16* x, i64 stride, i64 M, i64 K, \
                                                           float eps) {                                           \
        row_scales<T>(scales, x, stride, M, K, eps);                                                              \
    }

KW_SCALES(row_scales_bfloat16, Bf16)
KW_SCALES(row_scales_float16, F16)
KW_FUSED(scaled_bfloat16, Bf16, Scaled)
KW_FUSED(scaled_float16, F16, Scaled)

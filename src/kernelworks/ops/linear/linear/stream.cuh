// Few rows of x: the weight streams past once, straight from memory into registers, and its rate is the speed. A block
// takes a few rows of w and ends: the next one goes where memory was quickest, which is worth 6% over as many blocks as
// fit that share the rows out in advance. Its warps share K, and their sums meet in shared memory in a fixed order. The
// matrix units multiply: widening and fused multiply-adds would keep the last loads waiting for most of a microsecond.
#pragma once

#include "hopper.cuh"

// Eight elements of the weight, which is used once: not kept in L1.
inline __device__ Words load_once(const u16* p, bool inside) {
    Words v{0, 0, 0, 0};
    if (inside)
        asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d)
                     : "l"(p));
    return v;
}
inline __device__ Words load(const u16* p, bool inside) {
    Words v{0, 0, 0, 0};
    if (inside)
        asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.a), "=r"(v.b), "=r"(v.c), "=r"(v.d) : "l"(p));
    return v;
}

struct Product {
    const u16 *x, *w, *bias;
    u16* out;
    i64 x_stride, w_stride;
    int M, N, K;
};

// Up to ROWS rows of x, R rows of w a block. A warp reads 512 bytes on end of a row of w: 8 segments of 64 bytes, four
// lanes to a segment, which is how the unit wants its operand b. Two rows of x lie likewise in operand a, so the unit
// multiplies every segment of x with every segment of w, and the diagonals of the result are the dot products.
template <class T, int ROWS, int WARPS, int R, int U>
__device__ __forceinline__ void stream(const Product& p) {
    constexpr int PAIRS = (ROWS + 1) / 2;
    __shared__ float sums[WARPS][R][ROWS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, row = blockIdx.x * R;
    int r_out = threadIdx.x % R, m_out = threadIdx.x / R;  // the sum that this thread will write
    bool writes = m_out < ROWS && m_out < p.M && row + r_out < p.N;
    u16 bias = p.bias && writes ? p.bias[row + r_out] : u16{0};  // at once: at the end it would cost a trip to memory
    float d[PAIRS][R][4] = {};
    for (int k = (warp * 32 * U + lane) * 8; k - lane * 8 < p.K; k += WARPS * 256 * U) {
        Words w[R][U], x[PAIRS][2][U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            bool inside = k + 256 * u < p.K;
#pragma unroll
            for (int m = 0; m < 2 * PAIRS; ++m)
                x[m / 2][m % 2][u] = load(p.x + m * p.x_stride + k + 256 * u, inside && m < (ROWS == 1 ? 1 : p.M));
        }
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int u = 0; u < U; ++u)
                w[r][u] = load_once(p.w + (row + r) * p.w_stride + k + 256 * u, row + r < p.N && k + 256 * u < p.K);
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r)
#pragma unroll
                for (int i = 0; i < PAIRS; ++i) {
                    Words a = x[i][0][u], b = x[i][1][u];
                    T::mma(d[i][r], a.a, b.a, a.b, b.b, w[r][u].a, w[r][u].b);
                    T::mma(d[i][r], a.c, b.c, a.d, b.d, w[r][u].c, w[r][u].d);
                }
    }
    bool diagonal = (lane & 3) == (g >> 1);
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            float s = g & 1 ? d[m / 2][r][2 * (m & 1) + 1] : d[m / 2][r][2 * (m & 1)];
            s = diagonal ? s : 0.0f;
#pragma unroll
            for (int across = 16; across; across >>= 1) s += __shfl_xor_sync(~0u, s, across);
            if (lane == 0) sums[warp][r][m] = s;
        }
    __syncthreads();
    if (writes) {
        float s = 0;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) s += sums[v][r_out][m_out];
        p.out[m_out * static_cast<i64>(p.N) + row + r_out] = T::round(s + T::widen(bias));
    }
}

// Up to eight rows of x, or sixteen (HIGH), 8 R rows of w a block. x is operand a as it is, eight rows of w operand b.
// Both operands of the unit may have K in any order as long as it is the same one: lane t of four takes elements 8 t to
// 8 t + 7 of 32. A warp always has the loads of its next step under way while it uses those of the present one.
template <class T, bool HIGH, int WARPS, int R, int U>
__device__ __forceinline__ void stream_many(const Product& p) {
    constexpr int C = HIGH ? 4 : 2, STEP = WARPS * 32 * U;  // C: sums of a lane that are of rows that exist
    __shared__ float sums[WARPS][R * C * 32];
    struct Step {
        Words w[R][U], x[U], y[U];
    } even, odd;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, row = blockIdx.x * 8 * R;
    bool low = g < p.M, high = HIGH && g + 8 < p.M;
    const u16* x = p.x + (low ? g * p.x_stride : 0) + 8 * t;
    const u16* y = p.x + (high ? (g + 8) * p.x_stride : 0) + 8 * t;
    float d[R][4] = {};
    int n_out = threadIdx.x % (8 * R);  // the row of w whose sums this thread will write
    static_assert(WARPS * 32 % (8 * R) == 0);
    u16 bias = p.bias && row + n_out < p.N ? p.bias[row + n_out] : u16{0};  // at once, see above
    auto fetch = [&](Step& step, int k) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            int line = row + 8 * r + g;
#pragma unroll
            for (int u = 0; u < U; ++u) {
                int at = k + 32 * u + 8 * t;
                step.w[r][u] = load_once(p.w + line * p.w_stride + at, line < p.N && at < p.K);
            }
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            step.x[u] = load(x + k + 32 * u, low && k + 32 * u + 8 * t < p.K);
            step.y[u] = load(y + k + 32 * u, high && k + 32 * u + 8 * t < p.K);
        }
    };
    auto use = [&](const Step& s) {
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                T::mma(d[r], s.x[u].a, s.y[u].a, s.x[u].b, s.y[u].b, s.w[r][u].a, s.w[r][u].b);
                T::mma(d[r], s.x[u].c, s.y[u].c, s.x[u].d, s.y[u].d, s.w[r][u].c, s.w[r][u].d);
            }
    };
    int k = warp * 32 * U;
    fetch(even, k);
    while (k < p.K) {
        fetch(odd, k += STEP);
        use(even);
        if (k >= p.K) break;
        fetch(even, k += STEP);
        use(odd);
    }
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) sums[warp][(r * C + c) * 32 + lane] = d[r][c];
    __syncthreads();
    for (int m = threadIdx.x / (8 * R); m < p.M && row + n_out < p.N; m += WARPS * 32 / (8 * R)) {
        int c = (n_out & 1) + (m >= 8 ? 2 : 0), from = ((n_out >> 3) * C + c) * 32 + (m & 7) * 4 + ((n_out & 7) >> 1);
        float s = 0;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) s += sums[v][from];
        p.out[m * static_cast<i64>(p.N) + row + n_out] = T::round(s + T::widen(bias));
    }
}

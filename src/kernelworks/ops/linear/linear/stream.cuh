// Few rows of x: the weight streams past once, straight from memory into registers, and its rate is the speed. The matrix
// units multiply, because widening and fused multiply-adds would keep the last loads' results waiting for most of a
// microsecond. A block takes groups of R rows of w; its warps share K, and their sums meet in shared memory in a fixed
// order. A warp always has the loads of its next step under way while it uses those of the present one.
#pragma once

#include "hopper.cuh"

// Eight elements of the weight, which is used once: not kept in L1, and the rest of 256 bytes is on its way to L2.
inline __device__ Words load_once(const u16* p, bool inside) {
    Words v{0, 0, 0, 0};
    if (inside)
        asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0,%1,%2,%3}, [%4];"
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
    int rounds;     // steps of all warps over K
    int per_block;  // rows of w a block
};

// Walks over the steps of a block: `Step` is one warp's part of a group of R rows of w and one round over K. Step::fetch
// starts its loads, `use` multiplies, and after the last round of a group `finish` joins the warps' sums.
template <int R, class Step, class Use, class Finish, class Fetch>
__device__ __forceinline__ void walk(const Product& p, Step& even, Step& odd, Fetch fetch, Use use, Finish finish) {
    int row = blockIdx.x * p.per_block, end = min(row + p.per_block, p.N);
    int total = p.rounds * ((end - row + R - 1) / R), left = p.rounds, next_row = row, next_round = 0, done = 0;
    auto start = [&](Step& step) {
        fetch(step, next_row, next_round, end);
        if (++next_round == p.rounds) next_round = 0, next_row += R;
    };
    auto complete = [&](Step& step) {
        use(step);
        if (--left == 0) finish(row, end), row += R, left = p.rounds;
        return ++done == total;
    };
    if (total <= 0) return;
    start(even);
    for (;;) {
        if (done + 1 < total) start(odd);
        if (complete(even)) break;
        if (done + 1 < total) start(even);
        if (complete(odd)) break;
    }
}

// One or two rows of x. A warp reads 512 bytes on end of a row of w: 8 segments of 64 bytes, a segment of 32 elements for
// each 4 lanes, which is how the unit wants its operand b. x lies likewise in operand a, so the unit multiplies every
// segment of x with every segment of w, and the diagonal of the result is the dot product.
template <class T, int WARPS, int R, bool TWO>
__device__ __forceinline__ void stream_pair(const Product& p) {
    constexpr int ROWS = TWO ? 2 : 1;
    __shared__ float sums[2][WARPS][R][ROWS];
    struct Step {
        Words w[R], x, y;
    } even, odd;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, flip = 0;
    float d[R][4] = {};
    auto fetch = [&](Step& step, int row, int round, int end) {
        int k = (round * WARPS + warp) * 256 + lane * 8;
        bool inside = k < p.K;
        const u16* at = p.w + row * p.w_stride + k;
#pragma unroll
        for (int r = 0; r < R; ++r, at += p.w_stride) step.w[r] = load_once(at, inside && row + r < end);
        step.x = load(p.x + k, inside);
        step.y = load(p.x + p.x_stride + k, TWO && inside && p.M > 1);
    };
    auto use = [&](Step& s) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            T::mma(d[r], s.x.a, s.y.a, s.x.b, s.y.b, s.w[r].a, s.w[r].b);
            T::mma(d[r], s.x.c, s.y.c, s.x.d, s.y.d, s.w[r].c, s.w[r].d);
        }
    };
    auto finish = [&](int row, int end) {
        bool diagonal = (lane & 3) == (g >> 1);
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int m = 0; m < ROWS; ++m) {
                float s = g & 1 ? d[r][2 * m + 1] : d[r][2 * m];
                s = diagonal ? s : 0.0f;
#pragma unroll
                for (int across = 16; across; across >>= 1) s += __shfl_xor_sync(~0u, s, across);
                if (lane == 0) sums[flip][warp][r][m] = s;
            }
            d[r][0] = d[r][1] = d[r][2] = d[r][3] = 0.0f;
        }
        __syncthreads();
        int r = threadIdx.x % R, m = threadIdx.x / R;
        if (m < p.M && m < ROWS && row + r < end) {
            float s = 0;
#pragma unroll
            for (int v = 0; v < WARPS; ++v) s += sums[flip][v][r][m];
            if (p.bias) s += T::widen(p.bias[row + r]);
            p.out[m * static_cast<i64>(p.N) + row + r] = T::round(s);
        }
        flip ^= 1;  // so that one barrier a group is enough
    };
    walk<R>(p, even, odd, fetch, use, finish);
}

// Up to eight rows of x, or sixteen. x is operand a as it is; eight rows of w are operand b. Both operands of the unit
// may have K in any order as long as it is the same one: lane t of four takes elements 8 t to 8 t + 7 of 32.
template <class T, int WARPS, int R, int U, bool HIGH>
__device__ __forceinline__ void stream_rows(const Product& p) {
    constexpr int C = HIGH ? 4 : 2;  // sums of a lane that are of rows that exist
    __shared__ float sums[HIGH ? 1 : 2][WARPS][R * C * 32];
    struct Step {
        Words w[R][U], x[U], y[U];
    } even, odd;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3, flip = 0;
    bool low = g < p.M, high = HIGH && g + 8 < p.M;
    const u16* x = p.x + (low ? g * p.x_stride : 0) + 8 * t;
    const u16* y = p.x + (high ? (g + 8) * p.x_stride : 0) + 8 * t;
    float d[R][4] = {};
    auto fetch = [&](Step& step, int row, int round, int end) {
        int k = (round * WARPS + warp) * 32 * U;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            int line = row + 8 * r + g;
#pragma unroll
            for (int u = 0; u < U; ++u) {
                int at = k + 32 * u + 8 * t;
                step.w[r][u] = load_once(p.w + line * p.w_stride + at, line < end && at < p.K);
            }
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            step.x[u] = load(x + k + 32 * u, low && k + 32 * u + 8 * t < p.K);
            step.y[u] = load(y + k + 32 * u, high && k + 32 * u + 8 * t < p.K);
        }
    };
    auto use = [&](Step& s) {
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                T::mma(d[r], s.x[u].a, s.y[u].a, s.x[u].b, s.y[u].b, s.w[r][u].a, s.w[r][u].b);
                T::mma(d[r], s.x[u].c, s.y[u].c, s.x[u].d, s.y[u].d, s.w[r][u].c, s.w[r][u].d);
            }
    };
    auto finish = [&](int row, int end) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int c = 0; c < C; ++c) sums[flip][warp][(r * C + c) * 32 + lane] = d[r][c];
            d[r][0] = d[r][1] = d[r][2] = d[r][3] = 0.0f;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < p.M * R * 8; i += WARPS * 32) {
            int m = i / (R * 8), n = i % (R * 8);
            int c = (n & 1) + (m >= 8 ? 2 : 0), from = ((n >> 3) * C + c) * 32 + (m & 7) * 4 + ((n & 7) >> 1);
            if (row + n < end) {
                float s = 0;
#pragma unroll
                for (int v = 0; v < WARPS; ++v) s += sums[flip][v][from];
                if (p.bias) s += T::widen(p.bias[row + n]);
                p.out[m * static_cast<i64>(p.N) + row + n] = T::round(s);
            }
        }
        if (HIGH) __syncthreads();
        if (!HIGH) flip ^= 1;
    };
    walk<8 * R>(p, even, odd, fetch, use, finish);
}

// cross_entropy on Hopper: a row of logits is spread over a cluster of blocks and stays in their registers from the
// moment it is read until its gradient is written. The blocks' warps hand each other their maxima and sums through
// shared memory, across the cluster; a barrier of the cluster is all that they wait for. Integers arrive as 64 bits.
using i64 = long long;
using u16 = unsigned short;
using u32 = unsigned int;

constexpr int THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 16;
constexpr int VECTORS = 8;  // of 16 bytes that a thread holds
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

struct Words {
    u32 w[4];
};
__device__ float infinity() { return __int_as_float(0x7f800000); }

// ---------------------------------------------------------------- elements, two or one in a word

struct Bf16 {
    using Element = u16;
    static constexpr int PER_WORD = 2;
    static constexpr u32 LOWEST = 0xff80ff80u;  // -inf twice
    static __device__ float get(u32 word, int i) { return __uint_as_float(i ? word & 0xffff0000u : word << 16); }
    static __device__ u32 put(float low, float high) {
        u32 word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
    static __device__ u32 larger(u32 a, u32 b) {
        u32 word;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
        return word;
    }
};
struct F16 {
    using Element = u16;
    static constexpr int PER_WORD = 2;
    static constexpr u32 LOWEST = 0xfc00fc00u;
    static __device__ float get(u32 word, int i) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(i ? word >> 16 : word)));
        return value;
    }
    static __device__ u32 put(float low, float high) {
        u32 word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
    static __device__ u32 larger(u32 a, u32 b) {
        u32 word;
        asm("max.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
        return word;
    }
};
struct F32 {
    using Element = float;
    static constexpr int PER_WORD = 1;
    static constexpr u32 LOWEST = 0xff800000u;
    static __device__ float get(u32 word, int) { return __uint_as_float(word); }
    static __device__ u32 put(float value, float) { return __float_as_uint(value); }
    static __device__ u32 larger(u32 a, u32 b) { return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b))); }
};
template <class T>
__device__ float value_of(const typename T::Element* p) {
    if constexpr (T::PER_WORD == 1)
        return *p;
    else
        return T::get(*p, 0);
}

template <class T>
__device__ void put_one(typename T::Element* p, float value) {
    u32 word = T::put(value, 0.0f);
    if constexpr (T::PER_WORD == 1)
        *p = __uint_as_float(word);
    else
        *p = static_cast<u16>(word);
}

// ---------------------------------------------------------------- exponentials; see tile/exp.py for their errors

__device__ float exp2_quick(float t) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(t));
    return power;
}
// e^d for d <= 0, corrected by what the rounding of d log2(e) lost; NaN stays NaN.
__device__ float exp_exact(float d) {
    if (d < -110.0f) d = -110.0f;
    float t = d * LOG2E, power;
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(t));
    return fmaf(power, fmaf(t, -LN2, d), power);
}
// e^d factor, also where the exponential alone would be too small for the normal range.
template <bool EXACT>
__device__ float stretched(float d, float factor) {
    if constexpr (EXACT) return exp_exact(d) * factor;
    float half = exp2_quick(d * (0.5f * LOG2E));
    return half * factor * half;
}

// ---------------------------------------------------------------- the cluster

__device__ u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ u32 blocks_in_cluster() {
    u32 count;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    return count;
}
__device__ void tell(const void* here, u32 block, float top, float total) {
    u32 local = static_cast<u32>(__cvta_generic_to_shared(here)), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(local), "r"(block));
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(top), "f"(total) : "memory");
}
__device__ void arrive_first() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ float max_of_warp(float v) {
    for (int lane = 16; lane; lane /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, lane));
    return v;
}
template <class N>
__device__ N sum_of_warp(N v) {
    for (int lane = 16; lane; lane /= 2) v += __shfl_xor_sync(~0u, v, lane);
    return v;
}
// Exponentials of a warp that saw nothing but -inf add nothing.
__device__ float finite_or_zero(float top) { return top == -infinity() ? 0.0f : top; }

// ---------------------------------------------------------------- rows

struct Row {
    const void* logits;
    const i64* target;
    const void* grad;  // into the loss: one number, or one a row; 1 where null
    const int* count;  // what it is divided by; 1 where null
    void* gradient;    // may be the logits; null where only the loss is wanted
    double* losses;
    i64 stride, grad_stride, N, per_block, ignore_index, ones;
};

// A cluster a row; a block takes `per_block` elements on end, a multiple of those in 16 bytes. With `ones`, rows into
// which 1 flows are right already.
template <class T, bool EXACT>
__device__ __forceinline__ void one_row(const Row& a) {
    using Element = typename T::Element;
    constexpr int EACH = 4 * T::PER_WORD;
    __shared__ float2 told[MOST_BLOCKS * WARPS];
    int blocks = static_cast<int>(blocks_in_cluster()), rank = static_cast<int>(rank_in_cluster());
    i64 row = blockIdx.x / blocks;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Element* grad = static_cast<const Element*>(a.grad);
    float flow = grad ? value_of<T>(grad + row * a.grad_stride) : 1.0f;
    if (a.ones && flow == 1.0f) return;
    i64 wanted = a.target[row];
    int begin = rank * static_cast<int>(a.per_block), end = min(begin + static_cast<int>(a.per_block), static_cast<int>(a.N));
    int first = begin + static_cast<int>(threadIdx.x) * EACH;
    Element* gradient = static_cast<Element*>(a.gradient);
    if (gradient) gradient += row * a.N;
    if (wanted == a.ignore_index) {
        if (gradient)
            for (int v = 0; v < VECTORS; ++v) {
                int at = first + v * THREADS * EACH;
                if (at < end) *reinterpret_cast<uint4*>(gradient + at) = uint4{0, 0, 0, 0};
            }
        if (a.losses && rank == 0 && threadIdx.x == 0) a.losses[row] = 0.0;
        return;
    }
    arrive_first();
    const Element* logits = static_cast<const Element*>(a.logits) + row * a.stride;
    Words held[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        int at = first + v * THREADS * EACH;
        for (u32& word : held[v].w) word = T::LOWEST;
        if (at < end)
            asm volatile("ld.global.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(held[v].w[0]), "=r"(held[v].w[1]), "=r"(held[v].w[2]), "=r"(held[v].w[3])
                         : "l"(logits + at));
    }
    bool is_class = wanted >= 0 && wanted < a.N;
    float own = is_class ? value_of<T>(logits + wanted) : __int_as_float(0x7fc00000);
    float factor = is_class ? flow : own;
    if (a.count) factor = __fdiv_rn(factor, static_cast<float>(*a.count));

    u32 tops = T::LOWEST;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        for (u32 word : held[v].w) tops = T::larger(tops, word);
    float top = max_of_warp(fmaxf(T::get(tops, 0), T::get(tops, T::PER_WORD - 1)));
    float shift = finite_or_zero(top), sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        for (u32 word : held[v].w)
            for (int i = 0; i < T::PER_WORD; ++i) sums[i] += exp2_quick((T::get(word, i) - shift) * LOG2E);
    float total = sum_of_warp(sums[0] + sums[1]);
    wait();  // all blocks of the cluster run now
    if (lane < blocks) tell(told + rank * WARPS + warp, lane, top, total);
    arrive();
    wait();

    float2 others[MOST_BLOCKS * WARPS / 32];
    top = -infinity();
#pragma unroll
    for (int i = 0; i < MOST_BLOCKS * WARPS / 32; ++i) {
        others[i] = 32 * i + lane < blocks * WARPS ? told[32 * i + lane] : float2{-infinity(), 0.0f};
        top = fmaxf(top, others[i].x);
    }
    top = max_of_warp(top), total = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_BLOCKS * WARPS / 32; ++i) total += others[i].y * exp_exact(others[i].x - top);
    total = sum_of_warp(total);
    if (a.losses && rank == 0 && threadIdx.x == 0)
        a.losses[row] = log(static_cast<double>(total)) + (static_cast<double>(top) - static_cast<double>(own));
    if (!gradient) return;
    float scale = __frcp_rn(total), each = scale * factor, of_own = (exp_exact(own - top) * scale - 1.0f) * factor;
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        int at = first + v * THREADS * EACH;
        if (at >= end) break;
        Words out;
        for (int w = 0; w < 4; ++w) {
            float low = stretched<EXACT>(T::get(held[v].w[w], 0) - top, each), high = 0.0f;
            if (T::PER_WORD == 2) high = stretched<EXACT>(T::get(held[v].w[w], 1) - top, each);
            out.w[w] = T::put(low, high);
        }
        *reinterpret_cast<uint4*>(gradient + at) = uint4{out.w[0], out.w[1], out.w[2], out.w[3]};
    }
    // The thread that wrote the target's place writes there again.
    int own_at = static_cast<int>(wanted) - begin;
    if (is_class && own_at >= 0 && own_at < end - begin && own_at / EACH % THREADS == static_cast<int>(threadIdx.x))
        put_one<T>(gradient + wanted, of_own);
}

#define KW_ROWS(suffix, T, EXACT, BLOCKS)                                                                       \
    extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void rows_##suffix(                                \
        const void* logits, const i64* target, const void* grad, const int* count, void* gradient, double* losses, \
        i64 stride, i64 grad_stride, i64 N, i64 per_block, i64 ignore_index, i64 ones) {                        \
        one_row<T, EXACT>(Row{logits, target, grad, count, gradient, losses, stride, grad_stride, N, per_block, \
                              ignore_index, ones});                                                             \
    }
KW_ROWS(bfloat16, Bf16, false, 4)
KW_ROWS(float16, F16, false, 4)
KW_ROWS(float32, F32, true, 4)

// ---------------------------------------------------------------- counts and the reduction, one block each

constexpr int ALONE = 1024;

// The sum over the block in every thread's view of thread 0.
template <class N>
__device__ N sum_of_block(N v) {
    __shared__ N parts[ALONE / 32];
    v = sum_of_warp(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    return threadIdx.x < 32 ? sum_of_warp(parts[threadIdx.x]) : N(0);
}

// How many rows are not ignored.
extern "C" __global__ __launch_bounds__(ALONE) void count_rows(const i64* target, int* count, i64 M, i64 ignore_index) {
    int found = 0;
    for (i64 i = threadIdx.x; i < M; i += ALONE) found += target[i] != ignore_index;
    found = sum_of_block(found);
    if (threadIdx.x == 0) *count = found;
}

// reduction: 0 each row's loss, 1 their mean over the rows that are not ignored, 2 their sum.
template <class T>
__device__ void reduce(const double* losses, const i64* target, typename T::Element* loss, i64 M, i64 ignore, i64 reduction) {
    double sum = 0.0;
    int counted = 0;
    for (i64 i = threadIdx.x; i < M; i += ALONE) {
        if (reduction == 0) put_one<T>(loss + i, static_cast<float>(losses[i]));
        sum += losses[i];
        counted += target[i] != ignore;
    }
    if (reduction == 0) return;
    sum = sum_of_block(sum);
    __syncthreads();
    counted = sum_of_block(counted);
    if (threadIdx.x == 0) put_one<T>(loss, static_cast<float>(reduction == 1 ? sum / counted : sum));
}
#define KW_REDUCE(suffix, T)                                                                                          \
    extern "C" __global__ __launch_bounds__(ALONE) void reduce_##suffix(                                              \
        const double* losses, const i64* target, T::Element* loss, i64 M, i64 ignore_index, i64 reduction) {          \
        reduce<T>(losses, target, loss, M, ignore_index, reduction);                                                  \
    }
KW_REDUCE(bfloat16, Bf16)
KW_REDUCE(float16, F16)
KW_REDUCE(float32, F32)

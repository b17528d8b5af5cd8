// cross_entropy on Hopper: a row of logits is spread over a cluster of blocks and stays in their registers from the
// moment it is read until its gradient is written. The blocks' warps hand each other their maxima and sums through
// shared memory, across the cluster; a barrier of the cluster is all that they wait for. While a cluster works on one
// row, a bulk copy brings its next one into shared memory. Integers arrive as 64 bits.
using i64 = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

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
__device__ void tell(const void* here, u32 block, int value) {
    u32 local = static_cast<u32>(__cvta_generic_to_shared(here)), there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(local), "r"(block));
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(value) : "memory");
}
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

struct Rows {
    const void* logits;
    const i64* target;
    const void* grad;  // into the loss: one number, or one a row; 1 where null
    const int* count;  // what it is divided by; 1 where null
    void* gradient;    // may be the logits; null where only the loss is wanted
    double* losses;
    int* turns;  // how many rows were taken, 0 before
    i64 stride, grad_stride, M, N, per_block, ignore_index, ones;
};

// ---------------------------------------------------------------- bulk copies

__device__ u32 address(const void* shared) { return static_cast<u32>(__cvta_generic_to_shared(shared)); }
__device__ void start(u64* arrived) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address(arrived)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Brings `bytes` (a multiple of 16) from memory; `arrived` completes when they are there. One thread.
__device__ void bring(void* shared, const void* from, u32 bytes, u64* arrived) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(arrived)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address(shared)),
                 "l"(from), "r"(bytes), "r"(address(arrived))
                 : "memory");
}
__device__ void await(u64* arrived, u32 parity) {
    u32 done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(address(arrived)), "r"(parity)
            : "memory");
}

// ---------------------------------------------------------------- what a cluster does

// A cluster takes the next row that nobody took, as long as there is one; its first block asks for it two rows ahead. (Not
// all clusters of a launch need run at once; one that starts late finds no row left.) A block takes `per_block` elements on
// end, a multiple of those in 16 bytes. With `ones`, rows into which 1 flows are right already.
template <class T, bool EXACT>
__device__ __forceinline__ void take_rows(const Rows& a) {
    using Element = typename T::Element;
    constexpr int EACH = 4 * T::PER_WORD;
    __shared__ alignas(128) uint4 ahead[VECTORS * THREADS];  // this block's part of the next row
    __shared__ float2 told_by_turn[2][MOST_BLOCKS * WARPS];  // by turns, because a quick block may be a row ahead
    __shared__ int taken_by_turn[2];                         // the row after the next
    __shared__ alignas(8) u64 arrived;
    int blocks = static_cast<int>(blocks_in_cluster()), rank = static_cast<int>(rank_in_cluster());
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int begin = rank * static_cast<int>(a.per_block), end = min(begin + static_cast<int>(a.per_block), static_cast<int>(a.N));
    int first = begin + static_cast<int>(threadIdx.x) * EACH;
    const Element* grad = static_cast<const Element*>(a.grad);
    if (threadIdx.x == 0) start(&arrived);
    arrive();
    wait();  // all blocks of the cluster run now
    auto share = [&](int* place, int value) {
        for (int i = 0; i < blocks; ++i) tell(place, i, value);
    };
    bool asks = rank == 0 && threadIdx.x == 0;
    if (asks) share(taken_by_turn, atomicAdd(a.turns, 2));
    arrive();
    wait();

    i64 row = taken_by_turn[0], next = row + 1, wanted = 0;
    float flow = 1.0f;
    u32 parity = 0, turn = 1;
    auto look = [&](i64 at, i64& its_target, float& its_flow) {
        if (at >= a.M) return;
        its_target = a.target[at];
        if (grad) its_flow = value_of<T>(grad + at * a.grad_stride);
    };
    auto fetch = [&](i64 at, i64 its_target, float its_flow) {
        if (threadIdx.x || at >= a.M || its_target == a.ignore_index || (a.ones && its_flow == 1.0f)) return;
        const Element* from = static_cast<const Element*>(a.logits) + at * a.stride + begin;
        bring(ahead, from, static_cast<u32>(end - begin) * sizeof(Element), &arrived);
    };
    look(row, wanted, flow);
    if (a.ones && !a.grad_stride && flow == 1.0f) return;
    fetch(row, wanted, flow);
    float count = a.count ? static_cast<float>(*a.count) : 1.0f;
    while (row < a.M) {
        int taken = 0;
        if (asks) taken = atomicAdd(a.turns, 1);
        i64 next_wanted = 0;
        float next_flow = 1.0f;
        look(next, next_wanted, next_flow);
        Element* gradient = a.gradient ? static_cast<Element*>(a.gradient) + row * a.N : nullptr;
        bool done = a.ones && flow == 1.0f, ignored = wanted == a.ignore_index;
        if (done || ignored) {
            if (!done && gradient)
                for (int at = first; at < end; at += THREADS * EACH)
                    *reinterpret_cast<uint4*>(gradient + at) = uint4{0, 0, 0, 0};
            if (!done && a.losses && asks) a.losses[row] = 0.0;
            fetch(next, next_wanted, next_flow);
            if (asks) share(taken_by_turn + turn, taken);
            arrive();
            wait();
        } else {
            bool is_class = wanted >= 0 && wanted < a.N;
            float own = __int_as_float(0x7fc00000);
            if (is_class) own = value_of<T>(static_cast<const Element*>(a.logits) + row * a.stride + wanted);
            float factor = is_class ? __fdiv_rn(flow, count) : own;
            Words held[VECTORS];
            await(&arrived, parity);
            parity ^= 1;
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                uint4 words = uint4{T::LOWEST, T::LOWEST, T::LOWEST, T::LOWEST};
                if (first + v * THREADS * EACH < end) words = ahead[v * THREADS + threadIdx.x];
                held[v] = Words{{words.x, words.y, words.z, words.w}};
            }
            __syncthreads();
            fetch(next, next_wanted, next_flow);

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
            float2* told = told_by_turn[turn];
            if (lane < blocks) tell(told + rank * WARPS + warp, lane, top, total);
            if (asks) share(taken_by_turn + turn, taken);
            arrive();
            wait();

            top = -infinity();
            for (int i = lane; i < blocks * WARPS; i += 32) top = fmaxf(top, told[i].x);
            top = max_of_warp(top), total = 0.0f;
            for (int i = lane; i < blocks * WARPS; i += 32) total += told[i].y * exp_exact(told[i].x - top);
            total = sum_of_warp(total);
            if (a.losses && asks)
                a.losses[row] = log(static_cast<double>(total)) + (static_cast<double>(top) - static_cast<double>(own));
            if (gradient) {
                float scale = __frcp_rn(total), each = scale * factor;
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
                bool here = is_class && own_at >= 0 && own_at < end - begin;
                if (here && own_at / EACH % THREADS == static_cast<int>(threadIdx.x))
                    put_one<T>(gradient + wanted, (exp_exact(own - top) * scale - 1.0f) * factor);
            }
        }
        wanted = next_wanted, flow = next_flow;
        row = next, next = taken_by_turn[turn], turn ^= 1;
    }
}

#define KW_ROWS(suffix, T, EXACT, BLOCKS)                                                                       \
    extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void rows_##suffix(                                \
        const void* logits, const i64* target, const void* grad, const int* count, void* gradient, double* losses, \
        int* turns, i64 stride, i64 grad_stride, i64 M, i64 N, i64 per_block, i64 ignore_index, i64 ones) {                 \
        take_rows<T, EXACT>(Rows{logits, target, grad, count, gradient, losses, turns, stride, grad_stride, M, N,      \
                                 per_block, ignore_index, ones});                                               \
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

// How many rows are not ignored, into the first of two numbers; the second, of rows taken, becomes 0.
extern "C" __global__ __launch_bounds__(ALONE) void count_rows(const i64* target, int* count, i64 M, i64 ignore_index) {
    int found = 0;
    if (threadIdx.x == 0) count[1] = 0;
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

// cross_entropy on Hopper: a row of logits is spread over a cluster of blocks and stays in their registers from the
// moment it is read until its gradient is written. The blocks' warps write their maxima and sums into each other's
// shared memory, whose barriers count the bytes: a barrier of the cluster would also wait for the gradients of the row
// before to reach memory. Integers arrive as 64 bits.
using i64 = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int MOST_WARPS = 128;  // of a cluster
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
__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
__device__ void barrier_init(u32 barrier) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier)); }
__device__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void barrier_wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
// Writes a pair into the same place of another block's shared memory, whose barrier counts the bytes.
__device__ void tell(u32 here, u32 barrier, u32 block, float top, float total) {
    asm volatile(
        "{\n.reg .b32 there, told;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 told, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [told];\n}" ::"r"(here),
        "r"(barrier), "r"(block), "f"(top), "f"(total)
        : "memory");
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Kernels that follow each other closely: blocks start while the kernel before ends, and wait for what it wrote.
__device__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

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
    i64 stride, grad_stride, M, N, per_block, ignore_index, ones;
};

// A thread's logits, asked for at once. Beside gradients that are written, a mark to leave the caches first costs 4%; where
// nothing is written, logits with it come up to 2% quicker.
template <class T, bool WRITTEN, int THREADS, int VECTORS>
__device__ __forceinline__ void every_load(Words (&to)[VECTORS], const typename T::Element* from, int first, int end) {
#define KW_LOAD(hint)                                                                     \
    asm volatile("ld.global" hint ".v4.b32 {%0,%1,%2,%3}, [%4];"                          \
                 : "=r"(to[v].w[0]), "=r"(to[v].w[1]), "=r"(to[v].w[2]), "=r"(to[v].w[3]) \
                 : "l"(from + at))
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        int at = first + v * THREADS * 4 * T::PER_WORD;
        for (u32& word : to[v].w) word = T::LOWEST;
        if (at >= end) continue;
        if constexpr (WRITTEN)
            KW_LOAD(".L2::128B");
        else
            KW_LOAD(".L1::no_allocate");
    }
#undef KW_LOAD
}

// A cluster a row, then the row that many clusters on; a block takes `per_block` elements on end, a multiple of those in
// 16 bytes, and a thread holds VECTORS times 16 bytes. With `ones`, rows into which 1 flows are right already.
template <class T, bool EXACT, int THREADS, int VECTORS>
__device__ __forceinline__ void every_row(const Rows& a) {
    using Element = typename T::Element;
    constexpr int EACH = 4 * T::PER_WORD, WARPS = THREADS / 32;
    __shared__ alignas(16) float2 told[2][MOST_WARPS];  // of two rows: nobody writes where another still reads
    __shared__ alignas(8) u64 heard[2];
    let_next_kernel_start();
    // Where the rows are counted, that is the kernel before: all that others wrote is there since it began.
    if (!a.count || a.ones) wait_for_kernel_before();
    const Element* grad = static_cast<const Element*>(a.grad);
    if (a.ones && a.grad_stride == 0 && value_of<T>(grad) == 1.0f) return;
    int blocks = static_cast<int>(blocks_in_cluster()), rank = static_cast<int>(rank_in_cluster());
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (blocks > 1) {
        if (threadIdx.x == 0) {
            barrier_init(shared_address(&heard[0])), barrier_init(shared_address(&heard[1]));
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        arrive();
    }
    bool first_row = true;  // until all blocks are known to run
    int begin = rank * static_cast<int>(a.per_block), end = min(begin + static_cast<int>(a.per_block), static_cast<int>(a.N));
    int first = begin + static_cast<int>(threadIdx.x) * EACH;
    i64 step = gridDim.x / blocks, row = blockIdx.x / blocks;
    // Of a row's target and its logit each is a trip to memory: they are asked for a row ahead.
    auto logit = [&](i64 of, i64 wanted) {
        bool is_class = wanted >= 0 && wanted < a.N;
        const Element* logits = static_cast<const Element*>(a.logits) + of * a.stride;
        return is_class ? value_of<T>(logits + wanted) : __int_as_float(0x7fc00000);
    };
    u32 turn = 0, phase = 0;
    i64 wanted = row < a.M ? a.target[row] : 0, next = 0;
    float own = row < a.M ? logit(row, wanted) : 0.0f, next_own = 0.0f;
    for (; row < a.M; row += step, wanted = next, own = next_own) {
        Words held[VECTORS];
        const Element* from = static_cast<const Element*>(a.logits) + row * a.stride;
        if (a.gradient)
            every_load<T, true, THREADS>(held, from, first, end);
        else
            every_load<T, false, THREADS>(held, from, first, end);
        bool more = row + step < a.M;
        if (more) next = a.target[row + step];
        float flow = grad ? value_of<T>(grad + row * a.grad_stride) : 1.0f;
        Element* gradient = static_cast<Element*>(a.gradient);
        if (gradient) gradient += row * a.N;
        bool right = a.ones && flow == 1.0f;
        if (right || wanted == a.ignore_index) {
            if (!right && gradient)
                for (int v = 0; v < VECTORS; ++v) {
                    int at = first + v * THREADS * EACH;
                    if (at < end) *reinterpret_cast<uint4*>(gradient + at) = uint4{0, 0, 0, 0};
                }
            if (!right && a.losses && rank == 0 && threadIdx.x == 0) a.losses[row] = 0.0;
            if (more) next_own = logit(row + step, next);
            continue;
        }
        bool is_class = wanted >= 0 && wanted < a.N;

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
        if (more) next_own = logit(row + step, next);
        if (blocks > 1) {
            u32 now = shared_address(&heard[turn]);
            if (first_row) wait(), first_row = false;
            if (threadIdx.x == 0) barrier_expect(now, 8 * WARPS * blocks);
            if (lane < blocks) tell(shared_address(&told[turn][rank * WARPS + warp]), now, lane, top, total);
            barrier_wait(now, phase);
        } else {
            if (lane == 0) told[turn][warp] = float2{top, total};
            __syncthreads();
        }
        top = -infinity(), total = 0.0f;
        for (int i = lane; i < blocks * WARPS; i += 32) top = fmaxf(top, told[turn][i].x);
        top = max_of_warp(top);
        for (int i = lane; i < blocks * WARPS; i += 32) total += told[turn][i].y * exp_exact(told[turn][i].x - top);
        total = sum_of_warp(total);
        phase ^= turn, turn ^= 1;
        if (a.losses && rank == 0 && threadIdx.x == 0)
            a.losses[row] = log(static_cast<double>(total)) + (static_cast<double>(top) - static_cast<double>(own));
        if (!gradient) continue;
        float factor = is_class ? flow : own;
        if (a.count) {
            wait_for_kernel_before();
            factor = __fdiv_rn(factor, static_cast<float>(*static_cast<const volatile int*>(a.count)));
        }
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
    if (blocks > 1 && first_row) wait();
}

#define KW_ROWS(suffix, T, EXACT, THREADS, VECTORS)                                                                   \
    extern "C" __global__ __launch_bounds__(THREADS, 1024 / THREADS) void rows_##suffix##_##THREADS##_##VECTORS(       \
        const void* logits, const i64* target, const void* grad, const int* count, void* gradient, double* losses,     \
        i64 stride, i64 grad_stride, i64 M, i64 N, i64 per_block, i64 ignore_index, i64 ones) {                        \
        every_row<T, EXACT, THREADS, VECTORS>(                                                                         \
            Rows{logits, target, grad, count, gradient, losses, stride, grad_stride, M, N, per_block, ignore_index,    \
                 ones});                                                                                               \
    }
#define KW_SIZES(suffix, T, EXACT)       \
    KW_ROWS(suffix, T, EXACT, 256, 8)    \
    KW_ROWS(suffix, T, EXACT, 256, 10)   \
    KW_ROWS(suffix, T, EXACT, 512, 8)
KW_SIZES(bfloat16, Bf16, false)
KW_SIZES(float16, F16, false)
KW_SIZES(float32, F32, true)

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
    let_next_kernel_start();
    for (i64 i = threadIdx.x; i < M; i += ALONE) found += target[i] != ignore_index;
    found = sum_of_block(found);
    if (threadIdx.x == 0) *count = found;
}

// reduction: 0 each row's loss, 1 their mean over the rows that are not ignored, 2 their sum.
template <class T>
__device__ void reduce(const double* losses, const i64* target, typename T::Element* loss, i64 M, i64 ignore, i64 reduction) {
    double sum = 0.0;
    int counted = 0;
    wait_for_kernel_before();
#pragma unroll 4
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

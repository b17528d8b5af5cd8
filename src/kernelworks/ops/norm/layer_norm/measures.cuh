// What the gradients of layer_norm on Hopper are made with: elements, instructions that C++ has no words for, the layout of
// shared memory, and what a row is turned with, measured by one round of sums or, rarely, more.
#pragma once

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

constexpr int TURNING = 512, MEASURING = 128, THREADS = TURNING + MEASURING;
constexpr int WARPS = TURNING / 32, MEASURERS = MEASURING / 32, MOST_STAGES = 8;
constexpr int EACH = 8;  // elements in 16 bytes

// Shared memory: barriers (rows that have come, rows that are measured), what measuring warps tell each other, the weight,
// the rings, the measures of rows.
constexpr int PLACES = WARPS * MOST_STAGES;  // no group has more stages, and no more than WARPS groups exist
constexpr int COME = 0, MEASURED = COME + 8 * PLACES;
constexpr int TOLD = MEASURED + 8 * PLACES, SAID = 16;  // SAID: bytes a warp
constexpr int WEIGHT = (TOLD + MEASURERS * SAID + 127) / 128 * 128;  // whole lines of 128 bytes

// Variances outside have overflowed or lost bits in float32.
constexpr float LEAST = 0x1p-90f, MOST = 0x1p100f, SMALLEST = 0x1p-126f;

struct Words {
    u32 w[4];
};

// ---------------------------------------------------------------- elements, two in a word

struct Bf16 {
    static constexpr u32 ONES = 0x3f803f80u;
    static __device__ float get(u32 word, int i) { return __uint_as_float(i ? word & 0xffff0000u : word << 16); }
    static __device__ u32 put(float low, float high) {
        u32 word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};
struct F16 {
    static constexpr u32 ONES = 0x3c003c00u;
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
};

// ---------------------------------------------------------------- instructions that C++ has no words for

inline __device__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
inline __device__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline __device__ void barrier_wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
// 16 bytes, which are there once the barrier that this thread then arrives at with its copies is through.
inline __device__ void copy(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
inline __device__ void arrive_with_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
inline __device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
// Of all warps of a block, each in its own part of the program.
inline __device__ void block_barrier() { asm volatile("bar.sync 0;" ::: "memory"); }
inline __device__ void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline __device__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---------------------------------------------------------------- warps that measure a row together

struct Team {
    unsigned char* memory;
    int warps, number, lane, warp;

    __device__ void sync() const {
        if (warps == 1)
            __syncwarp();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(1 + number), "r"(32 * warps) : "memory");
    }
    // Any reduction of a few values, each in every thread and the same there.
    template <int COUNT, class Value, class Join>
    __device__ void all(Value (&v)[COUNT], Join join) const {
#pragma unroll
        for (int across = 16; across; across /= 2)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) v[i] = join(v[i], __shfl_xor_sync(~0u, v[i], across));
        if (warps == 1) return;
        static_assert(sizeof(Value) * COUNT <= SAID);
        auto told = [&](int by) { return reinterpret_cast<Value*>(memory + TOLD + by * SAID); };
        sync();
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) told(warp)[i] = v[i];
        sync();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            v[i] = told(number * warps)[i];
            for (int w = 1; w < warps; ++w) v[i] = join(v[i], told(number * warps + w)[i]);
        }
    }
    template <int COUNT>
    __device__ void sums(float (&v)[COUNT]) const {
        all(v, [](float a, float b) { return a + b; });
    }
    __device__ float sum(float v) const {
        float one[1] = {v};
        sums(one);
        return one[0];
    }
    __device__ float largest(float v) const {
        float one[1] = {v};
        all(one, [](float a, float b) { return fmaxf(a, b); });
        return one[0];
    }
};

// A power of two that brings the larger of `largest` and sqrt(eps) near 1; 1 where that is infinite.
inline __device__ float power_of_two(float largest, float eps) {
    int exponent = __float_as_int(fmaxf(largest, sqrtf(eps))) & 0x7f800000;
    return exponent == 0x7f800000 ? 1.0f : __int_as_float(min(max(0x7f000000 - exponent, 0x00800000), 0x7e800000));
}
// Floats in the order of unsigned integers.
inline __device__ u32 ordered(float v) {
    u32 bits = __float_as_uint(v);
    return bits ^ (bits >> 31 ? ~0u : 0x80000000u);
}
inline __device__ float unordered(u32 bits) { return __uint_as_float(bits ^ (bits >> 31 ? 0x80000000u : ~0u)); }

// ---------------------------------------------------------------- a row

// What a row is turned with: z = (x scale - centre) r - shift; the gradient of x is (g weight) slope + z less + least.
struct Measures {
    float scale, centre, r, shift, slope, less, least, none;
};
static_assert(sizeof(Measures) == 32);

// A row in shared memory.
template <class T>
struct Row {
    const u16 *x, *grad, *weight;
    int N, begin, step;  // a thread takes EACH elements every `step`

    template <class Use>
    __device__ void each(Use use) const {
#pragma unroll 1
        for (int at = begin; at < N; at += step)
#pragma unroll 1
            for (int word = 0; word < EACH / 2; ++word)
                for (int i = 0; i < 2; ++i)
                    use(T::get(reinterpret_cast<const u32*>(x + at)[word], i),
                        T::get(reinterpret_cast<const u32*>(grad + at)[word], i) *
                            T::get(reinterpret_cast<const u32*>(weight + at)[word], i));
    }
};

// With z = ((x scale - centre) - shift) / sqrt(variance), c = mean(gw z).
inline __device__ Measures measures(float scale, float centre, float shift, float variance, float c, float mean_g) {
    float r = rsqrtf(variance), slope = r * scale;
    return Measures{scale, centre, r, shift * r, slope, -c * slope, -mean_g * slope, 0.0f};
}

// For rows that one round of sums did not do: a mean beyond the spread, squares that leave float32.
template <class T>
__device__ __forceinline__ Measures centred_again(const Team& team, const Row<T>& row, float mean, float mean_g, float eps) {
    float n = static_cast<float>(row.N), scale = 1.0f, centre = mean, shift = 0.0f, m[2];
    auto moments = [&]() {  // of x scale - centre - shift
        m[0] = m[1] = 0.0f;
        row.each([&](float x, float) {
            float d = (x * scale - centre) - shift;
            m[0] += d, m[1] += d * d;
        });
        team.sums(m);
        m[0] /= n, m[1] /= n;
    };
    moments();
    shift = m[0];
    float variance = m[1] - shift * shift + eps;
    if (!(64.0f * shift * shift < variance && variance > LEAST && variance < MOST)) {
        float largest = 0.0f, sum = 0.0f;
        row.each([&](float x, float) { largest = fmaxf(largest, fabsf(x)); });
        scale = power_of_two(team.largest(largest), eps);
        row.each([&](float x, float) { sum += x * scale; });
        mean = team.sum(sum) / n;
        // Differences from the element nearest the mean are exact where x lies close together.
        u64 nearest[1] = {~0ull};
        row.each([&](float x, float) {
            u64 distance = __float_as_uint(fabsf(x * scale - mean));
            nearest[0] = min(nearest[0], distance << 32 | ordered(x * scale));
        });
        team.all(nearest, [](u64 a, u64 b) { return min(a, b); });
        centre = unordered(static_cast<u32>(nearest[0]));
        shift = 0.0f;
        moments();
        shift = m[0];
        moments();
        shift += m[0];
        // Where all of x is equal the variance is 0 and eps may underflow: 0 / 0 must not come of it.
        variance = m[1] - m[0] * m[0] + fmaxf(eps * scale * scale, eps > 0.0f ? SMALLEST : 0.0f);
    }
    float r = rsqrtf(variance), dot = 0.0f;
    row.each([&](float x, float g) { dot += ((x * scale - centre) - shift) * r * g; });
    return measures(scale, centre, shift, variance, team.sum(dot) / n, mean_g);
}

// Walks through memory and arithmetic for experiments. Each function does its work `passes` times on one thread and writes
// a number that hangs on all of it, so that no compiler leaves any of it out. The caller has the stopwatch.
//
//   strided_read(out, x, stride, passes)     ORs every stride-th float of x, stride one of 1, 2, 4, ... 64
//   walk(out, x, bytes, passes)              ORs the first `bytes` of x, a multiple of 4096, in whole vectors
//   chase(out, next, steps)                  i = next[i], `steps` times: each load waits for the one before
//   multiply_adds(out, x, bytes, count, passes)
//                                            `count` multiply-adds for each float of x, count one of 1, 2, 4, ... 128
#include "simd.hpp"

namespace {

template <int64_t STRIDE>
uint32_t read_every(const uint32_t* x, int64_t n) {
    uint32_t bits[4] = {};
    for (int64_t i = 0; i + 4 * STRIDE <= n; i += 4 * STRIDE)
        for (int64_t j = 0; j < 4; ++j) bits[j] |= x[i + j * STRIDE];
    return bits[0] | bits[1] | bits[2] | bits[3];
}

template <int64_t STRIDE>
uint32_t dispatch_stride(int64_t stride, const uint32_t* x, int64_t n) {
    if constexpr (STRIDE < 64)
        if (stride != STRIDE) return dispatch_stride<2 * STRIDE>(stride, x, n);
    return read_every<STRIDE>(x, n);
}

constexpr int64_t VECTORS = 8;  // in flight: a multiply-add takes 4 cycles, two begin in each

template <int64_t COUNT>
float count_multiply_adds(const float* x, int64_t n) {
    const kw::vf a = kw::vf{} + 0.999f, b = kw::vf{} + 0.001f;
    kw::vf sum = {};
    constexpr int64_t LANES = sizeof(kw::vf) / sizeof(float);
    for (int64_t i = 0; i + VECTORS * LANES <= n; i += VECTORS * LANES) {
        kw::vf v[VECTORS];
        for (int64_t j = 0; j < VECTORS; ++j) __builtin_memcpy(&v[j], x + i + j * LANES, sizeof(kw::vf));
        for (int64_t k = 0; k < COUNT; ++k)
            for (int64_t j = 0; j < VECTORS; ++j) v[j] = kw::fma(v[j], a, b);
        for (int64_t j = 0; j < VECTORS; ++j) sum = kw::max(sum, v[j]);
    }
    return sum[0];
}

template <int64_t COUNT>
float dispatch_count(int64_t count, const float* x, int64_t n) {
    if constexpr (COUNT < 128)
        if (count != COUNT) return dispatch_count<2 * COUNT>(count, x, n);
    return count_multiply_adds<COUNT>(x, n);
}

}  // namespace

KW_EXPORT(strided_read) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1);
    uint32_t bits = 0;
    for (int64_t pass = 0; pass < args.integer(3); ++pass) {
        bits |= dispatch_stride<1>(args.integer(2), x.ptr<uint32_t>(), x.numel());
        __asm__ volatile("" : "+r"(bits)::"memory");
    }
    out.ptr<int32_t>()[0] = static_cast<int32_t>(bits);
}

KW_EXPORT(walk) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1);
    const char* p = x.ptr<char>();
    kw::vu bits[4] = {};
    for (int64_t pass = 0; pass < args.integer(3); ++pass) {
        for (int64_t i = 0; i < args.integer(2); i += 4 * sizeof(kw::vu))
            for (int64_t j = 0; j < 4; ++j) bits[j] |= kw::load_bits<kw::vu>(p + i + j * sizeof(kw::vu));
        __asm__ volatile("" ::: "memory");
    }
    bits[0] |= bits[1] | bits[2] | bits[3];
    for (uint64_t k = 1; k < sizeof(kw::vu) / 4; ++k) bits[0][0] |= bits[0][k];
    out.ptr<int32_t>()[0] = static_cast<int32_t>(bits[0][0]);
}

KW_EXPORT(chase) {
    const kw::Tensor out = args.tensor(0), next = args.tensor(1);
    const int64_t* to = next.ptr<int64_t>();
    int64_t at = 0;
    for (int64_t step = 0; step < args.integer(2); ++step) at = to[at];
    out.ptr<int64_t>()[0] = at;
}

KW_EXPORT(multiply_adds) {
    const kw::Tensor out = args.tensor(0), x = args.tensor(1);
    float sum = 0;
    for (int64_t pass = 0; pass < args.integer(4); ++pass) {
        sum += dispatch_count<1>(args.integer(3), x.ptr<float>(), args.integer(2) / 4);
        __asm__ volatile("" : "+m"(sum)::"memory");
    }
    out.ptr<float>()[0] = sum;
}

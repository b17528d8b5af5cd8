// Transcendental rates: exp, tanh, erf and log of 4096 float32 values that stay in L1.
//
//   exp(result, rounds, threads) and so on; result is float64[3]: seconds, threads, results of one thread.
//
// Vector targets use the formulas that rows use; the scalar target calls the C library once a value.
#include "clock.hpp"

namespace {

constexpr int64_t LENGTH = 4096;

#if defined(__AVX2__)
struct Exp {
    static kw::vf of(kw::vf x) { return kw::exp(x); }
};
// tanh x = 1 - 2 / (e^2x + 1)
struct Tanh {
    static kw::vf of(kw::vf x) { return 1.0f - 2.0f / (kw::exp(x + x) + 1.0f); }
};
// Abramowitz and Stegun 7.1.26
struct Erf {
    static kw::vf of(kw::vf x) {
        kw::vf a = kw::abs(x), t = 1.0f / (1.0f + a * 0.3275911f);
        kw::vf p = kw::splat(1.061405429f);
        p = kw::fma(p, t, kw::splat(-1.453152027f));
        p = kw::fma(p, t, kw::splat(1.421413741f));
        p = kw::fma(p, t, kw::splat(-0.284496736f));
        p = kw::fma(p, t, kw::splat(0.254829592f));
        kw::vf y = 1.0f - p * t * kw::exp(-a * a);
        return (kw::vf)((kw::vu)y | ((kw::vu)x & 0x80000000u));
    }
};
// x = 2^k (1 + f): the exponent from the bits, log(1 + f) from the series of 2 artanh(f / (2 + f))
struct Log {
    static kw::vf of(kw::vf x) {
        kw::vu bits = (kw::vu)x, shifted = bits - 0x3f3504f3u;
        kw::vi k = (kw::vi)shifted >> 23;
        kw::vf f = (kw::vf)((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
        kw::vf s = f / (f + 2.0f), z = s * s;
        kw::vf p = kw::splat(0.22222222f);
        p = kw::fma(p, z, kw::splat(0.28571429f));
        p = kw::fma(p, z, kw::splat(0.4f));
        p = kw::fma(p, z, kw::splat(0.66666667f));
        p = kw::fma(p, z, kw::splat(2.0f));
        return kw::fma(__builtin_convertvector(k, kw::vf), kw::splat(0.693147181f), p * s);
    }
};
constexpr int64_t STEP = kw::LANES;
template <class F>
void apply(float* out, const float* in) {
    for (int64_t i = 0; i < LENGTH; i += STEP) kw::store(out + i, F::of(kw::load(in + i)));
}
#else
struct Exp {
    static float of(float x) { return std::exp(x); }
};
struct Tanh {
    static float of(float x) { return std::tanh(x); }
};
struct Erf {
    static float of(float x) { return std::erf(x); }
};
struct Log {
    static float of(float x) { return std::log(x); }
};
template <class F>
void apply(float* out, const float* in) {
    for (int64_t i = 0; i < LENGTH; ++i) out[i] = F::of(in[i]);
}
#endif

// `rounds` times over LENGTH values spread evenly in (low, high).
template <class F>
void rate(kw::Args args, float low, float high) {
    double* result = args.tensor(0).ptr<double>();
    int64_t rounds = args.integer(1);
    kw::timed(result, args.integer(2), [&](int64_t, int64_t) {
        alignas(64) float in[LENGTH], out[LENGTH];
        for (int64_t i = 0; i < LENGTH; ++i)
            in[i] = low + (high - low) * ((static_cast<float>(i) + 0.5f) / static_cast<float>(LENGTH));
        for (int64_t round = 0; round < rounds; ++round) {
            apply<F>(out, in);
            __asm__ volatile("" ::"r"(out), "r"(in) : "memory");
        }
    });
    result[2] = static_cast<double>(LENGTH) * static_cast<double>(rounds);
}

}  // namespace

KW_EXPORT(exp) { rate<Exp>(args, -10.0f, 10.0f); }
KW_EXPORT(tanh) { rate<Tanh>(args, -4.0f, 4.0f); }
KW_EXPORT(erf) { rate<Erf>(args, -4.0f, 4.0f); }
KW_EXPORT(log) { rate<Log>(args, 0.0f, 100.0f); }

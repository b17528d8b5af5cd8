// Vectors of doubles, for what a table's expressions compute: W is a vector of WIDE doubles, or in plain code a double.
//
//     widen_at(p) widen_at(p, k)   WIDE floats (the first k, then 0) as doubles;  narrow_to(p, w) the way back
//     where(condition, a, b)       a or b, of which one may be a constant
//     absolute(x) root(x)
//     exponential(x) logarithm(x) log_one_more(e)    of any x; of x >= 0; of 0 <= e <= 1
//
// The elementary functions are within 2^-30 of the exact value, relatively: their arguments are doubles, and what they
// give is rounded to float32 or summed.
#pragma once

#include "functions.hpp"

namespace kw {

#if KW_VECTORS

constexpr int WIDE = LANES / 2;
typedef double W __attribute__((vector_size(WIDE * 8)));
typedef int64_t WI __attribute__((vector_size(WIDE * 8)));
typedef uint64_t WU __attribute__((vector_size(WIDE * 8)));
typedef float NarrowFloats __attribute__((vector_size(WIDE * 4)));

inline W wide(double x) { return x - W{}; }
inline W wide(W x) { return x; }

inline W widen_at(const float* p) {
    NarrowFloats v;
    __builtin_memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, W);
}
inline void narrow_to(float* p, W x) {
    const NarrowFloats v = __builtin_convertvector(x, NarrowFloats);
    __builtin_memcpy(p, &v, sizeof v);
}
inline W load_wide(const double* p) {
    W v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
inline void store_wide(double* p, W x) { __builtin_memcpy(p, &x, sizeof x); }

template <class C, class A, class B>
inline W where(C condition, A a, B b) {
    return condition ? wide(a) : wide(b);
}

// The first k lanes of a, the others b.
inline W first_lanes(W a, int k, double b) {
    WI number;
    for (int i = 0; i < WIDE; ++i) number[i] = i;
    return number < static_cast<int64_t>(k) ? a : wide(b);
}

inline W absolute(W x) { return (W)((WU)x & 0x7fffffffffffffffull); }
inline W root(W x) {
#if defined(__AVX512F__)
    return (W)_mm512_sqrt_pd((__m512d)x);
#else
    return (W)_mm256_sqrt_pd((__m256d)x);
#endif
}

// 2^n e^r with n = x / ln 2 to the nearest integer, |r| <= ln2 / 2: the series to r^9.
inline W exponential(W x) {
    const W low = wide(-708.0), high = wide(709.0), magic = wide(6755399441055744.0);  // 1.5 2^52
    const W d = where(x < low, low, where(x > high, high, x));
    W bits = d * 1.4426950408889634 + magic;
    __asm__("" : "+v"(bits));
    const W n = bits - magic, r = (d - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    W p = wide(1.0 / 362880);
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const W power = (W)(((WU)bits + 1023) << 52);
    return where(x < low, 0.0, where(x > high, INFINITY, p * power));
}

// x = 2^e m with m from sqrt(1/2) to sqrt(2); log m = 2 atanh(z), z = (m - 1) / (m + 1), at most 0.172: to z^13.
inline W logarithm(W x) {
    const WU bits = (WU)x, shifted = bits - 0x3fe6a09e667f3bcdull + (1023ull << 52), power = shifted >> 52;
    const W e = (W)(power | 0x4330000000000000ull) - (4503599627370496.0 + 1023.0);
    const W m = (W)(bits - ((power - 1023) << 52)), z = (m - 1.0) / (m + 1.0), zz = z * z;
    W q = wide(1.0 / 13);
    q = q * zz + 1.0 / 11;
    q = q * zz + 1.0 / 9;
    q = q * zz + 1.0 / 7;
    q = q * zz + 1.0 / 5;
    q = q * zz + 1.0 / 3;
    q = q * zz + 1.0;
    const W y = e * 0.6931471805599453 + 2.0 * z * q;
    return where(x > 0.0, where(x == INFINITY, x, y), where(x == 0.0, -INFINITY, NAN));
}

// log(1 + e) = 2 atanh(z) with z = e / (2 + e), at most 1/3.
inline W log_one_more(W e) {
    const W z = e / (2.0 + e), zz = z * z;
    W q = wide(1.0 / 19);
    for (int k = 17; k > 0; k -= 2) q = q * zz + 1.0 / k;
    return 2.0 * z * q;
}

#else

constexpr int WIDE = 1;
using W = double;

inline W wide(double x) { return x; }
inline W widen_at(const float* p) { return *p; }
inline void narrow_to(float* p, W x) { *p = static_cast<float>(x); }
inline W load_wide(const double* p) { return *p; }
inline void store_wide(double* p, W x) { *p = x; }
inline W first_lanes(W a, int k, double b) { return k > 0 ? a : b; }

#endif

// Of one number, in either: what is found of a line.
inline double where(bool condition, double a, double b) { return condition ? a : b; }
inline double absolute(double x) { return std::fabs(x); }
inline double root(double x) { return std::sqrt(x); }
inline double exponential(double x) { return std::exp(x); }
inline double logarithm(double x) { return std::log(x); }
inline double log_one_more(double x) { return std::log1p(x); }

}  // namespace kw

// The running logarithm of a sum of exponentials along a dimension, and its gradient. How lines are walked is in scan.hpp.
#include "scan.hpp"

namespace kw {

#if KW_VECTORS
typedef uint64_t Bits __attribute__((vector_size(LANES * 4)));

// e^d of d <= 0, within 2^-51 of itself; below -708 it is 0. 2^n e^r, |r| <= ln2 / 2: the series to r^13.
inline vd exponential_below(vd x) {
    const vd low = splat_wide(-708.0), magic = splat_wide(6755399441055744.0);  // 1.5 2^52
    const vd d = x < low ? low : x;
    vd bits = d * 1.4426950408889634 + magic;
    __asm__("" : "+v"(bits));
    const vd n = bits - magic, r = (d - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    constexpr double OVER[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                               1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
                               1.0 / 6,          0.5,             1.0,            1.0};
    vd p = splat_wide(OVER[0]);
    for (int k = 1; k < 14; ++k) p = p * r + OVER[k];
    const vd power = (vd)(((Bits)bits + 1023) << 52);
    return x < low ? splat_wide(0.0) : p * power;
}

// log(1 + e) of 0 <= e <= 1: 2 atanh(z) with z = e / (2 + e), at most 1/3: the series to z^33.
inline vd log_one_more(vd e) {
    const vd z = e / (2.0 + e), zz = z * z;
    vd q = splat_wide(1.0 / 33);
    for (int k = 31; k > 0; k -= 2) q = q * zz + 1.0 / k;
    return 2.0 * z * q;
}
inline vd joined_logarithms(vd a, vd b) {
    const vd high = a > b ? a : b, low = a > b ? b : a;  // NaN is low, or both
    return high == low ? high + 0.6931471805599453 : high + log_one_more(exponential_below(low - high));
}
#endif
inline double joined_logarithms(double a, double b) {
    const double high = a > b ? a : b, low = a > b ? b : a;
    return high == low ? high + 0.6931471805599453 : high + std::log1p(std::exp(low - high));
}

}  // namespace kw

struct LogSum {
    static constexpr double NONE = -INFINITY;
    static constexpr bool CUT = true;
    template <class S>
    static S join(S before, S after) {
        return kw::joined_logarithms(before, after);
    }
    // What the next element leaves of the one before it, and what an element has of its input: they add to 1.
    static double along(double before, double x) { return 1.0 / (1.0 + std::exp(x - before)); }
    static double across(double before, double x) { return 1.0 / (1.0 + std::exp(before - x)); }
};
KW_EXPORT(logcumsumexp) { kw::scan<LogSum>(args); }
KW_EXPORT(logcumsumexp_backward) { kw::scan_slopes<LogSum>(args); }

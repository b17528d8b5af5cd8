// adamw8bit_, to be read: each block's states decoded, stepped in double, and rounded to codes beside its new scales.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernel.hpp"

namespace {

constexpr int64_t BLOCK = 256;
constexpr int AVERAGE = 3, ROOT = 4;

// A code is a small float: `mantissa` bits below four of exponent; the least exponent means steps of 2^-(14 + mantissa).
double decode(int code, int mantissa) {
    const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    if (exponent == 0) return std::ldexp(fraction, -14 - mantissa);
    return std::ldexp(1.0 + std::ldexp(fraction, -mantissa), exponent - 15);
}

int encode(double x, int mantissa) {
    x = std::min(x, 2 - std::ldexp(1.0, -mantissa));
    const int exponent = x < 0x1p-14 ? -14 : std::ilogb(x);
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(x, mantissa - exponent)));  // to even
    return ((exponent + 14) << mantissa) + steps;  // a carry into the exponent is right there
}

double scale_of(const std::vector<double>& x, int mantissa) {
    double most = 0;
    for (double one : x) {
        if (!std::isfinite(static_cast<float>(one))) return std::nan("");
        most = std::max(most, std::fabs(one));
    }
    return most < 0x1p-100 ? 0 : most / (2 - std::ldexp(1.0, -mantissa));
}

}  // namespace

// param, grad, exp_avg, its scales, rms, its scales, threads, then sign, keep, take, keep2, take2, rate, floor, decay
KW_EXPORT(adamw8bit_) {
    const kw::Tensor param = args.tensor(0);
    uint8_t *average = args.tensor(2).ptr<uint8_t>(), *root = args.tensor(4).ptr<uint8_t>();
    float *average_scale = args.tensor(3).ptr<float>(), *root_scale = args.tensor(5).ptr<float>();
    const double sign = args.real(7), keep = args.real(8), take = args.real(9), keep2 = args.real(10);
    const double take2 = args.real(11), rate = args.real(12), floor = args.real(13), decay = args.real(14);
    kw::with_dtype(param.dtype, [&](auto zero) {
        using T = decltype(zero);
        T* p = param.ptr<T>();
        const T* grad = args.tensor(1).ptr<T>();
        for (int64_t first = 0, b = 0; first < param.numel(); first += BLOCK, ++b) {
            const int64_t count = std::min(BLOCK, param.numel() - first);
            std::vector<double> m, r;
            for (int64_t i = first; i < first + count; ++i) {
                const double g = sign * kw::to_float(grad[i]), size = decode(average[i] & 127, AVERAGE) * average_scale[b];
                const double old = decode(root[i], ROOT) * root_scale[b];
                m.push_back(keep * (average[i] > 127 ? -size : size) + take * g);
                r.push_back(std::sqrt(keep2 * old * old + take2 * g * g));
                p[i] = kw::from_float<T>(static_cast<float>(decay * kw::to_float(p[i]) - rate * m.back() / (r.back() + floor)));
            }
            average_scale[b] = static_cast<float>(scale_of(m, AVERAGE));
            root_scale[b] = static_cast<float>(scale_of(r, ROOT));
            if (std::isnan(average_scale[b]) || std::isnan(root_scale[b])) average_scale[b] = root_scale[b] = std::nanf("");
            for (int64_t i = 0; i < count; ++i) {
                const auto at = static_cast<size_t>(i);
                const int code = average_scale[b] > 0 ? encode(std::fabs(m[at]) / average_scale[b], AVERAGE) : 0;
                average[first + i] = static_cast<uint8_t>(m[at] < 0 && code ? code + 128 : code);
                root[first + i] = static_cast<uint8_t>(root_scale[b] > 0 ? encode(r[at] / root_scale[b], ROOT) : 0);
            }
        }
    });
}

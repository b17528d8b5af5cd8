// The real transforms, to be read: each a transform of complex numbers in double precision, taken apart by the prime
// factors of its length (Cooley and Tukey), and of a prime length a sum of all terms.
//
// The arguments are those of fft.hpp.
#pragma once

#include <complex>
#include <vector>

#include "kernel.hpp"

namespace kw::fft {

using Number = std::complex<double>;
constexpr double TWO_PI = 6.283185307179586;

// sum over j of x[j step] e^(sign 2 pi i j k / n), for every k
inline std::vector<Number> transform(const Number* x, int64_t n, int64_t step, int sign) {
    int64_t p = 2;
    while (p < n && n % p) ++p;
    std::vector<Number> y(static_cast<size_t>(n));
    if (p >= n) {  // a prime, or 1
        for (int64_t k = 0; k < n; ++k)
            for (int64_t j = 0; j < n; ++j)
                y[static_cast<size_t>(k)] += x[j * step] * std::polar(1.0, sign * TWO_PI * static_cast<double>(j * k % n) / static_cast<double>(n));
        return y;
    }
    const int64_t m = n / p;
    for (int64_t i = 0; i < p; ++i) {  // the elements i, i + p, ...
        const std::vector<Number> part = transform(x + i * step, m, step * p, sign);
        for (int64_t k = 0; k < n; ++k)
            y[static_cast<size_t>(k)] += part[static_cast<size_t>(k % m)] * std::polar(1.0, sign * TWO_PI * static_cast<double>(i * k) / static_cast<double>(n));
    }
    return y;
}

template <bool TO_COMPLEX>
void run(Args args) {
    const int64_t outer = args.integer(2), n = args.integer(3), inner = args.integer(4);
    const int64_t outer_stride = args.integer(5), stride = args.integer(6), N = args.integer(7), K = N / 2 + 1;
    const double scale = args.real(8), middle = args.real(9);
    const float* in = args.tensor(1).ptr<float>();
    float* out = args.tensor(0).ptr<float>();
    const int64_t lines = outer * inner;
    if (!lines) return;
    const int64_t out_n = args.tensor(0).numel() / (TO_COMPLEX ? 2 : 1) / lines;
    std::vector<Number> x(static_cast<size_t>(N));
    for (int64_t line = 0; line < lines; ++line) {
        const int64_t from = line / inner * outer_stride + line % inner, to = line / inner * out_n * inner + line % inner;
        x.assign(static_cast<size_t>(N), 0.0);
        for (int64_t j = 0; j < n && j < (TO_COMPLEX ? N : K); ++j) {
            if constexpr (TO_COMPLEX) {
                x[static_cast<size_t>(j)] = in[from + j * stride];
            } else {
                const bool end = j == 0 || 2 * j == N;
                const float* z = in + 2 * (from + j * stride);
                const Number value = end ? Number(z[0], 0) : middle * Number(z[0], z[1]);
                x[static_cast<size_t>(j)] = value;
                if (!end) x[static_cast<size_t>(N - j)] = std::conj(value);
            }
        }
        const std::vector<Number> y = transform(x.data(), N, 1, TO_COMPLEX ? -1 : 1);
        for (int64_t k = 0; k < out_n; ++k) {
            const bool end = k == 0 || 2 * k == N;
            const Number value = k < (TO_COMPLEX ? K : N) ? scale * y[static_cast<size_t>(k)] : 0.0;
            if constexpr (TO_COMPLEX) {
                float* z = out + 2 * (to + k * inner);
                z[0] = static_cast<float>(value.real() * (end ? 1.0 : middle));
                z[1] = end ? 0.0f : static_cast<float>(value.imag() * middle);
            } else {
                out[to + k * inner] = static_cast<float>(value.real());
            }
        }
    }
}

}  // namespace kw::fft

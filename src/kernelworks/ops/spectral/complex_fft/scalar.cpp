// fft, ifft and their gradients, to be read: scalar_fft.hpp takes a length apart by its prime factors, in double.
#include "scalar_fft.hpp"

namespace {

// sign: of the exponent
void run_complex(kw::Args args, int sign) {
    using kw::fft::Number;
    const int64_t outer = args.integer(2), n = args.integer(3), inner = args.integer(4);
    const int64_t outer_stride = args.integer(5), stride = args.integer(6), N = args.integer(7);
    const double scale = args.real(8);
    const float* in = args.tensor(1).ptr<float>();
    float* out = args.tensor(0).ptr<float>();
    const int64_t lines = outer * inner;
    if (!lines) return;
    const int64_t out_n = args.tensor(0).numel() / 2 / lines;
    std::vector<Number> x(static_cast<size_t>(N));
    for (int64_t line = 0; line < lines; ++line) {
        const int64_t from = line / inner * outer_stride + line % inner, to = line / inner * out_n * inner + line % inner;
        x.assign(static_cast<size_t>(N), 0.0);
        for (int64_t j = 0; j < n && j < N; ++j) {
            const float* z = in + 2 * (from + j * stride);
            x[static_cast<size_t>(j)] = Number(z[0], z[1]);
        }
        const std::vector<Number> y = kw::fft::transform(x.data(), N, 1, sign);
        for (int64_t k = 0; k < out_n; ++k) {
            const Number value = k < N ? scale * y[static_cast<size_t>(k)] : 0.0;
            float* z = out + 2 * (to + k * inner);
            z[0] = static_cast<float>(value.real()), z[1] = static_cast<float>(value.imag());
        }
    }
}

}  // namespace

KW_EXPORT(fft) { run_complex(args, -1); }
KW_EXPORT(fft_backward) { run_complex(args, 1); }
KW_EXPORT(ifft) { run_complex(args, 1); }
KW_EXPORT(ifft_backward) { run_complex(args, -1); }

// hadamard_transform, to be read: at each level numbers h apart become their sum and their difference.
#include <vector>

#include "kernel.hpp"

// out, x, lines, N, the distance of lines, P, scale, threads
static void run(kw::Args args) {
    const size_t N = static_cast<size_t>(args.integer(3)), P = static_cast<size_t>(args.integer(5));
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        std::vector<double> line(P);
        for (int64_t l = 0; l < args.integer(2); ++l) {
            const T* x = args.tensor(1).ptr<const T>() + l * args.integer(4);
            T* out = args.tensor(0).ptr<T>() + l * args.integer(3);
            for (size_t j = 0; j < P; ++j) line[j] = j < N ? kw::to_float(x[j]) : 0.0f;
            for (size_t h = 1; h < P; h *= 2)
                for (size_t i = 0; i < P; ++i) {
                    if (i & h) continue;
                    const double a = line[i], b = line[i + h];
                    line[i] = a + b, line[i + h] = a - b;
                }
            for (size_t j = 0; j < N; ++j) out[j] = kw::from_float<T>(static_cast<float>(line[j] * args.real(6)));
        }
    });
}
KW_EXPORT(hadamard_transform) { run(args); }
KW_EXPORT(hadamard_transform_backward) { run(args); }  // the matrix is symmetric

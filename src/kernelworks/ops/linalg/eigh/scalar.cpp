// eigh, to be read: Jacobi's rotations in double until nothing is left beside the diagonal, then the values in order.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernel.hpp"

namespace {

using Matrix = std::vector<double>;

// Turns a into a diagonal matrix and v, from the unit matrix, into the eigenvectors, one a row; false if it cannot.
bool diagonalise(Matrix& a, Matrix& v, int64_t N) {
    const auto at = [N](Matrix& m, int64_t i, int64_t j) -> double& { return m[static_cast<size_t>(i * N + j)]; };
    double squares = 0;
    for (double x : a) squares += x * x;
    if (!std::isfinite(squares)) return false;
    for (int sweep = 0; sweep < 60; ++sweep) {
        double left = 0;
        for (int64_t p = 0; p < N; ++p)
            for (int64_t q = p + 1; q < N; ++q) {
                const double off = at(a, p, q);
                if (std::fabs(off) <= 1e-16 * std::sqrt(squares)) continue;
                left += std::fabs(off);
                const double ratio = (at(a, q, q) - at(a, p, p)) / (2 * off);
                const double t = std::copysign(1.0, ratio) / (std::fabs(ratio) + std::sqrt(1 + ratio * ratio));
                const double c = 1 / std::sqrt(1 + t * t), s = t * c;
                const auto turn = [&](double& x, double& y) {
                    const double kept = x;
                    x = c * x - s * y, y = s * kept + c * y;
                };
                for (int64_t i = 0; i < N; ++i) turn(at(a, p, i), at(a, q, i));
                for (int64_t i = 0; i < N; ++i) turn(at(a, i, p), at(a, i, q));
                for (int64_t i = 0; i < N; ++i) turn(at(v, p, i), at(v, q, i));
            }
        if (left == 0) return true;
    }
    return true;
}

}  // namespace

// values [batch, N], vectors [batch, N, N], A [batch, N, N], failed int32 [batch], threads; all contiguous
KW_EXPORT(eigh) {
    const kw::Tensor matrices = args.tensor(2);
    const int64_t N = matrices.shape[1];
    for (int64_t b = 0; b < matrices.shape[0]; ++b) {
        const float* from = matrices.ptr<float>() + b * N * N;
        Matrix a(static_cast<size_t>(N * N)), v(a.size());
        std::vector<int64_t> order(static_cast<size_t>(N));
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j < N; ++j) {
                a[static_cast<size_t>(i * N + j)] = from[std::max(i, j) * N + std::min(i, j)];
                v[static_cast<size_t>(i * N + j)] = i == j;
            }
        args.tensor(3).ptr<int32_t>()[b] = !diagonalise(a, v, N);
        const auto value = [&](int64_t i) { return a[static_cast<size_t>(i * N + i)]; };
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return value(i) < value(j); });
        for (int64_t j = 0; j < N; ++j) {
            const int64_t from_row = order[static_cast<size_t>(j)];
            args.tensor(0).ptr<float>()[b * N + j] = static_cast<float>(value(from_row));
            for (int64_t i = 0; i < N; ++i)
                args.tensor(1).ptr<float>()[(b * N + i) * N + j] = static_cast<float>(v[static_cast<size_t>(from_row * N + i)]);
        }
    }
}

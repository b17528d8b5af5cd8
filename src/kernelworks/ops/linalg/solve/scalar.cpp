// solve, to be read: elimination by the largest pivot of each column, then substitution from the last row.
#include <cmath>
#include <utility>
#include <vector>

#include "kernel.hpp"

namespace {

using Matrix = std::vector<double>;

// x [N, K] = m^-1 x; false if a pivot is 0
bool solve(Matrix m, Matrix& x, int64_t N, int64_t K) {
    const auto at = [&](int64_t i, int64_t j) -> double& { return m[static_cast<size_t>(i * N + j)]; };
    const auto side = [&](int64_t i, int64_t k) -> double& { return x[static_cast<size_t>(i * K + k)]; };
    bool regular = true;
    for (int64_t k = 0; k < N; ++k) {
        int64_t pivot = k;
        for (int64_t i = k + 1; i < N; ++i)
            if (std::fabs(at(i, k)) > std::fabs(at(pivot, k))) pivot = i;
        for (int64_t j = 0; j < N; ++j) std::swap(at(k, j), at(pivot, j));
        for (int64_t j = 0; j < K; ++j) std::swap(side(k, j), side(pivot, j));
        regular = regular && at(k, k) != 0.0;
        for (int64_t i = k + 1; i < N; ++i) {
            const double factor = at(i, k) / at(k, k);
            for (int64_t j = k; j < N; ++j) at(i, j) -= factor * at(k, j);
            for (int64_t j = 0; j < K; ++j) side(i, j) -= factor * side(k, j);
        }
    }
    for (int64_t k = N; k-- > 0;)
        for (int64_t j = 0; j < K; ++j) {
            for (int64_t i = k + 1; i < N; ++i) side(k, j) -= at(k, i) * side(i, j);
            side(k, j) /= at(k, k);
        }
    return regular;
}

Matrix taken(const float* from, int64_t n) { return Matrix(from, from + n); }

void put(float* to, const Matrix& x) {
    for (size_t i = 0; i < x.size(); ++i) to[i] = static_cast<float>(x[i]);
}

}  // namespace

// out, A [batch, N, N], B [batch, N, K], singular int32 [batch], threads; all contiguous
KW_EXPORT(solve) {
    const kw::Tensor sides = args.tensor(2);
    const int64_t N = sides.shape[1], K = sides.shape[2];
    for (int64_t b = 0; b < sides.shape[0]; ++b) {
        Matrix x = taken(sides.ptr<float>() + b * N * K, N * K);
        args.tensor(3).ptr<int32_t>()[b] = !solve(taken(args.tensor(1).ptr<float>() + b * N * N, N * N), x, N, K);
        put(args.tensor(0).ptr<float>() + b * N * K, x);
    }
}

// grad of A or None, grad of B, grad, A, output, threads: G = A^-T grad, and -G X^T
KW_EXPORT(solve_backward) {
    const kw::Tensor grad = args.tensor(2);
    const int64_t N = grad.shape[1], K = grad.shape[2];
    for (int64_t b = 0; b < grad.shape[0]; ++b) {
        Matrix g = taken(grad.ptr<float>() + b * N * K, N * K), turned(static_cast<size_t>(N * N));
        for (int64_t e = 0; e < N * N; ++e)
            turned[static_cast<size_t>(e)] = args.tensor(3).ptr<float>()[b * N * N + e % N * N + e / N];
        solve(turned, g, N, K);
        put(args.tensor(1).ptr<float>() + b * N * K, g);
        if (args.none(0)) continue;
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j < N; ++j) {
                double sum = 0;
                for (int64_t k = 0; k < K; ++k)
                    sum -= g[static_cast<size_t>(i * K + k)] * args.tensor(4).ptr<float>()[(b * N + j) * K + k];
                args.tensor(0).ptr<float>()[(b * N + i) * N + j] = static_cast<float>(sum);
            }
    }
}

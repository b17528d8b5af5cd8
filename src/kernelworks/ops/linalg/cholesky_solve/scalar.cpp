// cholesky_solve, to be read: two substitutions, with a factor M for which M M^T is the matrix. An upper factor is the
// other's transpose.
#include <vector>

#include "kernel.hpp"

namespace {

struct Factor {
    const float* data;
    int64_t N;
    bool upper;
    double at(int64_t i, int64_t j) const { return data[upper ? j * N + i : i * N + j]; }
};

using Matrix = std::vector<double>;  // [N, K]

void solve(Factor m, Matrix& x, int64_t K) {
    for (int64_t k = 0; k < K; ++k) {
        auto at = [&](int64_t i) -> double& { return x[static_cast<size_t>(i * K + k)]; };
        for (int64_t i = 0; i < m.N; ++i) {
            for (int64_t j = 0; j < i; ++j) at(i) -= m.at(i, j) * at(j);
            at(i) /= m.at(i, i);
        }
        for (int64_t i = m.N; i-- > 0;) {
            for (int64_t j = i + 1; j < m.N; ++j) at(i) -= m.at(j, i) * at(j);
            at(i) /= m.at(i, i);
        }
    }
}

void put(float* to, const Matrix& x) {
    for (size_t i = 0; i < x.size(); ++i) to[i] = static_cast<float>(x[i]);
}

}  // namespace

// out, B [batch, N, K], L [batch, N, N], upper, threads; all contiguous
KW_EXPORT(cholesky_solve) {
    const kw::Tensor sides = args.tensor(1);
    const int64_t N = sides.shape[1], K = sides.shape[2];
    for (int64_t b = 0; b < sides.shape[0]; ++b) {
        const float* from = sides.ptr<float>() + b * N * K;
        Matrix x(from, from + N * K);
        solve({args.tensor(2).ptr<float>() + b * N * N, N, args.integer(3) != 0}, x, K);
        put(args.tensor(0).ptr<float>() + b * N * K, x);
    }
}

// grad of B, grad of L or None, grad, output, L, upper, threads: dM = -(G X^T + X G^T) M
KW_EXPORT(cholesky_solve_backward) {
    const kw::Tensor grad = args.tensor(2);
    const int64_t N = grad.shape[1], K = grad.shape[2];
    for (int64_t b = 0; b < grad.shape[0]; ++b) {
        const Factor m{args.tensor(4).ptr<float>() + b * N * N, N, args.integer(5) != 0};
        const float *from = grad.ptr<float>() + b * N * K, *x = args.tensor(3).ptr<float>() + b * N * K;
        Matrix g(from, from + N * K);
        solve(m, g, K);
        put(args.tensor(0).ptr<float>() + b * N * K, g);
        if (args.none(1)) continue;
        float* to = args.tensor(1).ptr<float>() + b * N * N;
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j < N; ++j) {
                double sum = 0;
                for (int64_t l = 0; l < N; ++l)
                    for (int64_t k = 0; k < K; ++k) {
                        const size_t ik = static_cast<size_t>(i * K + k), lk = static_cast<size_t>(l * K + k);
                        sum -= (g[ik] * x[lk] + x[ik] * g[lk]) * m.at(l, j);
                    }
                to[m.upper ? j * N + i : i * N + j] = static_cast<float>(sum);
            }
    }
}

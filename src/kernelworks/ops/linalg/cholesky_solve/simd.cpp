// cholesky_solve: as many systems at once as a vector has lanes, a matrix a lane. All arithmetic is vertical, so that no
// chain of one small system is waited for; matrices are turned on the way in and out (transpose.hpp).
#include <cstdlib>

#include "transpose.hpp"

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t GRAIN = 16 << 10;  // multiplications that are worth another thread

struct Sizes {
    int64_t batch, N, K;
    bool upper;
};

// Lanes of one group of systems: the factor M with M M^T = A, whole and row by row, reciprocals of its diagonal, and
// matrices of N rows and K columns.
struct Group {
    Sizes s;
    vf *m, *reciprocal, *a, *b, *p, *q;
    char* memory;

    explicit Group(Sizes sizes) : s(sizes) {
        const int64_t square = s.N * s.N, tall = s.N * s.K;
        const size_t bytes = sizeof(vf) * static_cast<size_t>(square + s.N + 4 * tall + 1);
        memory = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
        if (memory == nullptr) std::abort();
        m = reinterpret_cast<vf*>(memory), reciprocal = m + square, a = reciprocal + s.N;
        b = a + tall, p = b + tall, q = p + tall;
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() { std::free(memory); }

    // Element e of a matrix as it lies, in M: an upper factor is the other's transpose.
    int64_t place(int64_t e) const { return s.upper ? e % s.N * s.N + e / s.N : e; }

    void load_factor(const float* from, int count) {
        kw::load_rows(from, s.N * s.N, count, s.N * s.N, [&](int64_t e, vf v) { m[place(e)] = v; });
        for (int64_t i = 0; i < s.N; ++i) {
            // Lanes without a system divide by 1.
            const vf diagonal = kw::keep_first(m[i * s.N + i], count, 1.0f);
            reciprocal[i] = 1.0f / diagonal;
        }
    }
    void load_sides(vf* to, const float* from, int count) const {
        kw::load_rows(from, s.N * s.K, count, s.N * s.K, [&](int64_t e, vf v) { to[e] = v; });
    }
    void store_sides(float* to, const vf* from, int count) const {
        kw::store_rows(to, s.N * s.K, count, s.N * s.K, [&](int64_t e) { return from[e]; });
    }

    // x = (M M^T)^-1 x: by columns of M, then by its rows from the last, so that every product is one of its own.
    void solve(vf* x) const {
        const int64_t N = s.N, K = s.K;
        for (int64_t j = 0; j < N; ++j)
            for (int64_t k = 0; k < K; ++k) {
                const vf y = x[j * K + k] * reciprocal[j];
                x[j * K + k] = y;
                for (int64_t i = j + 1; i < N; ++i) x[i * K + k] = kw::fnma(m[i * N + j], y, x[i * K + k]);
            }
        for (int64_t j = N; j-- > 0;)
            for (int64_t k = 0; k < K; ++k) {
                const vf y = x[j * K + k] * reciprocal[j];
                x[j * K + k] = y;
                for (int64_t i = 0; i < j; ++i) x[i * K + k] = kw::fnma(m[j * N + i], y, x[i * K + k]);
            }
    }

    // to [K, N] = sides^T M
    void times_factor(vf* to, const vf* sides) const {
        for (int64_t k = 0; k < s.K; ++k)
            for (int64_t j = 0; j < s.N; ++j) {
                vf sum = {};
                for (int64_t i = 0; i < s.N; ++i) sum = kw::fma(sides[i * s.K + k], m[i * s.N + j], sum);
                to[k * s.N + j] = sum;
            }
    }
};

template <class Work>
void each_group(Sizes s, int64_t threads, int64_t products, Work work) {
    const int64_t groups = (s.batch + LANES - 1) / LANES;
    kw::parallel(kw::worth(threads, s.batch * products, GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(groups, ith, nth);
        if (mine.begin == mine.end) return;
        Group group(s);
        for (int64_t g = mine.begin; g < mine.end; ++g) {
            const int64_t first = g * LANES, left = s.batch - first;
            work(group, first, static_cast<int>(left < LANES ? left : LANES));
        }
    });
}

Sizes sizes_of(kw::Tensor sides, bool upper) { return {sides.shape[0], sides.shape[1], sides.shape[2], upper}; }

}  // namespace

// out, B [batch, N, K], L [batch, N, N], upper, threads; all contiguous
KW_EXPORT(cholesky_solve) {
    const Sizes s = sizes_of(args.tensor(1), args.integer(3));
    float* out = args.tensor(0).ptr<float>();
    const float *sides = args.tensor(1).ptr<float>(), *factor = args.tensor(2).ptr<float>();
    each_group(s, args.integer(4), s.N * s.N * (s.K + 1), [&](Group& group, int64_t first, int count) {
        group.load_factor(factor + first * s.N * s.N, count);
        group.load_sides(group.a, sides + first * s.N * s.K, count);
        group.solve(group.a);
        group.store_sides(out + first * s.N * s.K, group.a, count);
    });
}

// grad of B, grad of L or None, grad, output, L, upper, threads. With G the first of the results, X the output and M the
// factor: dM = -(G X^T + X G^T) M.
KW_EXPORT(cholesky_solve_backward) {
    const Sizes s = sizes_of(args.tensor(2), args.integer(5));
    const bool wants_factor = !args.none(1);
    float *to_sides = args.tensor(0).ptr<float>(), *to_factor = wants_factor ? args.tensor(1).ptr<float>() : nullptr;
    const float *grad = args.tensor(2).ptr<float>(), *output = args.tensor(3).ptr<float>();
    const float* factor = args.tensor(4).ptr<float>();
    each_group(s, args.integer(6), 3 * s.N * s.N * (s.K + 1), [&](Group& group, int64_t first, int count) {
        const int64_t N = s.N, K = s.K;
        group.load_factor(factor + first * N * N, count);
        group.load_sides(group.a, grad + first * N * K, count);
        group.solve(group.a);
        group.store_sides(to_sides + first * N * K, group.a, count);
        if (!wants_factor) return;
        group.load_sides(group.b, output + first * N * K, count);
        group.times_factor(group.p, group.b);
        group.times_factor(group.q, group.a);
        kw::store_rows(to_factor + first * N * N, N * N, count, N * N, [&](int64_t e) {
            const int64_t at = group.place(e), i = at / N, j = at % N;
            vf sum = {};
            for (int64_t k = 0; k < K; ++k) {
                sum = kw::fnma(group.a[i * K + k], group.p[k * N + j], sum);
                sum = kw::fnma(group.b[i * K + k], group.q[k * N + j], sum);
            }
            return sum;
        });
    });
}

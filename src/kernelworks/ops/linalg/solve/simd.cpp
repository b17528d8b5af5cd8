// solve: as many systems at once as a vector has lanes, a matrix a lane. Each lane chooses its own pivots; rows change places
// under a mask, which is looked at first: a row that is no lane's pivot costs a comparison.
#include <cstdlib>

#include "transpose.hpp"

namespace {

using kw::LANES;
using kw::vf;
using kw::vi;

constexpr int64_t GRAIN = 16 << 10;  // multiplications that are worth another thread

struct Sizes {
    int64_t batch, N, K;
};

bool any(vi mask) {
    int64_t words[sizeof(vi) / 8], all = 0;
    __builtin_memcpy(words, &mask, sizeof mask);
    for (int64_t word : words) all |= word;
    return all != 0;
}

// Lanes of one group of systems: the matrix row by row, and two matrices of N rows and K columns.
struct Group {
    Sizes s;
    vf *m, *a, *b;
    char* memory;

    explicit Group(Sizes sizes) : s(sizes) {
        const int64_t square = s.N * s.N, tall = s.N * s.K;
        const size_t bytes = sizeof(vf) * static_cast<size_t>(square + 2 * tall + 1);
        memory = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
        if (memory == nullptr) std::abort();
        m = reinterpret_cast<vf*>(memory), a = m + square, b = a + tall;
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() { std::free(memory); }

    void load_matrix(const float* from, int count, bool transposed) {
        const int64_t N = s.N;
        kw::load_rows(from, N * N, count, N * N, [&](int64_t e, vf v) { m[transposed ? e % N * N + e / N : e] = v; });
        // Lanes without a system divide by 1.
        for (int64_t i = 0; i < N; ++i) m[i * N + i] = kw::keep_first(m[i * N + i], count, 1.0f);
    }
    void load_sides(vf* to, const float* from, int count) const {
        kw::load_rows(from, s.N * s.K, count, s.N * s.K, [&](int64_t e, vf v) { to[e] = v; });
    }
    void store_sides(float* to, const vf* from, int count) const {
        kw::store_rows(to, s.N * s.K, count, s.N * s.K, [&](int64_t e) { return from[e]; });
    }

    // The largest of column k from row k on comes to row k, in the matrix and in a.
    void choose_pivot(int64_t k) {
        const int64_t N = s.N, K = s.K;
        vf most = kw::abs(m[k * N + k]);
        vi at = vi{} + static_cast<int>(k);
        for (int64_t i = k + 1; i < N; ++i) {
            const vf size = kw::abs(m[i * N + k]);
            const auto more = size > most;
            most = more ? size : most, at = more ? vi{} + static_cast<int>(i) : at;
        }
        for (int64_t i = k + 1; i < N; ++i) {
            const vi here = at == static_cast<int>(i);
            if (!any(here)) continue;
            const auto exchange = [&](vf& one, vf& other) {
                const vf kept = one;
                one = here ? other : one, other = here ? kept : other;
            };
            for (int64_t j = k; j < N; ++j) exchange(m[k * N + j], m[i * N + j]);
            for (int64_t j = 0; j < K; ++j) exchange(a[k * K + j], a[i * K + j]);
        }
    }

    // a = M^-1 a. Lanes with a pivot of 0 are 1 in what is returned.
    vi solve() {
        const int64_t N = s.N, K = s.K;
        vi singular = {};
        for (int64_t k = 0; k < N; ++k) {
            choose_pivot(k);
            const vf pivot = m[k * N + k];
            singular |= pivot == 0.0f;
            for (int64_t i = k + 1; i < N; ++i) {
                const vf factor = m[i * N + k] / pivot;
                for (int64_t j = k + 1; j < N; ++j) m[i * N + j] = kw::fnma(factor, m[k * N + j], m[i * N + j]);
                for (int64_t j = 0; j < K; ++j) a[i * K + j] = kw::fnma(factor, a[k * K + j], a[i * K + j]);
            }
        }
        for (int64_t k = N; k-- > 0;)
            for (int64_t j = 0; j < K; ++j) {
                const vf x = a[k * K + j] / m[k * N + k];
                a[k * K + j] = x;
                for (int64_t i = 0; i < k; ++i) a[i * K + j] = kw::fnma(m[i * N + k], x, a[i * K + j]);
            }
        return singular & 1;
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

Sizes sizes_of(kw::Tensor sides) { return {sides.shape[0], sides.shape[1], sides.shape[2]}; }

}  // namespace

// out, A [batch, N, N], B [batch, N, K], singular int32 [batch], threads; all contiguous
KW_EXPORT(solve) {
    const Sizes s = sizes_of(args.tensor(2));
    float* out = args.tensor(0).ptr<float>();
    const float *matrix = args.tensor(1).ptr<float>(), *sides = args.tensor(2).ptr<float>();
    int32_t* singular = args.tensor(3).ptr<int32_t>();
    each_group(s, args.integer(4), s.N * s.N * (s.N + s.K), [&](Group& group, int64_t first, int count) {
        group.load_matrix(matrix + first * s.N * s.N, count, false);
        group.load_sides(group.a, sides + first * s.N * s.K, count);
        const vi wrong = group.solve();
        for (int l = 0; l < count; ++l) singular[first + l] = wrong[l];
        group.store_sides(out + first * s.N * s.K, group.a, count);
    });
}

// grad of A or None, grad of B, grad, A, output, threads. With G = A^-T grad, the second: the first is -G X^T.
KW_EXPORT(solve_backward) {
    const Sizes s = sizes_of(args.tensor(2));
    float *to_matrix = args.none(0) ? nullptr : args.tensor(0).ptr<float>(), *to_sides = args.tensor(1).ptr<float>();
    const float *grad = args.tensor(2).ptr<float>(), *matrix = args.tensor(3).ptr<float>();
    const float* output = args.tensor(4).ptr<float>();
    each_group(s, args.integer(5), s.N * s.N * (s.N + 2 * s.K), [&](Group& group, int64_t first, int count) {
        const int64_t N = s.N, K = s.K;
        group.load_matrix(matrix + first * N * N, count, true);
        group.load_sides(group.a, grad + first * N * K, count);
        group.solve();
        group.store_sides(to_sides + first * N * K, group.a, count);
        if (to_matrix == nullptr) return;
        group.load_sides(group.b, output + first * N * K, count);
        kw::store_rows(to_matrix + first * N * N, N * N, count, N * N, [&](int64_t e) {
            const int64_t i = e / N, j = e % N;
            vf sum = {};
            for (int64_t k = 0; k < K; ++k) sum = kw::fnma(group.a[i * K + k], group.b[j * K + k], sum);
            return sum;
        });
    });
}

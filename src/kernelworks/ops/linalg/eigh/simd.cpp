// eigh: as many matrices at once as a vector has lanes, a matrix a lane. Jacobi's rotations, each for all lanes: a rotation
// that is worth nothing in any of them is left out.
#include <cstdlib>

#include "transpose.hpp"

namespace {

using kw::LANES;
using kw::vf;
using kw::vi;

constexpr int64_t GRAIN = 16 << 10;  // multiplications that are worth another thread
constexpr int SWEEPS = 30;

bool any(vi mask) {
    int64_t words[sizeof(vi) / 8], all = 0;
    __builtin_memcpy(words, &mask, sizeof mask);
    for (int64_t word : words) all |= word;
    return all != 0;
}

// Lanes of one group of matrices and, row by row, of their eigenvectors.
struct Group {
    int64_t N, reach;
    vf *m, *v;
    char* memory;

    explicit Group(int64_t n) : N(n), reach(1) {
        while (reach < N) reach *= 2;
        const size_t bytes = sizeof(vf) * static_cast<size_t>(2 * N * N);
        memory = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
        if (memory == nullptr) std::abort();
        m = reinterpret_cast<vf*>(memory), v = m + N * N;
    }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;
    ~Group() { std::free(memory); }

    // The lower triangle, scaled by a power of two so that squares neither overflow nor vanish, which is returned.
    vf load(const float* from, int count) {
        kw::load_rows(from, N * N, count, N * N, [&](int64_t e, vf x) { m[e] = x; });
        vf largest = {};
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j <= i; ++j) largest = kw::max(largest, kw::abs(m[i * N + j]));
        vf size = kw::bits_float(kw::float_bits(largest) & 0x7f800000u);
        size = kw::max(kw::min(size, kw::splat(0x1p100f)), kw::splat(0x1p-100f));
        const vf scale = 1.0f / size;
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j <= i; ++j) m[i * N + j] = m[j * N + i] = m[i * N + j] * scale;
        for (int64_t i = 0; i < N; ++i)
            for (int64_t j = 0; j < N; ++j) v[i * N + j] = kw::splat(i == j ? 1.0f : 0.0f);
        return size;
    }

    // Turns rows p and q, and columns, so that the element between them is 0, where it is more than `least`; whether it was
    // anywhere.
    bool rotate(int64_t p, int64_t q, vf least) {
        const vf off = m[p * N + q], first = m[p * N + p], second = m[q * N + q];
        const auto worth = kw::abs(off) > least;
        if (!any(worth)) return false;
        const vf ratio = (second - first) / (worth ? 2.0f * off : kw::splat(1.0f));
        const vf t = worth ? (ratio < 0.0f ? -1.0f : kw::splat(1.0f)) / (kw::abs(ratio) + kw::sqrt(1.0f + ratio * ratio)) : vf{};
        const vf c = 1.0f / kw::sqrt(1.0f + t * t), s = t * c;
        for (int64_t i = 0; i < N; ++i) {
            const vf x = m[p * N + i], y = m[q * N + i];
            m[p * N + i] = m[i * N + p] = kw::fnma(s, y, c * x);
            m[q * N + i] = m[i * N + q] = kw::fma(s, x, c * y);
        }
        m[p * N + p] = kw::fnma(t, off, first), m[q * N + q] = kw::fma(t, off, second);
        m[p * N + q] = m[q * N + p] = worth ? vf{} : off;
        for (int64_t i = 0; i < N; ++i) {
            const vf x = v[p * N + i], y = v[q * N + i];
            v[p * N + i] = kw::fnma(s, y, c * x), v[q * N + i] = kw::fma(s, x, c * y);
        }
        return true;
    }

    // Lanes that did not converge are -1 in what is returned.
    vi solve() {
        vf squares = {};
        for (int64_t e = 0; e < N * N; ++e) squares = kw::fma(m[e], m[e], squares);
        const vi lost = !(squares < 0x1p127f);
        const vf least = (lost ? vf{} : kw::sqrt(squares)) * (0x1p-24f / static_cast<float>(N));
        for (int sweep = 0; sweep < SWEEPS; ++sweep) {
            bool turned = false;
            for (int64_t step = 1; step < reach; ++step)
                for (int64_t p = 0; p < N; ++p) {
                    const int64_t q = p ^ step;
                    if (p < q && q < N) turned |= rotate(p, q, least);
                }
            if (!turned) break;
        }
        return lost;
    }

    // Of each lane the values in rising order, and the vectors as columns.
    void store(float* values, float* vectors, vf size, int count) const {
        for (int lane = 0; lane < count; ++lane)
            for (int64_t j = 0; j < N; ++j) {
                const float mine = m[j * N + j][lane];
                int64_t rank = 0;
                for (int64_t k = 0; k < N; ++k) {
                    const float other = m[k * N + k][lane];
                    rank += other < mine || (other == mine && k < j);
                }
                values[lane * N + rank] = mine * size[lane];
                for (int64_t i = 0; i < N; ++i) vectors[(lane * N + i) * N + rank] = v[j * N + i][lane];
            }
    }
};

}  // namespace

// values [batch, N], vectors [batch, N, N], A [batch, N, N], failed int32 [batch], threads; all contiguous
KW_EXPORT(eigh) {
    const kw::Tensor matrices = args.tensor(2);
    const int64_t batch = matrices.shape[0], N = matrices.shape[1], groups = (batch + LANES - 1) / LANES;
    float *values = args.tensor(0).ptr<float>(), *vectors = args.tensor(1).ptr<float>();
    const float* from = matrices.ptr<float>();
    int32_t* failed = args.tensor(3).ptr<int32_t>();
    kw::parallel(kw::worth(args.integer(4), batch * N * N * N * 16, GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(groups, ith, nth);
        if (mine.begin == mine.end) return;
        Group group(N);
        for (int64_t g = mine.begin; g < mine.end; ++g) {
            const int64_t first = g * LANES, left = batch - first;
            const int count = static_cast<int>(left < LANES ? left : LANES);
            const vf size = group.load(from + first * N * N, count);
            const vi lost = group.solve();
            for (int l = 0; l < count; ++l) failed[first + l] = lost[l] != 0;
            group.store(values + first * N, vectors + first * N * N, size, count);
        }
    });
}

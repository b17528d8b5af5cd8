// hadamard_transform: a line in float32 in a buffer, its first levels inside a vector, the others between vectors, two
// levels at a time.
#include <cstdlib>

#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t GRAIN = 32 << 10;  // bytes that are worth another thread

// The levels whose numbers lie in one vector: lane i meets lane i ^ h.
inline vf within(vf v, int64_t P) {
    const kw::vi lane = kw::lane_index();
    for (int h = 1; h < LANES && h < P; h *= 2) {
        const kw::vu sign = (kw::vu)((lane & h) != 0) & 0x80000000u;
        v = __builtin_shuffle(v, lane ^ h) + (vf)((kw::vu)v ^ sign);
    }
    return v;
}

inline void meet(vf& a, vf& b) {
    const vf sum = a + b;
    b = a - b, a = sum;
}

void between(vf* line, int64_t count) {
    int64_t h = 1;
    for (; 4 * h <= count; h *= 4)
        for (int64_t first = 0; first < count; first += 4 * h)
            for (vf* p = line + first; p < line + first + h; ++p)
                meet(p[0], p[h]), meet(p[2 * h], p[3 * h]), meet(p[0], p[2 * h]), meet(p[h], p[3 * h]);
    if (h < count)
        for (vf* p = line; p < line + h; ++p) meet(p[0], p[h]);
}

inline int part(int64_t n) { return static_cast<int>(n < 0 ? 0 : n < LANES ? n : LANES); }

// out, x, lines, N, the distance of lines, P, scale, threads
void run(kw::Args args) {
    const int64_t count = args.integer(2), N = args.integer(3), stride = args.integer(4), P = args.integer(5);
    const int64_t vectors = (P + LANES - 1) / LANES, bytes = vectors * static_cast<int64_t>(sizeof(vf));
    const vf scale = kw::splat(static_cast<float>(args.real(6)));
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        kw::parallel(kw::worth(args.integer(7), count * bytes, GRAIN), [&](int64_t ith, int64_t nth) {
            const kw::Range mine = kw::slice(count, ith, nth);
            vf* line = static_cast<vf*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64)));
            if (line == nullptr) std::abort();
            for (int64_t l = mine.begin; l < mine.end; ++l) {
                const T* x = args.tensor(1).ptr<const T>() + l * stride;
                T* out = args.tensor(0).ptr<T>() + l * N;
                for (int64_t v = 0; v < vectors; ++v)
                    line[v] = within(kw::load(x + v * LANES, part(N - v * LANES)), P);
                between(line, vectors);
                for (int64_t v = 0; v * LANES < N; ++v)
                    kw::store(out + v * LANES, line[v] * scale, part(N - v * LANES));
            }
            std::free(line);
        });
    });
}

}  // namespace

KW_EXPORT(hadamard_transform) { run(args); }
KW_EXPORT(hadamard_transform_backward) { run(args); }  // the matrix is symmetric

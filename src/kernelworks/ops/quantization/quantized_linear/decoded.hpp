// What the kernels of quantized_linear share: memory kept between calls, and rows of the weight decoded into it.
#pragma once

#include <cstdlib>
#include <type_traits>

#include "packed/formats.hpp"

namespace {

using kw::Factors;
using kw::GROUP;
using kw::LANES;
using kw::vf;

constexpr int64_t AHEAD_BYTES = 1024;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Memory that a thread keeps from call to call, grown when needed, aligned to a page.
struct Scratch {
    char* data = nullptr;
    size_t size = 0;
    ~Scratch() { std::free(data); }
    template <class T>
    T* room(int64_t count) {
        size_t wanted = (static_cast<size_t>(count) * sizeof(T) + 64 + 4095) / 4096 * 4096;
        if (wanted > size) {
            std::free(data);
            data = static_cast<char*>(std::aligned_alloc(4096, wanted));
            if (data == nullptr) std::abort();
            size = wanted;
        }
        return reinterpret_cast<T*>(data);
    }
};
thread_local Scratch decoded_rows;

// Rows of the weight that are multiplied together lie this many rows apart, so that each is a stream of its own which the
// prefetchers follow: some 64, and a quarter of a page more or less than whole pages, lest they share sets of a cache.
inline int64_t apart(int64_t row_bytes) {
    for (int64_t rows = 64; rows > 32; --rows) {
        const int64_t off = rows * row_bytes % 2048 - 1024;
        if (off >= -256 && off <= 256) return rows;
    }
    return 64;
}

// tile(n, R, distance) over the rows [begin, end): R rows from n on, so many rows apart, and what is left one by one.
template <int R, class Tile>
inline void in_streams(int64_t begin, int64_t end, int64_t row_bytes, Tile tile) {
    const int64_t share = R * apart(row_bytes);
    for (int64_t n = begin; n < end; n += share) {
        const int64_t height = smaller(share, end - n), distance = height / R;
        for (int64_t i = 0; i < distance; ++i) tile(n + i, std::integral_constant<int, R>{}, distance);
        for (int64_t i = distance * R; i < height; ++i) tile(n + i, std::integral_constant<int, 1>{}, 1);
    }
}

constexpr int VECTORS = GROUP / LANES;

// A tile of rows lies group by group, [group][row][number of the group]: rows of a power of two bytes that lie far apart
// would share the sets of a cache.
template <class F>
inline void decode_tile(const uint8_t* p, int64_t bytes, int64_t rows, int64_t blocks, float* to) {
    constexpr int GROUPS = F::BLOCK / GROUP;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t b = 0; b < blocks; ++b) {
            const uint8_t* from = p + r * bytes + b * F::BYTES;
            const Factors<F> by(from);
            for (int g = 0; g < GROUPS; ++g) {
                vf w[VECTORS];
                kw::decode<F>(from, by, g, w);
                float* here = to + ((b * GROUPS + g) * rows + r) * GROUP;
#pragma GCC unroll 8
                for (int i = 0; i < VECTORS; ++i) kw::store(here + i * LANES, w[i]);
            }
        }
}

// Rows of x in float32, in tiles of `height` rows that lie so. Every thread takes its share of the rows.
template <class T>
void arrange(int64_t M, int64_t K, const T* x, int64_t stride, int64_t height, float* to, int64_t threads) {
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(M, ith, nth);
        for (int64_t m = mine.begin; m < mine.end; ++m) {
            const int64_t first = m / height * height, rows = smaller(height, M - first);
            for (int64_t g = 0; g < K / GROUP; ++g)
                for (int64_t i = 0; i < GROUP; i += LANES)
                    kw::store(to + first * K + (g * rows + m - first) * GROUP + i,
                              kw::load(x + m * stride + g * GROUP + i));
        }
    });
}

}  // namespace

// Rows in memory as vectors whose lanes are the rows, and back: what an algorithm that works on one row a lane begins and
// ends with.
#pragma once

#include "simd.hpp"

namespace kw {

// a0 b0 a1 b1 ..., the first half and the second.
inline vf interleave_low(vf a, vf b) {
    const vi lane = lane_index();
    return __builtin_shuffle(a, b, (lane >> 1) + (lane & 1) * LANES);
}
inline vf interleave_high(vf a, vf b) {
    const vi lane = lane_index();
    return __builtin_shuffle(a, b, (lane >> 1) + LANES / 2 + (lane & 1) * LANES);
}
// The inverse: of a0 b0 a1 b1 ... in two vectors the a and the b.
inline vf even_lanes(vf low, vf high) { return __builtin_shuffle(low, high, lane_index() * 2); }
inline vf odd_lanes(vf low, vf high) { return __builtin_shuffle(low, high, lane_index() * 2 + 1); }

// LANES vectors of LANES: element c of row r becomes element r of row c.
inline void transpose(vf* m) {
    for (int round = 1; round < LANES; round *= 2) {
        vf turned[LANES];
        for (int i = 0; i < LANES / 2; ++i) {
            turned[2 * i] = interleave_low(m[i], m[i + LANES / 2]);
            turned[2 * i + 1] = interleave_high(m[i], m[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; ++i) m[i] = turned[i];
    }
}

// put(e, v) for each of n elements of up to LANES rows, `row_stride` apart; lane r of v is element e of row r. Lanes of
// rows that are not there are 0.
template <class Put>
inline void load_rows(const float* p, int64_t row_stride, int rows, int64_t n, Put put) {
    for (int64_t e = 0; e < n; e += LANES) {
        const int width = n - e < LANES ? static_cast<int>(n - e) : LANES;
        vf block[LANES];
        for (int r = 0; r < LANES; ++r)
            block[r] = r >= rows ? vf{} : width == LANES ? load(p + r * row_stride + e) : load(p + r * row_stride + e, width);
        transpose(block);
        for (int i = 0; i < width; ++i) put(e + i, block[i]);
    }
}

// The inverse: get(e) gives the vector of element e.
template <class Get>
inline void store_rows(float* p, int64_t row_stride, int rows, int64_t n, Get get) {
    for (int64_t e = 0; e < n; e += LANES) {
        const int width = n - e < LANES ? static_cast<int>(n - e) : LANES;
        vf block[LANES];
        for (int i = 0; i < LANES; ++i) block[i] = i < width ? get(e + i) : vf{};
        transpose(block);
        for (int r = 0; r < rows; ++r) {
            if (width == LANES) store(p + r * row_stride + e, block[r]);
            else store(p + r * row_stride + e, block[r], width);
        }
    }
}

}  // namespace kw

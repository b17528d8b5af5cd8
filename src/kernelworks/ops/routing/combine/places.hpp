// The places of a combine: which row each choice of a token names, of 32 or 64 bits.
#pragma once

#include "kernel.hpp"

namespace kw {

struct Places {
    const char* data;
    bool wide;
    int64_t rows;

    Places(const Tensor& t, int64_t rows) : data(t.data), wide(t.dtype.bits == 64), rows(rows) {}

    // The row that a choice names; -1 if it is none.
    int64_t operator[](int64_t choice) const {
        const int64_t place = wide ? reinterpret_cast<const int64_t*>(data)[choice]
                                   : int64_t{reinterpret_cast<const int32_t*>(data)[choice]};
        return place >= 0 && place < rows ? place : -1;
    }
};

// A weight, of the rows' dtype or of float.
template <class T>
inline float weight_at(const Tensor& weights, int64_t choice) {
    return weights.dtype.bits == 32 ? weights.ptr<float>()[choice] : to_float(weights.ptr<T>()[choice]);
}
template <class T>
inline void put_weight(const Tensor& weights, int64_t choice, float value) {
    if (weights.dtype.bits == 32) weights.ptr<float>()[choice] = value;
    else weights.ptr<T>()[choice] = from_float<T>(value);
}

// The choices by the row that they name, those of one row in order: `choices` [starts[r], starts[r + 1]) name row r.
// `starts` has rows + 1 elements.
inline void sort_choices(int64_t* starts, int64_t* choices, const Places& places, int64_t count) {
    for (int64_t r = 0; r <= places.rows; ++r) starts[r] = 0;
    for (int64_t c = 0; c < count; ++c)
        if (places[c] >= 0) ++starts[places[c] + 1];
    for (int64_t r = 0; r < places.rows; ++r) starts[r + 1] += starts[r];
    // Each row's start moves on as its choices are put down, and is the next row's then.
    for (int64_t c = 0; c < count; ++c)
        if (places[c] >= 0) choices[starts[places[c]]++] = c;
    for (int64_t r = places.rows; r > 0; --r) starts[r] = starts[r - 1];
    if (places.rows) starts[0] = 0;
}

}  // namespace kw

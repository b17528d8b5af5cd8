// Bags of ids as they come, int32 or int64, and their check before anything is written.
#pragma once

#include "kernel.hpp"

namespace kw {

enum BagMode : int64_t { BAG_MEAN, BAG_SUM, BAG_MAX };

struct Integers {  // int32 or int64
    const void* data;
    bool narrow;
    int64_t count;
    explicit Integers(const Tensor& t) : data(t.data), narrow(t.dtype.bits == 32), count(t.numel()) {}
    int64_t operator[](int64_t i) const {
        return narrow ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
    }
};

// What of the ids is in a bag; ids that are `padding` (-1: none) are in no bag.
struct Bags {
    Integers ids, offsets;
    int64_t padding;
    Bags(const Tensor& i, const Tensor& o, int64_t p) : ids(i), offsets(o), padding(p) {}
    int64_t count() const { return offsets.count; }
    int64_t begin(int64_t b) const { return offsets[b]; }
    int64_t end(int64_t b) const { return b + 1 < offsets.count ? offsets[b + 1] : ids.count; }
    int64_t counted(int64_t b) const {
        int64_t n = 0;
        for (int64_t i = begin(b); i < end(b); ++i) n += ids[i] != padding;
        return n;
    }
};

}  // namespace kw

// How tensors of several ranks become one, element by element: in the order of the ranks, in float32 (int64: in itself),
// rounded once. So it is the same bits whichever rank does it.
#pragma once

#include "ranks.hpp"

namespace kw {

struct Sum {
    static vf join(vf a, vf b) { return a + b; }
    static int64_t join(int64_t a, int64_t b) { return static_cast<int64_t>(uint64_t(a) + uint64_t(b)); }
};
struct Max {  // a NaN of either is kept
    static vf join(vf a, vf b) {
        const vf larger = max(a, b);
        return a != a ? a : larger;
    }
    static int64_t join(int64_t a, int64_t b) { return a > b ? a : b; }
};
struct Min {
    static vf join(vf a, vf b) {
        const vf smaller = min(a, b);
        return a != a ? a : smaller;
    }
    static int64_t join(int64_t a, int64_t b) { return a < b ? a : b; }
};

// to[i] = from[0][i] (+) from[1][i] (+) ... for n elements; a second place takes the same, if there is one.
template <class Op, class T>
void reduce(T* to, T* also, const T* const* from, int count, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf value = load(from[0] + i);
        for (int r = 1; r < count; ++r) value = Op::join(value, load(from[r] + i));
        store(to + i, value);
        if (also) store(also + i, value);
    }
    if (const int left = static_cast<int>(n - i)) {
        vf value = load(from[0] + i, left);
        for (int r = 1; r < count; ++r) value = Op::join(value, load(from[r] + i, left));
        store(to + i, value, left);
        if (also) store(also + i, value, left);
    }
}
template <class Op>
void reduce(int64_t* to, int64_t* also, const int64_t* const* from, int count, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        int64_t value = from[0][i];
        for (int r = 1; r < count; ++r) value = Op::join(value, from[r][i]);
        to[i] = value;
        if (also) also[i] = value;
    }
}

// f(zero) for a tensor of float32, bfloat16, float16 or int64; what f answers.
template <class F>
int64_t with_number(DLDataType dtype, F f) {
    if (dtype.code == kDLInt) return f(int64_t{});
    int64_t status = DONE;
    with_dtype(dtype, [&](auto zero) { status = f(zero); });
    return status;
}

}  // namespace kw

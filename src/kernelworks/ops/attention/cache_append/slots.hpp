// What both kernels share: the slots as they come, their check, and tokens shared out over threads.
#pragma once

#include "../../lookup/embedding/ids.hpp"

namespace kw {

// The first number at these places of the first two dimensions. U: an unsigned integer as wide as a number.
template <class U>
U* row_of(const Tensor& t, int64_t i, int64_t j) {
    return t.ptr<U>() + i * t.stride[0] + j * (t.ndim == 4 ? t.stride[1] : 0);
}

// f(a number of such a width, rows, cache, token, slot) for the keys and for the values of every token that has a slot.
// False where a slot is neither one of the cache nor -1: then nothing is written.
template <class F>
bool append(const Args& args, F f) {
    const Tensor key = args.tensor(0), value = args.tensor(1), keys = args.tensor(2), values = args.tensor(3);
    const Tensor slots = args.tensor(4);
    const int64_t tokens = key.shape[0], count = keys.shape[0] * keys.shape[1], numbers = key.numel() + value.numel();
    bool right = true;
    with_ids(slots, [&](auto slot) {
        for (int64_t t = 0; t < tokens; ++t)
            right &= slot[t * slots.stride[0]] >= -1 && slot[t * slots.stride[0]] < count;
        if (!right) return;
        parallel(worth(args.integer(5), numbers, 1 << 15), [&](int64_t ith, int64_t nth) {
            const Range r = slice(tokens, ith, nth);
            for (int64_t t = r.begin; t < r.end; ++t) {
                const int64_t to = slot[t * slots.stride[0]];
                if (to < 0) continue;
                auto both = [&](auto zero) { f(zero, key, keys, t, to), f(zero, value, values, t, to); };
                key.dtype.bits == 32 ? both(uint32_t{}) : both(uint16_t{});
            }
        });
    });
    return right;
}

}  // namespace kw

// cache_append: rows of keys and values are copied into their slots. No slot is written before every one was looked at.
#include "../../lookup/embedding/ids.hpp"

namespace kw {

// Whether each slot is one of so many, or -1.
template <class I>
bool are_slots(const I* slot, int64_t stride, int64_t n, int64_t slots) {
    for (int64_t i = 0; i < n; ++i)
        if (slot[i * stride] < -1 || slot[i * stride] >= slots) return false;
    return true;
}

// cache[slot] = rows[token], of all heads. U: an unsigned integer as wide as a number.
template <class U>
void copy_row(const Tensor& rows, const Tensor& cache, int64_t token, int64_t slot) {
    const int64_t page = cache.shape[1], H = rows.shape[1], D = rows.shape[2], s = rows.stride[2], d = cache.stride[3];
    const U* from = rows.ptr<U>() + token * rows.stride[0];
    U* to = cache.ptr<U>() + slot / page * cache.stride[0] + slot % page * cache.stride[1];
    for (int64_t h = 0; h < H; ++h, from += rows.stride[1], to += cache.stride[2]) {
        if (s == 1 && d == 1) {
            std::memcpy(to, from, sizeof(U) * static_cast<size_t>(D));
        } else {
            for (int64_t i = 0; i < D; ++i) to[i * d] = from[i * s];
        }
    }
}

}  // namespace kw

// append(key, value, key_cache, value_cache, slots, threads): whether it ran
KW_EXPORT_INTEGER(append) {
    const kw::Tensor key = args.tensor(0), value = args.tensor(1), keys = args.tensor(2), values = args.tensor(3);
    const kw::Tensor slots = args.tensor(4);
    const int64_t tokens = key.shape[0];
    bool right = true;
    kw::with_ids(slots, [&](auto slot) {
        right = kw::are_slots(slot, slots.stride[0], tokens, keys.shape[0] * keys.shape[1]);
        if (!right) return;
        kw::parallel(kw::worth(args.integer(5), tokens * key.shape[1] * key.shape[2], 1 << 15), [&](int64_t i, int64_t n) {
            const kw::Range r = kw::slice(tokens, i, n);
            for (int64_t t = r.begin; t < r.end; ++t) {
                const int64_t to = slot[t * slots.stride[0]];
                if (to < 0) continue;
                if (key.dtype.bits == 32) {
                    kw::copy_row<uint32_t>(key, keys, t, to);
                    kw::copy_row<uint32_t>(value, values, t, to);
                } else {
                    kw::copy_row<uint16_t>(key, keys, t, to);
                    kw::copy_row<uint16_t>(value, values, t, to);
                }
            }
        });
    });
    return right;
}

// cache_append by whole rows of a head, which lie together in most caches.
#include "slots.hpp"

namespace kw {

template <class U>
void copy_row(const Tensor& rows, const Tensor& cache, int64_t token, int64_t slot) {
    const int64_t page = cache.shape[1], D = rows.shape[2], s = rows.stride[2], d = cache.stride[3];
    const U* from = row_of<U>(rows, token, 0);
    U* to = row_of<U>(cache, slot / page, slot % page);
    for (int64_t h = 0; h < rows.shape[1]; ++h, from += rows.stride[1], to += cache.stride[2]) {
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
    return kw::append(args, [](auto zero, auto... a) { kw::copy_row<decltype(zero)>(a...); });
}

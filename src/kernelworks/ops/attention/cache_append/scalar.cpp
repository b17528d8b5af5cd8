// cache_append as its definition reads: number by number. No slot is written before every one was looked at.
#include "slots.hpp"

namespace kw {

template <class U>
void copy_row(const Tensor& rows, const Tensor& cache, int64_t token, int64_t slot) {
    const int64_t page = cache.shape[1];
    for (int64_t h = 0; h < rows.shape[1]; ++h)
        for (int64_t d = 0; d < rows.shape[2]; ++d)
            row_of<U>(cache, slot / page, slot % page)[h * cache.stride[2] + d * cache.stride[3]] =
                row_of<U>(rows, token, 0)[h * rows.stride[1] + d * rows.stride[2]];
}

}  // namespace kw

// append(key, value, key_cache, value_cache, slots, threads): whether it ran
KW_EXPORT_INTEGER(append) {
    return kw::append(args, [](auto zero, auto... a) { kw::copy_row<decltype(zero)>(a...); });
}

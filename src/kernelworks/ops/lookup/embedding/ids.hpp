// Token ids as they come, int32 or int64, and their check: every id is looked at before anything is written.
#pragma once

#include "kernel.hpp"

namespace kw {

// f(pointer to the ids) with their own type.
template <class F>
inline void with_ids(Tensor ids, F f) {
    if (ids.dtype.bits == 32) {
        f(ids.ptr<const int32_t>());
    } else {
        f(ids.ptr<const int64_t>());
    }
}

// The position of the first id outside [0, V), or -1.
inline int64_t first_outside(Tensor ids, int64_t V) {
    int64_t found = -1;
    with_ids(ids, [&](auto id) {
        const int64_t n = ids.numel();
        uint64_t largest = 0;  // a negative id is a huge one here
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t value = static_cast<uint64_t>(static_cast<int64_t>(id[i]));
            largest = value > largest ? value : largest;
        }
        if (largest < static_cast<uint64_t>(V)) return;
        for (found = 0; static_cast<uint64_t>(static_cast<int64_t>(id[found])) < static_cast<uint64_t>(V);) ++found;
    });
    return found;
}

}  // namespace kw

// As KW_EXPORT, for a kernel that returns an integer.
#define KW_EXPORT_INTEGER(name)                                                                                   \
    static int64_t name##_body(kw::Args args);                                                                    \
    extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const TVMFFIAny* any, int32_t n, \
                                                                           TVMFFIAny* result) {                   \
        result->type_index = kTVMFFIInt;                                                                          \
        result->v_int64 = name##_body(kw::Args{any, n});                                                          \
        return 0;                                                                                                 \
    }                                                                                                             \
    static int64_t name##_body(kw::Args args)

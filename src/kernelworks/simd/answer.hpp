// For what is asked rather than computed: exported functions with an integer result.
#pragma once

#include "kernel.hpp"

// As KW_EXPORT, but the body returns an int64_t, which Python receives.
#define KW_ANSWER(name)                                                                                           \
    static int64_t name##_body(kw::Args args);                                                                    \
    extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const TVMFFIAny* any, int32_t n, \
                                                                           TVMFFIAny* result) {                   \
        result->type_index = kTVMFFIInt;                                                                          \
        result->v_int64 = name##_body(kw::Args{any, n});                                                          \
        return 0;                                                                                                 \
    }                                                                                                             \
    static int64_t name##_body([[maybe_unused]] kw::Args args)

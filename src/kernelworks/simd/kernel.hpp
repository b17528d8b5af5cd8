// What every CPU kernel is made of: tensors as they arrive, element types, threads, and the exported symbol.
//
// A kernel library is a plain shared object with tvm-ffi's C calling convention:
//
//     KW_EXPORT(silu_mul) {                       // called from Python as library.silu_mul(out, gate, up, threads)
//         kw::Tensor out = args.tensor(0);
//         ...
//     }
//
// Only C headers are pulled in, so an op package compiles in well under a second. Arguments were checked in Python before
// the call: a kernel trusts shapes and dtypes, and reads strides (in elements).
#pragma once

#include <dlpack/dlpack.h>
#include <omp.h>
#include <tvm/ffi/c_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kw {

// ---------------------------------------------------------------- element types

struct bf16 {
    uint16_t bits;
};
using f16 = _Float16;

// Scalar conversions, for plain code; simd.hpp has the wide ones. bfloat16 rounds to nearest even and keeps NaN.
inline float to_float(float x) { return x; }
inline float to_float(f16 x) { return static_cast<float>(x); }
inline float to_float(bf16 x) {
    uint32_t u = static_cast<uint32_t>(x.bits) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
template <class T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) {
    return x;
}
template <>
inline f16 from_float<f16>(float x) {
    return static_cast<f16>(x);
}
template <>
inline bf16 from_float<bf16>(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((u >> 16) | 0x40u)};
    return bf16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// ---------------------------------------------------------------- arguments

struct Tensor {
    char* data;  // first element, byte_offset applied
    int ndim;
    const int64_t* shape;
    const int64_t* stride;  // in elements
    DLDataType dtype;

    template <class T>
    T* ptr() const {
        return reinterpret_cast<T*>(data);
    }
    int64_t numel() const {
        int64_t n = 1;
        for (int i = 0; i < ndim; ++i) n *= shape[i];
        return n;
    }
};

// A tensor as M rows of N contiguous elements: 2-D with any row stride, or any contiguous shape.
template <class T>
struct Rows {
    T* data;
    int64_t M, N, stride;

    explicit Rows(const Tensor& t) : data(t.ptr<T>()) {
        N = t.ndim ? t.shape[t.ndim - 1] : 1;
        M = N ? t.numel() / N : 0;
        stride = t.ndim == 2 ? t.stride[0] : N;
    }
    T* operator[](int64_t row) const { return data + row * stride; }
};

struct Args {
    const TVMFFIAny* any;
    int count;

    bool none(int i) const { return any[i].type_index == kTVMFFINone; }
    int64_t integer(int i) const { return any[i].v_int64; }  // int and bool
    double real(int i) const {
        return any[i].type_index == kTVMFFIFloat ? any[i].v_float64 : static_cast<double>(any[i].v_int64);
    }
    Tensor tensor(int i) const {
        const DLTensor* t;
        if (any[i].type_index == kTVMFFIDLTensorPtr) {
            t = static_cast<const DLTensor*>(any[i].v_ptr);
        } else {  // a tvm-ffi tensor object: the DLTensor follows its header
            t = reinterpret_cast<const DLTensor*>(reinterpret_cast<const char*>(any[i].v_obj) + sizeof(TVMFFIObject));
        }
        return Tensor{static_cast<char*>(t->data) + t->byte_offset, t->ndim, t->shape, t->strides, t->dtype};
    }
};

#define KW_EXPORT(name)                                                                                           \
    static void name##_body(kw::Args args);                                                                       \
    extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const TVMFFIAny* any, int32_t n, \
                                                                           TVMFFIAny* result) {                   \
        name##_body(kw::Args{any, n});                                                                            \
        result->type_index = kTVMFFINone;                                                                         \
        return 0;                                                                                                 \
    }                                                                                                             \
    static void name##_body([[maybe_unused]] kw::Args args)

// with_dtype(t.dtype, [&](auto zero) { using T = decltype(zero); ... }) for float32, bfloat16 and float16.
template <class F>
inline void with_dtype(DLDataType t, F f) {
    if (t.code == kDLBfloat) {
        f(bf16{});
    } else if (t.bits == 16) {
        f(f16{});
    } else {
        f(float{});
    }
}

// ---------------------------------------------------------------- threads

// Runs f(ith, nth) on `threads` threads of the OpenMP runtime that torch uses too. One thread costs nothing.
template <class F>
inline void parallel(int64_t threads, F f) {
    if (threads <= 1) {
        f(0, 1);
        return;
    }
#pragma omp parallel num_threads(static_cast<int>(threads))
    f(omp_get_thread_num(), omp_get_num_threads());
}

struct Range {
    int64_t begin, end;
};

// The ith of nth nearly equal slices of [0, n), cut at multiples of `multiple`.
inline Range slice(int64_t n, int64_t ith, int64_t nth, int64_t multiple = 1) {
    int64_t blocks = (n + multiple - 1) / multiple;
    int64_t begin = blocks * ith / nth * multiple, end = blocks * (ith + 1) / nth * multiple;
    return Range{begin < n ? begin : n, end < n ? end : n};
}

// How many threads are worth waking: `work` is in bytes touched (or flop), `grain` what one thread should get at least.
inline int64_t worth(int64_t threads, int64_t work, int64_t grain) {
    int64_t useful = work / grain;
    return useful < 1 ? 1 : (useful < threads ? useful : threads);
}

}  // namespace kw

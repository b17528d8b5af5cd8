// What a CUDA source file of a learner sees when g++ compiles it for the CPU: CUDA's words, as calls into the runtime.
//
// `translation.py` has already rewritten `__shared__` declarations and `<<< >>>` launches. Threads are fibres, and every
// load and store reaches `hooks.hpp` through the calls that `-fsanitize=thread` inserts.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define __CUDA_ARCH__ 900
#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef decltype(sizeof(0)) kw_size;

extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float sqrtf(float) noexcept;
float fabsf(float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float fmaf(float, float, float) noexcept;
float tanhf(float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float powf(float, float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float rintf(float) noexcept;
float erff(float) noexcept;
double exp(double) noexcept;
double log(double) noexcept;
double sqrt(double) noexcept;
double fabs(double) noexcept;
int abs(int) noexcept;
int printf(const char*, ...);
void* memset(void*, int, kw_size) noexcept;
void* memcpy(void* __restrict__, const void* __restrict__, kw_size) noexcept;
}
#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#ifndef NAN
#define NAN __builtin_nanf("")
#endif
#ifndef FLT_MAX
#define FLT_MAX __FLT_MAX__
#endif

// A vector is stored as a whole: one access, as on the GPU. (g++ shows no store of what a call returns.)
template <int bytes> struct kw_whole;
template <> struct kw_whole<2> { typedef short __attribute__((may_alias)) type; };
template <> struct kw_whole<4> { typedef int __attribute__((may_alias)) type; };
template <> struct kw_whole<8> { typedef long __attribute__((may_alias)) type; };
template <> struct kw_whole<16> { typedef int __attribute__((may_alias, vector_size(16))) type; };
#define KW_STORE(name)                                                \
    __forceinline__ name& operator=(const name& v) {                  \
        typedef kw_whole<sizeof(name)>::type whole;                   \
        *reinterpret_cast<whole*>(this) = reinterpret_cast<const whole&>(v); \
        return *this;                                                 \
    }
#define KW_VECTORS(T, name, a2, a4)                                                   \
    struct name##1 { T x; };                                                          \
    struct __attribute__((aligned(a2))) name##2 { T x, y; KW_STORE(name##2) };        \
    struct name##3 { T x, y, z; };                                                    \
    struct __attribute__((aligned(a4))) name##4 { T x, y, z, w; KW_STORE(name##4) };  \
    inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                 \
    inline name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }         \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
KW_VECTORS(float, float, 8, 16)
KW_VECTORS(int, int, 8, 16)
KW_VECTORS(unsigned, uint, 8, 16)
struct __attribute__((aligned(16))) double2 { double x, y; KW_STORE(double2) };
inline double2 make_double2(double x, double y) { return double2{x, y}; }
KW_VECTORS(char, char, 2, 4)
KW_VECTORS(unsigned char, uchar, 2, 4)
KW_VECTORS(short, short, 4, 8)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

// ---------------------------------------------------------------- the runtime's side

extern "C" {
// The same for as long as a thread lives, so the compiler may keep them; the runtime is not instrumented.
uint3 kw_thread_idx() noexcept __attribute__((const));
uint3 kw_block_idx() noexcept __attribute__((const));
uint3 kw_block_dim() noexcept __attribute__((const));
uint3 kw_grid_dim() noexcept __attribute__((const));
void kw_syncthreads(int line);
int kw_syncthreads_vote(int line, int operation, int predicate);
void kw_syncwarp(int line, unsigned mask);
void kw_fence();
unsigned kw_activemask();
unsigned long long kw_exchange(int line, int operation, unsigned mask, unsigned long long value, int source);
void* kw_shared_array(int id, kw_size bytes, kw_size element, kw_size inner, kw_size innermost, const char* name, int line);
void* kw_dynamic_shared(const char* name, int line);
void kw_launch(uint3 grid, uint3 block, kw_size shared, void (*body)(void*), void* closure, kw_size closure_bytes,
               int line);
void* kw_allocate(kw_size bytes);
void kw_free(void* address);
void kw_copy(void* to, const void* from, kw_size bytes);
void kw_fill(void* to, int value, kw_size bytes);
}

#define threadIdx (kw_thread_idx())
#define blockIdx (kw_block_idx())
#define blockDim (kw_block_dim())
#define gridDim (kw_grid_dim())
static constexpr int warpSize = 32;

namespace kw {

// Bytes of what an array of arrays holds, and of its inner dimensions: messages say tile[3][4].
template <class T> struct Inside { typedef T type; };
template <class T, kw_size n> struct Inside<T[n]> { typedef T type; };
template <class T> struct Element { static constexpr kw_size bytes = sizeof(T); };
template <class T, kw_size n> struct Element<T[n]> { static constexpr kw_size bytes = Element<T>::bytes; };

template <class T, int id>
T& shared_array(const char* name, int line) {
    typedef typename Inside<T>::type Inner;
    typedef typename Inside<Inner>::type Innermost;
    return *reinterpret_cast<T*>(
        kw_shared_array(id, sizeof(T), Element<T>::bytes, sizeof(Inner), sizeof(Innermost), name, line));
}

struct Configuration {
    dim3 grid, block;
    kw_size shared;
    Configuration(dim3 g, dim3 b, kw_size s = 0, void* = nullptr) : grid(g), block(b), shared(s) {}
};

template <class Body>
void launch(Configuration c, int line, Body body) {
    kw_launch(uint3{c.grid.x, c.grid.y, c.grid.z}, uint3{c.block.x, c.block.y, c.block.z}, c.shared,
              [](void* closure) { (*static_cast<Body*>(closure))(); }, &body, sizeof(Body), line);
}

// Operations of `kw_exchange` and of `kw_syncthreads_vote`; `warps.hpp` has the same list.
enum { SHUFFLE, BALLOT, ADD, MINIMUM, MAXIMUM, MINIMUM_SIGNED, MAXIMUM_SIGNED, AND, OR, XOR, MATCH };

template <class T>
unsigned long long bits(T value) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long raw = 0;
    __builtin_memcpy(&raw, &value, sizeof(T));
    return raw;
}

template <class T>
T value(unsigned long long raw) {
    T result;
    __builtin_memcpy(&result, &raw, sizeof(T));
    return result;
}

inline int lane() {
    uint3 t = kw_thread_idx(), n = kw_block_dim();
    return (t.x + n.x * (t.y + n.y * t.z)) & 31;
}

template <class T>
T shuffle(int line, unsigned mask, T v, int source) {
    return value<T>(kw_exchange(line, SHUFFLE, mask, bits(v), source));
}

template <class T>
T shuffle_index(int line, unsigned mask, T v, int source, int width = 32) {
    return shuffle(line, mask, v, (lane() & ~(width - 1)) | (source & (width - 1)));
}

template <class T>
T shuffle_up(int line, unsigned mask, T v, unsigned delta, int width = 32) {
    int from = lane() - int(delta);
    return shuffle(line, mask, v, from < (lane() & ~(width - 1)) ? lane() : from);
}

template <class T>
T shuffle_down(int line, unsigned mask, T v, unsigned delta, int width = 32) {
    int from = lane() + int(delta);
    return shuffle(line, mask, v, from > (lane() | (width - 1)) ? lane() : from);
}

template <class T>
T shuffle_xor(int line, unsigned mask, T v, int bit, int width = 32) {
    int from = lane() ^ bit;
    return shuffle(line, mask, v, from > (lane() | (width - 1)) ? lane() : from);
}

inline int reduce(int line, int operation, unsigned mask, int v) {
    return int(kw_exchange(line, operation, mask, unsigned(v), 0));
}
inline unsigned reduce(int line, int operation, unsigned mask, unsigned v) {
    operation = operation == MINIMUM_SIGNED ? MINIMUM : operation == MAXIMUM_SIGNED ? MAXIMUM : operation;
    return unsigned(kw_exchange(line, operation, mask, v, 0));
}

// Kinds of numbers and operations of `kw_atomic`; `atomics.hpp` has the same lists.
enum { INT, UNSIGNED, LONG, FLOAT, DOUBLE };
enum { ATOMIC_ADD, ATOMIC_MIN, ATOMIC_MAX, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_EXCHANGE, ATOMIC_CAS, ATOMIC_INC, ATOMIC_DEC };

template <class T> struct Kind;
template <> struct Kind<int> { static constexpr int value = INT; };
template <> struct Kind<unsigned> { static constexpr int value = UNSIGNED; };
template <> struct Kind<unsigned long long> { static constexpr int value = LONG; };
template <> struct Kind<float> { static constexpr int value = FLOAT; };
template <> struct Kind<double> { static constexpr int value = DOUBLE; };

template <class T> struct Same { typedef T type; };  // no deduction: atomicAdd(&f, 1) adds a float

}  // namespace kw

extern "C" unsigned long long kw_atomic(
    void* address, int kind, int operation, unsigned long long value, unsigned long long compare);

#define KW_ATOMIC(name, operation)                                                                             \
    template <class T>                                                                                         \
    __forceinline__ T name(T* address, typename kw::Same<T>::type v) {                                         \
        return kw::value<T>(kw_atomic(address, kw::Kind<T>::value, kw::operation, kw::bits<T>(v), 0));         \
    }
KW_ATOMIC(atomicAdd, ATOMIC_ADD)
KW_ATOMIC(atomicMin, ATOMIC_MIN)
KW_ATOMIC(atomicMax, ATOMIC_MAX)
KW_ATOMIC(atomicAnd, ATOMIC_AND)
KW_ATOMIC(atomicOr, ATOMIC_OR)
KW_ATOMIC(atomicXor, ATOMIC_XOR)
KW_ATOMIC(atomicExch, ATOMIC_EXCHANGE)
KW_ATOMIC(atomicInc, ATOMIC_INC)
KW_ATOMIC(atomicDec, ATOMIC_DEC)
#define atomicAdd_block atomicAdd
template <class T>
__forceinline__ T atomicSub(T* address, typename kw::Same<T>::type v) { return atomicAdd(address, T(-v)); }
template <class T>
__forceinline__ T atomicCAS(T* address, typename kw::Same<T>::type compare, typename kw::Same<T>::type v) {
    return kw::value<T>(kw_atomic(address, kw::Kind<T>::value, kw::ATOMIC_CAS, kw::bits<T>(v), kw::bits<T>(compare)));
}

#define __syncthreads() kw_syncthreads(__LINE__)
#define __syncthreads_count(p) kw_syncthreads_vote(__LINE__, kw::ADD, !!(p))
#define __syncthreads_and(p) kw_syncthreads_vote(__LINE__, kw::AND, !!(p))
#define __syncthreads_or(p) kw_syncthreads_vote(__LINE__, kw::OR, !!(p))
#define KW_MASK_OF(mask, ...) unsigned(mask)
#define __syncwarp(...) kw_syncwarp(__LINE__, KW_MASK_OF(__VA_ARGS__ __VA_OPT__(,) 0xffffffffu))
#define __threadfence() kw_fence()
#define __threadfence_block() kw_fence()
#define __threadfence_system() kw_fence()
#define __activemask() kw_activemask()
#define __shfl_sync(mask, ...) kw::shuffle_index(__LINE__, mask, __VA_ARGS__)
#define __shfl_up_sync(mask, ...) kw::shuffle_up(__LINE__, mask, __VA_ARGS__)
#define __shfl_down_sync(mask, ...) kw::shuffle_down(__LINE__, mask, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...) kw::shuffle_xor(__LINE__, mask, __VA_ARGS__)
#define __ballot_sync(mask, p) unsigned(kw_exchange(__LINE__, kw::BALLOT, mask, !!(p), 0))
#define __any_sync(mask, p) int(__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p) int(__ballot_sync(mask, !(p)) == 0)
#define __match_any_sync(mask, v) unsigned(kw_exchange(__LINE__, kw::MATCH, mask, kw::bits(v), 0))
#define __reduce_add_sync(mask, v) kw::reduce(__LINE__, kw::ADD, mask, v)
#define __reduce_min_sync(mask, v) kw::reduce(__LINE__, kw::MINIMUM_SIGNED, mask, v)
#define __reduce_max_sync(mask, v) kw::reduce(__LINE__, kw::MAXIMUM_SIGNED, mask, v)
#define __reduce_and_sync(mask, v) kw::reduce(__LINE__, kw::AND, mask, v)
#define __reduce_or_sync(mask, v) kw::reduce(__LINE__, kw::OR, mask, v)
#define __reduce_xor_sync(mask, v) kw::reduce(__LINE__, kw::XOR, mask, v)

// ---------------------------------------------------------------- arithmetic

template <class T> constexpr T kw_min(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T kw_max(T a, T b) { return a < b ? b : a; }
#define KW_MINMAX(T)                                          \
    constexpr T min(T a, T b) { return kw_min<T>(a, b); }     \
    constexpr T max(T a, T b) { return kw_max<T>(a, b); }
KW_MINMAX(int)
KW_MINMAX(unsigned)
KW_MINMAX(long)
KW_MINMAX(unsigned long)
KW_MINMAX(long long)
KW_MINMAX(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
constexpr double min(double a, double b) { return kw_min(a, b); }
constexpr double max(double a, double b) { return kw_max(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
// Those that begin with two underscores in CUDA, as far as the C library has the name too.
inline float kw_expf(float x) { return expf(x); }
inline float kw_exp10f(float x) { return powf(10.0f, x); }
inline float kw_logf(float x) { return logf(x); }
inline float kw_log2f(float x) { return log2f(x); }
inline float kw_log10f(float x) { return log2f(x) * 0.30102999566f; }
inline float kw_sinf(float x) { return sinf(x); }
inline float kw_cosf(float x) { return cosf(x); }
inline float kw_tanf(float x) { return sinf(x) / cosf(x); }
inline float kw_powf(float x, float y) { return powf(x, y); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __float_as_int(float x) { return kw::value<int>(kw::bits(x)); }
inline unsigned __float_as_uint(float x) { return kw::value<unsigned>(kw::bits(x)); }
inline float __int_as_float(int x) { return kw::value<float>(kw::bits(x)); }
inline float __uint_as_float(unsigned x) { return kw::value<float>(kw::bits(x)); }
#define KW_LOAD(name) \
    template <class T> __forceinline__ T name(const T* address) { return *address; }
#define KW_STORE_BY(name) \
    template <class T> __forceinline__ void name(T* address, T v) { *address = v; }
KW_LOAD(__ldg)
KW_LOAD(__ldca)
KW_LOAD(__ldcg)
KW_LOAD(__ldcs)
KW_LOAD(__ldlu)
KW_LOAD(__ldcv)
KW_STORE_BY(__stwb)
KW_STORE_BY(__stcg)
KW_STORE_BY(__stcs)
KW_STORE_BY(__stwt)

// ---------------------------------------------------------------- 16-bit numbers

struct __half { unsigned short bits; };
struct __nv_bfloat16 { unsigned short bits; };
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16(float x) {
    unsigned raw = __float_as_uint(x);
    if (x != x) return __nv_bfloat16{(unsigned short)(raw >> 16 | 64)};
    return __nv_bfloat16{(unsigned short)((raw + 0x7fff + (raw >> 16 & 1)) >> 16)};
}
inline float __half2float(__half x) {
    unsigned sign = unsigned(x.bits >> 15) << 31, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
    float small = float(fraction) * 0x1p-24f;
    return sign ? -small : small;
}
inline __half __float2half(float x) {
    unsigned raw = __float_as_uint(x), sign = raw >> 16 & 0x8000, rest = raw & 0x7fffffff;
    if (rest > 0x7f800000) return __half{(unsigned short)(sign | 0x7e00)};
    if (rest >= 0x477ff000) return __half{(unsigned short)(sign | 0x7c00)};
    if (rest < 0x38800000) return __half{(unsigned short)(sign | unsigned(rintf(__uint_as_float(rest) * 0x1p24f)))};
    return __half{(unsigned short)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13))};
}
#define __float2half_rn __float2half
#define __float2bfloat16_rn __float2bfloat16

// ---------------------------------------------------------------- the host's side

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
typedef void* cudaStream_t;
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
template <class T>
cudaError_t cudaMalloc(T** address, kw_size bytes) {
    *address = static_cast<T*>(kw_allocate(bytes));
    return cudaSuccess;
}
inline cudaError_t cudaFree(void* address) { return kw_free(address), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, kw_size bytes, cudaMemcpyKind) {
    return kw_copy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, kw_size bytes, cudaMemcpyKind, cudaStream_t = nullptr) {
    return kw_copy(to, from, bytes), cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbol(T& symbol, const void* from, kw_size bytes, kw_size offset = 0, cudaMemcpyKind = cudaMemcpyHostToDevice) {
    return kw_copy(reinterpret_cast<char*>(&symbol) + offset, from, bytes), cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, kw_size bytes, kw_size offset = 0, cudaMemcpyKind = cudaMemcpyDeviceToHost) {
    return kw_copy(to, reinterpret_cast<const char*>(&symbol) + offset, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int value, kw_size bytes) { return kw_fill(to, value, bytes), cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* to, int value, kw_size bytes, cudaStream_t = nullptr) {
    return kw_fill(to, value, bytes), cudaSuccess;
}
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) { return cudaSuccess; }

#include "intrinsics.hpp"
#include "cooperative_groups.hpp"
#include "host_runtime.hpp"
#include "textures.hpp"

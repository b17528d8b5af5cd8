// Integer intrinsics, more of the C library's mathematics, conversions, and arithmetic of 16-bit numbers by way of float.
#pragma once

extern "C" {
void sincosf(float, float*, float*) noexcept;
void sincos(double, double*, double*) noexcept;
float hypotf(float, float) noexcept;
float log1pf(float) noexcept;
float expm1f(float) noexcept;
float fmodf(float, float) noexcept;
float copysignf(float, float) noexcept;
float cbrtf(float) noexcept;
float atanf(float) noexcept;
float atan2f(float, float) noexcept;
float asinf(float) noexcept;
float acosf(float) noexcept;
float tanf(float) noexcept;
float sinhf(float) noexcept;
float coshf(float) noexcept;
float log10f(float) noexcept;
float roundf(float) noexcept;
float truncf(float) noexcept;
float erfcf(float) noexcept;
float ldexpf(float, int) noexcept;
double cbrt(double) noexcept;
double atan2(double, double) noexcept;
double sin(double) noexcept;
double cos(double) noexcept;
double pow(double, double) noexcept;
double floor(double) noexcept;
double ceil(double) noexcept;
double fma(double, double, double) noexcept;
double tanh(double) noexcept;
double hypot(double, double) noexcept;
double erf(double) noexcept;
void* malloc(kw_size) noexcept;
void free(void*) noexcept;
long long kw_clock() noexcept;
}
#define isnan(v) __builtin_isnan(v)
#define isinf(v) __builtin_isinf(v)
#define isfinite(v) __builtin_isfinite(v)
inline float exp10f(float x) { return powf(10.0f, x); }
inline float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
inline float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
inline float sinpif(float x) { return sinf(3.14159265358979f * x); }
inline float cospif(float x) { return cosf(3.14159265358979f * x); }
inline long long clock64() { return kw_clock(); }

inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1u) << (31 - i);
    return y;
}
inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
inline int kw_low24(int x) { return int(unsigned(x) << 8) >> 8; }
inline int __mul24(int a, int b) { return int((unsigned)((long long)kw_low24(a) * kw_low24(b))); }
inline unsigned __umul24(unsigned a, unsigned b) { return unsigned((unsigned long long)(a & 0xffffff) * (b & 0xffffff)); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned found = 0;
    for (int i = 0; i < 4; i++) {
        unsigned choice = selector >> 4 * i & 15, byte = unsigned(both >> 8 * (choice & 7)) & 255;
        found |= (choice & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return found;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
inline int __dp4a(int a, int b, int sum) {
    for (int i = 0; i < 4; i++) sum += int((signed char)(a >> 8 * i)) * int((signed char)(b >> 8 * i));
    return sum;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned sum) {
    for (int i = 0; i < 4; i++) sum += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return sum;
}
inline unsigned __sad(int a, int b, unsigned c) { return c + unsigned(a > b ? a - b : b - a); }
inline int __float2int_rz(float x) { return int(x); }
inline int __float2int_rn(float x) { return int(rintf(x)); }
inline int __float2int_rd(float x) { return int(floorf(x)); }
inline int __float2int_ru(float x) { return int(ceilf(x)); }
inline unsigned __float2uint_rz(float x) { return unsigned(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline long long __double_as_longlong(double x) { return kw::value<long long>(kw::bits(x)); }
inline double __longlong_as_double(long long x) { return kw::value<double>(kw::bits(x)); }
inline void __nanosleep(unsigned) {}
template <> struct kw::Kind<long long> { static constexpr int value = LONG; };
#define atomicCAS_block atomicCAS
#define atomicMax_block atomicMax
#define atomicMin_block atomicMin
#define atomicAdd_system atomicAdd

// ---------------------------------------------------------------- 16-bit numbers

#define KW_SIXTEEN(T, to, from)                                                              \
    inline T operator+(T a, T b) { return to(from(a) + from(b)); }                            \
    inline T operator-(T a, T b) { return to(from(a) - from(b)); }                            \
    inline T operator*(T a, T b) { return to(from(a) * from(b)); }                            \
    inline T operator/(T a, T b) { return to(from(a) / from(b)); }                            \
    inline T& operator+=(T& a, T b) { return a = a + b; }                                     \
    inline bool operator<(T a, T b) { return from(a) < from(b); }                             \
    inline bool operator>(T a, T b) { return from(a) > from(b); }                             \
    inline T __hadd(T a, T b) { return a + b; }                                               \
    inline T __hsub(T a, T b) { return a - b; }                                               \
    inline T __hmul(T a, T b) { return a * b; }                                               \
    inline T __hdiv(T a, T b) { return a / b; }                                               \
    inline T __hneg(T a) { return to(-from(a)); }                                             \
    inline T __hfma(T a, T b, T c) { return to(fmaf(from(a), from(b), from(c))); }            \
    inline bool __hgt(T a, T b) { return from(a) > from(b); }                                 \
    inline bool __hlt(T a, T b) { return from(a) < from(b); }
KW_SIXTEEN(__half, __float2half, __half2float)
KW_SIXTEEN(__nv_bfloat16, __float2bfloat16, __bfloat162float)

#define KW_PAIR(P, T, to, from)                                                                       \
    struct __attribute__((aligned(4))) P { T x, y; KW_STORE(P) };                                      \
    inline P __hadd2(P a, P b) { return P{a.x + b.x, a.y + b.y}; }                                     \
    inline P __hmul2(P a, P b) { return P{a.x * b.x, a.y * b.y}; }                                     \
    inline P __hfma2(P a, P b, P c) { return P{__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
KW_PAIR(__half2, __half, __float2half, __half2float)
KW_PAIR(__nv_bfloat162, __nv_bfloat16, __float2bfloat16, __bfloat162float)
typedef __half2 half2;
inline __half2 __halves2half2(__half a, __half b) { return __half2{a, b}; }
inline __half2 __float2half2_rn(float v) { return __half2{__float2half(v), __float2half(v)}; }
inline __half2 __floats2half2_rn(float a, float b) { return __half2{__float2half(a), __float2half(b)}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline float __low2float(__half2 v) { return __half2float(v.x); }
inline float __high2float(__half2 v) { return __half2float(v.y); }
inline float2 __half22float2(__half2 v) { return make_float2(__half2float(v.x), __half2float(v.y)); }

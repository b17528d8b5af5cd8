template <long COUNT>
__attribute__((always_inline)) static inline float lanes(const float* x, long n) {
    float sums[COUNT] = {};
    for (long i = 0; i < n; ++i) {
        sums[i % COUNT] += x[i];
    }
    for (long half = COUNT / 2; half > 0; half /= 2) {
        for (long lane = 0; lane < half; ++lane) {
            sums[lane] += sums[lane + half];
        }
    }
    return sums[0];
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))
static bool has_avx2() { return __builtin_cpu_supports("avx2"); }
static bool has_avx512() { return __builtin_cpu_supports("avx512f"); }
#else
#define AVX2
#define AVX512
static bool has_avx2() { return true; }
static bool has_avx512() { return true; }
#endif

static float plain(const float* x, long n) { return lanes<16>(x, n); }
AVX2 static float wide(const float* x, long n) { return lanes<16>(x, n); }
AVX512 static float widest(const float* x, long n) { return lanes<16>(x, n); }

extern "C" void lane_sum(const float* x, float* result, long n, long level) {
    if (level >= 2 && has_avx512()) {
        *result = widest(x, n);
    } else if (level >= 1 && has_avx2()) {
        *result = wide(x, n);
    } else {
        *result = plain(x, n);
    }
}

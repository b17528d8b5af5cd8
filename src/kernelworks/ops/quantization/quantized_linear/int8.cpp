// output = x dequantize(weight)^T + bias with x rounded to 8 bits, a scale for each group of 32: products are sums of
// integers, exact, and each group's sum is scaled in float32.
//
// Integers have no NaN, and a scale of the weight or of x may be none: a result that is not finite is computed once more
// in float32, from x as it was. So is one that left float32's range on the way.
#include "decoded.hpp"

namespace {

constexpr float LEAST_SCALED = 0x1p-118f;  // a group whose largest is smaller counts as zeros: 1 / scale would overflow
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
using Rounded = int8_t;
#else
using Rounded = int16_t;
#endif

// A row of x: its groups' numbers; for each group the eight sums over what one lane adds up, times -ZERO; the scales;
// the scaled sums of groups, for what a format adds to them.
struct Row {
    Rounded* numbers;
    int32_t* sums;
    float *scales, *totals;
    Row(uint8_t* room, int64_t M, int64_t groups, int64_t m) {
        constexpr int64_t SIZE = GROUP * static_cast<int64_t>(sizeof(Rounded));
        numbers = reinterpret_cast<Rounded*>(room) + m * groups * GROUP;
        sums = reinterpret_cast<int32_t*>(room + M * groups * SIZE) + m * groups * 8;
        scales = reinterpret_cast<float*>(room + M * groups * (SIZE + 32)) + m * groups;
        totals = scales + M * groups;
    }
};

// Which of eight lanes the instructions below add number i to. Where a scale is for 16 numbers each lane has one scale.
template <class F>
inline int lane_of(int i) {
    if (sizeof(Rounded) == 1) return i / 4;
    return F::SCALED == GROUP ? i % 16 / 2 : i % 16 / 8 * 4 + i / 16 * 2 + i % 8 / 4 % 2;
}

template <class F, class T>
void round_group(const T* x, Rounded* numbers, int32_t* sums, float* scale, float* total) {
    float wide[GROUP];
    uint32_t largest_bits = 0;  // of the magnitudes: a NaN is above infinity
    for (int i = 0; i < GROUP; i += LANES) kw::store(wide + i, kw::load(x + i));
    for (int i = 0; i < GROUP; ++i) {
        uint32_t bits;
        std::memcpy(&bits, wide + i, 4);
        bits &= 0x7fffffffu;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    float largest;
    std::memcpy(&largest, &largest_bits, 4);
    const bool finite = largest_bits < 0x7f800000u, scaled = finite && largest >= LEAST_SCALED;
    *scale = scaled ? largest / 127.0f : finite ? 0.0f : __builtin_nanf("");
    const float times = scaled ? 1.0f / *scale : 0.0f;
    for (int i = 0; i < 8; ++i) sums[i] = 0;
    int32_t all = 0;
    for (int i = 0; i < GROUP; i += LANES) {
        const vf x_here = scaled ? kw::load(wide + i) : vf{};
        const kw::vi whole = __builtin_convertvector(kw::round_nearest(x_here * times), kw::vi);
        for (int j = 0; j < LANES; ++j) {
            numbers[i + j] = static_cast<Rounded>(whole[j]);
            sums[lane_of<F>(i + j)] -= F::ZERO * whole[j];
            all += whole[j];
        }
    }
    *total = *scale * static_cast<float>(all);
}

// Eight sums of the products of a group's numbers.
template <class F>
inline __m256i products(__m256i codes, const Rounded* x, const int32_t* sums) {
    __m256i total = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(total, codes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#else
    const __m256i* p = reinterpret_cast<const __m256i*>(x);
    const __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(codes));
    const __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(codes, 1));
    const __m256i first = _mm256_madd_epi16(low, _mm256_loadu_si256(p));
    const __m256i second = _mm256_madd_epi16(high, _mm256_loadu_si256(p + 1));
    if (F::SCALED == GROUP) return _mm256_add_epi32(total, _mm256_add_epi32(first, second));
    return _mm256_add_epi32(total, _mm256_hadd_epi32(first, second));
#endif
}

// The scale of each of the eight sums.
template <class F>
inline __m256 scales_of(const Factors<F>& by, int group, float of_x) {
    if constexpr (F::SCALED == GROUP) {
        return _mm256_set1_ps(by.scale[group] * of_x);
    } else {
        const float first = by.scale[2 * group] * of_x, second = by.scale[2 * group + 1] * of_x;
        const int of_second = sizeof(Rounded) == 1 ? 0b11110000 : 0b11001100;
        return _mm256_blend_ps(_mm256_set1_ps(first), _mm256_set1_ps(second), of_second);
    }
}

inline float add_eight(__m256 v) {
    float lanes[8];
    _mm256_storeu_ps(lanes, v);
    for (int width = 4; width; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

template <class F, int R>
__attribute__((noinline)) void dots(Row x, int64_t blocks, const uint8_t* w, int64_t step, float* results) {
    constexpr int GROUPS = F::BLOCK / GROUP;
    __m256 sums[R];
    float added[R] = {};
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const uint8_t* p = w + r * step + b * F::BYTES;
            for (int ahead = 0; ahead < F::BYTES; ahead += 64) __builtin_prefetch(p + AHEAD_BYTES + ahead, 0, 3);
            const Factors<F> by(p);
#pragma GCC unroll 2
            for (int g = 0; g < GROUPS; ++g) {
                const int64_t at = b * GROUPS + g;
                const __m256i whole = products<F>(F::codes(p, g), x.numbers + at * GROUP, x.sums + at * 8);
                sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scales_of<F>(by, g, x.scales[at]), sums[r]);
            }
            if constexpr (F::OFFSET && GROUPS == 8)
                sums[r] = _mm256_fmadd_ps(_mm256_load_ps(by.offset), _mm256_loadu_ps(x.totals + b * 8), sums[r]);
            else if constexpr (F::OFFSET)
                for (int g = 0; g < GROUPS; ++g)
                    added[r] = __builtin_fmaf(by.offset[g], x.totals[b * GROUPS + g], added[r]);
        }
    for (int r = 0; r < R; ++r) results[r] = add_eight(sums[r]) + added[r];
}

template <class F, class T>
__attribute__((noinline)) float dot_in_float(const T* x, int64_t blocks, const uint8_t* w) {
    vf sum{};
    for (int64_t b = 0; b < blocks; ++b) {
        const Factors<F> by(w + b * F::BYTES);
        for (int g = 0; g < F::BLOCK / GROUP; ++g) {
            vf wide[VECTORS];
            kw::decode<F>(w + b * F::BYTES, by, g, wide);
            const T* here = x + b * F::BLOCK + g * GROUP;
            for (int i = 0; i < VECTORS; ++i) sum = kw::fma(kw::load(here + i * LANES), wide[i], sum);
        }
    }
    return kw::reduce_add(sum);
}

template <class F, class T>
void multiply(int64_t M, kw::Rows<const T> x, uint8_t* room, int64_t N, const uint8_t* w, T* out, const T* bias,
              int64_t threads) {
    constexpr int R = 4;
    const int64_t blocks = x.N / F::BLOCK, groups = x.N / GROUP, bytes = blocks * F::BYTES;
    kw::parallel(kw::worth(threads, M * x.N, 65536), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(M * groups, ith, nth);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
            const int64_t m = i / groups, g = i % groups;
            const Row row(room, M, groups, m);
            round_group<F>(x[m] + g * GROUP, row.numbers + g * GROUP, row.sums + g * 8, row.scales + g, row.totals + g);
        }
    });
    kw::parallel(threads, [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(N, ith, nth, R);
        auto finish = [&](int64_t m, int64_t n, float sum) {
            if (!(__builtin_fabsf(sum) <= 3.4e38f)) sum = dot_in_float<F>(x[m], blocks, w + n * bytes);
            out[m * N + n] = kw::from_float<T>(bias ? sum + kw::to_float(bias[n]) : sum);
        };
        // All rows of x meet those of a tile while these are near.
        in_streams<R>(mine.begin, mine.end, bytes, [&](int64_t n, auto height, int64_t distance) {
            constexpr int TILE = decltype(height)::value;
            for (int64_t m = 0; m < M; ++m) {
                float found[TILE];
                dots<F, TILE>(Row(room, M, groups, m), blocks, w + n * bytes, distance * bytes, found);
                for (int r = 0; r < TILE; ++r) finish(m, n + r * distance, found[r]);
            }
        });
    });
}

}  // namespace

// quantized_linear_int8(output[M, N], x[M, K], weight[N, bytes], bias[N] or None, room, format's number, threads)
KW_EXPORT(quantized_linear_int8) {
    const kw::Tensor output = args.tensor(0), weight = args.tensor(2);
    kw::with_dtype(output.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* bias = args.none(3) ? nullptr : args.tensor(3).ptr<T>();
        kw::with_format(args.integer(5), [&](auto format) {
            multiply<decltype(format), T>(kw::Rows<T>(output).M, kw::Rows<const T>(args.tensor(1)),
                                          args.tensor(4).ptr<uint8_t>(), weight.shape[0], weight.ptr<uint8_t>(), output.ptr<T>(), bias,
                                          args.integer(6));
        });
    });
}

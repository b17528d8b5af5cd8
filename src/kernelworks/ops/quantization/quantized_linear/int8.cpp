// output = x dequantize(weight)^T + bias with x rounded to 8 bits, a scale for each block of 32: products are sums of
// integers, exact, and each block's sum is scaled in float32.
//
// Integers have no NaN, and a scale of the weight or of x may be none: a result that is not finite is computed once more
// in float32, from x as it was. So is one that left float32's range on the way.
#include "decoded.hpp"

namespace {

constexpr int SIZE = 32;                     // numbers of a block
constexpr float LEAST_SCALED = 0x1p-118f;    // a block whose largest is smaller counts as zeros: 1 / scale would overflow
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
using Rounded = int8_t;
#else
using Rounded = int16_t;
#endif

// A row of x: its blocks' numbers; for each block the eight sums over what one lane adds up, times -ZERO; the scales.
struct Row {
    Rounded* numbers;
    int32_t* sums;
    float* scales;
    Row(uint8_t* room, int64_t M, int64_t blocks, int64_t m)
        : numbers(reinterpret_cast<Rounded*>(room) + m * blocks * SIZE),
          sums(reinterpret_cast<int32_t*>(room + M * blocks * SIZE * static_cast<int64_t>(sizeof(Rounded))) +
               m * blocks * 8),
          scales(reinterpret_cast<float*>(room + M * blocks * (SIZE * static_cast<int64_t>(sizeof(Rounded)) + 32)) +
                 m * blocks) {}
};

// Which of eight lanes the instructions below add number i to.
inline int lane_of(int i) { return sizeof(Rounded) == 1 ? i / 4 : i % 16 / 2; }

template <class T>
void round_block(const T* x, int zero, Rounded* numbers, int32_t* sums, float* scale) {
    float wide[SIZE];
    uint32_t largest_bits = 0;  // of the magnitudes: a NaN is above infinity
    for (int i = 0; i < SIZE; i += LANES) kw::store(wide + i, kw::load(x + i));
    for (int i = 0; i < SIZE; ++i) {
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
    for (int i = 0; i < SIZE; i += LANES) {
        const vf x_here = scaled ? kw::load(wide + i) : vf{};
        const kw::vi whole = __builtin_convertvector(kw::round_nearest(x_here * times), kw::vi);
        for (int j = 0; j < LANES; ++j) {
            numbers[i + j] = static_cast<Rounded>(whole[j]);
            sums[lane_of(i + j)] -= zero * whole[j];
        }
    }
}

// Eight sums of the products of a block's numbers.
inline __m256i products(__m256i codes, const Rounded* x, const int32_t* sums) {
    __m256i total = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums));
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(total, codes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#else
    const __m256i* p = reinterpret_cast<const __m256i*>(x);
    const __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(codes));
    const __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(codes, 1));
    total = _mm256_add_epi32(total, _mm256_madd_epi16(low, _mm256_loadu_si256(p)));
    return _mm256_add_epi32(total, _mm256_madd_epi16(high, _mm256_loadu_si256(p + 1)));
#endif
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
    __m256 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b)
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const uint8_t* p = w + r * step + b * F::BYTES;
            __builtin_prefetch(p + AHEAD_BYTES, 0, 3);
            const __m256i whole = products(F::codes(p), x.numbers + b * SIZE, x.sums + b * 8);
            const __m256 scale = _mm256_set1_ps(kw::half_at(p) * x.scales[b]);
            sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, sums[r]);
        }
    for (int r = 0; r < R; ++r) results[r] = add_eight(sums[r]);
}

template <class F, class T>
__attribute__((noinline)) float dot_in_float(const T* x, int64_t blocks, const uint8_t* w) {
    vf sum{};
    for (int64_t b = 0; b < blocks; ++b) {
        vf wide[F::BLOCK / LANES];
        F::decode(w + b * F::BYTES, wide);
        for (int i = 0; i < F::BLOCK / LANES; ++i) sum = kw::fma(kw::load(x + b * F::BLOCK + i * LANES), wide[i], sum);
    }
    return kw::reduce_add(sum);
}

template <class F, class T>
void multiply(int64_t M, kw::Rows<const T> x, uint8_t* room, int64_t N, const uint8_t* w, T* out, const T* bias,
              int64_t threads) {
    constexpr int R = 4;
    const int64_t blocks = x.N / SIZE, bytes = blocks * F::BYTES;
    kw::parallel(kw::worth(threads, M * x.N, 65536), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(M * blocks, ith, nth);
        for (int64_t i = mine.begin; i < mine.end; ++i) {
            const int64_t m = i / blocks, b = i % blocks;
            const Row row(room, M, blocks, m);
            round_block(x[m] + b * SIZE, F::ZERO, row.numbers + b * SIZE, row.sums + b * 8, row.scales + b);
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
                dots<F, TILE>(Row(room, M, blocks, m), blocks, w + n * bytes, distance * bytes, found);
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

// rowwise_linear: a row of the weight against four rows of x at a time; codes become floats where they are read.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;
using kw::vi;
using kw::vu;

typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef int8_t vc __attribute__((vector_size(LANES)));

constexpr int64_t GRAIN = 16 << 10;  // products that are worth another thread

struct Int8 {
    static vf wide(const uint8_t* p) {
        vc codes;
        __builtin_memcpy(&codes, p, sizeof codes);
        return __builtin_convertvector(__builtin_convertvector(codes, vi), vf);
    }
};

struct Float8 {  // e4m3fn: four bits of exponent, three of mantissa, no infinity
    static vf wide(const uint8_t* p) {
        vb codes;
        __builtin_memcpy(&codes, p, sizeof codes);
        const vu code = __builtin_convertvector(codes, vu), size = code & 127u;
        const vf small = __builtin_convertvector(size, vf) * 0x1p-9f;
        vf x = size < 8u ? small : kw::bits_float((size + 960u) << 20);
        x = size == 127u ? kw::splat(__builtin_nanf("")) : x;
        return kw::bits_float(kw::float_bits(x) | ((code & 128u) << 24));
    }
};

template <class Code>
vf wide_tail(const uint8_t* p, int64_t n) {
    uint8_t codes[LANES] = {};
    __builtin_memcpy(codes, p, static_cast<size_t>(n));
    return Code::wide(codes);
}

template <class Code, int ROWS>
void dots(const float* x, const uint8_t* w, int64_t K, float* sums) {
    constexpr int CHAINS = ROWS == 1 ? 4 : 1;  // one row alone would wait for each sum
    vf acc[ROWS * CHAINS] = {};
    int64_t k = 0;
    for (; k + CHAINS * LANES <= K; k += CHAINS * LANES)
        for (int c = 0; c < CHAINS; ++c) {
            const vf code = Code::wide(w + k + c * LANES);
            for (int r = 0; r < ROWS; ++r)
                acc[r * CHAINS + c] = kw::fma(code, kw::load(x + r * K + k + c * LANES), acc[r * CHAINS + c]);
        }
    for (; k < K; k += LANES) {
        const int64_t n = K - k < LANES ? K - k : LANES;
        const vf code = wide_tail<Code>(w + k, n);
        for (int r = 0; r < ROWS; ++r)
            acc[r * CHAINS] = kw::fma(code, kw::load(x + r * K + k, static_cast<int>(n)), acc[r * CHAINS]);
    }
    for (int r = 0; r < ROWS; ++r) {
        vf total = acc[r * CHAINS];
        for (int c = 1; c < CHAINS; ++c) total += acc[r * CHAINS + c];
        sums[r] = kw::reduce_add(total);
    }
}

template <class Code, class T>
void run(T* out, const float* x, const uint8_t* weight, const float* scale, const T* bias, int64_t M, int64_t N, int64_t K,
         int64_t threads) {
    kw::parallel(kw::worth(threads, M * N * (K + 1), GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(N, ith, nth);
        for (int64_t n = mine.begin; n < mine.end; ++n) {
            const uint8_t* w = weight + n * K;
            const float more = bias ? kw::to_float(bias[n]) : 0.0f;
            for (int64_t m = 0; m < M;) {
                float sums[4];
                const int rows = M - m >= 4 ? 4 : 1;
                if (rows == 4) dots<Code, 4>(x + m * K, w, K, sums);
                else dots<Code, 1>(x + m * K, w, K, sums);
                for (int r = 0; r < rows; ++r, ++m) {
                    const float scaled = sums[r] * scale[n];
                    out[m * N + n] = kw::from_float<T>(bias ? scaled + more : scaled);
                }
            }
        }
    });
}

}  // namespace

// out [M, N], x float32 [M, K], weight's bytes [N, K], scale [N], bias or None, whether codes are float8, threads
KW_EXPORT(rowwise_linear) {
    const kw::Tensor x = args.tensor(1), weight = args.tensor(2), out = args.tensor(0);
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const T* bias = args.none(4) ? nullptr : args.tensor(4).ptr<T>();
        const auto call = [&](auto code) {
            run<decltype(code), T>(out.ptr<T>(), x.ptr<float>(), weight.ptr<uint8_t>(), args.tensor(3).ptr<float>(), bias,
                                   x.shape[0], weight.shape[0], weight.shape[1], args.integer(6));
        };
        if (args.integer(5)) call(Float8{});
        else call(Int8{});
    });
}

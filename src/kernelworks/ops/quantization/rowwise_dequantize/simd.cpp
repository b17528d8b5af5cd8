// rowwise_dequantize: a vector of codes at a time becomes floats where it is read.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;
using kw::vi;
using kw::vu;

typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef int8_t vc __attribute__((vector_size(LANES)));

constexpr int64_t GRAIN = 32 << 10;  // elements that are worth another thread

struct Int8 {
    static vf wide(vb codes) { return __builtin_convertvector(__builtin_convertvector((vc)codes, vi), vf); }
};

struct Float8 {  // e4m3fn: four bits of exponent, three of mantissa, no infinity
    static vf wide(vb codes) {
        const vu code = __builtin_convertvector(codes, vu), size = code & 127u;
        const vf small = __builtin_convertvector(size, vf) * 0x1p-9f;
        vf x = size < 8u ? small : kw::bits_float((size + 960u) << 20);
        x = size == 127u ? kw::splat(__builtin_nanf("")) : x;
        return kw::bits_float(kw::float_bits(x) | ((code & 128u) << 24));
    }
};

inline vb bytes(const uint8_t* p, int64_t n) {
    vb codes = {};
    __builtin_memcpy(&codes, p, static_cast<size_t>(n));
    return codes;
}

template <class Code, class T>
void run(T* out, const uint8_t* codes, const float* scale, int64_t M, int64_t K, int64_t threads) {
    kw::parallel(kw::worth(threads, M * (K + 1), GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(M, ith, nth);
        for (int64_t m = mine.begin; m < mine.end; ++m) {
            const vf step = kw::splat(scale[m]);
            const uint8_t* from = codes + m * K;
            T* to = out + m * K;
            int64_t k = 0;
            for (; k + LANES <= K; k += LANES) kw::store(to + k, Code::wide(bytes(from + k, LANES)) * step);
            if (k < K) kw::store(to + k, Code::wide(bytes(from + k, K - k)) * step, static_cast<int>(K - k));
        }
    });
}

}  // namespace

// out [M, K], the codes' bytes [M, K], scale [M], whether codes are float8, threads
KW_EXPORT(rowwise_dequantize) {
    const kw::Tensor out = args.tensor(0), scale = args.tensor(2);
    const int64_t rows = scale.numel(), count = out.numel();
    if (!count) return;
    kw::with_dtype(out.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto call = [&](auto code) {
            run<decltype(code), T>(out.ptr<T>(), args.tensor(1).ptr<uint8_t>(), scale.ptr<float>(), rows, count / rows,
                                   args.integer(4));
        };
        if (args.integer(3)) call(Float8{});
        else call(Int8{});
    });
}

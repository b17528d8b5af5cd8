// rowwise_quantize: a row's largest magnitude, then its codes, a vector at a time.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;
using kw::vi;

typedef int8_t vc __attribute__((vector_size(LANES)));

constexpr int64_t GRAIN = 16 << 10;  // elements that are worth another thread

// The nearest whole number, of less than 2^22 in size; halves go to the even one.
inline vf whole(vf q) {
    vf lifted = q + kw::splat(12582912.0f);
    __asm__("" : "+v"(lifted));
    return lifted - kw::splat(12582912.0f);
}

struct Int8 {
    static constexpr float MOST = 127.0f;
    static vi codes(vf q) { return __builtin_convertvector(whole(q == q ? q : kw::splat(0.0f)), vi); }
};

struct Float8 {  // e4m3fn, by the bits of float32: what rounds up carries into the exponent
    static constexpr float MOST = 448.0f;
    static vi codes(vf q) {
        const vi bits = (vi)q, size = bits & 0x7fffffff;
        const vi normal = ((size + 0x7ffff + ((size >> 20) & 1)) >> 20) - 960;
        const vf magnitude = (vf)size;
        const vi small = __builtin_convertvector(whole(size < 0x3c800000 ? magnitude * 512.0f : kw::splat(0.0f)), vi);
        const vi code = (size < 0x3c800000 ? small : normal) | ((bits >> 24) & 128);
        return size > 0x7f800000 ? code * 0 + 127 : code;
    }
};

template <class Code, class T>
void run(uint8_t* codes, float* scales, const kw::Rows<const T>& x, int64_t M, int64_t threads) {
    const int64_t K = x.N;
    kw::parallel(kw::worth(threads, M * (K + 1), GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(M, ith, nth);
        for (int64_t m = mine.begin; m < mine.end; ++m) {
            const T* from = x[m];
            vi top = {};  // bits of magnitudes are ordered as they are, NaN above infinity
            int64_t k = 0;
            auto take = [&](vf v) {
                const vi size = (vi)v & 0x7fffffff;
                top = size > top ? size : top;
            };
            for (; k + LANES <= K; k += LANES) take(kw::load(from + k));
            if (k < K) take(kw::load(from + k, static_cast<int>(K - k)));
            int32_t bits = 0;
            for (int i = 0; i < LANES; ++i) bits = top[i] > bits ? top[i] : bits;
            float largest;
            __builtin_memcpy(&largest, &bits, sizeof largest);
            const float scale = largest / Code::MOST;
            scales[m] = scale;
            const vf step = kw::splat(scale), most = kw::splat(Code::MOST);
            auto make = [&](vf v) {
                vf q = scale == 0.0f ? kw::splat(0.0f) : v / step;
                q = q > most ? most : q;
                q = q < -most ? -most : q;
                return __builtin_convertvector(Code::codes(q), vc);
            };
            uint8_t* to = codes + m * K;
            for (k = 0; k + LANES <= K; k += LANES) {
                const vc made = make(kw::load(from + k));
                __builtin_memcpy(to + k, &made, sizeof made);
            }
            if (k < K) {
                const vc made = make(kw::load(from + k, static_cast<int>(K - k)));
                __builtin_memcpy(to + k, &made, static_cast<size_t>(K - k));
            }
        }
    });
}

}  // namespace

// codes [M, K], scale [M], x [M, K], whether codes are float8, threads
KW_EXPORT(rowwise_quantize) {
    kw::with_dtype(args.tensor(2).dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto call = [&](auto code) {
            run<decltype(code), T>(args.tensor(0).ptr<uint8_t>(), args.tensor(1).ptr<float>(),
                                   kw::Rows<const T>(args.tensor(2)), args.tensor(1).numel(), args.integer(4));
        };
        if (args.integer(3)) call(Float8{});
        else call(Int8{});
    });
}

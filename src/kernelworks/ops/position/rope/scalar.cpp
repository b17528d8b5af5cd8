// rope, to be read: each pair (a, b) of a head turns by the angle of its position,
//   a' = a cos - b sin,  b' = b cos + a sin,
// and what the tables do not cover is copied. The transpose of that rotation carries gradients back.
#include "kernel.hpp"

namespace {

template <class T, class C>
void turn(T* out, const T* x, const C* cos, const C* sin, int64_t R, int64_t D, bool interleaved, bool transposed) {
    for (int64_t i = 0; i < R / 2; ++i) {
        const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + R / 2;
        const double a = kw::to_float(x[first]), b = kw::to_float(x[second]);
        const double ca = kw::to_float(cos[first]), cb = kw::to_float(cos[second]);
        const double sa = kw::to_float(sin[first]), sb = kw::to_float(sin[second]);
        const double turned_a = transposed ? a * ca + b * sb : a * ca - b * sa;
        const double turned_b = transposed ? b * cb - a * sa : b * cb + a * sb;
        out[first] = kw::from_float<T>(static_cast<float>(turned_a));
        out[second] = kw::from_float<T>(static_cast<float>(turned_b));
    }
    for (int64_t j = R; j < D; ++j) out[j] = x[j];
}

template <class C>
const C* table_row(kw::Tensor table, int64_t b, int64_t l) {  // [L, R] or [B, L, R], B perhaps 1
    const bool per_entry = table.ndim == 3 && table.shape[0] > 1;
    return table.ptr<C>() + (per_entry ? b * table.stride[0] : 0) + l * table.stride[table.ndim - 2];
}

template <class T, class C>
void turn_all(kw::Tensor out, kw::Tensor x, kw::Tensor cos, kw::Tensor sin, bool interleaved, bool transposed) {
    for (int64_t b = 0; b < x.shape[0]; ++b)
        for (int64_t h = 0; h < x.shape[1]; ++h)
            for (int64_t l = 0; l < x.shape[2]; ++l)
                turn(out.ptr<T>() + b * out.stride[0] + h * out.stride[1] + l * out.stride[2],
                     x.ptr<const T>() + b * x.stride[0] + h * x.stride[1] + l * x.stride[2],
                     table_row<const C>(cos, b, l), table_row<const C>(sin, b, l), cos.shape[cos.ndim - 1], x.shape[3],
                     interleaved, transposed);
}

}  // namespace

// rope(out_q, out_k, q, k, cos, sin, interleaved, transposed, threads)
// q [B, H, L, D] and k [B, Hkv, L, D] with unit stride in D; cos and sin [L, R] or [B, L, R] of q's dtype or float32
KW_EXPORT(rope) {
    const kw::Tensor cos = args.tensor(4), sin = args.tensor(5);
    auto run = [&](auto t, auto c) {
        using T = decltype(t);
        using C = decltype(c);
        for (int i = 0; i < 2; ++i)
            turn_all<T, C>(args.tensor(i), args.tensor(2 + i), cos, sin, args.integer(6), args.integer(7));
    };
    kw::with_dtype(args.tensor(0).dtype, [&](auto t) {
        if (cos.dtype.bits == 32) {
            run(t, float{});
        } else {
            run(t, t);
        }
    });
}

// rope on vectors of any width. Positions are taken in blocks whose rows of cos and sin stay in L2 while every head of
// q and k is turned by them; within a block each head is one long run of memory, which is what prefetchers want. Heads
// come inside positions instead where they lie closer together.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::vf;

constexpr int64_t BLOCK = 256;        // positions; two tables of 256 x 128 float32 take 256 KiB
constexpr int64_t AHEAD = 8;          // rows
constexpr int64_t GRAIN = 64 * 1024;  // bytes that make a second thread worth waking

inline int part(int64_t from, int64_t n) { return static_cast<int>(n - from < LANES ? n - from : LANES); }

// Element j is paired with element j + half. The transpose of the rotation, which gradients take, swaps the two sines
// and their signs.
template <bool TRANSPOSED, class T, class C>
void turn_halves(T* out, const T* x, const C* cos, const C* sin, int64_t R) {
    const int64_t half = R / 2;
    auto pair = [&](int64_t j, vf a, vf b, vf ca, vf cb, vf sa, vf sb, auto put) {
        if constexpr (TRANSPOSED) {
            put(j, kw::fma(a, ca, b * sb));
            put(j + half, kw::fma(b, cb, -(a * sa)));
        } else {
            put(j, kw::fma(a, ca, -(b * sa)));
            put(j + half, kw::fma(b, cb, a * sb));
        }
    };
    int64_t j = 0;
    for (; j + LANES <= half; j += LANES) {
        pair(j, kw::load(x + j), kw::load(x + half + j), kw::load(cos + j), kw::load(cos + half + j), kw::load(sin + j),
             kw::load(sin + half + j), [&](int64_t at, vf v) { kw::store(out + at, v); });
    }
    if (j < half) {
        const int k = part(j, half);
        pair(j, kw::load(x + j, k), kw::load(x + half + j, k), kw::load(cos + j, k), kw::load(cos + half + j, k),
             kw::load(sin + j, k), kw::load(sin + half + j, k), [&](int64_t at, vf v) { kw::store(out + at, v, k); });
    }
}

inline vf swap_neighbours(vf x) { return __builtin_shuffle(x, kw::lane_index() ^ 1); }

// Element 2 i is paired with element 2 i + 1.
template <bool TRANSPOSED, class T, class C>
void turn_neighbours(T* out, const T* x, const C* cos, const C* sin, int64_t R) {
    const kw::vu even = (kw::vu)((kw::lane_index() & 1) == 0) & 0x80000000u;  // flips the sign of even lanes
    for (int64_t j = 0; j < R; j += LANES) {
        const int k = part(j, R);
        const vf v = kw::load(x + j, k), c = kw::load(cos + j, k), s = kw::load(sin + j, k);
        vf turned;
        if constexpr (TRANSPOSED) {
            turned = -(vf)((kw::vu)swap_neighbours(v * s) ^ even);
        } else {
            turned = (vf)((kw::vu)(swap_neighbours(v) * s) ^ even);
        }
        kw::store(out + j, kw::fma(v, c, turned), k);
    }
}

template <class T, class C>
using Turn = void (*)(T*, const T*, const C*, const C*, int64_t);

template <class T, class C>
Turn<T, C> turn_of(bool interleaved, bool transposed) {
    if (interleaved) return transposed ? turn_neighbours<true, T, C> : turn_neighbours<false, T, C>;
    return transposed ? turn_halves<true, T, C> : turn_halves<false, T, C>;
}

// cos or sin, [L, R] or [B, L, R]
template <class C>
struct Table {
    const C* data;
    int64_t batch_step, step;

    explicit Table(kw::Tensor t)
        : data(t.ptr<C>()), batch_step(t.ndim == 3 && t.shape[0] > 1 ? t.stride[0] : 0), step(t.stride[t.ndim - 2]) {}
    const C* row(int64_t b, int64_t l) const { return data + b * batch_step + l * step; }
};

// Asks for the row `offset` elements on. A row is too short for the hardware to run ahead in it: 1.3 times as fast on
// float32 from memory. Nothing is read where no memory is.
template <int FOR_WRITING, class T>
void fetch_row(const T* p, int64_t offset, int64_t D) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(offset) * sizeof(T);
    for (uintptr_t byte = 0; byte < static_cast<uintptr_t>(D) * sizeof(T); byte += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(at + byte), FOR_WRITING);
}

// Positions [begin, end) of batch entry b, every head of one tensor.
template <class T, class C>
void turn_heads(kw::Tensor out, kw::Tensor x, int64_t b, int64_t begin, int64_t end, Table<C> cos, Table<C> sin,
                int64_t R, Turn<T, C> turn) {
    const int64_t H = x.shape[1], D = x.shape[3];
    T* to = out.ptr<T>() + b * out.stride[0];
    const T* from = x.ptr<T>() + b * x.stride[0];
    const bool heads_closer = x.stride[1] < x.stride[2];
    const int64_t x_step = x.stride[heads_closer ? 1 : 2], out_step = out.stride[heads_closer ? 1 : 2];
    auto one = [&](int64_t h, int64_t l) {
        T* o = to + h * out.stride[1] + l * out.stride[2];
        const T* i = from + h * x.stride[1] + l * x.stride[2];
        fetch_row<0>(i, AHEAD * x_step, D);
        fetch_row<1>(o, AHEAD * out_step, D);
        turn(o, i, cos.row(b, l), sin.row(b, l), R);
        if (R < D && o != i) std::memcpy(o + R, i + R, static_cast<size_t>(D - R) * sizeof(T));
    };
    if (heads_closer) {
        for (int64_t l = begin; l < end; ++l)
            for (int64_t h = 0; h < H; ++h) one(h, l);
    } else {
        for (int64_t h = 0; h < H; ++h)
            for (int64_t l = begin; l < end; ++l) one(h, l);
    }
}

template <class T, class C>
void run(kw::Args args) {
    const kw::Tensor out_q = args.tensor(0), out_k = args.tensor(1), q = args.tensor(2), k = args.tensor(3);
    const Table<C> cos(args.tensor(4)), sin(args.tensor(5));
    const Turn<T, C> turn = turn_of<T, C>(args.integer(6), args.integer(7));
    const int64_t L = q.shape[2], R = args.tensor(4).shape[args.tensor(4).ndim - 1];
    const int64_t bytes = 2 * (q.numel() + k.numel()) * static_cast<int64_t>(sizeof(T));
    kw::parallel(kw::worth(args.integer(8), bytes, GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range rows = kw::slice(q.shape[0] * L, ith, nth);
        for (int64_t at = rows.begin; at < rows.end;) {
            const int64_t b = at / L, begin = at % L;
            int64_t end = begin + BLOCK < L ? begin + BLOCK : L;
            if (end - begin > rows.end - at) end = begin + rows.end - at;
            turn_heads<T, C>(out_q, q, b, begin, end, cos, sin, R, turn);
            turn_heads<T, C>(out_k, k, b, begin, end, cos, sin, R, turn);
            at += end - begin;
        }
    });
}

}  // namespace

// rope(out_q, out_k, q, k, cos, sin, interleaved, transposed, threads)
// q [B, H, L, D] and k [B, Hkv, L, D] with unit stride in D; cos and sin [L, R] or [B, L, R] of q's dtype or float32
KW_EXPORT(rope) {
    kw::with_dtype(args.tensor(0).dtype, [&](auto zero) {
        using T = decltype(zero);
        if (args.tensor(4).dtype.bits == 32) {
            run<T, float>(args);
        } else {
            run<T, T>(args);
        }
    });
}

// Keys and values that lie in pages: attention's heads, with the place of every row in a list.
//
// attention's kernels ask `Heads` where row i of a head lies. A number of type `Paged<T>` is one of T's; heads of such
// numbers look the row up. So the kernels for packed sequences run on pages as they stand, and copy nothing.
#pragma once

#include <cstdlib>

#include "../attention/problem.hpp"
#include "../varlen_attn/sequences.hpp"

namespace kw {

template <class T>
struct Paged {
    T value;
};

template <class T>
inline float to_float(Paged<T> x) {
    return to_float(x.value);
}
template <>
inline Paged<float> from_float<Paged<float>>(float x) {
    return {x};
}
template <>
inline Paged<f16> from_float<Paged<f16>>(float x) {
    return {from_float<f16>(x)};
}
template <>
inline Paged<bf16> from_float<Paged<bf16>>(float x) {
    return {from_float<bf16>(x)};
}

}  // namespace kw

namespace kw::attention {

// A row and those behind it: `place` says how far each lies beyond the head's first number.
template <class T>
struct PagedRow {
    T* head;
    const int64_t* place;

    operator Paged<T>*() const { return reinterpret_cast<Paged<T>*>(head + *place); }
};

template <class T>
struct Heads<Paged<T>> {
    T* data;
    int64_t head, row;  // strides, in elements; `row` is no stride here
    const int64_t* place;

    Heads(const Tensor& t, const int64_t* places) : data(t.ptr<T>()), head(t.stride[1]), row(0), place(places) {}
    PagedRow<T> at(int64_t, int64_t h, int64_t i) const { return {data + h * head, place + i}; }
};

template <class T>
Heads<Paged<T>> from(const Heads<Paged<T>>& x, int64_t token) {
    Heads<Paged<T>> moved = x;
    moved.place += token;
    return moved;
}

// The places of all rows: of queries and outputs one behind the other, of keys and values by the table of blocks.
struct Places {
    int64_t *out, *q, *k, *v, *ends_k;

    // False where a sequence or a block cannot be: then nothing may be read or written.
    static bool valid(const Tensor& q, const Tensor& k, const Tensor& ends, const Tensor& lengths, const Tensor& table) {
        const int64_t S = lengths.shape[0], M = table.shape[1], P = k.shape[2], N = k.shape[0];
        const int64_t *end = ends.ptr<int64_t>(), *length = lengths.ptr<int64_t>(), *block = table.ptr<int64_t>();
        if (end[0] != 0 || end[S] != q.shape[2]) return false;
        for (int64_t s = 0; s < S; ++s) {
            if (end[s + 1] < end[s] || length[s] < 0 || length[s] > M * P) return false;
            for (int64_t m = 0; m * P < length[s]; ++m)
                if (block[s * M + m] < 0 || block[s * M + m] >= N) return false;
        }
        return true;
    }

    Places(const Tensor& o, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& lengths,
           const Tensor& table) {
        const int64_t S = lengths.shape[0], M = table.shape[1], P = key.shape[2], tokens = query.shape[2];
        const int64_t *length = lengths.ptr<int64_t>(), *block = table.ptr<int64_t>();
        int64_t keys = 0;
        for (int64_t s = 0; s < S; ++s) keys += length[s];
        out = static_cast<int64_t*>(malloc(sizeof(int64_t) * static_cast<size_t>(2 * tokens + 2 * keys + S + 1)));
        q = out + tokens, k = q + tokens, v = k + keys, ends_k = v + keys;
        for (int64_t i = 0; i < tokens; ++i) out[i] = i * o.stride[2], q[i] = i * query.stride[2];
        int64_t at = ends_k[0] = 0;
        for (int64_t s = 0; s < S; ++s) {
            for (int64_t j = 0; j < length[s]; ++j, ++at) {
                const int64_t page = block[s * M + j / P], slot = j % P;
                k[at] = page * key.stride[0] + slot * key.stride[2];
                v[at] = page * value.stride[0] + slot * value.stride[2];
            }
            ends_k[s + 1] = at;
        }
    }
    ~Places() { free(out); }
    Places(const Places&) = delete;
};

// f(problem, sequences, threads, out, q, k, v) of the arguments
//
//     out, None, q, k, v, None, scale, causal, shift, window, threads, ends of queries, keys of each, blocks of each
//
// with q [1, H, T, D] and k [blocks, Hkv, slots, D]. False where they name what is not there.
template <class F>
inline bool with_pages(const Args& args, F f) {
    Tensor out = args.tensor(0), q = args.tensor(2), k = args.tensor(3), v = args.tensor(4);
    Tensor ends = args.tensor(11), lengths = args.tensor(12), table = args.tensor(13);
    if (!Places::valid(q, k, ends, lengths, table)) return false;
    Places places(out, q, k, v, lengths, table);
    int64_t count = lengths.shape[0] + 1, dense = 1;
    Tensor ends_k{reinterpret_cast<char*>(places.ends_k), 1, &count, &dense, ends.dtype};
    Problem p(q, k, args, 5);
    Sequences s(ends, ends_k);
    const int64_t threads = worth(args.integer(10), 4 * s.pairs(p) * p.D, 1 << 18);
    with_dtype(out.dtype, [&](auto zero) {
        using U = Paged<decltype(zero)>;
        f(p, s, threads, Heads<U>(out, places.out), Heads<U>(q, places.q), Heads<U>(k, places.k), Heads<U>(v, places.v));
    });
    return true;
}

}  // namespace kw::attention

// As KW_EXPORT, for a kernel that returns whether it ran.
#define KW_EXPORT_RAN(name)                                                                                       \
    static bool name##_body(const kw::Args& args);                                                                \
    extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##name(void*, const TVMFFIAny* any, int32_t n, \
                                                                           TVMFFIAny* result) {                   \
        result->type_index = kTVMFFIInt;                                                                          \
        result->v_int64 = name##_body(kw::Args{any, n});                                                          \
        return 0;                                                                                                 \
    }                                                                                                             \
    static bool name##_body(const kw::Args& args)

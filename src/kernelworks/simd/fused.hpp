// Expressions as kernels: what is printed of an expression (fuse/cpp_text.py) is a type with a static `run` over one run
// of elements that lie side by side; everything else is here.
//
//     KW_FUSED(Fused)   // exports fused(outputs..., inputs..., numbers..., streams..., threads), a stream as seed, offset and
//                     // threshold
//
// `Fused::OUT` and `Fused::IN` are the element types, `Fused::PLACES` where each output goes: ELEMENTS (one for each
// element of the iteration space), ROWS (one for each row) or SUMS (summed over what the output is broadcast along).
// Tensors are aligned at their last dimensions as torch broadcasts them. Without `Fused::BY_ROWS` dimensions are put in
// the order of the first output's strides and merged where they can be. With it, a run is a whole last dimension.
//
// Within a run each operand is read with a step of 1, or of 0 where one element serves the whole run (it is then copied
// to a vector's width beside). Others pass through a buffer.
#pragma once

#include <cstdlib>

#include "activation.hpp"
#include "fused_functions.hpp"
#include "philox.hpp"

namespace kw {

enum Place { ELEMENTS, ROWS, SUMS };

struct truth {  // an element of a tensor of booleans
    uint8_t bits;
};

template <class... T>
struct Types {
    static constexpr int COUNT = sizeof...(T);
};

#if KW_VECTORS
constexpr int WIDTH = LANES;
typedef uint8_t vb __attribute__((vector_size(LANES)));
inline V load(const truth* p) { return __builtin_convertvector(load_bits<vb>(p), vf); }
inline V load(const truth* p, int n) {
    truth buffer[LANES] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
}
inline void store(truth* p, V x) {
    const vb b = __builtin_convertvector(x, vb);
    __builtin_memcpy(p, &b, sizeof b);
}
inline void store(truth* p, V x, int n) {
    for (int i = 0; i < n; ++i) p[i].bits = x[i] != 0.0f;
}
inline V first_of(V x, int n, float fill) { return keep_first(x, n, fill); }
inline float first(V x) { return x[0]; }
#else
constexpr int WIDTH = 1;
template <class T>
inline V load(const T* p) {
    return to_float(*p);
}
inline V load(const truth* p) { return p->bits; }
template <class T>
inline V load(const T* p, int) {
    return load(p);
}
template <class T>
inline void store(T* p, V x) {
    *p = from_float<T>(static_cast<float>(x));
}
inline void store(truth* p, V x) { p->bits = x != 0.0; }
template <class T>
inline void store(T* p, V x, int) {
    store(p, x);
}
inline V first_of(V x, int, float) { return x; }
inline float first(V x) { return static_cast<float>(x); }
inline double reduce_add(double x) { return x; }
inline void stream_end() {}
#endif

template <bool STREAM, class T>
inline void put(T* p, V x) {
#if defined(__AVX512F__)
    if constexpr (STREAM && sizeof(T) == 4) {
        _mm512_stream_ps(reinterpret_cast<float*>(p), (__m512)x);
        return;
    } else if constexpr (sizeof(T) == 2) {
        __m256i bits;
        if constexpr (__is_same(T, f16)) {
            bits = (__m256i)round_f16(x);
        } else {
#if defined(__AVX512BF16__)
            constexpr int SUBNORMAL = 0x20;  // which the instruction flushes to zero
            if (!_mm512_fpclass_ps_mask((__m512)x, SUBNORMAL)) [[likely]]
                bits = (__m256i)_mm512_cvtneps_pbh((__m512)x);
            else
#endif
                bits = (__m256i)round_bf16(x);
        }
        if constexpr (STREAM) _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
        else _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
        return;
    }
#elif defined(__AVX2__)
    if constexpr (STREAM && sizeof(T) != 1) {
        stream_one(p, x);
        return;
    }
#endif
    store(p, x);
}

// ---------------------------------------------------------------- a run of elements

struct Run {
    char* p[64];           // of each operand, outputs first
    int64_t step[64];      // 1, or 0
    int64_t n;
    const float* numbers;
    float* lines;          // what is kept of a row for its next stage, n elements each
    RandomBits* random;
    int64_t element, element_step;  // the place of the first element in the stream of random bits, and from one to the next
    bool stream;

    template <class T>
    T* at(int k) const {
        return reinterpret_cast<T*>(p[k]);
    }
    V number(int k) const { return operand(numbers[k]); }
};

// The elements from i on: a whole vector of them, or the first m.
struct Whole {
    int64_t i;
    template <class T>
    V load(const T* p, int64_t step) const {
        return kw::load(p + i * step);
    }
    template <bool STREAM, class T>
    void put(T* p, V x) const {
        kw::put<STREAM>(p + i, x);
    }
    V filled(V x, float) const { return x; }
    int count() const { return WIDTH; }
};
struct Part {
    int64_t i;
    int m;
    template <class T>
    V load(const T* p, int64_t step) const {
        return kw::load(p + i * step, m);
    }
    template <bool STREAM, class T>
    void put(T* p, V x) const {
        store(p + i, x, m);
    }
    V filled(V x, float fill) const { return first_of(x, m, fill); }
    int count() const { return m; }
};

// Whether elements are kept: the upper 31 of their random bits are not below the threshold, at most 2^31.
template <class At>
inline auto kept(const Run& run, const At& at, int k) {
    RandomBits& random = run.random[k];
    const uint64_t from = static_cast<uint64_t>(run.element + at.i * run.element_step);
#if KW_VECTORS
    vu bits{};
    if (run.element_step == 1 && from % PHILOX_BLOCK + WIDTH <= PHILOX_BLOCK) {
        __builtin_memcpy(&bits, random.of(from) + from % PHILOX_BLOCK, sizeof bits);
    } else {
        for (int l = 0; l < at.count(); ++l) bits[l] = random.at(from + static_cast<uint64_t>(l * run.element_step));
    }
    return (bits >> 1) >= random.stream.threshold;
#else
    return (random.at(from) >> 1) >= random.stream.threshold;
#endif
}

constexpr int CHAIN = 64;  // so many vectors are added up in float32, then their sum in float64

template <int STEP>
struct Sum {
    V part[STEP] = {};
    double total = 0.0;
    void add(int j, V x) { part[j] = part[j] + x; }
    void flush() {
        V sum = part[0];
        part[0] = V{};
        for (int j = 1; j < STEP; ++j) sum = sum + part[j], part[j] = V{};
        total += reduce_add(sum);
    }
    V value() const { return operand(static_cast<float>(total)); }
};

template <int STEP, bool LARGEST>
struct Extreme {  // NaN where any is
    V part[STEP];
    Extreme() {
        for (int j = 0; j < STEP; ++j) part[j] = operand(LARGEST ? -INFINITY : INFINITY);
    }
    void add(int j, V x) { part[j] = LARGEST ? larger(x, part[j]) : smaller(x, part[j]); }
    void flush() {}
    V value() const {
        V best = part[0];
        for (int j = 1; j < STEP; ++j) best = LARGEST ? larger(part[j], best) : smaller(part[j], best);
#if KW_VECTORS
        float one = best[0];
        for (int l = 1; l < LANES; ++l) {
            const float x = best[l];
            one = x != x || (LARGEST ? x > one : x < one) ? x : one;
        }
        return splat(one);
#else
        return best;
#endif
    }
};

// body(at, j, y) computes the outputs y of some elements, store(at, y) puts them.
template <int STEP, int COUNT, class Body, class Store>
inline void columns(int64_t i, int64_t end, Body body, Store put) {
    for (; i + STEP * WIDTH <= end; i += STEP * WIDTH) {
        V y[STEP][COUNT ? COUNT : 1];
#pragma GCC unroll 4
        for (int j = 0; j < STEP; ++j) body(Whole{i + j * WIDTH}, j, y[j]);
#pragma GCC unroll 4
        for (int j = 0; j < STEP; ++j) put(Whole{i + j * WIDTH}, y[j]);
    }
    V y[COUNT ? COUNT : 1];
    for (; i + WIDTH <= end; i += WIDTH) {
        body(Whole{i}, 0, y);
        put(Whole{i}, y);
    }
    if (i < end) {
        const Part at{i, static_cast<int>(end - i)};
        body(at, 0, y);
        put(at, y);
    }
}

// What an output is added up to where it is broadcast over rows: in place, or where one element stands for the run.
struct RowsSum {
    float* p;
    bool one;
    V part = {};
    double total = 0.0;
    RowsSum(const Run& run, int k) : p(run.at<float>(k)), one(run.step[k] == 0) {}
    template <class At>
    void add(const At& at, V x) {
        if (one) part = part + at.filled(x, 0.0f);
        else at.template put<false>(p, at.load(p, 1) + x);
    }
    void flush() {
        total += reduce_add(part);
        part = V{};
    }
    void end() {
        if (one) *p += static_cast<float>(total);
    }
};

template <bool B>
struct Streams {
    static constexpr bool value = B;
};

// Elements before the first whole cache line of every output; -1 where those of the outputs differ.
struct Output {
    const void* p;
    int64_t width;
    int64_t head() const { return (-reinterpret_cast<intptr_t>(p) & 63) / width; }
};

// One stage over a run. `put(at, y, Streams)` stores. flush() is called behind every CHAIN steps.
template <int STEP, int COUNT, bool SUMMED, int OUTS, class Body, class Store, class Flush>
inline void stage(const Run& run, const Output (&outputs)[OUTS], Body body, Store put, Flush flush) {
    const int64_t n = run.n;
    const auto as_usual = [&](auto at, const V* y) { put(at, y, Streams<false>{}); };
    if constexpr (SUMMED) {
        constexpr int64_t block = CHAIN * STEP * WIDTH;
        for (int64_t i = 0; i < n; i += block) {
            columns<STEP, COUNT>(i, i + block < n ? i + block : n, body, as_usual);
            flush();
        }
        return;
    }
#if KW_VECTORS
    if (run.stream) {
        int64_t head = outputs[0].head();
        bool alike = reinterpret_cast<intptr_t>(outputs[0].p) % outputs[0].width == 0;
        for (const Output& output : outputs) alike = alike && output.head() == head;
        if (alike && head < n) {
            columns<STEP, COUNT>(0, head, body, as_usual);
            columns<STEP, COUNT>(head, n, body, [&](auto at, const V* y) { put(at, y, Streams<true>{}); });
            return;
        }
    }
#endif
    columns<STEP, COUNT>(0, n, body, as_usual);
}

// ---------------------------------------------------------------- the iteration space

template <class F>
struct Space {
    static constexpr int OUTS = F::OUT::COUNT, K = OUTS + F::IN::COUNT, INDEX = K;  // INDEX: of random bits
    static constexpr int MAX_DIMS = 64;
    static constexpr int64_t CHUNK = 256;
    int ndim = 0;
    int64_t size[MAX_DIMS], step[K + 1][MAX_DIMS];  // outermost first; in elements
    int64_t width[K];                               // bytes of an element
    int64_t total = 1, bytes = 0;
    char* data[K];
    bool buffered = false;  // some operand's innermost step is neither 0 nor 1

    explicit Space(const Tensor (&t)[K]) {
        int dims = 0;
        int64_t shape[MAX_DIMS], stride[K + 1][MAX_DIMS];
        for (int k = 0; k < K; ++k) {
            dims = t[k].ndim > dims && F::place(k) != ROWS ? t[k].ndim : dims;
            width[k] = t[k].dtype.bits / 8;
            data[k] = t[k].data;
        }
        for (int d = 0; d < dims; ++d) {
            shape[d] = 1;
            for (int k = 0; k < K; ++k) {
                const int at = d - (dims - t[k].ndim);
                if (F::place(k) != ROWS && at >= 0 && t[k].shape[at] != 1) shape[d] = t[k].shape[at];
            }
        }
        for (int d = dims; d-- > 0;) {
            stride[INDEX][d] = total;
            total *= shape[d];
        }
        for (int k = 0; k < K; ++k) {
            // A row's output has no last dimension, or one of a single element.
            const int behind = F::place(k) == ROWS && t[k].ndim < dims ? 1 : 0;
            for (int d = 0; d < dims; ++d) {
                const int at = d - (dims - behind - t[k].ndim);
                const bool there = at >= 0 && at < t[k].ndim && t[k].shape[at] != 1;
                stride[k][d] = there ? t[k].stride[at] : 0;
            }
            bytes += (F::place(k) == ELEMENTS ? total : t[k].numel()) * width[k];
        }
        int order[MAX_DIMS], count = 0;
        const int last = F::BY_ROWS ? dims - 1 : dims;
        for (int d = 0; d < last; ++d) {
            if (shape[d] == 1) continue;
            int at = count++;
            for (; at > 0 && stride[F::LEADER][order[at - 1]] < stride[F::LEADER][d]; --at) order[at] = order[at - 1];
            order[at] = d;
        }
        for (int i = 0; i < count; ++i) add(shape, stride, order[i], true);
        if (F::BY_ROWS) {
            if (dims) add(shape, stride, dims - 1, false);
        }
        if (ndim == 0) {
            size[0] = 1;
            for (int k = 0; k <= K; ++k) step[k][0] = k < K ? 0 : 1;
            ndim = 1;
        }
        for (int k = 0; k < K; ++k) {
            int64_t& inner = step[k][ndim - 1];
            if (size[ndim - 1] == 1) inner = F::place(k) == ELEMENTS && k < OUTS ? 1 : 0;
            if (F::place(k) == ELEMENTS) buffered = buffered || (inner != 1 && (inner != 0 || k < OUTS));
        }
    }

    void add(const int64_t* shape, const int64_t (&stride)[K + 1][MAX_DIMS], int dim, bool merge) {
        bool merges = merge && ndim > 0;
        for (int k = 0; k <= K && merges; ++k)
            if (k < K || F::RANDOMS) merges = step[k][ndim - 1] == stride[k][dim] * shape[dim];
        if (merges) size[ndim - 1] *= shape[dim];
        else size[ndim++] = shape[dim];
        for (int k = 0; k <= K; ++k) step[k][ndim - 1] = stride[k][dim];
    }
};

// What a thread works with: buffers of operands that do not lie side by side, and of what one element is copied to.
template <class F>
struct Thread {
    using S = Space<F>;
    static constexpr int K = S::K, OUTS = S::OUTS;
    const S& space;
    Run run;
    char* memory = nullptr;
    char* buffer[K] = {};
    alignas(64) char copies[K][WIDTH * 4 < 16 ? 16 : WIDTH * 4];
    const char* copied[K] = {};
    float* sums[K] = {};  // of outputs that are sums: this share's own, laid out as the output is

    Thread(const S& s, const float* numbers, RandomBits* random, bool stream) : space(s) {
        run.numbers = numbers;
        run.random = random;
        run.stream = stream;
        run.lines = nullptr;
        const int64_t longest = F::BY_ROWS ? s.size[s.ndim - 1] : S::CHUNK;
        const int64_t room = (longest * 4 + 63) / 64 * 64;
        if (s.buffered || F::LINES) {
            memory = static_cast<char*>(std::aligned_alloc(64, static_cast<size_t>(room * (K + F::LINES + 1))));
            for (int k = 0; k < K; ++k) buffer[k] = memory + k * room;
            run.lines = reinterpret_cast<float*>(memory + K * room);
        }
    }
    ~Thread() { std::free(memory); }

    // Over elements [begin, end) of the space.
    void over(Range range) {
        const S& s = space;
        const int inner = s.ndim - 1;
        int64_t index[S::MAX_DIMS], at[K + 1];
        const int64_t length = s.size[inner];
        if (range.begin >= range.end) return;
        int64_t column = range.begin % length, rest = range.begin / length;
        for (int k = 0; k <= K; ++k) at[k] = 0;
        for (int d = inner - 1; d >= 0; --d) {
            index[d] = rest % s.size[d];
            rest /= s.size[d];
            for (int k = 0; k <= K; ++k) at[k] += index[d] * s.step[k][d];
        }
        for (int64_t left = range.end - range.begin; left > 0;) {
            int64_t n = length - column < left ? length - column : left;
            if (s.buffered && !F::BY_ROWS && n > S::CHUNK) n = S::CHUNK;
            one(at, column, n);
            left -= n;
            column += n;
            if (column < length || left == 0) continue;
            column = 0;
            for (int d = inner - 1; d >= 0; --d) {
                for (int k = 0; k <= K; ++k) at[k] += s.step[k][d];
                if (++index[d] < s.size[d]) break;
                for (int k = 0; k <= K; ++k) at[k] -= s.step[k][d] * s.size[d];
                index[d] = 0;
            }
        }
    }

    void one(const int64_t* at, int64_t column, int64_t n) {
        const S& s = space;
        const int inner = s.ndim - 1;
        run.n = n;
        for (int k = 0; k < K; ++k) {
            const int64_t step = s.step[k][inner], width = s.width[k];
            char* const p = s.data[k] + (at[k] + column * step) * width;
            run.step[k] = 1;
            run.p[k] = p;
            if (k < OUTS) {
                if (F::place(k) == SUMS) {
                    run.p[k] = reinterpret_cast<char*>(sums[k] + at[k] + column * step);
                    run.step[k] = step;
                } else if (F::place(k) == ELEMENTS && step != 1) {
                    run.p[k] = buffer[k];
                }
            } else if (step == 0) {
                if (copied[k] != p) {
                    for (int i = 0; i < WIDTH; ++i) std::memcpy(copies[k] + i * width, p, static_cast<size_t>(width));
                    copied[k] = p;
                }
                run.p[k] = copies[k];
                run.step[k] = 0;
            } else if (step != 1) {
                gather(buffer[k], p, width, step * width, n);
                run.p[k] = buffer[k];
            }
        }
        run.element = at[S::INDEX] + column * s.step[S::INDEX][inner];
        run.element_step = s.step[S::INDEX][inner];
        F::run(run);
        for (int k = 0; k < OUTS; ++k) {
            const int64_t step = s.step[k][inner], width = s.width[k];
            if (F::place(k) != ELEMENTS || step == 1) continue;
            char* const p = s.data[k] + (at[k] + column * step) * width;
            for (int64_t i = 0; i < n; ++i)
                std::memcpy(p + i * step * width, buffer[k] + i * width, static_cast<size_t>(width));
        }
    }

    static void gather(char* to, const char* from, int64_t width, int64_t step, int64_t n) {
        if (width == 4) copy<uint32_t>(to, from, step, n);
        else if (width == 2) copy<uint16_t>(to, from, step, n);
        else copy<uint8_t>(to, from, step, n);
    }
    template <class U>
    static void copy(char* to, const char* from, int64_t step, int64_t n) {
        for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * static_cast<int64_t>(sizeof(U)), from + i * step, sizeof(U));
    }
};

// ---------------------------------------------------------------- outputs that are sums

constexpr int64_t SHARES = 16;       // the space is cut into so many, whatever the threads: same bits for any number of them
constexpr int64_t RUNS_OF_SUMS = 32;  // added up in float32 before they go to float64

template <class F>
void sums_over(int64_t threads, const Space<F>& space, const Tensor* t, const float* numbers, const Stream* streams) {
    constexpr int OUTS = Space<F>::OUTS;
    int64_t length[OUTS], all = 0;
    for (int k = 0; k < OUTS; ++k) all += length[k] = F::place(k) == SUMS ? t[k].numel() : 0;
    const int64_t inner = space.size[space.ndim - 1], runs = inner ? space.total / inner : 0;
    const int64_t shares = runs < SHARES ? (runs ? runs : 1) : SHARES;
    double* const totals = static_cast<double*>(std::calloc(static_cast<size_t>(shares * all + 1), sizeof(double)));
    constexpr int64_t interval = RUNS_OF_SUMS;
    parallel(threads < shares ? threads : shares, [&](int64_t ith, int64_t nth) {
        RandomBits random[F::RANDOMS + 1];
        for (int k = 0; k < F::RANDOMS; ++k) random[k].stream = streams[k];
        Thread<F> thread(space, numbers, random, false);
        float* const part = static_cast<float*>(std::calloc(static_cast<size_t>(all + 1), sizeof(float)));
        const Range mine = slice(shares, ith, nth);
        for (int64_t share = mine.begin; share < mine.end; ++share) {
            double* const total = totals + share * all;
            int64_t from = 0;
            for (int k = 0; k < OUTS; ++k) {
                thread.sums[k] = part + from;
                from += length[k];
            }
            const Range rows = slice(runs, share, shares);
            for (int64_t row = rows.begin; row < rows.end; row += interval) {
                const int64_t end = row + interval < rows.end ? row + interval : rows.end;
                thread.over(Range{row * inner, end * inner});
                for (int64_t i = 0; i < all; ++i) total[i] += part[i], part[i] = 0.0f;
            }
        }
        std::free(part);
    });
    int64_t from = 0;
    for (int k = 0; k < OUTS; ++k) {
        for (int64_t i = 0; i < length[k]; ++i) {
            double sum = 0.0;
            for (int64_t share = 0; share < shares; ++share) sum += totals[share * all + from + i];
            with_type(type_of(t[k].dtype), t[k].data, [&]<class T>(T* out) { out[i] = from_float<T>(static_cast<float>(sum)); });
        }
        from += length[k];
    }
    std::free(totals);
}

template <class F>
void fused(Args args) {
    using S = Space<F>;
    Tensor t[S::K];
    float numbers[F::NUMBERS + 1];
    Stream streams[F::RANDOMS + 1] = {};
    for (int k = 0; k < S::K; ++k) t[k] = args.tensor(k);
    for (int k = 0; k < F::NUMBERS; ++k) numbers[k] = static_cast<float>(args.real(S::K + k));
    int at = S::K + F::NUMBERS;
    for (int k = 0; k < F::RANDOMS; ++k, at += 3)
        streams[k] = Stream{static_cast<uint64_t>(args.integer(at)), static_cast<uint64_t>(args.integer(at + 1)),
                            static_cast<uint32_t>(args.integer(at + 2))};
    const int64_t threads = args.integer(at);
    const S space(t);
    if constexpr (F::SUMMED) {
        sums_over<F>(threads, space, t, numbers, streams);
        return;
    }
    if (space.total == 0 && !F::BY_ROWS) return;
    const int64_t length = space.size[space.ndim - 1];
    int64_t runs = 1;
    for (int d = 0; d < space.ndim - 1; ++d) runs *= space.size[d];
    int64_t written = 0;
    for (int k = 0; k < S::OUTS; ++k) written += F::place(k) == ELEMENTS ? space.total * space.width[k] : 0;
    const bool stream = !space.buffered && written >= PAST_CACHE_BYTES;
    parallel(threads, [&](int64_t ith, int64_t nth) {
        RandomBits random[F::RANDOMS + 1];
        for (int k = 0; k < F::RANDOMS; ++k) random[k].stream = streams[k];
        Thread<F> thread(space, numbers, random, stream);
        if constexpr (F::BY_ROWS) {
            const Range rows = slice(runs, ith, nth);
            if (length == 0) return;  // a row of nothing: the caller fills
            thread.over(Range{rows.begin * length, rows.end * length});
        } else {
            thread.over(slice(space.total, ith, nth, 64));
        }
        if (stream) stream_end();
    });
}

}  // namespace kw

#define KW_FUSED(F) \
    KW_EXPORT(fused) { kw::fused<kw::F>(args); }

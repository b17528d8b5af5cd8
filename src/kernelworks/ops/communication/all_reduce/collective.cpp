// The sum, the largest or the smallest of what all ranks hold, through memory that they share (ranks.hpp).
//
// Small tensors take one step: each rank writes its own, waits, and reduces all of them. Larger ones take two for each
// chunk: a rank reduces its part of the chunk, then takes the other parts from whom they belong to. Either way an element is
// reduced in the order of the ranks, in float32 (int64: in itself), and rounded once, so all ranks hold the same bits.
#include "ranks_reduce.hpp"

namespace {

using namespace kw;

constexpr int64_t ONE_STEP = 32 * 1024;  // bytes

template <class Op, class T>
int64_t one_step(const Ranks& ranks, T* out, const T* x, int64_t n, int64_t text, bool resume) {
    if (!resume) {
        const uint64_t step = ranks.step() + 1;
        std::memcpy(ranks.area(ranks.rank, step), x, n * sizeof(T));
        ranks.begin(step, text);
    }
    const uint64_t step = ranks.step();
    if (const int64_t status = ranks.wait(step)) return status;
    if (!ranks.called_alike(step)) return ANOTHER;
    const T* from[MOST_RANKS];
    for (int r = 0; r < ranks.count; ++r) from[r] = ranks.area<T>(r, step);
    reduce<Op>(out, static_cast<T*>(nullptr), from, ranks.count, n);
    return DONE;
}

template <class Op, class T>
int64_t two_steps(const Ranks& ranks, T* out, const T* x, int64_t n, int64_t text, bool resume) {
    constexpr int64_t CHUNK = AREA / sizeof(T);
    int64_t& half = ranks.progress();  // steps that this call has posted, less one
    if (!resume) half = -1;
    for (int64_t chunk = (half < 0 ? 0 : half / 2); chunk * CHUNK < n; ++chunk) {
        const int64_t first = chunk * CHUNK, size = n - first < CHUNK ? n - first : CHUNK;
        const Range mine = slice(size, ranks.rank, ranks.count, 64);
        if (half < 2 * chunk) {  // what the others reduce
            const uint64_t step = ranks.step() + 1;
            T* to = ranks.area<T>(ranks.rank, step);
            std::memcpy(to, x + first, mine.begin * sizeof(T));
            std::memcpy(to + mine.end, x + first + mine.end, (size - mine.end) * sizeof(T));
            half = 2 * chunk;
            chunk ? ranks.post(step) : ranks.begin(step, text);
        }
        if (half == 2 * chunk) {
            const uint64_t step = ranks.step();
            if (const int64_t status = ranks.wait(step)) return status;
            if (!chunk && !ranks.called_alike(step)) return ANOTHER;
            const T* from[MOST_RANKS];
            for (int r = 0; r < ranks.count; ++r)
                from[r] = (r == ranks.rank ? x + first : ranks.area<T>(r, step)) + mine.begin;
            T* to = ranks.area<T>(ranks.rank, step + 1) + mine.begin;
            reduce<Op>(to, out + first + mine.begin, from, ranks.count, mine.end - mine.begin);
            half = 2 * chunk + 1;
            ranks.post(step + 1);
        }
        const uint64_t step = ranks.step();
        if (const int64_t status = ranks.wait(step)) return status;
        for (int r = 0; r < ranks.count; ++r) {
            if (r == ranks.rank) continue;
            const Range part = slice(size, r, ranks.count, 64);
            std::memcpy(out + first + part.begin, ranks.area<T>(r, step) + part.begin,
                        (part.end - part.begin) * sizeof(T));
        }
    }
    return DONE;
}

template <class Op>
int64_t by_dtype(const Args& args) {
    const Ranks ranks(args);
    const Tensor out = args.tensor(3), x = args.tensor(4);
    const int64_t text = args.integer(5);
    const bool resume = args.integer(6);
    if (!resume && ranks.broken()) return BROKEN;
    return with_number(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        const int64_t n = x.numel();
        T *to = out.ptr<T>(), *from = x.ptr<T>();
        if (n * static_cast<int64_t>(sizeof(T)) <= ONE_STEP) return one_step<Op>(ranks, to, from, n, text, resume);
        return two_steps<Op>(ranks, to, from, n, text, resume);
    });
}

}  // namespace

// all_reduce_OP(segment, rank, ranks, out, x, text, resume): out and x contiguous, out may be x.
KW_ANSWER(all_reduce_sum) { return by_dtype<Sum>(args); }
KW_ANSWER(all_reduce_max) { return by_dtype<Max>(args); }
KW_ANSWER(all_reduce_min) { return by_dtype<Min>(args); }

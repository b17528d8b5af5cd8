// Each rank's part of what all ranks hold, reduced, through memory that they share (ranks.hpp): a step for each chunk of the
// parts. A rank writes what the others reduce, waits for all, and reduces its own part.
#include "ranks_reduce.hpp"

namespace {

using namespace kw;

template <class Op>
int64_t scatter(const Args& args) {
    const Ranks ranks(args);
    const Tensor out = args.tensor(3), x = args.tensor(4);
    int64_t& chunk = ranks.progress();  // whose step is posted
    bool posted = args.integer(6);
    if (!posted) chunk = 0;
    if (!posted && ranks.broken()) return BROKEN;
    return with_number(x.dtype, [&](auto zero) -> int64_t {
        using T = decltype(zero);
        const int64_t part = out.numel(), most = AREA / static_cast<int64_t>(sizeof(T)) / ranks.count / 64 * 64;
        const T* mine = x.ptr<T>() + ranks.rank * part;
        do {
            const int64_t first = chunk * most, size = part - first < most ? part - first : most;
            if (!posted) {
                const uint64_t step = ranks.step() + 1;
                T* to = ranks.area<T>(ranks.rank, step);
                for (int r = 0; r < ranks.count; ++r)
                    if (r != ranks.rank) std::memcpy(to + r * most, x.ptr<T>() + r * part + first, size * sizeof(T));
                chunk ? ranks.post(step) : ranks.begin(step, args.integer(5));
            }
            const uint64_t step = ranks.step();
            if (const int64_t status = ranks.wait(step)) return status;
            if (!chunk && !ranks.called_alike(step)) return ANOTHER;
            const T* from[MOST_RANKS];
            for (int r = 0; r < ranks.count; ++r)
                from[r] = r == ranks.rank ? mine + first : ranks.area<T>(r, step) + ranks.rank * most;
            reduce<Op>(out.ptr<T>() + first, static_cast<T*>(nullptr), from, ranks.count, size);
            posted = false;
        } while (++chunk * most < part);
        return DONE;
    });
}

}  // namespace

// reduce_scatter_OP(segment, rank, ranks, out, x, text, resume): out and x contiguous, out a part of x's size.
KW_ANSWER(reduce_scatter_sum) { return scatter<Sum>(args); }
KW_ANSWER(reduce_scatter_max) { return scatter<Max>(args); }
KW_ANSWER(reduce_scatter_min) { return scatter<Min>(args); }

// What all ranks hold, one after the other, through memory that they share (ranks.hpp): a step for each chunk. A rank
// writes its chunk, waits for all, and takes each rank's to its place.
#include "ranks.hpp"

using namespace kw;

// all_gather(segment, rank, ranks, out, x, text, resume): out and x contiguous.
KW_ANSWER(all_gather) {
    const Ranks ranks(args);
    const Tensor out = args.tensor(3), x = args.tensor(4);
    const int64_t bytes = x.numel() * (x.dtype.bits / 8);
    int64_t& chunk = ranks.progress();  // whose step is posted
    bool posted = args.integer(6);
    if (!posted) chunk = 0;
    if (!posted && ranks.broken()) return BROKEN;
    do {
        const int64_t first = chunk * AREA, size = bytes - first < AREA ? bytes - first : AREA;
        if (!posted) {
            const uint64_t step = ranks.step() + 1;
            std::memcpy(ranks.area(ranks.rank, step), x.data + first, size);
            chunk ? ranks.post(step) : ranks.begin(step, args.integer(5));
        }
        const uint64_t step = ranks.step();
        if (const int64_t status = ranks.wait(step)) return status;
        if (!chunk && !ranks.called_alike(step)) return ANOTHER;
        for (int r = 0; r < ranks.count; ++r)
            std::memcpy(out.data + r * bytes + first, r == ranks.rank ? x.data + first : ranks.area(r, step), size);
        posted = false;
    } while (++chunk * AREA < bytes);
    return DONE;
}

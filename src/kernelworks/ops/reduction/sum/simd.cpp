// The sum along a dimension, in portable vectors: float32 within a block, float64 from block to block.
#include "reduction.hpp"

namespace {

using namespace kw;

constexpr int STEPS = 64;  // the longest chain of float32 additions within a vector's lane
constexpr int SUMS = 8;    // vectors that are added to in turn, so that no addition waits for the one before

struct Sum {
    using State = double;

    template <class T>
    static State row(const T* x, int64_t n, int64_t) {
        constexpr int64_t BLOCK = STEPS * SUMS * LANES;
        double total = 0;
        for (int64_t begin = 0; begin < n; begin += BLOCK) {
            const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
            vf s[SUMS] = {};
            int64_t i = begin;
            for (; i + SUMS * LANES <= end; i += SUMS * LANES)
                for (int k = 0; k < SUMS; ++k) s[k] += load(x + i + k * LANES);
            for (; i + LANES <= end; i += LANES) s[0] += load(x + i);
            if (i < end) s[1] += load(x + i, static_cast<int>(end - i));
            total += reduce_add(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
        }
        return total;
    }

    template <class T>
    static void columns(State* total, const T* x, int64_t n, int64_t stride, int width, int64_t) {
        alignas(64) float block[WIDTH];
        for (int c = 0; c < width; ++c) total[c] = 0;
        for (int64_t begin = 0; begin < n; begin += STEPS) {
            const int64_t end = n - begin < STEPS ? n : begin + STEPS;
            int64_t i = begin;
            for (int v = 0; v < width; v += LANES) store(block + v, vf{});
            for (; i + 4 <= end; i += 4) {
                const T* p = x + i * stride;
                for (int v = 0; v < width; v += LANES) {
                    const vf a = columns_at(p, v, width), b = columns_at(p + stride, v, width);
                    const vf c = columns_at(p + 2 * stride, v, width), d = columns_at(p + 3 * stride, v, width);
                    store(block + v, load(block + v) + ((a + b) + (c + d)));
                }
            }
            for (; i < end; ++i)
                for (int v = 0; v < width; v += LANES)
                    store(block + v, load(block + v) + columns_at(x + i * stride, v, width));
            for (int c = 0; c < width; ++c) total[c] += block[c];
        }
    }

    static State join(State before, State after) { return before + after; }

    template <class Out>
    static Out result(State s) {
        return from_float<Out>(static_cast<float>(s));
    }
};

}  // namespace

KW_EXPORT(sum) { reduce<Sum>(args); }

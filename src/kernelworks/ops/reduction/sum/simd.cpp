// The sum along a dimension, in portable vectors: float32 within a block, float64 from block to block.
#include "reduction.hpp"

namespace {

using namespace kw;

constexpr int STEPS = 64;  // the longest chain of float32 additions to one sum, before it moves on
constexpr int SUMS = 8;    // vectors that are added to in turn, so that no addition waits for the one before
constexpr int ROWS = 8;    // elements of a line of columns that are added up first

struct Sum {
    using State = double;

    template <class T>
    static vf few(const T* x, int64_t i, int64_t end) {
        vf s = {};
        for (; i + LANES <= end; i += LANES) s += load(x + i);
        return i < end ? s + load(x + i, static_cast<int>(end - i)) : s;
    }

    template <class T>
    static State row(const T* x, int64_t n, int64_t) {
        constexpr int64_t BLOCK = STEPS * SUMS * LANES;
        if (n < SUMS * LANES) return reduce_add(few(x, 0, n));
        double total = 0;
        for (int64_t begin = 0; begin < n; begin += BLOCK) {
            const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
            vf s[SUMS] = {};
            int64_t i = begin;
            for (; i + SUMS * LANES <= end; i += SUMS * LANES)
                for (int k = 0; k < SUMS; ++k) s[k] += load(x + i + k * LANES);
            s[0] += few(x, i, end);
            total += reduce_add(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
        }
        return total;
    }

    // COUNT elements of each line, added up before they meet the sum so far.
    template <int COUNT, class T>
    static void add(float* block, const T* p, int64_t stride, int width) {
        each_vector(width, [&](int v, auto at) {
            vf s[COUNT];
            for (int k = 0; k < COUNT; ++k) s[k] = at(p + k * stride);
            for (int half = COUNT / 2; half; half /= 2)
                for (int k = 0; k < half; ++k) s[k] += s[k + half];
            store(block + v, load(block + v) + s[0]);
        });
    }

    template <class T>
    static void columns(State* total, const T* x, int64_t n, int64_t stride, int width, int64_t first) {
        const int turns = WIDTH / width;
        if (stride == width && turns > 1 && n >= 8 * turns) return turned(total, x, n, turns, width, first);
        alignas(64) float block[WIDTH];
        for (int c = 0; c < width; ++c) total[c] = 0;
        for (int64_t begin = 0; begin < n; begin += STEPS * ROWS) {
            const int64_t end = n - begin < STEPS * ROWS ? n : begin + STEPS * ROWS;
            int64_t i = begin;
            for (int v = 0; v < width; v += LANES) store(block + v, vf{});
            for (; i + ROWS <= end; i += ROWS) add<ROWS>(block, x + i * stride, stride, width);
            for (; i < end; ++i) add<1>(block, x + i * stride, stride, width);
            for (int c = 0; c < width; ++c) total[c] += block[c];
        }
    }

    // A few columns, one after the other in memory: several rows are taken for one that fills the vectors.
    template <class T>
    static void turned(State* total, const T* x, int64_t n, int turns, int width, int64_t first) {
        double wide[WIDTH];
        const int64_t whole = n / turns * turns;
        columns(wide, x, n / turns, turns * width, turns * width, first);
        columns(total, x + whole * width, n - whole, width, width, first);
        for (int t = 0; t < turns; ++t)
            for (int c = 0; c < width; ++c) total[c] += wide[t * width + c];
    }

    static State join(State before, State after) { return before + after; }

    template <class Out>
    static Out result(State s) {
        return from_float<Out>(static_cast<float>(s));
    }
};

}  // namespace

KW_EXPORT(sum) { reduce<Sum>(args); }

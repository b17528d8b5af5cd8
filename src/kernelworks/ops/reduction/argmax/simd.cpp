// The index of the largest element, in portable vectors. A block of a row is looked through for its maximum alone; only
// where that beats all before is the block, which is in the L1 cache then, looked through for its place.
#include "reduction.hpp"

namespace {

using namespace kw;

constexpr int64_t BLOCK = 2048;
constexpr int TOPS = 4;
constexpr int ROWS = 4;  // elements of a line that are compared before its best so far is put back

struct Found {
    float value;
    int64_t index;
};

inline vu largest(vu a, vu b) { return a > b ? a : b; }
inline float largest(vf v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float m = v[0];
    for (int i = 1; i < LANES; ++i) m = v[i] > m ? v[i] : m;
    return m;
#endif
}

struct Argmax {
    using State = Found;

    // Whether `after`, which stands behind `before`, is taken in its place: of equals the first, NaN above all.
    static bool beats(float after, float before) { return after > before || (after != after && before == before); }

    template <class T>
    static State row(const T* x, int64_t n, int64_t first) {
        State best{to_float(x[0]), first};
        for (int64_t begin = 0; begin < n && best.value == best.value; begin += BLOCK) {
            const int64_t end = n - begin < BLOCK ? n : begin + BLOCK;
            vf top[TOPS];
            vu size[TOPS] = {};  // without signs; NaN is above infinity
            for (vf& t : top) t = splat(best.value);
            int64_t i = begin;
            auto take = [&](int k, vf v) {
                top[k] = max(v, top[k]);
                size[k] = largest(size[k], (vu)v & 0x7fffffffu);
            };
            for (; i + TOPS * LANES <= end; i += TOPS * LANES)
                for (int k = 0; k < TOPS; ++k) take(k, load(x + i + k * LANES));
            for (; i + LANES <= end; i += LANES) take(0, load(x + i));
            if (i < end) {
                const int left = static_cast<int>(end - i);
                take(1, keep_first(load(x + i, left), left, best.value));
            }
            const float value = largest(max(max(top[0], top[1]), max(top[2], top[3])));
            const vu sizes = largest(largest(size[0], size[1]), largest(size[2], size[3]));
            const bool nan = first_lane(sizes > 0x7f800000u) < LANES;
            if (!nan && !(value > best.value)) continue;
            const int64_t at = nan ? place(x, begin, end, [](vf v) { return v != v; })
                                   : place(x, begin, end, [=](vf v) { return v == splat(value); });
            best = {to_float(x[at]), first + at};
        }
        return best;
    }

    // The first element of which a test holds; it does of one.
    template <class T, class Test>
    static int64_t place(const T* x, int64_t i, int64_t end, Test test) {
        for (; i + LANES <= end; i += LANES)
            if (const int lane = first_lane(test(load(x + i))); lane < LANES) return i + lane;
        const int left = static_cast<int>(end - i);
        return i + first_lane(test(load(x + i, left)));
    }

    // The elements number i to i + COUNT of each line.
    template <int COUNT, class T>
    static void rows(float* best, int32_t* at, const T* p, int64_t stride, int width, int64_t i) {
        each_vector(width, [&](int v, auto at_vector) {
            vf before = load(best + v);
            vi index = load_bits<vi>(at + v);
            for (int k = 0; k < COUNT; ++k) {
                const vf value = at_vector(p + k * stride);
                const vi taken = (value > before) | ((value != value) & (before == before));
                before = taken ? value : before;
                index = taken ? vi{} + static_cast<int32_t>(i + k) : index;
            }
            store(best + v, before);
            __builtin_memcpy(at + v, &index, sizeof index);
        });
    }

    template <class T>
    static void columns(State* found, const T* x, int64_t n, int64_t stride, int width, int64_t first) {
        alignas(64) float best[WIDTH];
        alignas(64) int32_t at[WIDTH];
        each_vector(width, [&](int v, auto at_vector) {
            store(best + v, at_vector(x));
            __builtin_memset(at + v, 0, LANES * sizeof(int32_t));
        });
        int64_t i = 1;
        for (; i + ROWS <= n; i += ROWS) rows<ROWS>(best, at, x + i * stride, stride, width, i);
        for (; i < n; ++i) rows<1>(best, at, x + i * stride, stride, width, i);
        for (int c = 0; c < width; ++c) found[c] = {best[c], first + at[c]};
    }

    static State join(State before, State after) { return beats(after.value, before.value) ? after : before; }

    template <class Out>
    static Out result(State s) {
        return s.index;
    }
};

}  // namespace

KW_EXPORT(argmax) { reduce<Argmax, int64_t>(args); }

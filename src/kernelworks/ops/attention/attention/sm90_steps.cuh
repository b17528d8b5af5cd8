// Which tile of keys a block of attention's gradients takes, and which steps of queries see some of it. P is the problem.
#pragma once

constexpr int KEYS = 128, HALF = 64, STEP = 64;  // keys of a tile and of a group, queries of a step
constexpr int FAR = 1 << 29;                     // shift, where every query sees every key

// A tile of keys, and the tiles of queries [first, last) that see some of it. Where every query sees every key, blocks that
// work on one head begin at different queries, so that they add to different sums.
struct Work {
    int pair, key, first, last, begin;

    template <class P>
    __device__ __forceinline__ static int tiles_of(const P& p) { return (p.queries + STEP - 1) / STEP; }
    template <bool WINDOW, class P>
    __device__ __forceinline__ static Work of(const P& p, int number) {
        int tiles = (p.keys + KEYS - 1) / KEYS, part = p.section * tiles, section = number / part;
        int inside = number - section * part, width = min(p.section, p.pairs - section * p.section);
        Work w;
        w.pair = section * p.section + inside % width;
        w.key = inside / width * KEYS;
        w.last = tiles_of(p);
        w.first = min(max(w.key - p.shift, 0) / STEP, w.last);
        if (WINDOW) {  // behind the last query that sees the last key
            int most = min(w.key + KEYS, p.keys) + p.window - p.shift - 2;
            w.last = max(min(max(most + STEP, 0) / STEP, w.last), w.first);
        }
        w.begin = !WINDOW && p.shift == FAR ? w.key / STEP % w.last : w.first;
        return w;
    }
    // To the next tile of queries; true where it is the next head's.
    __device__ __forceinline__ bool next(int& tile) const {
        if (++tile == last) tile = first;
        return tile == begin;
    }
};

// Which tiles of keys and of queries the kernels for a head_dim of 256 take, and what of the other side each sees.
#pragma once

namespace wide {

constexpr int D = 256, KEYS = 64, STEP = 64, PANELS = D / 64;  // keys of a tile, queries of a step; panels of 64 columns
constexpr int FAR = 1 << 29;                                    // shift, where every query sees every key

// The part of a problem that one launch has: key-value heads from `first` on. Query i sees keys up to i + shift.
struct Share {
    int heads, group, first, pairs;  // key-value heads of a batch, query heads of each; over all batches: first, and how many
    int queries, keys, section;      // of how many key-value heads tiles run together
    int shift;
};

inline __device__ int steps_of(const Share& s) { return (s.queries + STEP - 1) / STEP; }
inline __device__ int tiles_of_keys(const Share& s) { return (s.keys + KEYS - 1) / KEYS; }

// A tile of keys, and the tiles of 64 queries [first, last) that see some of it. The longest come first.
struct KeyTile {
    int pair, key, first, last;
};
inline __device__ KeyTile key_tile(const Share& s, int number) {
    int tiles = tiles_of_keys(s), part = s.section * tiles, section = number / part;
    int inside = number - section * part, rest = s.pairs - section * s.section;
    int width = s.section < rest ? s.section : rest, key = inside / width * KEYS;
    int last = steps_of(s), first = (key > s.shift ? key - s.shift : 0) / STEP;
    return {s.first + section * s.section + inside % width, key, first < last ? first : last, last};
}

// How many tiles of keys a tile of 64 queries sees some of: those whose steps hold it.
inline __device__ int seen_tiles(const Share& s, int step) {
    int tiles = tiles_of_keys(s), last = step * STEP + STEP - 1 + s.shift;
    if (step >= steps_of(s) || last < 0) return 0;
    return last / KEYS + 1 < tiles ? last / KEYS + 1 : tiles;
}

}  // namespace wide

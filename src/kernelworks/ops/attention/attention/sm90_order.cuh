// Which tiles of queries a block of attention's forward takes, and which blocks of keys each of them sees.
#pragma once

struct Order {
    int H, Lk, shift;        // heads of a batch; query i sees keys up to i + shift, where it is causal
    int tiles, heads, band;  // tiles of a head; heads over all batches; how many heads are taken together
    int* drawn;              // how many tiles were drawn so far, or null where each block knows its own
};

struct Tile {
    int first, blocks, h, b;  // first query; blocks of keys that some of its queries see, 0 behind the last tile
};

inline __device__ int least(int a, int b) { return a < b ? a : b; }
inline __device__ int most(int a, int b) { return a > b ? a : b; }

// The number of a block's turn-th tile. Long tiles come first; they are drawn as blocks become free, or every second
// round runs backwards, so that all get about as much.
inline __device__ int number_of(const Order& o, int turn) {
    int blocks = gridDim.x, mine = blockIdx.x;
    if (o.drawn && turn) return blocks + atomicAdd(o.drawn, 1);
    return turn * blocks + (turn & 1 ? blocks - 1 - mine : mine);
}

// The tile of a number, C::BM queries and C::BN keys a block. Heads are taken in bands whose keys and values fit L2.
template <class C>
__device__ __forceinline__ Tile tile_of(const Order& o, int number) {
    if (number >= o.tiles * o.heads) return {0, 0, 0, 0};
    int band = number / (o.band * o.tiles), rest = number - band * o.band * o.tiles;
    int heads = least(o.band, o.heads - band * o.band), row = rest / heads;
    int head = band * o.band + rest - row * heads, b = head / o.H;
    int first = (C::CAUSAL ? o.tiles - 1 - row : row) * C::BM;
    int keys = C::CAUSAL ? least(most(first + C::BM + o.shift, 0), o.Lk) : o.Lk;
    return {first, most((keys + C::BN - 1) / C::BN, 1), head - b * o.H, b};
}

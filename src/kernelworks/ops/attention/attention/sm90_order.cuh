// Which tiles of queries a block of attention's forward takes, and which blocks of keys each of them sees.
#pragma once

// Which keys a query sees: all; those up to its own position; of these the last few.
enum Sight { WHOLE, CAUSAL, WINDOW };

struct Order {
    int H, Lk;               // heads of a batch, keys
    int shift, window;       // query i stands at key i + shift, and sees so many up to there
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

// The blocks of C::BN keys that some query of the C::BM from `first` on sees, at least one: from begin_of to end_of.
template <class C>
__device__ __forceinline__ int end_of(const Order& o, int first) {
    int keys = C::SIGHT == WHOLE ? o.Lk : least(most(first + C::BM + o.shift, 0), o.Lk);
    return most((keys + C::BN - 1) / C::BN, 1);
}
template <class C>
__device__ __forceinline__ int begin_of(const Order& o, int first) {
    return C::SIGHT == WINDOW ? least(most(first + o.shift - o.window + 1, 0) / C::BN, end_of<C>(o, first) - 1) : 0;
}

// The tile of a number. Heads are taken in bands whose keys and values fit L2.
template <class C>
__device__ __forceinline__ Tile tile_of(const Order& o, int number) {
    if (number >= o.tiles * o.heads) return {0, 0, 0, 0};
    int band = number / (o.band * o.tiles), rest = number - band * o.band * o.tiles;
    int heads = least(o.band, o.heads - band * o.band), row = rest / heads;
    int head = band * o.band + rest - row * heads, b = head / o.H;
    int first = (C::SIGHT == WHOLE ? row : o.tiles - 1 - row) * C::BM;
    return {first, end_of<C>(o, first) - begin_of<C>(o, first), head - b * o.H, b};
}

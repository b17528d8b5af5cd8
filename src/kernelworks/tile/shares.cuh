// Which tiles, and which steps along K of them, a cluster of the blocked product takes. All clusters take whole tiles
// in turn. Where the last turn would leave many idle, its tiles are cut along K: their steps lie on a line that is
// shared out evenly. What a cluster takes of the line begins inside a tile and ends inside another one. It starts with
// the last of these pieces, whose sums it hands over early, and ends with the first, to which it adds what others
// handed over.
#pragma once

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64, CLUSTER = 2;
constexpr int BAND = 8;  // pairs of tiles down M before the next tile along N: what runs at a time is about square
constexpr int LEAST = 3;  // steps of a piece: shorter ones go to the neighbour

struct Piece {
    int tile, begin, end;  // steps of 64 along K
};

struct Shares {
    int down, across, steps, clusters, me, whole, turns;
    int share, extra, lo, hi;  // of the line

    // Integers as in sm90.py, which also keeps streamed * steps below 2^31.
    __device__ Shares(int M, int N, int K, int streamed)
        : down((M + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER)), across((N + TILE_N - 1) / TILE_N),
          steps((K + TILE_K - 1) / TILE_K), clusters(gridDim.x / CLUSTER), me(blockIdx.x / CLUSTER),
          whole(down * across - streamed), turns((whole - me + clusters - 1) / clusters), share(0), extra(0), lo(0),
          hi(0) {
        if (!streamed) return;
        share = streamed * steps / clusters, extra = streamed * steps % clusters;
        lo = bound(me), hi = bound(me + 1);
    }
    // Where the part of a cluster begins on the line.
    __device__ int bound(int cluster) const {
        int at = share * cluster + min(cluster, extra), inside = at % steps;
        return inside < LEAST ? at - inside : inside > steps - LEAST ? at + steps - inside : at;
    }
    // The i-th piece of this cluster, if there is one.
    __device__ bool piece(int i, Piece& p) const {
        if (i < turns) {
            p = {i * clusters + me, 0, steps};
            return true;
        }
        if (lo >= hi) return false;
        int tile = (hi - 1) / steps - (i - turns), start = tile * steps;
        if (start + steps <= lo) return false;
        p = {whole + tile, max(lo - start, 0), min(hi - start, steps)};
        return true;
    }
    // Which clusters have the steps of a tile before this piece: always in the same order.
    template <class F>
    __device__ __forceinline__ void earlier(const Piece& p, F each) const {
        int start = (p.tile - whole) * steps;
        for (int c = me - 1, to = lo, from; to > start; --c, to = from)
            if ((from = bound(c)) < to) each(c);
    }
    // The first row and column of a tile. Every second band is walked backwards: it ends where the next one begins.
    __device__ void place(int tile, int rank, int& m, int& n) const {
        int band = tile / (BAND * across), first = band * BAND, height = min(BAND, down - first);
        int inside = tile - first * across, column = inside / height, row = inside - column * height;
        m = ((first + row) * CLUSTER + rank) * TILE_M;
        n = (band & 1 ? across - 1 - column : column) * TILE_N;
    }
};

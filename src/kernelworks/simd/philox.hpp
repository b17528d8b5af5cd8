// A counter-based stream of random bits: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy
// as 1, 2, 3, SC 2011). Any element's bits follow from its place alone, so that a GPU, any number of threads and any
// order give the same ones.
//
// Element i of the stream (seed, offset) lies in block i / 64 at place r = i % 64. It is word r / 16 of the generator at
// the counter (c mod 2^32, c / 2^32, offset mod 2^32, offset / 2^32), c = 16 (i / 64) + r % 16, under the key
// (seed mod 2^32, seed / 2^32). So 16 counters side by side give 64 elements in their order.
#pragma once

#include "kernel.hpp"

namespace kw {

struct Stream {
    uint64_t seed, offset;
    uint32_t threshold;  // what it is compared with
};

constexpr int PHILOX_COUNTERS = 16, PHILOX_BLOCK = 4 * PHILOX_COUNTERS;

// The 64 elements of a block. One loop over the counters, which the compiler makes vectors of.
inline void philox_block(Stream stream, uint64_t block, uint32_t* words) {
    for (int lane = 0; lane < PHILOX_COUNTERS; ++lane) {
        const uint64_t counter = block * PHILOX_COUNTERS + static_cast<uint64_t>(lane);
        uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
        uint32_t c2 = static_cast<uint32_t>(stream.offset), c3 = static_cast<uint32_t>(stream.offset >> 32);
        uint32_t k0 = static_cast<uint32_t>(stream.seed), k1 = static_cast<uint32_t>(stream.seed >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round) {
            const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c0, b = static_cast<uint64_t>(0xCD9E8D57u) * c2;
            const uint32_t n0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
            c1 = static_cast<uint32_t>(b);
            c3 = static_cast<uint32_t>(a);
            c0 = n0;
            c2 = n2;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[lane] = c0;
        words[PHILOX_COUNTERS + lane] = c1;
        words[2 * PHILOX_COUNTERS + lane] = c2;
        words[3 * PHILOX_COUNTERS + lane] = c3;
    }
}

// The bits of elements, read mostly in their order: the block of the last one is kept.
struct RandomBits {
    Stream stream = {};
    uint64_t block = ~uint64_t{0};
    alignas(64) uint32_t words[PHILOX_BLOCK];

    // The whole block of an element.
    const uint32_t* of(uint64_t element) {
        if (element / PHILOX_BLOCK != block) {
            block = element / PHILOX_BLOCK;
            philox_block(stream, block, words);
        }
        return words;
    }
    uint32_t at(uint64_t element) { return of(element)[element % PHILOX_BLOCK]; }
};

}  // namespace kw

// What stands ready before the forward: values turned, and one number of the scales of each key-value head.
#pragma once

#include "sm90_e4m3_instructions.cuh"

namespace e4m3 {

constexpr float SMALLEST = 1.17549435e-38f;

struct Scale {  // of each batch and head, any strides
    const float* of;
    i64 b, h;
    __device__ float at(int batch, int head) const { return of[batch * b + head * h]; }
};

// [key, column] to [column, key] of a key-value head, 128 keys a block of 256 threads. In every 16 keys the order is
// 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15; behind the last key are zeros, up to a multiple of 16.
struct Turn {
    const unsigned char* v;
    unsigned char* turned;  // contiguous, rows of `pitch` bytes
    i64 b, h, l;            // strides of v
    int heads, keys, pitch;
    Scale q_descale, k_descale, v_descale;
    float scale;      // of the scores, with what powers of two need
    float2* factors;  // what the forward multiplies scores and outputs by
    int* drawn;       // the counter of tiles, cleared for the forward; or null
};

inline __device__ void turn(const Turn& p) {
    __shared__ __align__(16) u32 in[128][32];
    __shared__ __align__(16) Words out[D][8];
    let_kernels_start();
    int first = blockIdx.x * 128, head = blockIdx.y % p.heads, batch = blockIdx.y / p.heads;
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const unsigned char* from = p.v + batch * p.b + head * p.h;
    wait_for_kernels();
    if (blockIdx.x + threadIdx.x == 0) {
        float of_scores = p.scale * p.q_descale.at(batch, head) * p.k_descale.at(batch, head);
        // Not 0, which a hidden key's score times gives NaN: no score of 8 bits is so large that it shows.
        p.factors[blockIdx.y] = {of_scores < SMALLEST ? SMALLEST : of_scores, p.v_descale.at(batch, head)};
        if (p.drawn && blockIdx.y == 0) *p.drawn = 0;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int at = i * 256 + threadIdx.x, key = first + at / 8;
        Words* to = reinterpret_cast<Words*>(&in[at / 8][0]) + at % 8;
        *to = key < p.keys ? *(reinterpret_cast<const Words*>(from + key * p.l) + at % 8) : Words{};
    }
    __syncthreads();
    u32 made[4][4];  // of four columns, 16 keys each
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const u32(*row)[32] = in + warp * 16 + 2 * c;
        u32 k0 = row[0][lane], k1 = row[1][lane], k8 = row[8][lane], k9 = row[9][lane];
        u32 low = chosen(k0, k1, 0x5140), high = chosen(k0, k1, 0x7362);    // columns 0, 1 and 2, 3 of keys 0, 1
        u32 low8 = chosen(k8, k9, 0x5140), high8 = chosen(k8, k9, 0x7362);  // of keys 8, 9
        made[0][c] = chosen(low, low8, 0x5410), made[1][c] = chosen(low, low8, 0x7632);
        made[2][c] = chosen(high, high8, 0x5410), made[3][c] = chosen(high, high8, 0x7632);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[4 * lane + i][warp ^ (lane & 7)] = {made[i][0], made[i][1], made[i][2], made[i][3]};
    __syncthreads();
    unsigned char* to = p.turned + i64{blockIdx.y} * D * p.pitch;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        int at = i * 256 + threadIdx.x, column = at / 8, chunk = at % 8, key = first + 16 * chunk;
        if (key < p.pitch)
            *reinterpret_cast<Words*>(to + i64{column} * p.pitch + key) = out[column][chunk ^ (column / 4 & 7)];
    }
}

}  // namespace e4m3

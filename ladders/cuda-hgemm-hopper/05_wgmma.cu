// title: Warpgroup MMA (wgmma)
// launch: threads 256, tile 128 x 128
// multiples: M 128, N 128, K 64
// loads: L2 0.03125, shared 0.078125
// hypothesis: wgmma is issued by four warps together and multiplies 64 x 16 by 16 x 128, both straight from shared
//   memory, in the 128-byte swizzle: fragments never pass through registers, and the full matrix rate, 2048
//   multiply-adds a cycle, is within reach. A step's multiplying shrinks from 825 cycles to 512. The copies are plain
//   loads again, so that a step is 800 cycles of latency, 256 of writing and 512 of multiplying, which two blocks share
//   in turns: about 900 a step where the rung before took 1100.
// predicts: 1.2
// next: Two thirds of a step is copying, which 256 threads do with their own registers. The chip has a unit for that.
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(16) Words {  // eight elements
    u32 w[4];
};
constexpr int TILE = 128, DEPTH = 64, BYTES = TILE * DEPTH * 2;

#define FOUR(b) "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3])
#define EIGHT(b) FOUR(b), FOUR(b + 4)

// d = a b, or d += a b: a is 64 x 16 and b 128 x 16, in shared memory as their descriptors say. Asynchronous.
__device__ void wgmma(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
        "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
        "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;\n}"
        : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
        : "l"(a), "l"(b), "r"(add));
}
// What the matrix units need to know of a tile: rows of 128 bytes, 128-byte swizzle, 8 rows every 1024 bytes.
__device__ u64 descriptor(u32 address) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
__device__ u32 round(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// 64 x 128 sums to C, whose rows and columns may end before them. N is even.
__device__ void store(const float (&d)[64], u16* C, i64 row, i64 column, i64 M, i64 N) {
    row += threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column += threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < 64; j += 4) {
        i64 c = column + j * 2;
        if (row < M && c < N) *reinterpret_cast<u32*>(C + row * N + c) = round(d[j], d[j + 1]);
        if (row + 8 < M && c < N) *reinterpret_cast<u32*>(C + (row + 8) * N + c) = round(d[j + 2], d[j + 3]);
    }
}

// C[M, N] = A[M, K] B[N, K]^T, all row-major and contiguous.
extern "C" __global__ __launch_bounds__(256, 2) void hgemm(const u16* __restrict__ A, const u16* __restrict__ B, u16* C,
                                                           i64 M, i64 N, i64 K) {
    __shared__ __align__(1024) unsigned char tiles[2 * BYTES];
    u32 left = static_cast<u32>(__cvta_generic_to_shared(tiles)), right = left + BYTES;
    int group = threadIdx.x / 128, first = threadIdx.x / 8, word = threadIdx.x % 8;
    i64 m = blockIdx.y * TILE, n = blockIdx.x * TILE;
    const u16* a = A + (m + first) * K + word * 8;
    const u16* b = B + (n + first) * K + word * 8;
    unsigned char* to = tiles + first * 128 + ((word ^ (first & 7)) << 4);  // the swizzle
    float d[64];
    for (i64 k = 0; k < K; k += DEPTH) {
        Words x[4], y[4];
        for (int i = 0; i < 4; ++i) x[i] = *reinterpret_cast<const Words*>(a + 32 * i * K + k);
        for (int i = 0; i < 4; ++i) y[i] = *reinterpret_cast<const Words*>(b + 32 * i * K + k);
        __syncthreads();  // the step before is multiplied
        for (int i = 0; i < 4; ++i) *reinterpret_cast<Words*>(to + 32 * i * 128) = x[i];
        for (int i = 0; i < 4; ++i) *reinterpret_cast<Words*>(to + 32 * i * 128 + BYTES) = y[i];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the matrix units read by another way
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int q = 0; q < DEPTH / 16; ++q)
            wgmma(d, descriptor(left + group * 64 * 128) + 2 * q, descriptor(right) + 2 * q, k || q);
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    store(d, C, m + group * 64, n, M, N);
}

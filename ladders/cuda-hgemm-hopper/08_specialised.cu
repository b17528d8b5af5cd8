// title: Warp specialisation: producer and consumers
// launch: threads 288, tile 128 x 128, shared 98304
// maps: A 128 x 64, B 128 x 64
// loads: L2 0.03125, shared 0.078125
// hypothesis: One warp does nothing but ask for copies, eight nothing but multiply. They meet only at the barriers of
//   the ring, one "full" and one "empty" for each stage; nobody waits for all threads of the block, and the one that
//   asks runs as far ahead as there are stages. The bytes from L2 stay what they are, and with them the limit of the
//   rung before, so there is little to gain yet.
// predicts: 1.03
// next: 64 bytes from L2 for each cycle of multiplying. A larger tile needs fewer.
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(64) TensorMap { char bytes[128]; };
constexpr int TILE = 128, DEPTH = 64, STAGES = 3, BYTES = TILE * DEPTH * 2;

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

// A barrier's phase ends when as many have arrived, and as many bytes, as it expects.
__device__ void init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ void wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
// Starts to copy a box of a matrix, swizzled; its bytes arrive at the barrier. What lies outside the matrix is zero.
__device__ void copy(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}
__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// C[M, N] = A[M, K] B[N, K]^T, all row-major and contiguous.
extern "C" __global__ __launch_bounds__(288, 2) void hgemm(const __grid_constant__ TensorMap A,
                                                           const __grid_constant__ TensorMap B, u16* C, i64 M,
                                                           i64 N, i64 K) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ u64 barriers[2 * STAGES];
    u32 base = shared_address(ring), full = shared_address(barriers), empty = full + STAGES * 8, phase = 0;
    int m = blockIdx.y * TILE, n = blockIdx.x * TILE, steps = static_cast<int>((K + DEPTH - 1) / DEPTH), stage = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) init(full + i * 8, 1), init(empty + i * 8, 2);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy unit sees the barriers
    }
    __syncthreads();
    auto advance = [&] {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    if (threadIdx.x >= 256) {
        for (int step = 0; threadIdx.x == 256 && step < steps; ++step, advance()) {
            u32 to = base + stage * 2 * BYTES, barrier = full + stage * 8;
            wait(empty + stage * 8, phase ^ 1);  // the first time round at once
            expect(barrier, 2 * BYTES);
            copy(to, A, step * DEPTH, m, barrier);
            copy(to + BYTES, B, step * DEPTH, n, barrier);
        }
    } else {
        float d[64];
        int group = threadIdx.x / 128, last = 0;
        for (int step = 0; step < steps; ++step, advance()) {
            u64 left = descriptor(base + stage * 2 * BYTES + group * 64 * 128);
            u64 right = descriptor(base + (stage * 2 + 1) * BYTES);
            wait(full + stage * 8, phase);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int q = 0; q < DEPTH / 16; ++q) wgmma(d, left + 2 * q, right + 2 * q, step || q);
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step && threadIdx.x % 128 == 0) arrive(empty + last * 8);  // the step before this one is multiplied
            last = stage;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int j = 0; j < 64; ++j) asm volatile("" : "+f"(d[j]));  // not read before the wait
        store(d, C, m + group * 64, n, M, N);
    }
}

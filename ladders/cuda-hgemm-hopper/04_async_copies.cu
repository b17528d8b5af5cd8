// title: Asynchronous copies (cp.async)
// launch: threads 256, tile 128 x 128, shared 98304
// multiples: M 128, N 128, K 64
// loads: L2 0.03125, shared 0.125
// hypothesis: cp.async copies 16 bytes from memory to shared memory without a register and without anyone waiting. With
//   three stages two steps are on their way while a third is multiplied: 800 cycles of latency hide behind 1600 of
//   work. ldmatrix brings four 8 x 8 pieces in one instruction where 32-bit reads took four, and a swizzle (the 16-byte
//   word w of row r lies at w xor r mod 8) keeps rows in different banks without padding. Reading still takes 768
//   cycles a step, and mma.sync is known to reach about 62% of this chip's matrix rate, 825 cycles.
// predicts: 1.4
// next: mma.sync itself: operands pass through registers, each warp fetching its own copy of what its neighbours fetch
//   too. Hopper's wgmma reads both operands from shared memory.
using u16 = unsigned short;
using u32 = unsigned;
using i64 = long long;

constexpr int TILE = 128, DEPTH = 64, STAGES = 3, BYTES = TILE * DEPTH * 2;

// d += a b: a is 16 x 16, b 16 x 8, the sums are float32.
__device__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four pieces of 8 x 8; each thread gives the address of one row of one of them.
__device__ void load(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
__device__ u32 round(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// Where the 16-byte word of a row lies in a tile with rows of 128 bytes.
__device__ u32 swizzled(int row, int word) { return row * 128 + ((word ^ (row & 7)) << 4); }

// Starts to copy 128 rows of 64 elements.
__device__ void copy(u32 to, const u16* from, i64 pitch) {
    int first = threadIdx.x / 8, word = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < TILE; i += 32)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + swizzled(first + i, word)),
                     "l"(from + (first + i) * pitch + word * 8));
}

// C[M, N] = A[M, K] B[N, K]^T, all row-major and contiguous.
extern "C" __global__ __launch_bounds__(256, 2) void hgemm(const u16* __restrict__ A, const u16* __restrict__ B, u16* C,
                                                           i64 M, i64 N, i64 K) {
    extern __shared__ __align__(128) unsigned char ring[];
    u32 base = static_cast<u32>(__cvta_generic_to_shared(ring));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = static_cast<int>(K / DEPTH);
    int row = warp / 4 * 64, column = warp % 4 * 32;  // of this warp's sums in the tile
    A += blockIdx.y * TILE * K, B += blockIdx.x * TILE * K;
    float d[4][4][4] = {};
    auto fetch = [&](int step) {
        u32 to = base + step % STAGES * 2 * BYTES;
        if (step < steps) copy(to, A + step * DEPTH, K), copy(to + BYTES, B + step * DEPTH, K);
        asm volatile("cp.async.commit_group;");
    };
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // the step's data is there for all, and all have read the one before
        fetch(step + STAGES - 1);
        u32 left = base + step % STAGES * 2 * BYTES, right = left + BYTES;
#pragma unroll
        for (int q = 0; q < DEPTH / 8; q += 2) {
            u32 x[4][4], y[2][4];
            for (int i = 0; i < 4; ++i) load(x[i], left + swizzled(row + 16 * i + lane % 16, q + lane / 16));
            for (int j = 0; j < 2; ++j) load(y[j], right + swizzled(column + 16 * j + lane % 16, q + lane / 16));
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) mma(d[i][j], x[i], y[j / 2][j % 2], y[j / 2][j % 2 + 2]);
        }
    }
    C += (blockIdx.y * TILE + row + lane / 4) * N + blockIdx.x * TILE + column + lane % 4 * 2;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            *reinterpret_cast<u32*>(C + 16 * i * N + 8 * j) = round(d[i][j][0], d[i][j][1]);
            *reinterpret_cast<u32*>(C + (16 * i + 8) * N + 8 * j) = round(d[i][j][2], d[i][j][3]);
        }
}

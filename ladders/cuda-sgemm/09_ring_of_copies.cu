// title: Multistage cp.async pipeline: a ring of copies
// launch: threads 256, tile 128 x 128, shared 49920
// loads: shared 1, L2 0.0625
// hypothesis: cp.async writes from global to shared memory without passing through registers, and nobody waits for it:
//   with three stages the next two tiles are on their way while one is used, and the block meets once a tile, not
//   twice. A tile is 16 deep, its steps are unrolled, and each loads the numbers of the next one before it multiplies.
//   A is transposed by copying it 4 bytes at a time. 89% of the inner loop's instructions multiply, and 1024
//   tiles fill 97% of four turns of all multiprocessors: 57 TFLOP/s if nothing waits, 1.7 times the rung before. Some
//   waits will be left.
// predicts: 1.5
// next: Four wide loads and 64 multiply-adds a step. Shared memory delivers 128 bytes a cycle, and a wide load of a
//   warp is 512: four of them take it the 16 cycles that the multipliers need for their 64. Both are full at best.

constexpr int TILE_M = 128, TILE_N = 128, DEPTH = 16, STAGES = 3, PAD = 4;
constexpr int SUMS_M = 8, SUMS_N = 8, DOWN = 4, ACROSS = 8;  // outputs of a thread, threads of a warp
constexpr int WARP_M = DOWN * SUMS_M, WARP_N = ACROSS * SUMS_N, THREADS = TILE_M * TILE_N / (SUMS_M * SUMS_N);

struct Stage {
    float a[DEPTH][TILE_M + PAD], b[DEPTH][TILE_N];  // a is transposed
};

template <int BYTES>
__device__ void copy(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(BYTES));
}

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M and N are multiples of 128, K of 16.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    extern __shared__ __align__(16) char room[];
    Stage* stages = (Stage*)room;
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int row = warp / (TILE_N / WARP_N) * WARP_M + lane / ACROSS * 4;
    int column = warp % (TILE_N / WARP_N) * WARP_N + lane % ACROSS * 4;
    int a_row = t / 8, a_k = t % 8, b_k = t / (TILE_N / 4), b_column = t % (TILE_N / 4) * 4;
    A += (blockIdx.y * TILE_M + a_row) * K + a_k;
    B += b_k * N + blockIdx.x * TILE_N + b_column;
    C += (blockIdx.y * TILE_M + row) * N + blockIdx.x * TILE_N + column;

    int tiles = K / DEPTH;
    auto fetch = [&](int tile) {  // one group of copies for each tile, empty ones after the last
        Stage& to = stages[tile % STAGES];
        if (tile < tiles) {
#pragma unroll
            for (int k = 0; k < DEPTH; k += 8)
#pragma unroll
                for (int i = 0; i < TILE_M; i += THREADS / 8) copy<4>(&to.a[a_k + k][a_row + i], A + i * K + k);
#pragma unroll
            for (int k = 0; k < DEPTH; k += THREADS * 4 / TILE_N) copy<16>(&to.b[b_k + k][b_column], B + k * N);
            A += DEPTH, B += DEPTH * N;
        }
        asm volatile("cp.async.commit_group;");
    };
    auto arrived = [&] {  // the oldest tile, for all threads; and nobody still uses the one before
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };

    float sum[SUMS_M][SUMS_N] = {};
    alignas(16) float x[2][SUMS_M], y[2][SUMS_N];  // of this step and of the next
    auto load = [&](const Stage& from, int k) {
#pragma unroll
        for (int i = 0; i < SUMS_M; i += 4) *(float4*)&x[k % 2][i] = *(const float4*)&from.a[k][row + i * DOWN];
#pragma unroll
        for (int j = 0; j < SUMS_N; j += 4) *(float4*)&y[k % 2][j] = *(const float4*)&from.b[k][column + j * ACROSS];
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);
    arrived();
    load(stages[0], 0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const Stage &now = stages[tile % STAGES], &then = stages[(tile + 1) % STAGES];
        fetch(tile + STAGES - 1);
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k + 1 < DEPTH) {
                load(now, k + 1);
            } else {
                arrived();
                load(then, 0);
            }
#pragma unroll
            for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
                for (int j = 0; j < SUMS_N; ++j) sum[i][j] += x[k % 2][i] * y[k % 2][j];
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
        for (int j = 0; j < SUMS_N; j += 4)
            *(float4*)&C[(i / 4 * 4 * DOWN + i % 4) * N + j * ACROSS] = *(const float4*)&sum[i][j];
}

// title: Register bank conflicts removed
// launch: threads 256, tile 128 x 256, shared 49664
// multiples: M 128, N 256, K 8
// loads: shared 0.75, L2 0.046875
// hypothesis: Registers come from two banks, the even and the odd ones, and a bank delivers one a cycle. A multiply-add
//   reads three; only where a number is used twice running the second read is spared. So the sum and one more number
//   are left, and they should lie in different banks. The waits that follow can be counted in the instructions: 130
//   cycles beside the 1119 slots of the loop before. Two things are in the way. Stores of four sums want aligned
//   registers, which gives each sum the bank of the number from B that it meets: a factor of one that the compiler does
//   not know sets the sums free. And the compiler finds better places for some orders of the multiply-adds than for
//   others: of 145 orders the count leaves 28 to 157 cycles. This one has 32, and was the quickest of the ten best in a
//   trial: (1119 + 130) / (1119 + 32).
// predicts: 1.09
// next: The count is not all: orders that it likes as well ran at 0.92 to 1.05 of cuBLAS, as the compiler asks for
//   numbers from shared memory earlier or later. That cannot be had by order alone. But 512 tiles are 3.88 for each of
//   132 multiprocessors: in the last of four turns an eighth of them stand idle.

constexpr int TILE_M = 128, TILE_N = 256, DEPTH = 8, STAGES = 4, PAD = 4;
constexpr int SUMS_M = 8, SUMS_N = 16, DOWN = 4, ACROSS = 8;  // outputs of a thread, threads of a warp
constexpr int WARP_M = DOWN * SUMS_M, WARP_N = ACROSS * SUMS_N, THREADS = TILE_M * TILE_N / (SUMS_M * SUMS_N);
constexpr int ORDER[SUMS_M] = {7, 2, 0, 1, 6, 5, 4, 3};  // of the rows: few waits for registers

struct Stage {
    float a[DEPTH][TILE_M + PAD], b[DEPTH][TILE_N];  // a is transposed
};

template <int BYTES>
__device__ void copy(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(BYTES));
}

// In the order in which it is written: left alone, the compiler puts loads off until just before they are used.
__device__ void load(float* v, const float* from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"((unsigned)__cvta_generic_to_shared(from)));
}

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M is a multiple of 128, N of 256, K of 8.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
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

    float one = K ? 1.0f : 0.0f;  // as far as the compiler knows; it frees the sums from where stores want them
    float sum[SUMS_M][SUMS_N] = {};
    alignas(16) float x[2][SUMS_M], y[2][SUMS_N];  // of this step and of the next
    auto take = [&](const Stage& from, int k) {
#pragma unroll
        for (int i = 0; i < SUMS_M; i += 4) load(&x[k % 2][i], &from.a[k][row + i * DOWN]);
#pragma unroll
        for (int j = 0; j < SUMS_N; j += 4) load(&y[k % 2][j], &from.b[k][column + j * ACROSS]);
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) fetch(tile);
    arrived();
    take(stages[0], 0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const Stage &now = stages[tile % STAGES], &then = stages[(tile + 1) % STAGES];
        fetch(tile + STAGES - 1);
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (k + 1 < DEPTH) {
                take(now, k + 1);
            } else {
                arrived();
                take(then, 0);
            }
#pragma unroll
            for (int j = 0; j < SUMS_N; ++j)
#pragma unroll
                for (int n = 0; n < SUMS_M; ++n) {
                    int i = ORDER[j % 2 ? SUMS_M - 1 - n : n];  // back and forth: the last number is at hand
                    sum[i][j] += x[k % 2][i] * y[k % 2][j];
                }
        }
    }
#pragma unroll
    for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
        for (int j = 0; j < SUMS_N; j += 4)
            *(float4*)&C[(i / 4 * 4 * DOWN + i % 4) * N + j * ACROSS] = {one * sum[i][j], one * sum[i][j + 1],
                                                                         one * sum[i][j + 2], one * sum[i][j + 3]};
}

// title: Warp tiles
// launch: threads 256, tile 128 x 128
// loads: shared 1, L2 0.0625
// hypothesis: The eight warps as 4 x 2, each of 32 x 64 outputs, its threads as 4 x 8: a step of k needs 32 numbers of
//   A and 64 of B, 96 and not 144. What a warp's threads have in common is read once and broadcast, so shared memory
//   has a third less to deliver.
// predicts: 1.05
// next: Twice for each 8 steps of k the whole block stands still: a tile is loaded into registers, all threads meet,
//   it is stored, all meet again. Only the other block on the multiprocessor works meanwhile.

constexpr int TILE = 128, DEPTH = 8, SUMS = 8, PAD = 4, THREADS = TILE / SUMS * TILE / SUMS;
constexpr int DOWN = 4, ACROSS = 8;                          // threads of a warp
constexpr int WARP_M = DOWN * SUMS, WARP_N = ACROSS * SUMS;  // outputs of a warp
constexpr int NEXT_M = DOWN * 4, NEXT_N = ACROSS * 4;        // from a thread's first quad to its second

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M and N are multiples of 128, K of 8.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    __shared__ __align__(16) float a[DEPTH][TILE + PAD], b[DEPTH][TILE];  // a is transposed: a column of A lies on end
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int row = warp / (TILE / WARP_N) * WARP_M + lane / ACROSS * 4;
    int column = warp % (TILE / WARP_N) * WARP_N + lane % ACROSS * 4;
    int a_row = t / (DEPTH / 4), a_k = t % (DEPTH / 4) * 4, b_k = t / (TILE / 4), b_column = t % (TILE / 4) * 4;
    A += (blockIdx.y * TILE + a_row) * K + a_k;
    B += b_k * N + blockIdx.x * TILE + b_column;
    C += (blockIdx.y * TILE + row) * N + blockIdx.x * TILE + column;
    float sum[SUMS][SUMS] = {};
    for (long long k0 = 0; k0 < K; k0 += DEPTH, A += DEPTH, B += DEPTH * N) {
        float4 v = *(const float4*)A;
        a[a_k][a_row] = v.x, a[a_k + 1][a_row] = v.y, a[a_k + 2][a_row] = v.z, a[a_k + 3][a_row] = v.w;
        *(float4*)&b[b_k][b_column] = *(const float4*)B;
        __syncthreads();
        for (int k = 0; k < DEPTH; ++k) {
            alignas(16) float x[SUMS], y[SUMS];
            for (int i = 0; i < SUMS; i += 4) {
                *(float4*)&x[i] = *(const float4*)&a[k][row + i / 4 * NEXT_M];
                *(float4*)&y[i] = *(const float4*)&b[k][column + i / 4 * NEXT_N];
            }
            for (int i = 0; i < SUMS; ++i)
                for (int j = 0; j < SUMS; ++j) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < SUMS; ++i)
        for (int j = 0; j < SUMS; j += 4)
            *(float4*)&C[(i / 4 * NEXT_M + i % 4) * N + j / 4 * NEXT_N] = *(const float4*)&sum[i][j];
}

// title: 2D register tile: a square of sums
// launch: threads 256, tile 128 x 128
// loads: shared 1, L2 0.0625
// hypothesis: 8 x 8 outputs a thread: 16 numbers loaded for 64 multiply-adds, one byte of shared memory for each.
//   Loads are no longer the most frequent instruction, and two blocks of 256 threads share a multiprocessor and fill
//   each other's waits.
// predicts: 2.2
// next: Sixteen narrow loads for 64 multiply-adds are a fifth of all instructions, and every one takes a slot in
//   which a multiply-add could have been issued. Four numbers a load would make it 4.

constexpr int TILE = 128, DEPTH = 8, SUMS = 8, THREADS = TILE / SUMS * TILE / SUMS;

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M and N are multiples of 128, K of 8.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    __shared__ float a[TILE][DEPTH], b[DEPTH][TILE];
    int t = threadIdx.x, row = t / (TILE / SUMS) * SUMS, column = t % (TILE / SUMS) * SUMS;
    A += blockIdx.y * TILE * K;
    B += blockIdx.x * TILE;
    C += blockIdx.y * TILE * N + blockIdx.x * TILE;
    float sum[SUMS][SUMS] = {};
    for (long long k0 = 0; k0 < K; k0 += DEPTH, A += DEPTH, B += DEPTH * N) {
        for (int at = t; at < TILE * DEPTH; at += THREADS) {
            a[at / DEPTH][at % DEPTH] = A[at / DEPTH * K + at % DEPTH];
            b[at / TILE][at % TILE] = B[at / TILE * N + at % TILE];
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; ++k) {
            float x[SUMS], y[SUMS];
            for (int i = 0; i < SUMS; ++i) x[i] = a[row + i][k];
            for (int j = 0; j < SUMS; ++j) y[j] = b[k][column + j];
            for (int i = 0; i < SUMS; ++i)
                for (int j = 0; j < SUMS; ++j) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < SUMS; ++i)
        for (int j = 0; j < SUMS; ++j) C[(row + i) * N + column + j] = sum[i][j];
}

// title: 1D register tile: a column of sums
// launch: threads 512, tile 64 x 64
// loads: shared 1.5, L2 0.125
// hypothesis: Eight outputs a thread, one below the other: an element of B is loaded once and meets eight of A. For
//   four steps of k that is 4 loads of B and 8 wide ones of A for 32 multiply-adds: 0.375 loads each and not 1.25,
//   3.3 times fewer. The chains are eight as well, which hides the latency of the addition.
// predicts: 2.8
// next: The column reuses B eight times but A not at all. A square of outputs reuses both.

constexpr int TILE = 64, DEPTH = 8, SUMS = 8;

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M and N are multiples of 64, K of 8.
extern "C" __global__ void __launch_bounds__(TILE* TILE / SUMS)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    __shared__ float a[TILE][DEPTH], b[DEPTH][TILE];
    int t = threadIdx.x, row = t / TILE * SUMS, column = t % TILE;
    A += blockIdx.y * TILE * K + t / DEPTH * K + t % DEPTH;
    B += blockIdx.x * TILE + t / TILE * N + t % TILE;
    C += blockIdx.y * TILE * N + blockIdx.x * TILE;
    float sum[SUMS] = {};
    for (long long k0 = 0; k0 < K; k0 += DEPTH, A += DEPTH, B += DEPTH * N) {
        a[t / DEPTH][t % DEPTH] = *A;
        b[t / TILE][t % TILE] = *B;
        __syncthreads();
        for (int k = 0; k < DEPTH; ++k)
            for (int i = 0; i < SUMS; ++i) sum[i] += a[row + i][k] * b[k][column];
        __syncthreads();
    }
    for (int i = 0; i < SUMS; ++i) C[(row + i) * N + column] = sum[i];
}

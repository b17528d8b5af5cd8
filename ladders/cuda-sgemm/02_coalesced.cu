// title: Coalesced loads
// launch: threads 1024, tile 32 x 32
// loads: L1 8
// hypothesis: With / and % exchanged, a warp owns 32 columns of one row: all its threads want the same element of A,
//   which is one read, and 32 neighbours of B, which is one line. Two lines of L1 for 32 multiply-adds, not 33.
//   The bound is 16 times higher; caches soften it on both sides, so half of that.
// predicts: 8
// next: Each multiply-add still asks L1 twice, and L1 answers one line a cycle: at most 16 multiply-adds a cycle where
//   128 could be. Keep a tile of A and of B in shared memory, where a load is cheaper and can be wider.

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" __global__ void __launch_bounds__(1024)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    long long i = blockIdx.y * 32 + threadIdx.x / 32, j = blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0;
    for (long long k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}

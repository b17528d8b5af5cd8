// title: Shared-memory tiles
// launch: threads 1024, tile 32 x 32
// loads: shared 5, L2 0.25
// hypothesis: The block copies 32 x 32 of A and of B into shared memory and uses each element 32 times from there.
//   L2 is asked 32 times less. But a multiply-add still needs two numbers from shared memory, which has the same 128
//   bytes a cycle as L1; only A can come four at a time, since four steps of k lie on end: five loads for four
//   multiply-adds and not eight, so 1.6 at most.
// predicts: 1.5
// next: The loads for each multiply-add, not where they come from. A number must serve more than once after it was
//   loaded: give each thread several outputs.

constexpr int TILE = 32;

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M, N and K are multiples of 32.
extern "C" __global__ void __launch_bounds__(TILE * TILE)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    int row = threadIdx.x / TILE, column = threadIdx.x % TILE;
    long long i = blockIdx.y * TILE + row, j = blockIdx.x * TILE + column;
    float sum = 0;
    for (long long k0 = 0; k0 < K; k0 += TILE) {
        a[row][column] = A[i * K + k0 + column];
        b[row][column] = B[(k0 + row) * N + j];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += a[row][k] * b[k][column];
        __syncthreads();
    }
    C[i * N + j] = sum;
}

// title: Naive
// launch: threads 1024, tile 32 x 32
// loads: L1 8
// hypothesis: The formula as it is written, one output a thread, and the threads of a warp down a column of C. For
//   one multiply-add a warp then reads 32 elements of A that lie K apart: 32 lines of L1 for 32 numbers. The 128
//   multipliers of a multiprocessor wait for L1, which looks up a few lines a cycle.
// next: The warp runs across the rows of A and C. Turn it so that neighbouring threads own neighbouring columns.

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous.
extern "C" __global__ void __launch_bounds__(1024)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    long long i = blockIdx.y * 32 + threadIdx.x % 32, j = blockIdx.x * 32 + threadIdx.x / 32;
    float sum = 0;
    for (long long k = 0; k < K; ++k) sum += A[i * K + k] * B[k * N + j];
    C[i * N + j] = sum;
}

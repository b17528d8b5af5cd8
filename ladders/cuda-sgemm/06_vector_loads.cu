// title: Vectorised loads
// launch: threads 256, tile 128 x 128
// loads: shared 1, L2 0.0625
// hypothesis: Four numbers a load. B lies on end along the outputs of a thread already; A does once it is stored
//   transposed, which costs nothing more: it passes through registers on the way to shared memory. Then a step of k
//   is 4 loads for 64 multiply-adds instead of 10, and the tiles come from memory with 2 loads a thread instead of 8.
//   The compiler's inner loop was 80% multiply-adds and would be 85%, but every narrow load of A also met a second
//   one in its bank.
// predicts: 1.2
// next: Bank conflicts. A thread's 8 columns are 32 bytes, so the 8 threads that load at once use every other 16
//   bytes of a line and come twice; storing A transposed puts two threads of a warp in one bank four times.

constexpr int TILE = 128, DEPTH = 8, SUMS = 8, THREADS = TILE / SUMS * TILE / SUMS;

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M and N are multiples of 128, K of 8.
extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K) {
    __shared__ __align__(16) float a[DEPTH][TILE], b[DEPTH][TILE];  // a is transposed: a column of A lies on end
    int t = threadIdx.x, row = t / (TILE / SUMS) * SUMS, column = t % (TILE / SUMS) * SUMS;
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
                *(float4*)&x[i] = *(const float4*)&a[k][row + i];
                *(float4*)&y[i] = *(const float4*)&b[k][column + i];
            }
            for (int i = 0; i < SUMS; ++i)
                for (int j = 0; j < SUMS; ++j) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < SUMS; ++i)
        for (int j = 0; j < SUMS; j += 4) *(float4*)&C[i * N + j] = *(const float4*)&sum[i][j];
}

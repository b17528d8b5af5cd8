// title: One block
// launch: threads 1024, tile 4294967296 x 1
// hypothesis: The loop as one would write it, shared among the 1024 threads of one block, neighbours reading neighbours.
//   Then one of them adds up what the others found. A multiprocessor has few loads on their way at a time, each takes
//   most of a microsecond, and 131 other multiprocessors have nothing to do.
// next: One of 132 multiprocessors works. Give each block a part of x; what the blocks find must then be put together
//   by one that knows that all others have ended.

constexpr int THREADS = 1024;

// y = the sum of x[N].
extern "C" __global__ void __launch_bounds__(THREADS) sum(const float* __restrict__ x, float* y, long long N) {
    __shared__ float part[THREADS];
    int t = threadIdx.x;
    float found = 0;
    for (long long i = t; i < N; i += THREADS) found += x[i];
    part[t] = found;
    __syncthreads();
    if (t == 0) {
        for (int i = 1; i < THREADS; ++i) found += part[i];
        *y = found;
    }
}

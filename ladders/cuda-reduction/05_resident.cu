// title: Persistent blocks, grid-stride loop: blocks that stay
// launch: threads 1024, tile 1024 x 1, grid multiprocessors, each 2, workspace 16384
// hypothesis: As many blocks as the multiprocessors hold, and each walks through x in steps as wide as all of them
//   together, adding to one register a thread. Tree, count and start happen once for each of 264 blocks and not a
//   million times. The compiler puts four turns of the loop together: 2048 threads with four loads of 4 bytes each are
//   32 KiB on their way in each multiprocessor, 4.3 MB in all, and memory at 4.6 TB/s answers in 0.8 us what asks for
//   3.7 MB. So it is about enough; what is not, is lost to the addresses, of which each load has its own.
// predicts: 3.5
// next: Four bytes a load. A warp's load is one line of memory of 128 bytes, and each needs its address, its place in the
//   queue and its addition.

constexpr int THREADS = 1024, WARPS = THREADS / 32;

struct Scratch {
    unsigned came;  // 0 before the launch and after it
    float left[1];  // by every block
};

__device__ float of_warp(float mine) {
    for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
    return mine;
}

// y = the sum of x[N].
extern "C" __global__ void __launch_bounds__(THREADS)
    sum(const float* __restrict__ x, float* y, long long N, Scratch* scratch) {
    __shared__ float part[WARPS];
    __shared__ bool last;
    int t = threadIdx.x;
    auto of_block = [&](float mine) {  // what the first thread gets
        mine = of_warp(mine);
        if (t % 32 == 0) part[t / 32] = mine;
        __syncthreads();
        return t < 32 ? of_warp(t < WARPS ? part[t] : 0) : 0;
    };
    long long width = static_cast<long long>(gridDim.x) * THREADS;
    float found = 0;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + t; i < N; i += width) found += x[i];
    found = of_block(found);
    if (t == 0) {
        scratch->left[blockIdx.x] = found;
        __threadfence();
        last = atomicInc(&scratch->came, gridDim.x - 1) == gridDim.x - 1;  // from the last number on to 0
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    found = 0;
    for (unsigned b = t; b < gridDim.x; b += THREADS) found += __ldcg(&scratch->left[b]);
    found = of_block(found);
    if (t == 0) *y = found;
}

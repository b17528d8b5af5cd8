// title: Tree reduction: a block for every 1024
// launch: threads 1024, tile 1024 x 1, grid tiles, workspace 16777216
// hypothesis: A million blocks, an element a thread, and in each a tree over shared memory: at every step half as many
//   threads add. Each block leaves its sum in memory and counts itself; the last to come adds up all of them, always
//   in the same order. A block now lives for one load (0.8 us), ten steps of the tree with a barrier each (0.1 us
//   each), and the count: some 2.2 us for 4 KiB, two at a time on each of 132 multiprocessors, 490 GB/s. One block's
//   loop gets about 16 KiB in 0.7 us, 23 GB/s.
// predicts: 20
// next: The tree. Its steps take longer than the load, and while a block is in it nothing of it is on the way from
//   memory. The threads that still add are spread over all warps, so that every warp goes through every step.

constexpr int THREADS = 1024;

struct Scratch {
    unsigned came;  // 0 before the launch and after it
    float left[1];  // by every block
};

// y = the sum of x[N].
extern "C" __global__ void __launch_bounds__(THREADS)
    sum(const float* __restrict__ x, float* y, long long N, Scratch* scratch) {
    __shared__ float part[THREADS];
    __shared__ bool last;
    int t = threadIdx.x;
    auto of_block = [&](float mine) {
        part[t] = mine;
        __syncthreads();
        for (int step = 1; step < THREADS; step *= 2) {
            if (t % (2 * step) == 0) part[t] += part[t + step];
            __syncthreads();
        }
        return part[0];
    };
    long long i = static_cast<long long>(blockIdx.x) * THREADS + t;
    float found = of_block(i < N ? x[i] : 0);
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

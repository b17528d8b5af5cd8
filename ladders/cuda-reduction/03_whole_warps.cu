// title: Warp divergence removed: whole warps leave the tree
// launch: threads 1024, tile 1024 x 1, grid tiles, workspace 16777216
// hypothesis: The same tree, the other way round: at each step the first half of the threads adds what the second half
//   holds. After the first step half of the warps only wait, after the fifth all but one; neighbours read neighbours,
//   so no two meet in a bank. Of the instructions of the tree a third is left, but the ten barriers are the same, and
//   they are most of its time.
// predicts: 1.3
// next: Ten barriers for 4 KiB. Within a warp no barrier is needed: its threads can hand registers to each other.

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
        for (int step = THREADS / 2; step > 0; step /= 2) {
            if (t < step) part[t] += part[t + step];
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

// title: Equal shares
// launch: threads 256, tile 128 x 256, shared 49664, grid multiprocessors, workspace 1024
// multiples: M 128, N 256, K 8
// loads: shared 0.75, L2 0.046875
// hypothesis: 512 tiles are 3.88 for each of 132 multiprocessors: in the last of four turns an eighth of them stand
//   idle. So one block for each, and all take the same number of steps of k: most begin in the middle of a tile and
//   end in the middle of another. The block that has the end of a tile does it first and leaves its sums in C; the one
//   that has the beginning does it last and adds them. By then they have long been there, and nobody waits. The copies
//   of a tile begin while the one before is multiplied. 4 / 3.88 is what there is to gain.
// predicts: 1.03
// next: Every 8 steps of k the block meets at a barrier, and the quicker warps wait for the slowest.

constexpr int TILE_M = 128, TILE_N = 256, DEPTH = 8, STAGES = 4, PAD = 4;
constexpr int SUMS_M = 8, SUMS_N = 16, DOWN = 4, ACROSS = 8;  // outputs of a thread, threads of a warp
constexpr int WARP_M = DOWN * SUMS_M, WARP_N = ACROSS * SUMS_N, THREADS = TILE_M * TILE_N / (SUMS_M * SUMS_N);

struct Stage {
    float a[DEPTH][TILE_M + PAD], b[DEPTH][TILE_N];  // a is transposed
};

template <int BYTES>
__device__ void copy(float* to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "n"(BYTES));
}

// In the order in which it is written: left alone, the compiler puts loads off until just before they are used.
__device__ void load(float* v, const float* from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "r"((unsigned)__cvta_generic_to_shared(from)));
}

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M is a multiple of 128, N of 256, K of 8. A flag says that
// the end of a shared tile's sums is in C.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K, int* flags) {
    extern __shared__ __align__(16) char room[];
    Stage* stages = (Stage*)room;
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int row = warp / (TILE_N / WARP_N) * WARP_M + lane / ACROSS * 4;
    int column = warp % (TILE_N / WARP_N) * WARP_N + lane % ACROSS * 4;
    int a_row = t / 8, a_k = t % 8, b_k = t / (TILE_N / 4), b_column = t % (TILE_N / 4) * 4;

    // The steps of all tiles in a row, and an equal share of them for each block.
    int steps = K / DEPTH, across = N / TILE_N, all = M / TILE_M * across * steps;
    int begin = (long long)all * blockIdx.x / gridDim.x, end = (long long)all * (blockIdx.x + 1) / gridDim.x;

    const float *from_a, *from_b;
    int fetched = begin, left = 0;  // steps left of the tile that is fetched
    auto fetch = [&](int slot) {    // one group of copies for each step, empty ones after the last
        Stage& to = stages[slot];
        if (fetched < end) {
            if (left == 0) {
                int tile = fetched / steps, k = fetched % steps * DEPTH;
                left = steps - fetched % steps;
                from_a = A + (tile / across * TILE_M + a_row) * K + k + a_k;
                from_b = B + (k + b_k) * N + tile % across * TILE_N + b_column;
            }
#pragma unroll
            for (int i = 0; i < TILE_M; i += THREADS / 8) copy<4>(&to.a[a_k][a_row + i], from_a + i * K);
#pragma unroll
            for (int k = 0; k < DEPTH; k += THREADS * 4 / TILE_N) copy<16>(&to.b[b_k + k][b_column], from_b + k * N);
            from_a += DEPTH, from_b += DEPTH * N, ++fetched, --left;
        }
        asm volatile("cp.async.commit_group;");
    };
    auto arrived = [&] {  // the oldest step, for all threads; and nobody still uses the one before
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
    };

    float sum[SUMS_M][SUMS_N];
    alignas(16) float x[2][SUMS_M], y[2][SUMS_N];  // of this step of k and of the next
    auto take = [&](const Stage& from, int k) {
#pragma unroll
        for (int i = 0; i < SUMS_M; i += 4) load(&x[k % 2][i], &from.a[k][row + i * DOWN]);
#pragma unroll
        for (int j = 0; j < SUMS_N; j += 4) load(&y[k % 2][j], &from.b[k][column + j * ACROSS]);
    };
    for (int slot = 0; slot < STAGES - 1; ++slot) fetch(slot);
    arrived();
    take(stages[0], 0);
    int slot = 0;
    for (int at = begin; at < end;) {
        int tile = at / steps, first = at % steps, last = min(steps, first + end - at);
#pragma unroll
        for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
            for (int j = 0; j < SUMS_N; ++j) sum[i][j] = 0;
#pragma unroll 1
        for (int step = first; step < last; ++step, ++at) {
            int next = (slot + 1) % STAGES;
            fetch((slot + STAGES - 1) % STAGES);
#pragma unroll
            for (int k = 0; k < DEPTH; ++k) {
                if (k + 1 < DEPTH) {
                    take(stages[slot], k + 1);
                } else {
                    arrived();
                    take(stages[next], 0);
                }
#pragma unroll
                for (int j = 0; j < SUMS_N; ++j)
#pragma unroll
                    for (int n = 0; n < SUMS_M; ++n) {
                        int i = j % 2 ? SUMS_M - 1 - n : n;  // back and forth: the last number is at hand
                        sum[i][j] += x[k % 2][i] * y[k % 2][j];
                    }
            }
            slot = next;
        }
        // A tile that two blocks share: one stores the end of its sums early on, one adds the beginning at its end.
        bool add = last < steps;
        if (add && t == 0) {
            int* flag = flags + blockIdx.x + 1;
            int set = 0;
            while (!set) asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
            *flag = 0;
        }
        if (add) __syncthreads();
        float* to = C + (tile / across * TILE_M + row) * N + tile % across * TILE_N + column;
#pragma unroll
        for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
            for (int j = 0; j < SUMS_N; j += 4) {
                float4* p = (float4*)&to[(i / 4 * 4 * DOWN + i % 4) * N + j * ACROSS];
                float4 v = add ? __ldcg(p) : float4{0, 0, 0, 0};
                *p = {v.x + sum[i][j], v.y + sum[i][j + 1], v.z + sum[i][j + 2], v.w + sum[i][j + 3]};
            }
        if (first > 0) {
            __threadfence();
            __syncthreads();
            if (t == 0) asm volatile("st.release.gpu.b32 [%0], 1;" ::"l"(flags + blockIdx.x) : "memory");
        }
    }
}

// title: Stream-K: equal shares
// launch: threads 256, tile 128 x 256, shared 49664, grid multiprocessors, workspace 1024
// multiples: M 128, N 256, K 32
// loads: shared 0.75, L2 0.046875
// hypothesis: One block for each multiprocessor takes whole tiles in turn while all have one to take. The tiles of the
//   last turn are cut along K: their steps lie on a line that is shared out evenly, so that a block has the end of one
//   tile and the beginning of another. It does the end first and leaves its sums in C; the beginning it does last, and
//   adds what its neighbour has long left there. The copies of a tile start while the one before is multiplied, and
//   where they come from is chosen without a branch, so that the compiler can spread them between the multiply-adds.
//   The addition in the end frees the sums as the factor of one did; the order of the rows is the best by the count,
//   and in a trial, of 83. 4 / 3.88 is what there is to gain.
// predicts: 1.03
// next: 90% of the slots multiply, and 4% of the cycles wait for registers; the rest are numbers from shared memory,
//   which the compiler asks for some 40 slots ahead, and meetings. The power limit is near as well: in long runs the
//   clock falls from 1980 to 1950 MHz.

constexpr int TILE_M = 128, TILE_N = 256, DEPTH = 8, STAGES = 4, PAD = 4;
constexpr int SUMS_M = 8, SUMS_N = 16, DOWN = 4, ACROSS = 8;  // outputs of a thread, threads of a warp
constexpr int WARP_M = DOWN * SUMS_M, WARP_N = ACROSS * SUMS_N, THREADS = TILE_M * TILE_N / (SUMS_M * SUMS_N);
constexpr int ORDER[SUMS_M] = {7, 4, 5, 2, 1, 0, 3, 6};  // of the rows: the fewest waits for registers

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

// C[M, N] = A[M, K] B[K, N], all row-major and contiguous. M is a multiple of 128, N of 256, K of 32. A flag says that
// the later part of a shared tile's sums is in C.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sgemm(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, long long M, long long N,
          long long K, int* flags) {
    extern __shared__ __align__(16) char room[];
    Stage* stages = (Stage*)room;
    int t = threadIdx.x, lane = t % 32, warp = t / 32;
    int row = warp / (TILE_N / WARP_N) * WARP_M + lane / ACROSS * 4;
    int column = warp % (TILE_N / WARP_N) * WARP_N + lane % ACROSS * 4;
    int a_row = t / 8, a_k = t % 8, b_k = t / (TILE_N / 4), b_column = t % (TILE_N / 4) * 4;

    // Whole turns of tiles, one for each block; then the steps of the tiles that are left in equal shares, all cuts at
    // multiples of four steps. Where these are few the last blocks get none: a neighbour always has the next steps.
    int steps = K / DEPTH, across = N / TILE_N, tiles = M / TILE_M * across, blocks = gridDim.x, block = blockIdx.x;
    int turns = tiles / blocks, fours = tiles % blocks * (steps / 4), sharing = min(blocks, fours);
    int begin = block < sharing ? fours * block / sharing * 4 : 0;
    int end = block < sharing ? fours * (block + 1) / sharing * 4 : 0;
    int parts = turns + (begin < end ? (end - 1) / steps - begin / steps + 1 : 0);
    struct Part {
        int tile, first, last;
    };
    auto part = [&](int n) {
        if (n < turns) return Part{n * blocks + block, 0, steps};
        int tile = begin / steps + n - turns;
        return Part{turns * blocks + tile, max(0, begin - tile * steps), min(steps, end - tile * steps)};
    };

    const float *from_a, *from_b, *next_a, *next_b;
    int left, next_left;  // steps
    auto place = [&](int n, const float*& a, const float*& b, int& count) {
        Part p = part(min(n, parts - 1));
        a = A + (p.tile / across * TILE_M + a_row) * K + p.first * DEPTH + a_k;
        b = B + (p.first * DEPTH + b_k) * N + p.tile % across * TILE_N + b_column;
        count = p.last - p.first;
    };
    auto fetch = [&](int slot) {  // without a branch; after the last part some that nobody wants
        Stage& to = stages[slot];
#pragma unroll
        for (int i = 0; i < TILE_M; i += THREADS / 8) copy<4>(&to.a[a_k][a_row + i], from_a + i * K);
#pragma unroll
        for (int k = 0; k < DEPTH; k += THREADS * 4 / TILE_N) copy<16>(&to.b[b_k + k][b_column], from_b + k * N);
        bool over = --left == 0;
        from_a = over ? next_a : from_a + DEPTH, from_b = over ? next_b : from_b + DEPTH * N;
        left = over ? next_left : left;
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
    place(0, from_a, from_b, left);
    next_a = from_a, next_b = from_b, next_left = left;
    for (int slot = 0; slot < STAGES - 1; ++slot) fetch(slot);
    arrived();
    take(stages[0], 0);
    int slot = 0;
    for (int n = 0; n < parts; ++n) {
        Part p = part(n);
        place(n + 1, next_a, next_b, next_left);
#pragma unroll
        for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
            for (int j = 0; j < SUMS_N; ++j) sum[i][j] = 0;
#pragma unroll 1
        for (int step = p.first; step < p.last; ++step) {
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
                        int i = ORDER[j % 2 ? SUMS_M - 1 - n : n];  // back and forth: the last number is at hand
                        sum[i][j] += x[k % 2][i] * y[k % 2][j];
                    }
            }
            slot = next;
        }
        // A tile that blocks share: who has the end of it stores it early on, who has the beginning adds it at last.
        bool add = p.last < steps;
        if (add && t == 0) {
            int* flag = flags + block + 1;
            int set = 0;
            while (!set) asm volatile("ld.acquire.gpu.b32 %0, [%1];" : "=r"(set) : "l"(flag) : "memory");
            *flag = 0;
        }
        if (add) __syncthreads();
        float* to = C + (p.tile / across * TILE_M + row) * N + p.tile % across * TILE_N + column;
#pragma unroll
        for (int i = 0; i < SUMS_M; ++i)
#pragma unroll
            for (int j = 0; j < SUMS_N; j += 4) {
                float4* at = (float4*)&to[(i / 4 * 4 * DOWN + i % 4) * N + j * ACROSS];
                float4 v = add ? __ldcg(at) : float4{0, 0, 0, 0};
                *at = {v.x + sum[i][j], v.y + sum[i][j + 1], v.z + sum[i][j + 2], v.w + sum[i][j + 3]};
            }
        if (p.first > 0) {
            __threadfence();
            __syncthreads();
            if (t == 0) asm volatile("st.release.gpu.b32 [%0], 1;" ::"l"(flags + block) : "memory");
        }
    }
}

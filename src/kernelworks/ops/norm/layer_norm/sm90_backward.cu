// The gradients of layer_norm on Hopper, for 16-bit elements. Rows come by asynchronous copies into a ring in shared
// memory, where they are read twice: by four warps that measure them, and by sixteen that turn them into gradients and
// keep a block's shares of the gradients of weight and bias in registers over all its rows. So a row comes in while the
// next is measured and the one before is turned, and memory never waits for a sum. A second kernel adds the shares.
//
// A group of the sixteen warps takes a row: as many as hold its columns at V pieces of 16 bytes a thread. A block has as
// many groups as fit, each with its own ring. The four measure the groups' rows in turn. A thread that turns fetches what
// it will turn itself, into the place of what it has turned, so that a group's threads need not meet. Integers arrive as
// 64 bits.
#include "measures.cuh"

struct Problem {
    const u16 *grad, *x, *weight;  // weight: null for ones
    u16* grad_x;
    float* partial;  // shares of the gradients of weight (and bias), [1 or 2, blocks, N]; null where nobody wants them
    i64 grad_stride, x_stride;
    int M, N, warps, stages;
    float eps;
};

// Where the rows of a block's groups lie, and when they are there.
struct Places {
    unsigned char *memory, *rings;
    int groups, step, stages;
    u32 row_bytes;

    __device__ Places(const Problem& a, unsigned char* memory)
        : memory(memory), rings(memory + WEIGHT + (2 * a.N + 127) / 128 * 128), groups(WARPS / a.warps),
          step(gridDim.x * groups), stages(a.stages), row_bytes(2 * a.N) {}
    __device__ int first(int group) const { return blockIdx.x + gridDim.x * group; }
    __device__ unsigned char* row(int group, int stage) const { return rings + (group * stages + stage) * 2 * row_bytes; }
    __device__ u32 barrier(int kind, int group, int stage) const {
        return shared_address(memory) + kind + 8 * (group * MOST_STAGES + stage);
    }
    __device__ Measures* measures(int group, int stage) const {
        return reinterpret_cast<Measures*>(rings + groups * stages * 2 * row_bytes) + group * stages + stage;
    }
};

// A thread asks for its own V pieces of a row (V - 1, where the row is not whole); the barrier counts the group's threads.
template <int V>
__device__ __forceinline__ void fetch(
    const Problem& a, const Places& at, int group, u32 row, int stage, int begin, int stride, bool whole) {
    u32 to = shared_address(at.row(group, stage)) + 2 * begin, barrier = at.barrier(COME, group, stage);
    const u16 *x = a.x + row * a.x_stride + begin, *grad = a.grad + row * a.grad_stride + begin;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        if (v + 1 == V && !whole) break;
        copy(to + 2 * v * stride, x + v * stride);
        copy(to + at.row_bytes + 2 * v * stride, grad + v * stride);
    }
    arrive_with_copies(barrier);
}

inline __device__ Words words(const u16* p) {
    uint4 q = *reinterpret_cast<const uint4*>(p);
    return Words{{q.x, q.y, q.z, q.w}};
}

// The warps that measure: teams take the groups in turn, each row as one round of sums gives it or, rarely, more.
template <class T>
__device__ __forceinline__ void measure(const Problem& a, const Places& at, int warp, int lane) {
    int warps = at.groups < MEASURERS ? MEASURERS / at.groups : 1, teams = MEASURERS / warps;
    Team team{at.memory, warps, warp / warps, lane, warp};
    if (team.number >= teams) return;
    const u16* weight = reinterpret_cast<const u16*>(at.memory + WEIGHT);
    int begin = (warp % warps * 32 + lane) * EACH, stride = warps * 32 * EACH, stage = 0;
    float inverse = 1.0f / static_cast<float>(a.N);
    u32 phase = 0;
    for (i64 turn = 0; at.first(team.number) + turn < a.M; turn += at.step) {
        for (int group = team.number; group < at.groups && at.first(group) + turn < a.M; group += teams) {
            const u16* x = reinterpret_cast<const u16*>(at.row(group, stage));
            const u16* grad = x + a.N;
            barrier_wait(at.barrier(COME, group, stage), phase);
            float two[4][2] = {}, sums[4];
#pragma unroll 4
            for (int i = begin; i < a.N; i += stride) {
                Words p = words(x + i), o = words(grad + i), w = words(weight + i);
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    float e = T::get(p.w[j / 2], j % 2), g = T::get(o.w[j / 2], j % 2) * T::get(w.w[j / 2], j % 2);
                    two[0][j % 2] = fmaf(e, e, two[0][j % 2]);
                    two[1][j % 2] = fmaf(e, g, two[1][j % 2]);
                    two[2][j % 2] += e, two[3][j % 2] += g;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] = two[i][0] + two[i][1];
            team.sums(sums);
            float centre = sums[2] * inverse, mean_g = sums[3] * inverse;
            float variance = sums[0] * inverse - centre * centre + a.eps;
            bool fine = fabsf(sums[1]) < __int_as_float(0x7f800000) && centre * centre <= variance;
            float c = (sums[1] * inverse - centre * mean_g) * rsqrtf(variance);
            Measures m = measures(1.0f, centre, 0.0f, variance, c, mean_g);
            if (!(fine && variance > LEAST && variance < MOST))
                m = centred_again<T>(team, Row<T>{x, grad, weight, a.N, begin, stride}, centre, mean_g, a.eps);
            if (begin == 0) {
                *at.measures(group, stage) = m;
                barrier_arrive(at.barrier(MEASURED, group, stage));
            }
        }
        if (++stage == at.stages) stage = 0, phase ^= 1;
    }
}

// What a thread has of the sums down the columns, four at a time, of the first `pieces` of its V.
template <int V, class Use>
__device__ __forceinline__ void fours(
    const float (&of_weight)[V][EACH], const float (&of_bias)[V][EACH], int pieces, int first, int stride, Use use) {
#pragma unroll
    for (int v = 0; v < V; ++v)
        if (v < pieces)
#pragma unroll
            for (int i = 0; i < EACH; i += 4) use(first + v * stride + i, &of_weight[v][i], &of_bias[v][i]);
}

inline __device__ void put(float* to, const float* sums) {
    *reinterpret_cast<float4*>(to) = float4{sums[0], sums[1], sums[2], sums[3]};
}

// What a block leaves of its sums down the columns: its share.
template <int V>
__device__ __forceinline__ void leave(
    const Problem& a, const Places& at, const float (&of_weight)[V][EACH], const float (&of_bias)[V][EACH]) {
    u32 thread;  // asked for anew, so that nothing of it is kept through all rows: registers are short
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    int group = thread / 32 / a.warps, member = thread / 32 % a.warps * 32 + thread % 32, stride = a.warps * 32 * EACH;
    bool works = group < at.groups, whole = member * EACH + (V - 1) * stride < a.N;
    int pieces = !works ? 0 : whole ? V : V - 1;
    // A group's sums take the place of its first two rows, which nobody reads any more.
    float* parts = reinterpret_cast<float*>(at.row(group, 0));
    if (at.groups == 1) {
        float* share = a.partial + static_cast<i64>(blockIdx.x) * a.N;
        float* next = share + static_cast<i64>(gridDim.x) * a.N;
        fours(of_weight, of_bias, pieces, member * EACH, stride, [&](int column, const float* weights, const float* biases) {
            put(share + column, weights);
            put(next + column, biases);
        });
        return;
    }
    if (a.warps == 1)
        __syncwarp();
    else if (works)
        asm volatile("bar.sync %0, %1;" ::"r"(1 + MEASURERS + group), "r"(32 * a.warps) : "memory");
    fours(of_weight, of_bias, pieces, member * EACH, stride, [&](int column, const float* weights, const float* biases) {
        put(parts + column, weights);
        put(parts + a.N + column, biases);
    });
    block_barrier();
    for (int i = 4 * threadIdx.x; works && i < 2 * a.N; i += 4 * 32 * a.warps * at.groups) {
        float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int g = 0; g < at.groups; ++g) {
            float4 part = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(at.row(g, 0)) + i);
            sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        int which = i >= a.N;
        i64 row = static_cast<i64>(which) * gridDim.x + blockIdx.x;
        *reinterpret_cast<float4*>(a.partial + row * a.N + i - which * a.N) = sum;
    }
}

// The warps that turn rows into gradients, V pieces of 16 bytes of a row a thread.
template <class T, int V>
__device__ __forceinline__ void turn(const Problem& a, const Places& at, int warp, int lane) {
    int group = warp / a.warps, member = (warp % a.warps) * 32 + lane, stride = a.warps * 32 * EACH;
    bool works = group < at.groups, whole = member * EACH + (V - 1) * stride < a.N;  // only the last piece may be none
    const u16* weight = reinterpret_cast<const u16*>(at.memory + WEIGHT) + member * EACH;
    float of_weight[V][EACH] = {}, of_bias[V][EACH] = {};
    int place = 0;  // stage, and stages more in every second round
    u32 M = works ? a.M : 0;
    for (int s = 0; s < at.stages; ++s)
        if (u32 row = at.first(group) + s * at.step; row < M) fetch<V>(a, at, group, row, s, member * EACH, stride, whole);
    for (u32 turn = blockIdx.x; turn < M; turn += at.step) {
        u32 row = turn + gridDim.x * group;
        int stage = place < at.stages ? place : place - at.stages;
        if (row < M) {
            u32 phase = place >= at.stages;
            const u16* x = reinterpret_cast<const u16*>(at.row(group, stage)) + member * EACH;
            const u16* grad = x + a.N;
            u16* to = a.grad_x + static_cast<i64>(row) * a.N + member * EACH;
            barrier_wait(at.barrier(COME, group, stage), phase);
            barrier_wait(at.barrier(MEASURED, group, stage), phase);
            const Measures m = *at.measures(group, stage);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                if (v + 1 == V && !whole) break;
                Words p = words(x + v * stride), o = words(grad + v * stride), w = words(weight + v * stride);
                float d[EACH];
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    float e = T::get(p.w[i / 2], i % 2), g = T::get(o.w[i / 2], i % 2), z = fmaf(fmaf(e, m.scale, -m.centre), m.r, -m.shift);
                    of_weight[v][i] = fmaf(g, z, of_weight[v][i]);
                    of_bias[v][i] += g;
                    d[i] = fmaf(g * T::get(w.w[i / 2], i % 2), m.slope, fmaf(z, m.less, m.least));
                }
                *reinterpret_cast<uint4*>(to + v * stride) =
                    uint4{T::put(d[0], d[1]), T::put(d[2], d[3]), T::put(d[4], d[5]), T::put(d[6], d[7])};
            }
        }
        row += at.stages * at.step;
        if (row < M) fetch<V>(a, at, group, row, stage, member * EACH, stride, whole);
        if (++place == 2 * at.stages) place = 0;
    }
    if (a.partial) leave<V>(a, at, of_weight, of_bias);
}

template <class T, int V>
__device__ __forceinline__ void gradients(const Problem& a) {
    extern __shared__ __align__(128) unsigned char memory[];
    let_next_kernel_start();
    Places at(a, memory);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int g = 0; g < at.groups; ++g)
            for (int s = 0; s < at.stages; ++s)
                barrier_init(at.barrier(COME, g, s), 32 * a.warps), barrier_init(at.barrier(MEASURED, g, s), 1);
    }
    __syncthreads();
    wait_for_kernel_before();
    for (int i = threadIdx.x * EACH; i < a.N; i += THREADS * EACH)
        *reinterpret_cast<uint4*>(memory + WEIGHT + 2 * i) =
            a.weight ? *reinterpret_cast<const uint4*>(a.weight + i) : uint4{T::ONES, T::ONES, T::ONES, T::ONES};
    __syncthreads();
    if (warp >= WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        measure<T>(a, at, warp - WARPS, lane);
        if (a.partial && at.groups > 1) block_barrier();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
        turn<T, V>(a, at, warp, lane);
    }
}

// ---------------------------------------------------------------- the shares

constexpr int COLUMNS = 32, DEEP = 32, SUM_THREADS = COLUMNS / 4 * DEEP, BATCH = 5;

// Adds the shares of COLUMNS columns in a fixed order: BATCH at a time, and those sums in float64, for a conversion takes as
// long as four loads. A block a strip; y: which gradient.
template <class T>
__device__ __forceinline__ void column_sums(const float* partial, u16* of_weight, u16* of_bias, int shares, int N) {
    __shared__ double parts[DEEP][COLUMNS];
    int four = threadIdx.x % (COLUMNS / 4), deep = threadIdx.x / (COLUMNS / 4);
    int column = blockIdx.x * COLUMNS + 4 * four;
    u16* to = blockIdx.y ? of_bias : of_weight;
    double sums[4] = {};
    wait_for_kernel_before();
    if (column < N) {
        const float* from = partial + static_cast<i64>(blockIdx.y) * shares * N + column;
        for (int first = deep; first < shares; first += BATCH * DEEP) {
            float4 batch{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                int s = first + i * DEEP;
                float4 v{0.0f, 0.0f, 0.0f, 0.0f};
                if (s < shares) v = *reinterpret_cast<const float4*>(from + static_cast<i64>(s) * N);
                batch.x += v.x, batch.y += v.y, batch.z += v.z, batch.w += v.w;
            }
            sums[0] += batch.x, sums[1] += batch.y, sums[2] += batch.z, sums[3] += batch.w;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[deep][4 * four + i] = sums[i];
    __syncthreads();
    column = blockIdx.x * COLUMNS + threadIdx.x;
    if (threadIdx.x >= COLUMNS || column >= N || !to) return;
    double sum = 0.0;
#pragma unroll
    for (int i = 0; i < DEEP; ++i) sum += parts[i][threadIdx.x];
    to[column] = static_cast<u16>(T::put(static_cast<float>(sum), 0.0f));
}

#define KW_GRADIENTS(type, T, V)                                                                                      \
    extern "C" __global__ __launch_bounds__(THREADS, 1) void gradients_##type##_##V(                                  \
        const u16* grad, const u16* x, const u16* weight, u16* grad_x, float* partial, i64 grad_stride, i64 x_stride, \
        i64 M, i64 N, i64 warps, i64 stages, float eps) {                                                             \
        gradients<T, V>(Problem{grad, x, weight, grad_x, partial, grad_stride, x_stride, static_cast<int>(M),         \
                                static_cast<int>(N), static_cast<int>(warps), static_cast<int>(stages), eps});        \
    }
#define KW_COLUMN_SUMS(type, T)                                                                                       \
    extern "C" __global__ __launch_bounds__(SUM_THREADS) void column_sums_##type(                                     \
        const float* partial, u16* of_weight, u16* of_bias, i64 shares, i64 N) {                                      \
        column_sums<T>(partial, of_weight, of_bias, static_cast<int>(shares), static_cast<int>(N));                   \
    }
KW_GRADIENTS(bfloat16, Bf16, 3)
KW_GRADIENTS(bfloat16, Bf16, 4)
KW_COLUMN_SUMS(bfloat16, Bf16)
KW_GRADIENTS(float16, F16, 3)
KW_GRADIENTS(float16, F16, 4)
KW_COLUMN_SUMS(float16, F16)

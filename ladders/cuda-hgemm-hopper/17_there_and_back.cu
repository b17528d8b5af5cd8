// title: Serpentine tile order: there and back
// launch: threads 384, tile 128 x 256, shared 229376, cluster 2, grid multiprocessors, workspace 17305600, early yes
// maps: A 128 x 64, B 128 x 64, C 16 x 64
// loads: L2 0.015625, shared 0.0625
// hypothesis: The tiles of a turn together walk along K, and what they read last is in L2 when the next turn begins, at
//   the other end of K. So every second whole tile is walked from its end: about 15% fewer bytes from memory at 4096^3,
//   which at some 50 pJ a byte are just under 1% of the energy, and as much time where power sets the clock.
// predicts: 1.005
// next: Energy still. And a finding of rung 12 is open: more bytes pass through L2 since there are clusters, where
//   fewer were to be expected.
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;

struct alignas(64) TensorMap { char bytes[128]; };
constexpr int ROWS = 128, COLUMNS = 256, DEPTH = 64, STAGES = 4;
constexpr u32 BYTES_A = ROWS * DEPTH * 2, BYTES_B = COLUMNS * DEPTH * 2, BYTES = BYTES_A + BYTES_B;
constexpr u32 PANEL = 64 * 64 * 2;
constexpr int GROUP = 8, JOIN = 8;  // pairs of tiles down before the next column; steps that sharing must save

#define FOUR(b) "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3])
#define EIGHT(b) FOUR(b), FOUR(b + 4)

// d = a b, or d += a b: a is 64 x 16 and b 256 x 16, in shared memory as their descriptors say. Asynchronous.
__device__ void wgmma(float (&d)[128], u64 a, u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
        "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,"
        "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,"
        "%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,"
        "%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,"
        "%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, p, 1, 1, 0, 0;\n}"
        : EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56), EIGHT(64),
          EIGHT(72), EIGHT(80), EIGHT(88), EIGHT(96), EIGHT(104), EIGHT(112), EIGHT(120)
        : "l"(a), "l"(b), "r"(add));
}
// What the matrix units need to know of a tile: rows of 128 bytes, 128-byte swizzle, 8 rows every 1024 bytes.
__device__ u64 descriptor(u32 address) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
__device__ u32 round(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
// 16 x 64 of a warp's rounded sums to shared memory, in the swizzle; from there the copy unit writes them to C.
__device__ void send(const u32* sums, u32 panel, const TensorMap& C, int row, int column) {
    int lane = threadIdx.x % 32, line = lane % 16;
#pragma unroll
    for (int q = 0; q < 4; ++q)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                         panel + line * 128 + ((2 * q + lane / 16 ^ line & 7) << 4)),
                     "r"(sums[4 * q]), "r"(sums[4 * q + 1]), "r"(sums[4 * q + 2]), "r"(sums[4 * q + 3])
                     : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0)
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n"
            "cp.async.bulk.commit_group;" ::"l"(&C), "r"(panel), "r"(column), "r"(row)
            : "memory");
}

// A barrier's phase ends when as many have arrived, and as many bytes, as it expects.
__device__ void init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// At the barrier of the same place in another block of the cluster.
__device__ void arrive_at(u32 barrier, u32 block) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block)
        : "memory");
}
__device__ void wait(u32 barrier, u32 phase) {
    asm volatile(
        "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barrier), "r"(phase)
        : "memory");
}
// Starts to copy a box of a matrix, swizzled; its bytes arrive at the barrier. What lies outside the matrix is zero.
__device__ void copy(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(row)
        : "memory");
}
// The same into the same place of both blocks of a cluster, each of whose barriers counts what arrives there.
__device__ void copy_to_both(u32 to, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to), "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(u16{3})
        : "memory");
}
__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
// Which steps of which tiles a cluster takes: whole tiles in turns, and an equal share of the steps of the last ones.
struct Plan {
    int steps, clusters, me, whole, share, low, high;  // steps low to high, counted from the first tile that is shared
    __device__ Plan(int tiles, int steps) : steps(steps), clusters(gridDim.x / 2), me(blockIdx.x / 2) {
        int rest = tiles % clusters;
        if (2 * rest < clusters && tiles > clusters) rest += clusters;
        share = (rest * steps + clusters - 1) / clusters;
        bool shared = (rest + clusters - 1) / clusters * steps - share > JOIN;
        whole = shared ? tiles - rest : tiles;
        low = shared ? min(me * share, rest * steps) : 0, high = shared ? min(low + share, rest * steps) : 0;
    }
    // This cluster's piece i, steps begin to end of a tile; of its share the last tile comes first: others wait for it.
    __device__ bool piece(int i, int& tile, int& begin, int& end) const {
        tile = i * clusters + me, begin = 0, end = steps;
        if (tile < whole) return true;
        int part = (high - 1) / steps - (i - whole / clusters);
        tile = whole + part, begin = max(low - part * steps, 0), end = min(high - part * steps, steps);
        return low < high && part >= low / steps;
    }
    // Calls `each` with the clusters that have a tile's steps before `begin`.
    template <class Each> __device__ void before(int tile, int begin, Each each) const {
        for (int c = me - 1; begin > 0; --c) each(c), begin = c * share - (tile - whole) * steps;
    }
};
__device__ int slot(int cluster, u32 rank, int group) { return (cluster * 2 + static_cast<int>(rank)) * 2 + group; }
// One warp for each group: says that its sums lie in memory, and waits until those that it is to add do.
__device__ void mail(const Plan& plan, u32* flags, u32 rank, int group) {
    int tile, begin, end, mine = slot(plan.me, rank, group), leader = threadIdx.x % 32 == 0;
    for (int i = plan.whole / plan.clusters; plan.piece(i, tile, begin, end); ++i)
        if (end < plan.steps) {
            asm volatile("bar.sync %0, 160;" ::"r"(group + 3) : "memory");
            if (leader) asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flags + mine) : "memory");
        } else if (begin > 0) {
            if (leader) plan.before(tile, begin, [&](int cluster) {
                u32 *flag = flags + slot(cluster, rank, group), there = 0;
                while (!there) asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(flag) : "memory");
                *flag = 0;  // for the next launch
            });
            __syncwarp();
            asm volatile("bar.arrive %0, 160;" ::"r"(group + 5) : "memory");
        }
}

// Where pair i of tiles, one below the other, begins.
__device__ void place(int i, int down, int across, int& m, int& n) {
    int first = i / (GROUP * across) * GROUP, height = min(GROUP, down - first), inside = i - first * across;
    m = (first + inside % height) * 2 * ROWS, n = inside / height * COLUMNS;
}

// C[M, N] = A[M, K] B[N, K]^T, all row-major and contiguous.
extern "C" __global__ __launch_bounds__(384, 1) void hgemm(const __grid_constant__ TensorMap A,
                                                           const __grid_constant__ TensorMap B,
                                                           const __grid_constant__ TensorMap C, i64 M, i64 N,
                                                           i64 K, float4* workspace) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ u64 barriers[2 * STAGES];
    u32 base = shared_address(ring), full = shared_address(barriers), empty = full + STAGES * 8, phase = 0, rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    int down = static_cast<int>(M + 2 * ROWS - 1) / (2 * ROWS), across = static_cast<int>(N + COLUMNS - 1) / COLUMNS;
    int steps = static_cast<int>((K + DEPTH - 1) / DEPTH), stage = 0, pair, begin, end, m, n;
    u32* flags = reinterpret_cast<u32*>(workspace + 132 * 2 * 4096);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) init(full + i * 8, 1), init(empty + i * 8, 4);  // both groups of both blocks
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (const TensorMap* map : {&A, &B, &C}) asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");  // for the launch before
    auto advance = [&] { phase ^= ++stage == STAGES, stage %= STAGES; };
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        Plan plan(down * across, steps);
        if (threadIdx.x / 32 == 1 || threadIdx.x / 32 == 2) mail(plan, flags, rank, threadIdx.x / 32 - 1);
        for (int i = 0; threadIdx.x == 0 && plan.piece(i, pair, begin, end); ++i) {
            place(pair, down, across, m, n);
            for (int step = begin; step < end; ++step, advance()) {
                u32 to = base + stage * BYTES, barrier = full + stage * 8;
                wait(empty + stage * 8, phase ^ 1);  // in both blocks; the first time round at once
                expect(barrier, BYTES);
                int k = (i % 2 && end - begin == steps ? steps - 1 - step : step) * DEPTH;
                copy(to, A, k, m + rank * ROWS, barrier);
                copy_to_both(to + BYTES_A + rank * (BYTES_B / 2), B, k, n + rank * (COLUMNS / 2), barrier);
            }
        }
        // The block's shared memory stays until the other has sent its last arrivals there.
        for (int i = 0; threadIdx.x == 0 && i < STAGES; ++i, advance()) wait(empty + stage * 8, phase ^ 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        Plan plan(down * across, steps);
        float d[128];
        u32 sums[64];  // of the tile before, rounded; `left` quarters of them are still here
        int thread = threadIdx.x % 128, group = threadIdx.x / 128 - 1, last = 0, left = 0;
        u32 rows = base + group * PANEL, panel = rows + STAGES * BYTES + group * PANEL + thread / 32 * 2048;
        auto leave = [&] {
            if (thread % 32 == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            __syncwarp();
#pragma unroll
            for (int part = 0; part < 4; ++part)
                if (left == 4 - part) send(sums + 16 * part, panel + part % 2 * PANEL, C, m, n + part * 64);
            --left;
        };
        for (int i = 0, row, column; plan.piece(i, pair, begin, end); ++i) {
            place(pair, down, across, row, column);
            asm volatile("" : "+r"(row), "+r"(column));  // here, and not where they are used
            for (int step = begin; step < end; ++step, advance()) {
                u64 a = descriptor(rows + stage * BYTES), b = descriptor(base + stage * BYTES + BYTES_A);
                wait(full + stage * 8, phase);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int q = 0; q < DEPTH / 16; ++q) wgmma(d, a + 2 * q, b + 2 * q, step > begin || q);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                if (left) leave();
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (step > begin && thread < 2) arrive_at(empty + last * 8, thread);  // the step before is multiplied
                last = stage;
            }
            while (left) leave();  // the piece ends within four steps
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (thread < 2) arrive_at(empty + last * 8, thread);
#pragma unroll
            for (int j = 0; j < 128; ++j) asm volatile("" : "+f"(d[j]));  // not read before the wait
            if (end < plan.steps) {
                float4* to = workspace + slot(plan.me, rank, group) * 4096 + thread;
#pragma unroll
                for (int j = 0; j < 32; ++j) __stcg(to + j * 128, {d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]});
                asm volatile("bar.arrive %0, 160;" ::"r"(group + 3) : "memory");
                continue;
            }
            if (begin > 0) asm volatile("bar.sync %0, 160;" ::"r"(group + 5) : "memory");
            plan.before(pair, begin, [&](int cluster) {
                const float4* from = workspace + slot(cluster, rank, group) * 4096 + thread;
#pragma unroll
                for (int j = 0; j < 32; ++j) {
                    float4 v = __ldcg(from + j * 128);
                    d[4 * j] += v.x, d[4 * j + 1] += v.y, d[4 * j + 2] += v.z, d[4 * j + 3] += v.w;
                }
            });
#pragma unroll
            for (int j = 0; j < 64; ++j) sums[j] = round(d[2 * j], d[2 * j + 1]);
            m = row + static_cast<int>(rank) * ROWS + group * 64 + thread / 32 * 16, n = column, left = 4;
        }
        if (left) {  // nothing more comes into the ring: this group's rows of A there take all quarters at once
            asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
#pragma unroll
            for (int part = 0; part < 4; ++part)
                send(sums + 16 * part, rows + part * BYTES + thread / 32 * 2048, C, m, n + part * 64);
        }
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// title: TMA store of the output
// launch: threads 384, tile 128 x 128, grid multiprocessors, shared 229376, workspace 8
// maps: q 128 x 64, k 128 x 64, v 128 x 64, out 64 x 64
// hypothesis: A group's output goes to shared memory with eight instructions, and the copy unit brings it to memory while
//   the next tile is under way. 32 stores of 4 bytes a thread kept a group for some 2000 cycles, one block's time of 19.
// predicts: 1.04
// next: Power. The matrix units run at a clock that 700 W allow; what saves power would count.
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using i64 = long long;
constexpr int D = 128, TILE = 128, BAND = 16, GROUPS = 2, BYTES = TILE * D * 2, PANEL = TILE * 128;
constexpr float FACTOR = 0.08838834764831845f * 1.4426950408889634f;  // exponentials are of base 2
constexpr float NOTHING = -1.f / 0.f;
constexpr float HEADROOM = 8 / FACTOR;  // of a score above the maximum: its weight may reach 2^8

#define EIGHT(b) \
    "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), "+f"(d[b + 6]), "+f"(d[b + 7])
#define SUMS \
    EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24), EIGHT(32), EIGHT(40), EIGHT(48), EIGHT(56)
#define NAMES \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
    "%58,%59,%60,%61,%62,%63}"
// d = a b, or d += a b: a is 64 x 16, b 16 x 128. Asynchronous. Queries and keys, both in shared memory:
__device__ void score(float (&d)[64], u64 a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " NAMES
                 ", %64, %65, p, 1, 1, 0, 0;\n}"
                 : SUMS : "l"(a), "l"(b), "r"(add));
}
// Weights in registers, and values in shared memory, k down their rows:
__device__ void weigh(float (&d)[64], const u32* a, u64 b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " NAMES
                 ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
                 : SUMS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
__device__ void ended(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    for (int j = 0; j < 64; ++j) asm volatile("" : "+f"(d[j])::"memory");  // not read before the wait
}
// Of panels of 64 columns in shared memory, 128-byte swizzle; read down their rows, `panel` bytes lie between panels.
__device__ u64 descriptor(u32 address, u32 panel = 16) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | (static_cast<u64>(panel >> 4) << 16) | (64ull << 32) | (1ull << 62);
}
__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }
__device__ u32 round(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
struct alignas(64) TensorMap { char bytes[128]; };
// Two places of 128 rows of 128. A barrier's phase ends when as many have arrived, and as many bytes, as it expects: of
// `full` when the bytes are there, of `free` when all warps have read them.
struct Ring {
    u32 room, full, free, at = 0, phase = 0;
    __device__ Ring(u32 room, u32 barriers) : room(room), full(barriers), free(barriers + 16) {}
    __device__ void init() const {
        for (u32 b = full; b < full + 32; b += 8)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(b < free ? 1 : 4 * GROUPS));
    }
    __device__ u32 place() const { return room + at * BYTES; }
    __device__ void next() { at ^= 1, phase ^= at == 0; }
    __device__ void wait(u32 barriers, u32 phase) const {
        asm volatile(
            "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            "@done bra GONE;\nbra AGAIN;\nGONE:\n}" ::"r"(barriers + at * 8), "r"(phase) : "memory");
    }
    __device__ void arrive(u32 barriers) const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barriers + at * 8) : "memory");
    }
    __device__ void fill(const TensorMap& map, int row) {
        wait(free, phase ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + at * 8), "r"(BYTES) : "memory");
        for (int column = 0; column < D; column += 64)
            asm volatile(
                "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
                    "r"(place() + column / 64 * PANEL), "l"(&map), "r"(full + at * 8), "r"(column), "r"(row) : "memory");
        next();
    }
    __device__ void leave() {  // a warp has read what lies there
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(free);
        next();
    }
};
// Of a thread's two rows: what weights are relative to, their sum, and what was summed of values before must shrink by.
struct Softmax {
    float top[2] = {NOTHING, NOTHING}, total[2] = {}, shrink[2];
    // Whether what was summed before must shrink for these scores.
    __device__ bool rise(const float (&s)[64]) {
        float high[2] = {s[0], s[2]};
        for (int j = 0; j < 64; ++j) high[j / 2 % 2] = fmaxf(high[j / 2 % 2], s[j]);
        bool grown = __any_sync(~0u, high[0] > top[0] + HEADROOM || high[1] > top[1] + HEADROOM);
        for (int r = 0; r < 2 && grown; ++r) {
            high[r] = fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 1));
            high[r] = fmaxf(top[r], fmaxf(high[r], __shfl_xor_sync(~0u, high[r], 2)));
            shrink[r] = exponential((top[r] - high[r]) * FACTOR);
            top[r] = high[r], total[r] *= shrink[r];
        }
        return grown;
    }
    // Scores to weights, rounded, eight at a time.
    __device__ void spread(float (&s)[64], u32 (&weights)[32]) {
        float base[2] = {-top[0] * FACTOR, -top[1] * FACTOR}, sum[2][2] = {{total[0], 0}, {total[1], 0}};
        for (int c = 0; c < 64; c += 8) {
            float from[2] = {base[0], base[1]};
            if (c) from[0] = fmaf(s[c - 8], 0, base[0]), from[1] = fmaf(s[c - 6], 0, base[1]);
            for (int j = c; j < c + 8; ++j) s[j] = exponential(fmaf(s[j], FACTOR, from[j / 2 % 2]));
            for (int j = c; j < c + 8; ++j) sum[j / 2 % 2][j % 2] += s[j];
            for (int j = c / 2; j < c / 2 + 4; ++j) weights[j] = round(s[2 * j], s[2 * j + 1]);
        }
        total[0] = sum[0][0] + sum[0][1], total[1] = sum[1][0] + sum[1][1];
    }
};
// Keys behind their query, in the block on the diagonal.
__device__ void cut(float (&s)[64], int row) {
    int column = threadIdx.x % 4 * 2;
    for (int j = 0; j < 64; ++j)
        if (j / 4 * 8 + column + j % 2 > row + j / 2 % 2 * 8) s[j] = NOTHING;
}
// What a tile's sums are multiplied by; the next one begins.
__device__ void close(Softmax& softmax, float (&inverse)[2]) {
    for (int r = 0; r < 2; ++r) {
        float total = softmax.total[r] + __shfl_xor_sync(~0u, softmax.total[r], 1);
        inverse[r] = 1 / (total + __shfl_xor_sync(~0u, total, 2));
        softmax.top[r] = NOTHING, softmax.total[r] = 0;
    }
}
// The output of a group to its place in shared memory, and from there, 64 rows by 64 columns at a time, to memory.
__device__ void write(u32 to, const TensorMap& out, int row, const float (&sum)[64], const float (&inverse)[2]) {
    int lane = threadIdx.x % 32, line = threadIdx.x % 128 / 32 * 16 + lane % 16, leads = threadIdx.x % 128 == 0;
    if (leads) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // what was there before has left
    asm volatile("bar.sync %0, 128;" ::"r"(threadIdx.x / 128) : "memory");
    for (int t = 0; t < 8; ++t) {
        u32 p[4], at = to + t / 4 * 64 * 128 + line * 128 + ((t % 4 * 2 + lane / 16 ^ lane % 8) << 4);
        for (int j = 0; j < 4; ++j) p[j] = round(sum[8 * t + 2 * j] * inverse[j % 2], sum[8 * t + 2 * j + 1] * inverse[j % 2]);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(p[0]), "r"(p[1]), "r"(p[2]),
                     "r"(p[3]) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;\nbar.sync %0, 128;" ::"r"(threadIdx.x / 128) : "memory");
    for (int part = 0; part < 2 && leads; ++part)
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&out),
                     "r"(to + part * 64 * 128), "r"(part * 64), "r"(row) : "memory");
    if (leads) asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// First row of its head, first of its queries, and blocks of keys: of a number, the longest first, 16 heads at a time.
struct Tile { int head, first, blocks; };
__device__ Tile tile_of(int number, int H, int L) {
    int tiles = L / TILE, band = number / (BAND * tiles) * BAND, heads = H - band < BAND ? H - band : BAND;
    number -= band * tiles;
    int blocks = tiles - number / heads, head = (band + number % heads) * L;
    return {head, head + (blocks - 1) * TILE, blocks};
}
// q, k, v and out are [H, L, 128], L a multiple of 128.
extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)
    attention(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
              const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap out, i64 H, i64 L, unsigned* drawn) {
    extern __shared__ __align__(1024) unsigned char room[];
    __shared__ u64 barriers[12];
    __shared__ int numbers[2];  // of the tiles whose queries are there
    u32 start = shared_address(room), at = shared_address(barriers);
    Ring queries(start, at), keys(start + 2 * BYTES, at + 32), values(start + 4 * BYTES, at + 64);
    int all = L / TILE * H;
    if (threadIdx.x == 0) {
        queries.init(), keys.init(), values.init();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy unit sees the barriers
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x) return;
        for (int number = blockIdx.x;; number = gridDim.x + atomicAdd(drawn, 1)) {
            queries.wait(queries.free, queries.phase ^ 1);
            numbers[queries.at] = number;
            if (number >= all) break;
            Tile tile = tile_of(number, H, L);
            queries.fill(q, tile.first);
            for (int row = tile.head; row <= tile.first; row += TILE) keys.fill(k, row), values.fill(v, row);
        }
        queries.arrive(queries.full);
        if (atomicInc(drawn + 1, gridDim.x - 1) == gridDim.x - 1) *drawn = 0;  // all have drawn their last
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    int warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32, row = warp * 16 + lane / 4;
    u32 place = start + 6 * BYTES + warp / 4 * 64 * D * 2;
    Tile tile;  // left: blocks of it that have no scores yet; first: nothing has been summed of it; to: its first row
    int left, to, first = true;
    Softmax softmax;
    float s[64], sum[64], inverse[2];
    u32 weights[32];
    auto draw = [&] {
        queries.wait(queries.full, queries.phase);
        if (numbers[queries.at] >= all) return false;
        tile = tile_of(numbers[queries.at], H, L), left = tile.blocks;
        return true;
    };
    auto scores = [&] {  // started
        u64 from = descriptor(queries.place() + warp / 4 * 64 * 128), right = descriptor(keys.place());
        keys.wait(keys.full, keys.phase);
        begin();
        for (int t = 0; t < D / 16; ++t)
            score(s, from + t / 4 * (PANEL >> 4) + t % 4 * 2, right + t / 4 * (PANEL >> 4) + t % 4 * 2, t > 0);
        commit();
    };
    auto scored = [&] {
        keys.leave();
        if (--left == 0) cut(s, row), queries.leave();
    };
    auto add = [&](bool first) {  // started
        u64 right = descriptor(values.place(), PANEL);
        for (int t = 0; t < TILE / 16; ++t) weigh(sum, weights + 4 * t, right + t * 128, t > 0 || !first);
        commit();
    };
    auto added = [&] {
        ended<0>(sum);
        for (int j = 0; j < 32; ++j) asm volatile("" : "+r"(weights[j])::"memory");  // read until now
        values.leave();
    };
    draw(), scores();
    ended<0>(s);
    scored(), softmax.rise(s), softmax.spread(s, weights);
    while (true) {
        bool over = left == 0;
        to = tile.first + warp / 4 * 64;
        values.wait(values.full, values.phase);
        if (over && !draw()) break;
        scores(), add(first);
        ended<1>(s);
        scored();
        if (over) close(softmax, inverse);
        bool grown = softmax.rise(s);
        added();
        if (over) write(place, out, to, sum, inverse);
        else if (grown)
            for (int j = 0; j < 64; ++j) sum[j] *= softmax.shrink[j / 2 % 2];
        first = over;
        softmax.spread(s, weights);
    }
    begin(), add(first), close(softmax, inverse), added(), write(place, out, to, sum, inverse);
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

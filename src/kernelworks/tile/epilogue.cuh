// The blocked product where something is done to each sum before it is rounded: activations, the product of a gate and
// what it lets through, a residual, a factor for each row. As blocked.cuh, with two differences:
// - A tile of a residual comes through the ring, behind the last step of the tile that it is added to.
// - Of a pair the tile of w is 64 rows of the gate's weight, 64 of the other one's, and 64 more of each, so that the two
//   sums of an output lie in one thread. Each block of the cluster fetches half of them for both.
#pragma once

#include "blocked.cuh"
#include "waits.cuh"

constexpr int COLUMNS = 64;  // that are finished and stored at a time
constexpr u32 BYTES_BIAS = TILE_N * 2;

struct Fused {
    const Blocked& product;  // its w is the gate's of a pair
    const TensorMap &up, &residual;
    const float* scales;  // one for each row
};

// ---------------------------------------------------------------- functions of a sum

template <class T>
constexpr bool SHORT = false;
template <>
constexpr bool SHORT<Bf16> = true;

// 2^v, at most two units in the last place off; 0 below 2^-126.
inline __device__ float power_of_two(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
inline __device__ float reciprocal(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
inline __device__ float fused_product(float a, float b, float c) {
    float r;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
    return r;
}
// 1 / v for v >= 1 by products alone, 0 from 1.9 2^125 to 2^127: a guess that is off by a twentieth, and two steps that make
// that 2^-23.6. The unit for powers and reciprocals is what an activation waits for.
inline __device__ float reciprocal_by_products(float v) {
    float y = __int_as_float(0x7EF311C7 - __float_as_int(v)), off = fused_product(-v, y, 1.0f);
    y = fused_product(y, fused_product(off, off, off), y);
    return fused_product(y, fused_product(-v, y, 1.0f), y);
}
// 1 / (1 + 2^w). Every second one goes the other way (odd, known once loops are unrolled), so that both kinds of units
// have work. Where it is 0, an infinity that it is multiplied with becomes NaN.
inline __device__ float one_over_one_plus_power(float w, bool odd) {
    if (!odd) return reciprocal(1.0f + power_of_two(w));
    return reciprocal_by_products(1.0f + power_of_two(fminf(w, 126.5f)));
}

// What is done to the sums of a tile. SCALED by a factor for each row, of a PAIR of weights, plus a RESIDUAL.
struct Sum {
    static constexpr bool SCALED = false, PAIR = false, RESIDUAL = false;
    static __device__ __forceinline__ float of(float v, bool) { return v; }
};
struct Scaled : Sum {
    static constexpr bool SCALED = true;
};
struct Added : Sum {
    static constexpr bool RESIDUAL = true;
};
// v / (1 + e^-2u): where the power overflows, the result is 0 or next to it.
struct GeluTanh : Sum {
    static __device__ __forceinline__ float of(float v, bool odd) {
        float w = v * (v * v * -0.1029432395800235f - 2.302208198144325f);  // -2 u(v) log2 e
        return v * one_over_one_plus_power(w, odd);
    }
};
// max(v, 0) - |v| tail, as in tile/gelu.py: minimax for the relative error, 2^-17.7 in bfloat16 and 2^-23.2 in float16.
inline __device__ float tail_applied(float v, float e, float rp) {
    return fmaxf(v, 0.0f) - fabsf(fminf(v, 20.0f)) * (e * rp);
}
template <class T>
struct GeluNone : Sum {
    static __device__ __forceinline__ float of(float v, bool) {
        float s = v * 0.8493218002880191f, e = power_of_two(-s * s);
        float r = reciprocal(fmaf(fabsf(v), SHORT<T> ? 0.31f : 0.305f, 1.0f)), p;
        if (SHORT<T>) {
            p = fmaf(r, -0.0739381542f, 0.180476145f);
            p = fmaf(p, r, 0.0157172014f), p = fmaf(p, r, 0.133443264f);
            p = fmaf(p, r, 0.120438308f), p = fmaf(p, r, 0.12386093f);
        } else {
            p = fmaf(r, 0.0365957469f, -0.152572945f), p = fmaf(p, r, 0.185027629f), p = fmaf(p, r, -0.0373662561f);
            p = fmaf(p, r, 0.120710999f), p = fmaf(p, r, 0.103511356f), p = fmaf(p, r, 0.122452892f);
            p = fmaf(p, r, 0.121640608f);
        }
        return tail_applied(v, e, r * p);
    }
};
struct SiluMul : Sum {
    static constexpr bool PAIR = true;
    static __device__ __forceinline__ float of(float gate, float up, bool odd) {
        return gate * one_over_one_plus_power(gate * -1.4426950408889634f, odd) * up;
    }
};

// ---------------------------------------------------------------- the thread that fills the ring

// A residual's 64 KB as two stages: 128 columns each, in boxes of 64 x 64, of both groups' rows.
inline __device__ void fetch_residual(const TensorMap* residual, u32 to, int half, int m, int n, u32 barrier) {
    barrier_expect(barrier, BYTES_W);
    for (int box = 0; box < 4; ++box)
        copy_in(to + box * BYTES_PANEL, residual, n + (2 * half + box / 2) * COLUMNS, m + box % 2 * 64, barrier);
}

// As `fetch`, in its order.
template <class E>
__device__ __forceinline__ void fetch_fused(const Fused& f, const Shares& shares, const Ring& ring, u32 rank) {
    const Blocked& p = f.product;
    int stage = 0, m = 0, n = 0;
    u32 phase = 1;
    Piece piece;
    bool more = shares.piece(0, piece);
    if (more) shares.place(piece.tile, static_cast<int>(rank), m, n);
    wait_for_kernels();  // only now: all this was worked out while the kernel before still ran
    for (int i = 0; more; more = shares.piece(++i, piece)) {
        if (i) shares.place(piece.tile, static_cast<int>(rank), m, n);
        if (E::PAIR) n /= 2;
        bool back = i < shares.turns ? (shares.turns - i) & 1 : piece.begin > 0;
        int at = back ? piece.end - 1 : piece.begin;
        int line = n + static_cast<int>(rank) * (E::PAIR ? COLUMNS : TILE_N / CLUSTER);
        for (int left = piece.end - piece.begin; left; --left, at += back ? -1 : 1) {
            u32 barrier = ring.full + stage * 8;
            wait_at(ring.empty + stage * 8, phase);
            ring.places[stage] = {m, n};
            barrier_expect(barrier, BYTES_X + BYTES_W);
            copy_in(ring.x + stage * BYTES_X, &p.x, at * TILE_K, m, barrier);
            u32 half = ring.w + stage * BYTES_W + rank * (BYTES_W / CLUSTER);
            copy_in_everywhere(half, &p.w, at * TILE_K, line, barrier);
            if (E::PAIR) copy_in_everywhere(half + BYTES_W / 4, &f.up, at * TILE_K, line, barrier);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        if (E::RESIDUAL && piece.end == shares.steps)
            for (int half = 0; half < 2; ++half) {
                wait_at(ring.empty + stage * 8, phase);
                fetch_residual(&f.residual, ring.w + stage * BYTES_W, half, m, n, ring.full + stage * 8);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
    }
    // The shared memory of a block stays until the other one has sent its last arrival there.
    for (int s = 0; s < STAGES; ++s) {
        wait_at(ring.empty + stage * 8, phase);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
}

// ---------------------------------------------------------------- the threads that multiply

// A group's sums from the end of their tile to memory: finished, rounded, 64 columns at a time through two places in
// shared memory.
template <class T, class E>
struct Finished {
    static constexpr int PARTS = E::PAIR ? 2 : 4, KEPT = PARTS / 2;
    u32 packed[16 * KEPT], panels, biases;
    int group, parts, m, n;  // parts that are still here
    bool biased;
    float scales[2];

    __device__ __forceinline__ bool leader() const { return (threadIdx.x & 127) == 0; }
    __device__ __forceinline__ void meet() const { asm volatile("bar.sync %0, 128;" ::"r"(GROUP + group) : "memory"); }

    // Part P of the sums, rounded.
    template <int P>
    __device__ __forceinline__ void finish(const float (&d)[TILE_N / 2]) {
        u32 pairs[8] = {};
        if (!E::PAIR && biased) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(pairs[4 * j]), "=r"(pairs[4 * j + 1]), "=r"(pairs[4 * j + 2]), "=r"(pairs[4 * j + 3])
                             : "r"(biases + (threadIdx.x & 3) * 128 + P * 32 + j * 16)
                             : "memory");
        }
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            int at = (E::PAIR ? 64 : 32) * P + 2 * j;
            float low = d[at], high = d[at + 1];
            if constexpr (E::PAIR) {
                low = E::of(low, d[at + 32], j & 1), high = E::of(high, d[at + 33], j & 1);
            } else {
                float first = T::widen(static_cast<u16>(pairs[j / 2]));
                float second = T::widen(static_cast<u16>(pairs[j / 2] >> 16)), scale = scales[j & 1];
                low = E::of(E::SCALED ? fmaf(low, scale, first) : low + first, j & 1);
                high = E::of(E::SCALED ? fmaf(high, scale, second) : high + second, j & 1);
            }
            packed[16 * (P % KEPT) + j] = T::round(low, high);
        }
    }
    template <int HALF>
    __device__ __forceinline__ void finish_half(const float (&d)[TILE_N / 2]) {
        finish<HALF * PARTS / 2>(d);
        if constexpr (PARTS == 4) finish<HALF * 2 + 1>(d);
    }
    // To shared memory, in the swizzle of the copies.
    __device__ __forceinline__ void put(int part, u32 panel) const {
        int lane = threadIdx.x & 31, row = (threadIdx.x & 127) / 32 * 16 + (lane & 15);
        const u32* v = packed + 16 * (part % KEPT);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            u32 at = panel + row * 128 + (((q * 2 + (lane >> 4)) ^ (row & 7)) << 4);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v[4 * q]),
                         "r"(v[4 * q + 1]), "r"(v[4 * q + 2]), "r"(v[4 * q + 3])
                         : "memory");
        }
    }
    __device__ __forceinline__ void send(const TensorMap* out, int part, u32 panel) {
        put(part, panel);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet();
        if (!leader()) return;
        copy_out(out, n + part * COLUMNS, m, panel);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    // Half of the parts at once. So the compiler cannot put off what makes them, either.
    template <int HALF>
    __device__ __forceinline__ void finish_and_send(const float (&d)[TILE_N / 2], const TensorMap* out) {
        finish_half<HALF>(d);
        if (leader()) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the panels were read
        meet();
#pragma unroll
        for (int i = 0; i < PARTS / 2; ++i) put(HALF * PARTS / 2 + i, panels + i * BYTES_PANEL);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet();
        if (!leader()) return;
#pragma unroll
        for (int i = 0; i < PARTS / 2; ++i) {
            copy_out(out, n + (HALF * PARTS / 2 + i) * COLUMNS, m, panels + i * BYTES_PANEL);
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
    }
    __device__ __forceinline__ void one(const TensorMap* out) {
        if (leader()) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");  // the panel was read
        meet();
#pragma unroll
        for (int part = KEPT; part < PARTS; ++part)
            if (parts == PARTS - part) send(out, part, panels + part % 2 * BYTES_PANEL);
        --parts;
    }
    // The last tile: nothing more comes into the ring, whose stages have this group's rows of x at such distances.
    __device__ __forceinline__ void rest(const TensorMap* out, u32 x) {
        meet();
#pragma unroll
        for (int part = KEPT; part < PARTS; ++part) put(part, x + part * BYTES_X);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        meet();
        if (!leader()) return;
        for (int part = KEPT; part < PARTS; ++part) copy_out(out, n + part * COLUMNS, m, x + part * BYTES_X);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
};

// Adds 128 columns of a residual, which lies in a stage as it was fetched.
template <class T, int HALF>
__device__ __forceinline__ void add_residual(float (&d)[TILE_N / 2], u32 from, int group) {
    int lane = threadIdx.x & 31, row = (threadIdx.x & 127) / 32 * 16 + (lane & 15);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        u32 v[4], at = from + (j / 4 * 2 + group) * BYTES_PANEL + row * 128 +
                       (((j % 4 * 2 + (lane >> 4)) ^ (row & 7)) << 4);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(at)
                     : "memory");
#pragma unroll
        for (int e = 0; e < 8; ++e)
            d[64 * HALF + 8 * j + e] += T::widen(static_cast<u16>(v[e / 2] >> e % 2 * 16));
    }
}

// A place in the ring, and which turn of it.
struct Turn {
    int stage;
    u32 phase;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

template <class T, class E>
__device__ __forceinline__ void multiply_fused(const Fused& f, const Shares& shares, const Ring& ring, u32 panels,
                                               u32 biases, u32 rank) {
    const Blocked& p = f.product;
    int thread = threadIdx.x & 127;
    int part = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0);  // so that a branch on it is one of all
    u32 my_x = ring.x + part * BYTES_PANEL;
    Turn turn{0, 0};
    float d[TILE_N / 2];
    Finished<T, E> done;
    done.panels = panels + part * 2 * BYTES_PANEL, done.biases = biases + part * BYTES_BIAS;
    done.group = part, done.parts = 0, done.biased = p.bias != nullptr;
    auto release = [&](int s) {
        if (thread < CLUSTER) barrier_arrive_at(ring.empty + s * 8, thread);
    };
    Piece piece;
    wait_for_kernels();
    for (int i = 0; shares.piece(i, piece); ++i) {
        int length = piece.end - piece.begin, last = -1;
        int2 place;
        for (int k = 0; k < length; ++k) {
            barrier_wait(ring.full + turn.stage * 8, turn.phase);
            if (k == 0) place = ring.places[turn.stage];
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            u64 x = descriptor(my_x + turn.stage * BYTES_X), w = descriptor(ring.w + turn.stage * BYTES_W);
#pragma unroll
            for (int q = 0; q < TILE_K / 16; ++q) T::wgmma(d, x + 2 * q, w + 2 * q, k | q);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (done.parts) done.one(&p.out);  // of the tile before
            else if (k == 0) done.meet();      // all have read the place before the stage is given back
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");  // the stage before this one is read
            if (last >= 0) release(last);
            last = turn.stage;
            turn.next();
        }
        while (done.parts) done.one(&p.out);
        u32 added = 0;  // two columns of the bias, asked for while the last step is multiplied
        if (!E::PAIR && done.biased && place.y + 2 * thread < p.N)
            added = *reinterpret_cast<const u32*>(p.bias + place.y + 2 * thread);
        if (E::SCALED) {
            int row = place.x + part * 64 + thread / 32 * 16 + (thread & 31) / 4;
            done.scales[0] = row < p.M ? f.scales[row] : 0.0f;
            done.scales[1] = row + 8 < p.M ? f.scales[row + 8] : 0.0f;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        release(last);
#pragma unroll
        for (int j = 0; j < TILE_N / 2; ++j) asm volatile("" : "+f"(d[j]));  // not read before the wait
        if (piece.end < shares.steps) {
            write_partial(d, partial(p, shares.me, rank, part) + thread);
            asm volatile("bar.arrive %0, 160;" ::"r"(WRITTEN + part) : "memory");
            continue;
        }
        if (piece.begin > 0) {
            asm volatile("bar.sync %0, 160;" ::"r"(READABLE + part) : "memory");
            shares.earlier(piece, [&](int cluster) { add_partial(d, partial(p, cluster, rank, part) + thread); });
        }
        if (E::RESIDUAL) {
            barrier_wait(ring.full + turn.stage * 8, turn.phase);
            add_residual<T, 0>(d, ring.w + turn.stage * BYTES_W, part);
            done.meet();  // all have read it
            release(turn.stage);
            turn.next();
            barrier_wait(ring.full + turn.stage * 8, turn.phase);
            add_residual<T, 1>(d, ring.w + turn.stage * BYTES_W, part);
            done.meet();
            release(turn.stage);
            turn.next();
        }
        if (!E::PAIR && done.biased) {  // where each thread finds its columns on end
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(done.biases + (thread & 3) * 128 + thread / 4 * 4), "r"(added)
                         : "memory");
            done.meet();
        }
        done.m = place.x + part * 64, done.n = place.y;
        done.template finish_and_send<0>(d, &p.out);
        done.template finish_half<1>(d);
        done.parts = done.KEPT;
    }
    if (done.parts) done.rest(&p.out, my_x);
    if (done.leader()) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

template <class T, class E>
__device__ __forceinline__ void fused(const Fused& f) {
    extern __shared__ __align__(1024) unsigned char ring_bytes[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    __shared__ int2 places[STAGES];
    __shared__ __align__(16) unsigned char biases[2 * BYTES_BIAS];
    const Blocked& p = f.product;
    u32 start = shared_address(ring_bytes), rank;
    Ring ring{start, start + STAGES * BYTES_X, shared_address(barriers), shared_address(barriers + STAGES), places};
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(ring.full + i * 8, 1);
            barrier_init(ring.empty + i * 8, 2 * CLUSTER);  // both groups of both blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;");
        for (const TensorMap* map : {&p.x, &p.w, &p.out, &f.up, &f.residual})
            asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
    }
    // Relaxed: the fence above is enough for the barriers, and an ordinary arrival would be one of all memory.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    Shares shares(p.M, E::PAIR ? 2 * p.N : p.N, p.K, p.streamed);
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // which wait in turn
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        u32 warp = threadIdx.x / 32;
        if (threadIdx.x == 0) fetch_fused<E>(f, shares, ring, rank);
        else if (p.streamed && (warp == 1 || warp == 2)) exchange(p, shares, rank, static_cast<int>(warp) - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        multiply_fused<T, E>(f, shares, ring, ring.w + STAGES * BYTES_W, shared_address(biases), rank);
    }
}

// All take the same arguments; a map that a kernel has no use for is any other one.
#define KW_FUSED(name, T, E)                                                                                         \
    extern "C" __global__ __launch_bounds__(384, 1) void name(                                                       \
        u16*, const u16* bias, const float* scales, const __grid_constant__ TensorMap x,                             \
        const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap up,                                   \
        const __grid_constant__ TensorMap out, const __grid_constant__ TensorMap residual, i64 M, i64 N, i64 K,      \
        i64 streamed, float* partials, i64 token) {                                                                  \
        Blocked product{x, w, out, bias, static_cast<int>(M), static_cast<int>(N), static_cast<int>(K),              \
                        static_cast<int>(streamed), partials, token};                                                \
        fused<T, E>({product, up, residual, scales});                                                                \
    }

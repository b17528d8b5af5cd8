// adamw8bit_: a block of 256 elements at a time. Its states are decoded, stepped in float32, and rounded to codes beside the
// block's new scales.
#include "simd.hpp"

namespace {

using kw::LANES;
using kw::splat;
using kw::vf;
using kw::vi;
using kw::vu;

typedef uint8_t vb __attribute__((vector_size(LANES)));

constexpr int BLOCK = 256, AVERAGE = 3, ROOT = 4;
constexpr int64_t GRAIN = 8;  // blocks that are worth another thread

struct Numbers {
    float sign, keep, take, keep2, take2, rate, floor, decay;  // decay: 1 - lr wd
};

struct Block {
    alignas(64) uint8_t average[BLOCK], root[BLOCK];
    alignas(64) float p[BLOCK], g[BLOCK], m[BLOCK], r[BLOCK];
};

vu widened(const uint8_t* codes) {
    vb bytes;
    __builtin_memcpy(&bytes, codes, sizeof bytes);
    return __builtin_convertvector(bytes, vu);
}

// The number of a code without sign of K bits of mantissa.
template <int K>
vf decoded(vu code) {
    const vf normal = kw::bits_float((code + (112u << K)) << (23 - K));
    const vf small = __builtin_convertvector(code, vf) * (1.0f / static_cast<float>(1 << (14 + K)));
    return code < (1u << K) ? small : normal;
}

// The nearest code of a number from 0 to 2 - 2^-K. Added to 2^(9 - K), a small one ends in its multiples of 2^-(14 + K).
template <int K>
vu encoded(vf x) {
    const vu bits = kw::float_bits(x);
    const vu normal = ((bits + ((1u << (22 - K)) - 1) + ((bits >> (23 - K)) & 1u)) >> (23 - K)) - (112u << K);
    const vu small = kw::float_bits(x + static_cast<float>(1 << (9 - K))) & 31u;
    return x < 0x1p-14f ? small : normal;
}

void put(uint8_t* codes, vu code) {
    const vb bytes = __builtin_convertvector(code, vb);
    __builtin_memcpy(codes, &bytes, sizeof bytes);
}

// sqrt(keep2 r^2 + take2 g^2): the squares of what is huge or tiny are taken of a power of two of it.
vf root_of(vf r, vf g, const Numbers& n) {
    const vf size = kw::max(r, kw::abs(g));
    const vf down = size > 0x1p60f ? splat(0x1p-64f) : size < 0x1p-60f ? splat(0x1p64f) : splat(1.0f);
    const vf up = size > 0x1p60f ? splat(0x1p64f) : size < 0x1p-60f ? splat(0x1p-64f) : splat(1.0f);
    r *= down, g *= down;
    return kw::sqrt(kw::fma(n.keep2 * r, r, n.take2 * g * g)) * up;
}

// The scale of numbers whose largest is `most`: 0 of nearly nothing, NaN of what is no number.
float scale_of(float most, bool finite, int k) {
    if (!finite) return __builtin_nanf("");
    return most < 0x1p-100f ? 0.0f : most / (2.0f - 1.0f / static_cast<float>(1 << k));
}

void step(Block& b, float& average_scale, float& root_scale, const Numbers& n) {
    vf most_m = {}, most_r = {};
    vi lost = {};
    for (int i = 0; i < BLOCK; i += LANES) {
        const vu code = widened(b.average + i);
        const vf size = decoded<AVERAGE>(code & 127u) * average_scale;
        const vf g = kw::load(b.g + i) * n.sign, old = code > 127u ? -size : size;
        const vf m = kw::fma(splat(n.keep), old, n.take * g);
        const vf r = root_of(decoded<ROOT>(widened(b.root + i)) * root_scale, g, n);
        kw::store(b.m + i, m);
        kw::store(b.r + i, r);
        kw::store(b.p + i, kw::fma(kw::load(b.p + i), splat(n.decay), -(n.rate * (m / (r + n.floor)))));
        most_m = kw::max(most_m, kw::abs(m)), most_r = kw::max(most_r, r);
        lost |= !(kw::abs(m) <= 0x1.fffffep127f) | !(r <= 0x1.fffffep127f);
    }
    bool finite = true;
    for (int l = 0; l < LANES; ++l) finite = finite && lost[l] == 0;
    average_scale = scale_of(kw::reduce_max(most_m), finite, AVERAGE);
    root_scale = scale_of(kw::reduce_max(most_r), finite, ROOT);
    if (!(average_scale > 0)) __builtin_memset(b.average, 0, BLOCK);
    if (!(root_scale > 0)) __builtin_memset(b.root, 0, BLOCK);
    for (int i = 0; i < BLOCK; i += LANES) {
        if (average_scale > 0) {
            const vf m = kw::load(b.m + i);
            const vu code = encoded<AVERAGE>(kw::abs(m) / average_scale);
            put(b.average + i, (m < 0.0f) & (code > 0u) ? code + 128u : code);
        }
        if (root_scale > 0) put(b.root + i, encoded<ROOT>(kw::load(b.r + i) / root_scale));
    }
}

template <class T>
void run(T* p, const T* g, uint8_t* average, float* average_scale, uint8_t* root, float* root_scale, int64_t count,
         const Numbers& numbers, int64_t threads) {
    const int64_t blocks = (count + BLOCK - 1) / BLOCK;
    kw::parallel(kw::worth(threads, blocks, GRAIN), [&](int64_t ith, int64_t nth) {
        const kw::Range mine = kw::slice(blocks, ith, nth);
        Block block;
        for (int64_t i = mine.begin; i < mine.end; ++i) {
            const int64_t at = i * BLOCK, left = count - at, n = left < BLOCK ? left : BLOCK;
            if (n < BLOCK) __builtin_memset(&block, 0, sizeof block);
            __builtin_memcpy(block.average, average + at, static_cast<size_t>(n));
            __builtin_memcpy(block.root, root + at, static_cast<size_t>(n));
            for (int64_t j = 0; j < n; ++j) block.p[j] = kw::to_float(p[at + j]), block.g[j] = kw::to_float(g[at + j]);
            step(block, average_scale[i], root_scale[i], numbers);
            for (int64_t j = 0; j < n; ++j) p[at + j] = kw::from_float<T>(block.p[j]);
            __builtin_memcpy(average + at, block.average, static_cast<size_t>(n));
            __builtin_memcpy(root + at, block.root, static_cast<size_t>(n));
        }
    });
}

}  // namespace

// param, grad, exp_avg, its scales, rms, its scales, threads, then sign, keep, take, keep2, take2, rate, floor, decay
KW_EXPORT(adamw8bit_) {
    const auto number = [&](int i) { return static_cast<float>(args.real(7 + i)); };
    const Numbers numbers{number(0), number(1), number(2), number(3), number(4), number(5), number(6), number(7)};
    const kw::Tensor p = args.tensor(0);
    kw::with_dtype(p.dtype, [&](auto zero) {
        using T = decltype(zero);
        run<T>(p.ptr<T>(), args.tensor(1).ptr<T>(), args.tensor(2).ptr<uint8_t>(), args.tensor(3).ptr<float>(),
               args.tensor(4).ptr<uint8_t>(), args.tensor(5).ptr<float>(), p.numel(), numbers, args.integer(6));
    });
}

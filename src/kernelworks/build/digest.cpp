// One number of the bytes of many tensors, to see whether any of them changed: at the speed of reading them.
//
// Bytes are taken in blocks, and in a block 64 lanes of 32 bits are each folded by h = (h ^ word) * odd, which no two
// words take to the same h. A block's number is the sum of its lanes, each times an odd number of 64 bits, so that a
// change in one lane is always seen; the number of all is the sum of the blocks', each mixed with its place.
#include "kernel.hpp"

namespace {

constexpr int64_t BLOCK = 1 << 16;
constexpr int LANES = 64;

uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t folded(const char* bytes, int64_t count) {
    uint32_t lanes[LANES];
    for (int l = 0; l < LANES; ++l) lanes[l] = 0x9e3779b9u + static_cast<uint32_t>(l);
    constexpr int64_t ROW = LANES * sizeof(uint32_t);
    auto fold = [&](const char* from) {
        uint32_t words[LANES];
        std::memcpy(words, from, ROW);
        for (int l = 0; l < LANES; ++l) lanes[l] = (lanes[l] ^ words[l]) * 0x01000193u;
    };
    int64_t at = 0;
    for (; at + ROW <= count; at += ROW) fold(bytes + at);
    if (at < count) {
        char last[ROW] = {};
        std::memcpy(last, bytes + at, count - at);
        fold(last);
    }
    uint64_t sum = static_cast<uint64_t>(count);
    for (int l = 0; l < LANES; ++l) sum += lanes[l] * (mixed(l + 1) | 1u);
    return sum;
}

}  // namespace

// digest(result int64[threads], table int64[N, 3], blocks, threads): a row of the table is the address of a tensor, its
// bytes, and how many blocks lie before it. The number of all is the sum of the results.
KW_EXPORT(digest) {
    int64_t* result = args.tensor(0).ptr<int64_t>();
    kw::Tensor table = args.tensor(1);
    const int64_t* rows = table.ptr<int64_t>();
    int64_t count = table.shape[0], blocks = args.integer(2);
    kw::parallel(args.integer(3), [&](int64_t ith, int64_t nth) {
        kw::Range mine = kw::slice(blocks, ith, nth);
        uint64_t sum = 0;
        int64_t tensor = 0;
        for (int64_t block = mine.begin; block < mine.end; ++block) {
            while (tensor + 1 < count && rows[3 * (tensor + 1) + 2] <= block) ++tensor;
            const int64_t* row = rows + 3 * tensor;
            int64_t offset = (block - row[2]) * BLOCK, left = row[1] - offset;
            sum += mixed(folded(reinterpret_cast<const char*>(row[0]) + offset, left < BLOCK ? left : BLOCK) ^
                         mixed(static_cast<uint64_t>(block)));
        }
        result[ith] = static_cast<int64_t>(sum);
    });
}

// Cooperative groups of a block: thread_block, and tiles of at most 32 threads with their shuffles, votes, sums and scans.
// Groups whose threads are not known before (coalesced_threads) or that span blocks are refused by `translation.py`.
#pragma once

namespace cooperative_groups {

inline unsigned kw_rank() {
    uint3 t = kw_thread_idx(), n = kw_block_dim();
    return t.x + n.x * (t.y + n.y * t.z);
}

struct thread_block {
    static void sync(int line = __builtin_LINE()) { kw_syncthreads(line); }
    static unsigned thread_rank() { return kw_rank(); }
    static unsigned num_threads() {
        uint3 n = kw_block_dim();
        return n.x * n.y * n.z;
    }
    static unsigned size() { return num_threads(); }
    static dim3 group_index() { return dim3(kw_block_idx()); }
    static dim3 thread_index() { return dim3(kw_thread_idx()); }
    static dim3 group_dim() { return dim3(kw_block_dim()); }
    static dim3 dim_threads() { return dim3(kw_block_dim()); }
};
typedef thread_block thread_group;
inline thread_block this_thread_block() { return thread_block(); }

template <unsigned N, class Parent = void>
struct thread_block_tile {
    static_assert(N == 1 || N == 2 || N == 4 || N == 8 || N == 16 || N == 32, "the emulator has tiles of 1 to 32 threads");
    static int first() { return kw::lane() & ~int(N - 1); }
    static unsigned mask() { return N == 32 ? 0xffffffffu : ((1u << N % 32) - 1) << first(); }
    static unsigned thread_rank() { return kw_rank() % N; }
    static constexpr unsigned num_threads() { return N; }
    static constexpr unsigned size() { return N; }
    static unsigned meta_group_rank() { return kw_rank() / N; }
    static unsigned meta_group_size() { return (thread_block::size() + N - 1) / N; }
    static void sync(int line = __builtin_LINE()) { kw_syncwarp(line, mask()); }
    template <class T> static T shfl(T v, int from, int line = __builtin_LINE()) {
        return kw::shuffle(line, mask(), v, first() | (from & int(N - 1)));
    }
    template <class T> static T shfl_down(T v, unsigned by, int line = __builtin_LINE()) {
        return kw::shuffle_down(line, mask(), v, by, int(N));
    }
    template <class T> static T shfl_up(T v, unsigned by, int line = __builtin_LINE()) {
        return kw::shuffle_up(line, mask(), v, by, int(N));
    }
    template <class T> static T shfl_xor(T v, int bit, int line = __builtin_LINE()) {
        return kw::shuffle_xor(line, mask(), v, bit, int(N));
    }
    static unsigned ballot(int p, int line = __builtin_LINE()) {
        return (unsigned(kw_exchange(line, kw::BALLOT, mask(), !!p, 0)) & mask()) >> first();
    }
    static int any(int p, int line = __builtin_LINE()) { return ballot(p, line) != 0; }
    static int all(int p, int line = __builtin_LINE()) { return ballot(!p, line) == 0; }
    template <class T> static unsigned match_any(T v, int line = __builtin_LINE()) {
        return (unsigned(kw_exchange(line, kw::MATCH, mask(), kw::bits(v), 0)) & mask()) >> first();
    }
};

template <unsigned N, class Group>
thread_block_tile<N> tiled_partition(const Group&) { return thread_block_tile<N>(); }

template <class Group> void sync(const Group& group, int line = __builtin_LINE()) { group.sync(line); }
template <class Group> unsigned thread_rank(const Group& group) { return group.thread_rank(); }
template <class Group> unsigned group_size(const Group& group) { return group.size(); }

#define KW_FUNCTOR(name, expression) \
    template <class T = void> struct name { T operator()(T a, T b) const { return expression; } };
KW_FUNCTOR(plus, T(a + b))
KW_FUNCTOR(less, b < a ? b : a)
KW_FUNCTOR(greater, a < b ? b : a)
KW_FUNCTOR(bit_and, T(a & b))
KW_FUNCTOR(bit_or, T(a | b))
KW_FUNCTOR(bit_xor, T(a ^ b))

template <unsigned N, class T, class F>
T reduce(const thread_block_tile<N>& tile, T v, F f, int line = __builtin_LINE()) {
    for (int step = int(N) / 2; step > 0; step /= 2) v = f(v, tile.shfl_xor(v, step, line));
    return v;
}
template <unsigned N, class T, class F>
T inclusive_scan(const thread_block_tile<N>& tile, T v, F f, int line = __builtin_LINE()) {
    for (unsigned step = 1; step < N; step *= 2) {
        T other = tile.shfl_up(v, step, line);
        if (tile.thread_rank() >= step) v = f(other, v);
    }
    return v;
}
template <unsigned N, class T>
T inclusive_scan(const thread_block_tile<N>& tile, T v, int line = __builtin_LINE()) {
    return inclusive_scan(tile, v, plus<T>(), line);
}
template <unsigned N, class T, class F>
T exclusive_scan(const thread_block_tile<N>& tile, T v, F f, int line = __builtin_LINE()) {
    T other = tile.shfl_up(inclusive_scan(tile, v, f, line), 1, line);
    return tile.thread_rank() ? other : T();
}
template <unsigned N, class T>
T exclusive_scan(const thread_block_tile<N>& tile, T v, int line = __builtin_LINE()) {
    return exclusive_scan(tile, v, plus<T>(), line);
}

}  // namespace cooperative_groups

// Attention over pages for one query, or a few, of each sequence: the work is to read its keys and values once.
//
// A unit of work is a share of the keys of one sequence and key-value head. Sequences that have more keys than others are
// cut into more shares, so that threads which take the next unit end together.
#include "vectors_of_pages.hpp"

#include "../attention/decode.cpp"

namespace kw::attention {

constexpr int64_t MOST_SHARES = 16;

template <class T>
struct PagedDecode {
    const Problem& p;
    const Sequences& s;
    Heads<T> out, q, k, v;

    struct Cut {
        int64_t shares, units, partials;  // of the sequence's heads each; units and partials before the sequence's own
    };

    // How one sequence is cut: shares of about as many keys as a quarter of a thread's.
    int64_t shares_of(int64_t sequence, int64_t threads) const {
        const int64_t all = s.k[s.count] - s.k[0], keys = s.keys(sequence);
        if (threads <= 1 || !all) return 1;
        const int64_t wanted = (keys * 4 * threads + all * p.Hkv - 1) / (all * p.Hkv), most = keys / (4 * TILE);
        const int64_t shares = wanted < most ? wanted : most;
        return shares < 1 ? 1 : (shares < MOST_SHARES ? shares : MOST_SHARES);
    }

    // One sequence's queries and keys alone, and the rows of a key-value head that go together.
    template <class F>
    void with_sequence(int64_t sequence, int64_t head, F f) const {
        Problem own = s.one(p, sequence);
        own.Lq = s.queries(sequence);
        const int64_t at = s.q[sequence], key = s.k[sequence];
        f(Decode<T>{own, from(out, at), from(q, at), from(k, key), from(v, key), nullptr},
          QueryRows{own, 0, head, 0, own.Lq * own.group});
    }

    void finish(int64_t sequence, int64_t head, Partial* partial, int64_t shares) const {
        with_sequence(sequence, head, [&](const Decode<T>& decode, const QueryRows& rows) {
            for (int64_t r = 0; r < rows.count; ++r) decode.combine(rows, r, partial, shares);
        });
    }

    static Partial* partials(int64_t count) {
        return static_cast<Partial*>(aligned_alloc(64, sizeof(Partial) * MAX_FEW * static_cast<size_t>(count + 1)));
    }

    void run(int64_t threads) const {
        Cut* cuts = static_cast<Cut*>(malloc(sizeof(Cut) * static_cast<size_t>(s.count + 1)));
        int64_t units = 0, kept = 0;
        for (int64_t n = 0; n < s.count; ++n) {
            const int64_t shares = s.queries(n) ? shares_of(n, threads) : 0;
            cuts[n] = Cut{shares, units, kept};
            units += p.Hkv * shares;
            kept += shares > 1 ? p.Hkv * shares : 0;
        }
        cuts[s.count] = Cut{0, units, kept};
        Partial* partial = partials(kept);
        int64_t next = 0;
        parallel(threads < units ? threads : units, [&](int64_t, int64_t) {
            Partial* alone = partials(1);  // of a unit that is all of its sequence and head
            int64_t n = 0;
            for (int64_t u; (u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < units;) {
                while (u >= cuts[n + 1].units) ++n;
                const int64_t within = u - cuts[n].units, shares = cuts[n].shares, head = within / shares;
                Partial* to = shares > 1 ? partial + (cuts[n].partials + within) * MAX_FEW : alone;
                with_sequence(n, head, [&](const Decode<T>& decode, const QueryRows& rows) {
                    decode.slice_of_keys(rows, within % shares, shares, to);
                });
                if (shares == 1) finish(n, head, to, 1);
            }
            free(alone);
        });
        for (int64_t n = 0; n < s.count; ++n)
            for (int64_t head = 0; cuts[n].shares > 1 && head < p.Hkv; ++head)
                finish(n, head, partial + (cuts[n].partials + head * cuts[n].shares) * MAX_FEW, cuts[n].shares);
        free(partial);
        free(cuts);
    }
};

}  // namespace kw::attention

// paged_attention(out, None, q, k, v, None, scale, causal, shift, window, threads, ends of queries, keys, blocks)
KW_EXPORT_RAN(paged_attention) {
    using namespace kw::attention;
    return with_pages(args, [](const Problem& p, const Sequences& s, int64_t threads, auto out, auto q, auto k, auto v) {
        PagedDecode{p, s, out, q, k, v}.run(threads);
    });
}

// Triplet losses, a row at a time in float64, for every instruction set: one pass over the three rows finds all distances,
// a second one writes the gradients.
#include "stage_reduction.hpp"

namespace {

using namespace kw;

struct Rows3 {
    Element type;
    const char* data[3];
    int64_t rows, n;
    double margin, eps;

    // The elements from `begin` on of all three, with WIDE readable behind the last.
    void read(const float** p, int64_t row, int64_t begin, int m, float (*room)[PIECE_OF_LINE + 16]) const {
        for (int k = 0; k < 3; ++k) p[k] = elements_at(type, data[k], row * n + begin, m, room[k]);
    }
};

// What lies between two elements of the rows: anchor and positive, anchor and negative, positive and negative.
inline W between(const float* const* p, int pair, int i, double eps) {
    return widen_at(p[pair == 2 ? 1 : 0] + i) - widen_at(p[pair == 0 ? 1 : 2] + i) + eps;
}

struct Distances {
    double of[3], hinge;  // hinge: the loss before it is cut
    bool swapped, tied;   // whether the negative is nearer to the positive, or as near
};

template <int P, bool SWAP>
Distances distances_of(const Rows3& l, int64_t row) {
    constexpr int PAIRS = SWAP ? 3 : 2;
    alignas(64) float room[3][PIECE_OF_LINE + 16];
    W sum[PAIRS];
    for (W& s : sum) s = wide(0.0);
    for (int64_t begin = 0; begin < l.n; begin += PIECE_OF_LINE) {
        const int m = static_cast<int>(l.n - begin < PIECE_OF_LINE ? l.n - begin : PIECE_OF_LINE);
        const float* p[3];
        l.read(p, row, begin, m, room);
        for (int i = 0; i < m; i += WIDE)
            for (int pair = 0; pair < PAIRS; ++pair) {
                const W d = between(p, pair, i, l.eps), term = P == 1 ? absolute(d) : d * d;
                sum[pair] += i + WIDE <= m ? term : first_lanes(term, m - i, 0.0);
            }
    }
    Distances d{};
    for (int pair = 0; pair < PAIRS; ++pair) {
        const double all = combine_lanes<Combine::SUM>(sum[pair]);
        d.of[pair] = P == 1 ? all : root(all);
    }
    d.swapped = SWAP && (d.of[2] < d.of[1] || d.of[2] != d.of[2]), d.tied = SWAP && d.of[1] == d.of[2];
    d.hinge = l.margin + d.of[0] - (d.swapped ? d.of[2] : d.of[1]);
    return d;
}

template <int P, bool SWAP>
void write_gradients(const Rows3& l, int64_t row, double flow, char* const* out) {
    const Distances d = distances_of<P, SWAP>(l, row);
    if (!(d.hinge >= 0.0)) flow = 0.0;
    const double other = d.tied ? 0.5 : d.swapped ? 1.0 : 0.0, share[3] = {flow, flow * (1.0 - other), flow * other};
    alignas(64) float room[3][PIECE_OF_LINE + 16], made[3][PIECE_OF_LINE + 16];
    for (int64_t begin = 0; begin < l.n; begin += PIECE_OF_LINE) {
        const int m = static_cast<int>(l.n - begin < PIECE_OF_LINE ? l.n - begin : PIECE_OF_LINE);
        const float* p[3];
        l.read(p, row, begin, m, room);
        for (int i = 0; i < m; i += WIDE) {
            W step[3] = {wide(0.0), wide(0.0), wide(0.0)};
            for (int pair = 0; pair < (SWAP ? 3 : 2); ++pair) {
                if (share[pair] == 0.0 || d.of[pair] == 0.0) continue;
                const W apart = between(p, pair, i, l.eps);
                step[pair] = P == 1 ? where(apart > 0.0, share[pair], where(apart < 0.0, -share[pair], 0.0 * apart))
                                    : apart * (share[pair] / d.of[pair]);
            }
            narrow_to(made[0] + i, step[0] - step[1]);
            narrow_to(made[1] + i, -step[0] - step[2]);
            narrow_to(made[2] + i, step[1] + step[2]);
        }
        for (int k = 0; k < 3; ++k)
            if (out[k]) write_elements(l.type, out[k], row * l.n + begin, made[k], m);
    }
}

template <class F>
void with_kind(int64_t p, bool swap, F f) {
    if (p == 1) swap ? f.template operator()<1, true>() : f.template operator()<1, false>();
    else swap ? f.template operator()<2, true>() : f.template operator()<2, false>();
}

// The three rows, and how many there are, from argument `at` on.
Rows3 rows_of(const Args& args, int at) {
    Rows3 l{};
    const Tensor anchor = args.tensor(at);
    l.type = element_of(anchor.dtype), l.n = anchor.shape[1], l.rows = anchor.shape[0];
    for (int k = 0; k < 3; ++k) l.data[k] = args.tensor(at + k).data;
    l.margin = args.real(at + 3), l.eps = args.real(at + 4);
    return l;
}

}  // namespace

// each row's loss in float64; loss, a scalar or an element a row; anchor, positive, negative [rows, n], contiguous;
// margin, eps, p, swap, what the sum is divided by (0: no sum is taken), threads
KW_EXPORT(triplet_margin_loss) {
    const Rows3 l = rows_of(args, 2);
    double* each = reinterpret_cast<double*>(args.tensor(0).data);
    const int64_t divisor = args.integer(9);
    with_kind(args.integer(7), args.integer(8) != 0, [&]<int P, bool SWAP>() {
        parallel(worth(args.integer(10), 12 * l.rows * l.n, STAGE_GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(l.rows, ith, nth);
            for (int64_t row = r.begin; row < r.end; ++row) {
                const double hinge = distances_of<P, SWAP>(l, row).hinge;
                each[row] = hinge < 0.0 ? 0.0 : hinge;
                const float loss = static_cast<float>(each[row]);
                if (!divisor) write_elements(l.type, args.tensor(1).data, row, &loss, 1);
            }
        });
    });
    if (!divisor) return;
    double all = 0.0;
    for (int64_t row = 0; row < l.rows; ++row) all += each[row];
    const float loss = static_cast<float>(all / static_cast<double>(divisor));
    write_elements(l.type, args.tensor(1).data, 0, &loss, 1);
}

// the gradients (None for one that nobody wants); grad; anchor to swap as above; what flows in is divided by (0: each row
// has its own), threads
KW_EXPORT(triplet_margin_loss_backward) {
    const Rows3 l = rows_of(args, 4);
    char* out[3];
    for (int k = 0; k < 3; ++k) out[k] = args.none(k) ? nullptr : args.tensor(k).data;
    const char* grad = args.tensor(3).data;
    const int64_t divisor = args.integer(11);
    with_kind(args.integer(9), args.integer(10) != 0, [&]<int P, bool SWAP>() {
        parallel(worth(args.integer(12), 24 * l.rows * l.n, STAGE_GRAIN), [&](int64_t ith, int64_t nth) {
            const Range r = slice(l.rows, ith, nth);
            for (int64_t row = r.begin; row < r.end; ++row) {
                const double flow = element_at(l.type, grad, divisor ? 0 : row);
                write_gradients<P, SWAP>(l, row, divisor ? flow / static_cast<double>(divisor) : flow, out);
            }
        });
    });
}

// Reductions of [outer, n, inner] along n in stages, for the ops of a table. Each stage takes one number of each line: a
// sum, a maximum or a minimum of terms, which are functions of an element of each operand and of what the stages before
// came to. All numbers are doubles: a term, a sum and what is written, until it is rounded once.
//
//     struct Kind {
//         static constexpr int OPERANDS, STAGES, NUMBERS, RESULTS;        // RESULTS: gradients; 0 of a forward
//         static constexpr Combine COMBINES[STAGES];
//         template <int S> static W term(const W* operand, const W* found, W n, const W* number);
//         template <int S> static double finish(double s, const double* found, double n, const double* number);
//         static double coefficient(double grad, const double* found, double n, const double* number);
//         static void elements(W* result, const W* operand, const W* found, W n, W coefficient, const W* number);
//     };
//
// A forward writes what the last stage came to. A backward writes for each element the gradients of its operands, made of
// them, of the stages and of the line's coefficient. Elements reach the expressions as floats: 16-bit types are
// converted, a few hundred at a time, so that a kind is compiled once and not once for each type. The order of all
// steps follows from the shape alone: a result has the same bits for any number of threads.
#pragma once

#include <cstdlib>
#include <utility>

#include "double_vector.hpp"

namespace kw {

enum class Combine { SUM, MAX, MIN };

constexpr int MOST_STAGES = 3, MOST_OPERANDS = 4, MOST_NUMBERS = 2;
constexpr int PIECE_OF_LINE = 512;             // elements of a line that are converted together
constexpr int COLUMNS = 256;                   // neighbouring lines that are reduced together
constexpr int CHAINS = 4;                      // vectors that are combined in turn
constexpr int64_t ITEMS = 64;                  // parts to work on; where there are fewer lines, lines are cut
constexpr int64_t LEAST_PART = 1 << 16;        // elements that a part of cut lines has at least
constexpr int64_t STAGE_GRAIN = 32 << 10;      // bytes that are worth another thread

enum class Element { FLOAT32, BFLOAT16, FLOAT16 };

inline Element element_of(DLDataType t) {
    return t.code == kDLBfloat ? Element::BFLOAT16 : t.bits == 16 ? Element::FLOAT16 : Element::FLOAT32;
}

template <class T>
inline void widen_elements(float* to, const T* from, int count) {
    int i = 0;
#if KW_VECTORS
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
#endif
    for (; i < count; ++i) to[i] = to_float(from[i]);
}
template <class T>
inline void round_elements(T* to, const float* from, int count) {
    int i = 0;
#if KW_VECTORS
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
#endif
    for (; i < count; ++i) to[i] = from_float<T>(from[i]);
}

// `count` elements as floats, with WIDE readable behind the last: where they lie, or in `room`. Of an element type.
inline const float* elements_at(Element type, const char* data, int64_t at, int count, float* room) {
    if (type == Element::FLOAT32) {
        const float* p = reinterpret_cast<const float*>(data) + at;
        if (count % WIDE == 0) return p;
        std::memcpy(room, p, sizeof(float) * static_cast<size_t>(count));
    } else if (type == Element::BFLOAT16) {
        widen_elements(room, reinterpret_cast<const bf16*>(data) + at, count);
    } else {
        widen_elements(room, reinterpret_cast<const f16*>(data) + at, count);
    }
    for (int i = count; i % WIDE; ++i) room[i] = 0.0f;
    return room;
}

inline void write_elements(Element type, char* data, int64_t at, const float* from, int count) {
    if (type == Element::FLOAT32) round_elements(reinterpret_cast<float*>(data) + at, from, count);
    else if (type == Element::BFLOAT16) round_elements(reinterpret_cast<bf16*>(data) + at, from, count);
    else round_elements(reinterpret_cast<f16*>(data) + at, from, count);
}

inline double element_at(Element type, const char* data, int64_t at) {
    if (type == Element::FLOAT32) return reinterpret_cast<const float*>(data)[at];
    if (type == Element::BFLOAT16) return to_float(reinterpret_cast<const bf16*>(data)[at]);
    return to_float(reinterpret_cast<const f16*>(data)[at]);
}

// Element i of line (o, c) of every operand is data[o outer_stride + i stride + c].
struct StageLines {
    int64_t outer, n, inner, outer_stride, stride;
    Element type;
    const char* data[MOST_OPERANDS];
    double number[MOST_NUMBERS];
    int64_t groups, parts, length;  // of neighbouring lines; that lines are cut into, and their elements

    void cut() {
        groups = (inner + COLUMNS - 1) / COLUMNS;
        const int64_t lines = outer * groups, width = inner < COLUMNS ? inner : COLUMNS;
        const int64_t least = (LEAST_PART + width - 1) / width, wanted = (ITEMS + lines - 1) / lines;
        length = (n + wanted - 1) / wanted;
        if (length < least) length = least;
        length = (length + PIECE_OF_LINE - 1) / PIECE_OF_LINE * PIECE_OF_LINE;
        parts = (n + length - 1) / length;
    }
};

// ---------------------------------------------------------------- one stage of a few lines

template <Combine C>
constexpr double start_of() {
    return C == Combine::SUM ? 0.0 : C == Combine::MAX ? -INFINITY : INFINITY;
}

// A NaN stays, whichever side it comes from.
template <Combine C, class N>
inline N combined(N before, N x) {
    if constexpr (C == Combine::SUM) return before + x;
    else if constexpr (C == Combine::MAX) return ((x > before) | (x != x)) ? x : before;
    else return ((x < before) | (x != x)) ? x : before;
}

template <Combine C>
inline double combine_lanes(W w) {
#if KW_VECTORS
    double all = w[0];
    for (int i = 1; i < WIDE; ++i) all = combined<C>(all, static_cast<double>(w[i]));
    return all;
#else
    return w;
#endif
}

// What a stage of a part of a line of unit stride comes to; `found` are the stages before.
template <class Kind, int S>
double stage_of_line(const StageLines& l, int64_t first, int64_t count, const double* found) {
    constexpr Combine C = Kind::COMBINES[S];
    alignas(64) float room[Kind::OPERANDS][PIECE_OF_LINE + 16];
    W before[MOST_STAGES], number[MOST_NUMBERS], chain[CHAINS];
    for (int s = 0; s < S; ++s) before[s] = wide(found[s]);
    for (int i = 0; i < Kind::NUMBERS; ++i) number[i] = wide(l.number[i]);
    for (W& c : chain) c = wide(start_of<C>());
    const W n = wide(static_cast<double>(l.n));
    for (int64_t begin = 0; begin < count; begin += PIECE_OF_LINE) {
        const int m = static_cast<int>(count - begin < PIECE_OF_LINE ? count - begin : PIECE_OF_LINE);
        const float* p[Kind::OPERANDS];
        for (int k = 0; k < Kind::OPERANDS; ++k) p[k] = elements_at(l.type, l.data[k], first + begin, m, room[k]);
        const auto term = [&](int i) {
            W operand[Kind::OPERANDS];
            for (int k = 0; k < Kind::OPERANDS; ++k) operand[k] = widen_at(p[k] + i);
            return Kind::template term<S>(operand, before, n, number);
        };
        int i = 0;
        for (; i + CHAINS * WIDE <= m; i += CHAINS * WIDE)
            for (int j = 0; j < CHAINS; ++j) chain[j] = combined<C>(chain[j], term(i + j * WIDE));
        for (; i + WIDE <= m; i += WIDE) chain[0] = combined<C>(chain[0], term(i));
        if (i < m) chain[1] = combined<C>(chain[1], first_lanes(term(i), m - i, start_of<C>()));
    }
    return combine_lanes<C>(combined<C>(combined<C>(chain[0], chain[1]), combined<C>(chain[2], chain[3])));
}

// The same of `width` neighbouring lines, into all[0] to all[width - 1]; found[s] are the lines' numbers.
template <class Kind, int S>
void stage_of_columns(double* all, const StageLines& l, int64_t first, int64_t count, int width,
                      const double (*found)[COLUMNS]) {
    constexpr Combine C = Kind::COMBINES[S];
    constexpr int STEPS = 4;
    alignas(64) float room[STEPS][Kind::OPERANDS][COLUMNS + 16];
    alignas(64) double sums[COLUMNS + 16];
    W number[MOST_NUMBERS];
    for (int i = 0; i < Kind::NUMBERS; ++i) number[i] = wide(l.number[i]);
    const W n = wide(static_cast<double>(l.n));
    for (double& s : sums) s = start_of<C>();
    const auto rows = [&](int64_t at, auto steps) {
        constexpr int R = decltype(steps)::value;
        const float* p[R][Kind::OPERANDS];
        for (int r = 0; r < R; ++r)
            for (int k = 0; k < Kind::OPERANDS; ++k)
                p[r][k] = elements_at(l.type, l.data[k], at + r * l.stride, width, room[r][k]);
        for (int c = 0; c < width; c += WIDE) {
            W before[MOST_STAGES], sum = load_wide(sums + c);
            for (int s = 0; s < S; ++s) before[s] = load_wide(found[s] + c);
            for (int r = 0; r < R; ++r) {
                W operand[Kind::OPERANDS];
                for (int k = 0; k < Kind::OPERANDS; ++k) operand[k] = widen_at(p[r][k] + c);
                sum = combined<C>(sum, Kind::template term<S>(operand, before, n, number));
            }
            store_wide(sums + c, sum);
        }
    };
    int64_t i = 0;
    for (; i + STEPS <= count; i += STEPS) rows(first + i * l.stride, std::integral_constant<int, STEPS>{});
    for (; i < count; ++i) rows(first + i * l.stride, std::integral_constant<int, 1>{});
    for (int c = 0; c < width; ++c) all[c] = sums[c];
}

template <class Kind, int S>
inline void stage_of_group(double* all, const StageLines& l, int64_t first, int64_t count, int width,
                           const double (*found)[COLUMNS]) {
    if (l.inner > 1 || l.stride != 1) return stage_of_columns<Kind, S>(all, l, first, count, width, found);
    double before[MOST_STAGES];
    for (int s = 0; s < S; ++s) before[s] = found[s][0];
    all[0] = stage_of_line<Kind, S>(l, first, count, before);
}

// found[S][c] = what the stage's sums come to, of `width` lines.
template <class Kind, int S>
inline void finish_stage(double (*found)[COLUMNS], const double* all, const StageLines& l, int width) {
    for (int c = 0; c < width; ++c) {
        double before[MOST_STAGES];
        for (int s = 0; s < S; ++s) before[s] = found[s][c];
        found[S][c] = Kind::template finish<S>(all[c], before, static_cast<double>(l.n), l.number);
    }
}

// ---------------------------------------------------------------- the gradients of a few lines

// `out` are the gradients, each contiguous as the operands are; coefficient[c] and found[s][c] are the lines' numbers.
template <class Kind>
void gradients_of_group(char* const* out, const StageLines& l, int64_t first, int64_t count, int width,
                        const double* coefficient, const double (*found)[COLUMNS]) {
    constexpr int R = Kind::RESULTS;
    alignas(64) float room[Kind::OPERANDS][PIECE_OF_LINE + 16], made[R][PIECE_OF_LINE + 16];
    W before[MOST_STAGES], number[MOST_NUMBERS], result[R];
    for (int i = 0; i < Kind::NUMBERS; ++i) number[i] = wide(l.number[i]);
    const W n = wide(static_cast<double>(l.n));
    const bool line = l.inner == 1 && l.stride == 1;
    W factor = wide(coefficient[0]);
    for (int s = 0; s < Kind::STAGES; ++s) before[s] = wide(found[s][0]);
    const int64_t rows = line ? (count + PIECE_OF_LINE - 1) / PIECE_OF_LINE : count;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t begin = row * PIECE_OF_LINE, at = first + (line ? begin : row * l.stride);
        const int m = line ? static_cast<int>(count - begin < PIECE_OF_LINE ? count - begin : PIECE_OF_LINE) : width;
        const float* p[Kind::OPERANDS];
        for (int k = 0; k < Kind::OPERANDS; ++k) p[k] = elements_at(l.type, l.data[k], at, m, room[k]);
        for (int i = 0; i < m; i += WIDE) {
            W operand[Kind::OPERANDS];
            for (int k = 0; k < Kind::OPERANDS; ++k) operand[k] = widen_at(p[k] + i);
            if (!line) {
                factor = load_wide(coefficient + i);
                for (int s = 0; s < Kind::STAGES; ++s) before[s] = load_wide(found[s] + i);
            }
            Kind::elements(result, operand, before, n, factor, number);
            for (int r = 0; r < R; ++r) narrow_to(made[r] + i, result[r]);
        }
        for (int r = 0; r < R; ++r)
            if (out[r]) write_elements(l.type, out[r], at, made[r], m);
    }
}

// ---------------------------------------------------------------- all lines

// f(integral_constant<int, 0>) to f(integral_constant<int, N - 1>)
template <int N, class F>
inline void each_stage(F f) {
    [&]<int... S>(std::integer_sequence<int, S...>) { (f(std::integral_constant<int, S>{}), ...); }(
        std::make_integer_sequence<int, N>{});
}

// Forward: out[0] has an element of each line. Backward: out has RESULTS gradients, and `grad` an element of each line.
template <class Kind>
struct StageRun {
    const StageLines& l;
    char* const* out;
    const char* grad;

    int width_of(int64_t group) const {
        const int64_t left = l.inner - group * COLUMNS;
        return static_cast<int>(left < COLUMNS ? left : COLUMNS);
    }
    int64_t place_of(int64_t o, int64_t group) const { return o * l.outer_stride + group * COLUMNS; }

    void write(int64_t o, int64_t group, int width, const double (*found)[COLUMNS]) const {
        alignas(64) float results[COLUMNS];
        for (int c = 0; c < width; ++c) results[c] = static_cast<float>(found[Kind::STAGES - 1][c]);
        write_elements(l.type, out[0], o * l.inner + group * COLUMNS, results, width);
    }
    void spread(int64_t o, int64_t group, int width, int64_t part, const double (*found)[COLUMNS]) const {
        alignas(64) double coefficient[COLUMNS + 16] = {};
        for (int c = 0; c < width; ++c) {
            double before[MOST_STAGES] = {};
            for (int s = 0; s < Kind::STAGES; ++s) before[s] = found[s][c];
            const double flow = element_at(l.type, grad, o * l.inner + group * COLUMNS + c);
            coefficient[c] = Kind::coefficient(flow, before, static_cast<double>(l.n), l.number);
        }
        const int64_t first = part * l.length, count = l.n - first < l.length ? l.n - first : l.length;
        gradients_of_group<Kind>(out, l, place_of(o, group) + first * l.stride, count, width, coefficient, found);
    }

    void whole_lines(int64_t threads) const {
        parallel(threads, [&](int64_t ith, int64_t nth) {
            alignas(64) double found[MOST_STAGES][COLUMNS] = {}, all[COLUMNS];
            const Range r = slice(l.outer * l.groups, ith, nth);
            for (int64_t item = r.begin; item < r.end; ++item) {
                const int64_t o = item / l.groups, group = item % l.groups;
                const int width = width_of(group);
                each_stage<Kind::STAGES>([&](auto s) {
                    stage_of_group<Kind, decltype(s)::value>(all, l, place_of(o, group), l.n, width, found);
                    finish_stage<Kind, decltype(s)::value>(found, all, l, width);
                });
                if constexpr (Kind::RESULTS == 0) write(o, group, width, found);
                else spread(o, group, width, 0, found);
            }
        });
    }

    // Stage by stage: what the parts come to, joined in their order.
    void cut_lines(int64_t threads) const {
        const int64_t lines = l.outer * l.groups, items = lines * l.parts;
        using Group = double[COLUMNS];
        using Found = double[MOST_STAGES][COLUMNS];
        Group* partial = static_cast<Group*>(std::calloc(static_cast<size_t>(items), sizeof(Group)));
        Found* found = static_cast<Found*>(std::calloc(static_cast<size_t>(lines), sizeof(Found)));
        if (!partial || !found) std::abort();  // a few hundred kilobytes
        each_stage<Kind::STAGES>([&](auto stage) {
            constexpr int S = decltype(stage)::value;
            parallel(threads, [&](int64_t ith, int64_t nth) {
                const Range r = slice(items, ith, nth);
                for (int64_t item = r.begin; item < r.end; ++item) {
                    const int64_t line = item / l.parts, first = item % l.parts * l.length, group = line % l.groups;
                    const int64_t count = l.n - first < l.length ? l.n - first : l.length;
                    const int64_t at = place_of(line / l.groups, group) + first * l.stride;
                    stage_of_group<Kind, S>(partial[item], l, at, count, width_of(group), found[line]);
                }
            });
            for (int64_t line = 0; line < lines; ++line) {
                const int width = width_of(line % l.groups);
                double* all = partial[line * l.parts];
                for (int64_t p = 1; p < l.parts; ++p)
                    for (int c = 0; c < width; ++c)
                        all[c] = combined<Kind::COMBINES[S]>(all[c], partial[line * l.parts + p][c]);
                finish_stage<Kind, S>(found[line], all, l, width);
            }
        });
        parallel(threads, [&](int64_t ith, int64_t nth) {
            const Range r = slice(Kind::RESULTS ? items : lines, ith, nth);
            for (int64_t item = r.begin; item < r.end; ++item) {
                const int64_t line = Kind::RESULTS ? item / l.parts : item, group = line % l.groups;
                if constexpr (Kind::RESULTS == 0) write(line / l.groups, group, width_of(group), found[line]);
                else spread(line / l.groups, group, width_of(group), item % l.parts, found[line]);
            }
        });
        std::free(partial);
        std::free(found);
    }
};

// The arguments: out, or of a backward the gradients (None for one that nobody wants) and what flows in; the operands;
// outer, n, inner, outer_stride, stride; the numbers; threads.
template <class Kind>
void run_stages(const Args& args) {
    constexpr int WRITTEN = Kind::RESULTS ? Kind::RESULTS : 1, FLOW = Kind::RESULTS ? 1 : 0;
    char* out[WRITTEN];
    for (int i = 0; i < WRITTEN; ++i) out[i] = args.none(i) ? nullptr : args.tensor(i).data;
    int at = WRITTEN;
    const char* grad = FLOW ? args.tensor(at++).data : nullptr;
    StageLines l{};
    l.type = element_of(args.tensor(at).dtype);
    for (int k = 0; k < Kind::OPERANDS; ++k) l.data[k] = args.tensor(at++).data;
    l.outer = args.integer(at++), l.n = args.integer(at++), l.inner = args.integer(at++);
    l.outer_stride = args.integer(at++), l.stride = args.integer(at++);
    for (int i = 0; i < Kind::NUMBERS; ++i) l.number[i] = args.real(at++);
    if (!l.outer || !l.n || !l.inner) return;
    l.cut();
    const int64_t bytes = l.outer * l.n * l.inner * 4 * Kind::OPERANDS, threads = worth(args.integer(at), bytes, STAGE_GRAIN);
    const StageRun<Kind> run{l, out, grad};
    if (l.parts == 1) run.whole_lines(threads);
    else run.cut_lines(threads);
}

}  // namespace kw

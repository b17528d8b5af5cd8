// Recurrent layers: the products of a state with its weights, and what a cell makes of them, fused step by step.
//
// A cell is a struct over an operand V (functions.hpp) with GATES products a unit and STATES states, the first of which
// is the output and what the next step multiplies:
//
//     struct Lstm {
//         static constexpr int GATES = 4, STATES = 2;
//         static void step(const V* x, const V* h, V* state);   // x, h: of each gate the product with input and state
//     };
//     KW_RECURRENT(lstm, Lstm)
//
// exports, with [T, B, GATES H] products of the input in float32 (its bias in them):
//
//     lstm(output, last states.., of_input, weight_hh, bias_hh or None, first states or None.., work, reverse, threads)
//     lstm_step(output, states.., of_input, of_state, states or None.., threads)   one step whose products are made
//
// Weights, biases, first states, and the states of lstm_step are float32 and contiguous; output and last states have the
// dtype of the call and are contiguous. ``work`` holds WORK floats: weights as they are read, and states in float32.
//
// Weights are packed once a call: of LANES units the gates stand side by side, row by row of the state. A tile of some
// sequences times LANES units then reads a vector of weights and a number of the state a product, and its cell follows
// in registers. Threads share the tiles of a step and meet behind it.
#pragma once

#include <type_traits>

#include "activation.hpp"
#if KW_VECTORS
#include "transpose.hpp"
#endif

namespace kw {

constexpr int MOST_STATES = 2;

// What all steps of a call are given.
template <class Cell, class T>
struct Sequence {
    static constexpr int GATES = Cell::GATES, STATES = Cell::STATES;
    T *output, *last[MOST_STATES] = {};
    const float *of_input, *weight, *bias, *first[MOST_STATES] = {};
    float* work;
    int64_t steps, batch, units, threads;
    bool reverse;

    explicit Sequence(const Args& a)
        : output(a.tensor(0).ptr<T>()), of_input(a.tensor(STATES + 1).ptr<float>()),
          weight(a.tensor(STATES + 2).ptr<float>()), bias(a.none(STATES + 3) ? nullptr : a.tensor(STATES + 3).ptr<float>()),
          work(a.tensor(2 * STATES + 4).ptr<float>()), steps(a.tensor(0).shape[0]), batch(a.tensor(0).shape[1]),
          units(a.tensor(0).shape[2]), threads(a.integer(2 * STATES + 6)), reverse(a.integer(2 * STATES + 5) != 0) {
        for (int s = 0; s < STATES; ++s) {
            last[s] = a.tensor(1 + s).ptr<T>();
            first[s] = a.none(STATES + 4 + s) ? nullptr : a.tensor(STATES + 4 + s).ptr<float>();
        }
    }
    int64_t place(int64_t step) const { return reverse ? steps - 1 - step : step; }
    float start(int s, int64_t i) const { return first[s] ? first[s][i] : 0.0f; }
};

#if KW_VECTORS

constexpr int REGISTERS = LANES == 16 ? 24 : 12;  // that sums may take

template <class Cell, class T>
struct Steps : Sequence<Cell, T> {
    using Base = Sequence<Cell, T>;
    using Base::batch, Base::units, Base::steps, Base::GATES, Base::STATES;
    static constexpr int ROWS = REGISTERS / GATES < 8 ? REGISTERS / GATES : 8;  // sequences of a tile
    int64_t blocks, tiles;
    float *packed, *h[2], *others;  // the states before and after a step, in turn; those that are not multiplied

    explicit Steps(const Args& a) : Base(a) {
        blocks = (units + LANES - 1) / LANES;
        tiles = (batch + ROWS - 1) / ROWS;
        packed = this->work;
        h[0] = packed + blocks * LANES * units * GATES;
        h[1] = h[0] + batch * units;
        others = h[1] + batch * units;
    }

    void pack(int64_t block) const {
        const int64_t unit = block * LANES, left = units - unit;
        for (int g = 0; g < GATES; ++g)
            load_rows(this->weight + (g * units + unit) * units, units, static_cast<int>(left < LANES ? left : LANES), units,
                      [&](int64_t k, vf v) { store(packed + ((block * units + k) * GATES + g) * LANES, v); });
    }

    static vf some(const float* p, int count) { return count == LANES ? load(p) : load(p, count); }
    template <class U>
    static void put(U* p, vf v, int count) {
        if (count == LANES) store(p, v);
        else store(p, v, count);
    }

    // Independent sums of one product, so that no addition waits for the one before.
    static constexpr int sums_of(int rows) {
        const int sums = rows * GATES;
        return sums >= 8 ? 1 : sums >= 6 ? 2 : LANES == 16 ? (sums >= 3 ? 4 : 8) : (sums >= 4 ? 2 : 4);
    }

    template <int R>
    void tile(int64_t step, int64_t block, int64_t row) const {
        constexpr int SUMS = sums_of(R);
        const int64_t unit = block * LANES;
        const int count = static_cast<int>(units - unit < LANES ? units - unit : LANES);
        const float *w = packed + block * units * GATES * LANES, *from = h[step & 1] + row * units;
        vf sum[SUMS][R][GATES] = {};
        for (int g = 0; g < GATES; ++g)
            for (int r = 0; r < R; ++r)
                sum[0][r][g] = this->bias ? some(this->bias + g * units + unit, count) : vf{};
        auto one = [&](int64_t k, int s) __attribute__((always_inline)) {
            vf x[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) x[r] = splat(from[r * units + k]);
#pragma GCC unroll 8
            for (int g = 0; g < GATES; ++g) {
                const vf v = load(w + (k * GATES + g) * LANES);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) sum[s][r][g] = fma(x[r], v, sum[s][r][g]);
            }
        };
        int64_t k = 0;
        for (; k + SUMS <= units; k += SUMS)
#pragma GCC unroll 8
            for (int s = 0; s < SUMS; ++s) one(k + s, s);
        if constexpr (SUMS > 1)
            for (; k < units; ++k) one(k, 0);
        const int64_t at = this->place(step);
        for (int r = 0; r < R; ++r) {
            vf x[GATES], own[GATES], state[STATES];
            const float* given = this->of_input + (at * batch + row + r) * GATES * units + unit;
            for (int g = 0; g < GATES; ++g) {
                x[g] = some(given + g * units, count);
                own[g] = sum[0][r][g];
                for (int s = 1; s < SUMS; ++s) own[g] += sum[s][r][g];
            }
            const int64_t i = (row + r) * units + unit;
            state[0] = some(h[step & 1] + i, count);
            for (int s = 1; s < STATES; ++s) state[s] = some(others + (s - 1) * batch * units + i, count);
            Cell::step(x, own, state);
            put(h[(step + 1) & 1] + i, state[0], count);
            for (int s = 1; s < STATES; ++s) put(others + (s - 1) * batch * units + i, state[s], count);
            put(this->output + at * batch * units + i, state[0], count);
            if (step + 1 == steps)
                for (int s = 0; s < STATES; ++s) put(this->last[s] + i, state[s], count);
        }
    }

    template <int R = ROWS>
    void tile_of(int64_t rows, int64_t step, int64_t block, int64_t row) const {
        if constexpr (R > 1)
            if (rows < R) return tile_of<R - 1>(rows, step, block, row);
        tile<R>(step, block, row);
    }

    void run() const {
        parallel(this->threads, [&](int64_t ith, int64_t nth) {
            const auto meet = [&] {
                if (nth > 1) {
#pragma omp barrier
                }
            };
            const Range mine = slice(blocks, ith, nth), items = slice(blocks * tiles, ith, nth);
            for (int64_t b = mine.begin; b < mine.end; ++b) pack(b);
            const Range elements = slice(batch * units, ith, nth);
            for (int64_t i = elements.begin; i < elements.end; ++i) {
                h[0][i] = this->start(0, i);
                for (int s = 1; s < STATES; ++s) others[(s - 1) * batch * units + i] = this->start(s, i);
            }
            for (int64_t step = 0; step < steps; ++step) {
                meet();
                for (int64_t i = items.begin; i < items.end; ++i) {
                    const int64_t t = i % tiles, row = batch * t / tiles;
                    tile_of(batch * (t + 1) / tiles - row, step, i / tiles, row);
                }
            }
        });
    }
};

#else

// As the definition reads, for reading: one step after the other, a sequence and a unit at a time.
template <class Cell, class T>
struct Steps : Sequence<Cell, T> {
    using Sequence<Cell, T>::Sequence;

    void run() const {
        constexpr int GATES = Cell::GATES, STATES = Cell::STATES;
        const int64_t count = this->batch * this->units, H = this->units;
        float* state[MOST_STATES + 1];  // the output of the step, and the states before it
        for (int s = 0; s <= STATES; ++s) state[s] = this->work + s * count;
        for (int64_t i = 0; i < count; ++i)
            for (int s = 0; s < STATES; ++s) state[1 + s][i] = this->start(s, i);
        for (int64_t step = 0; step < this->steps; ++step) {
            const int64_t at = this->place(step);
            for (int64_t i = 0; i < count; ++i) {
                const int64_t b = i / H, unit = i % H;
                V x[GATES], own[GATES], now[STATES];
                for (int g = 0; g < GATES; ++g) {
                    const float* w = this->weight + (g * H + unit) * H;
                    x[g] = static_cast<double>(this->of_input[((at * this->batch + b) * GATES + g) * H + unit]);
                    own[g] = this->bias ? static_cast<double>(this->bias[g * H + unit]) : 0.0;
                    for (int64_t k = 0; k < H; ++k)
                        own[g] += static_cast<double>(w[k]) * static_cast<double>(state[1][b * H + k]);
                }
                for (int s = 0; s < STATES; ++s) now[s] = static_cast<double>(state[1 + s][i]);
                Cell::step(x, own, now);
                state[0][i] = static_cast<float>(now[0]);
                for (int s = 1; s < STATES; ++s) state[1 + s][i] = static_cast<float>(now[s]);
            }
            for (int64_t i = 0; i < count; ++i) {
                state[1][i] = state[0][i];
                this->output[at * count + i] = from_float<T>(state[0][i]);
            }
        }
        for (int64_t i = 0; i < count; ++i)
            for (int s = 0; s < STATES; ++s) this->last[s][i] = from_float<T>(state[1 + s][i]);
    }
};

#endif

template <class Cell>
inline void recurrent(const Args& args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) { Steps<Cell, decltype(zero)>(args).run(); });
}

// One step whose products are made: of `units` of a sequence, LANES at a time.
template <class Cell, class T>
inline void step_of(const Args& args) {
    constexpr int GATES = Cell::GATES, STATES = Cell::STATES;
    const Tensor out = args.tensor(0);
    const int64_t batch = out.shape[0], units = out.shape[1];
    const float *of_input = args.tensor(1 + STATES).ptr<float>(), *of_state = args.tensor(2 + STATES).ptr<float>();
    parallel(args.integer(2 * STATES + 3), [&](int64_t ith, int64_t nth) {
        const Range rows = slice(batch, ith, nth);
        for (int64_t b = rows.begin; b < rows.end; ++b) {
#if KW_VECTORS
            constexpr int WIDTH = LANES;
            const auto get = [](const float* p, int n) { return n == LANES ? load(p) : load(p, n); };
            const auto put = [](auto* p, V v, int n) { n == LANES ? store(p, v) : store(p, v, n); };
#else
            constexpr int WIDTH = 1;
            const auto get = [](const float* p, int) { return static_cast<double>(*p); };
            const auto put = [](auto* p, V v, int) { *p = from_float<std::remove_reference_t<decltype(*p)>>(static_cast<float>(v)); };
#endif
            for (int64_t unit = 0; unit < units; unit += WIDTH) {
                const int count = static_cast<int>(units - unit < WIDTH ? units - unit : WIDTH);
                const int64_t i = b * units + unit;
                V x[GATES], own[GATES], state[STATES];
                for (int g = 0; g < GATES; ++g) {
                    x[g] = get(of_input + (b * GATES + g) * units + unit, count);
                    own[g] = get(of_state + (b * GATES + g) * units + unit, count);
                }
                for (int s = 0; s < STATES; ++s)
                    state[s] = args.none(STATES + 3 + s) ? V{} : get(args.tensor(STATES + 3 + s).ptr<float>() + i, count);
                Cell::step(x, own, state);
                put(out.ptr<T>() + i, state[0], count);
                for (int s = 0; s < STATES; ++s) put(args.tensor(1 + s).ptr<float>() + i, state[s], count);
            }
        }
    });
}

template <class Cell>
inline void recurrent_step(const Args& args) {
    with_dtype(args.tensor(0).dtype, [&](auto zero) { step_of<Cell, decltype(zero)>(args); });
}

}  // namespace kw

#define KW_RECURRENT(name, Cell)                              \
    KW_EXPORT(name) { kw::recurrent<Cell>(args); }            \
    KW_EXPORT(name##_step) { kw::recurrent_step<Cell>(args); }

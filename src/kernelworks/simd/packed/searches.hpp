// How numbers are rounded to the formats that search for their scales: steps and their order are those of ggml's
// reference quantizers (`quantize_row_*_ref`), so that bytes are the same. Sums go from the first number to the last.
#pragma once

#include "numbers.hpp"

namespace kw {

constexpr float LEAST_OF_GROUP = 1e-15f;  // a part whose largest is smaller counts as zeros

// To nearest, halves to even, by the bits of a sum; 0 of a NaN.
inline int32_t nearest(float x) {
    const float sum = x + 12582912.0f;
    int32_t bits;
    std::memcpy(&bits, &sum, 4);
    return (bits & 0x007fffff) - 0x00400000;
}

inline int32_t between(int32_t x, int32_t least, int32_t most) { return x < least ? least : x > most ? most : x; }

inline bool all_finite(const float* x, int n) {
    bool finite = true;
    for (int i = 0; i < n; ++i) finite &= __builtin_fabsf(x[i]) <= 3.4028234663852886e38f;
    return finite;
}

// Scale and minimum (its size) of 32 numbers as scale code - minimum, by weighted least squares: as many as STEPS + 1 scales
// from (MOST + first) / range on, a tenth more each; the range is that of the best so far.
struct ScaledRange {
    float scale, minimum;
};

template <int MOST, int STEPS>
ScaledRange search_range(const float* x, float first, uint8_t* codes) {
    float squares = 0.0f;
    for (int i = 0; i < GROUP; ++i) squares += x[i] * x[i];
    const float usual = __builtin_sqrtf(squares / 32.0f);
    float weights[GROUP], least = x[0], most = x[0], sum_w = 0.0f, sum_x = 0.0f;
    for (int i = 0; i < GROUP; ++i) {
        const float w = usual + __builtin_fabsf(x[i]);
        weights[i] = w;
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        sum_w += w;
        sum_x += w * x[i];
    }
    if (least > 0.0f) least = 0.0f;
    if (most == least) {
        std::memset(codes, 0, GROUP);
        return {0.0f, -least};
    }
    auto error = [&](const uint8_t* found, float scale, float minimum) {
        float sum = 0.0f;
        for (int i = 0; i < GROUP; ++i) {
            const float off = scale * static_cast<float>(found[i]) + minimum - x[i];
            sum += weights[i] * (off * off);
        }
        return sum;
    };
    auto choose = [&](float times, uint8_t* to) {
        for (int i = 0; i < GROUP; ++i) to[i] = static_cast<uint8_t>(between(nearest(times * (x[i] - least)), 0, MOST));
    };
    float times = static_cast<float>(MOST) / (most - least), scale = 1.0f / times;
    choose(times, codes);
    float best = error(codes, scale, least);
    for (int step = 0; step <= STEPS; ++step) {
        uint8_t tried[GROUP];
        times = (first + 0.1f * static_cast<float>(step) + static_cast<float>(MOST)) / (most - least);
        choose(times, tried);
        float sum_l = 0.0f, sum_l2 = 0.0f, sum_xl = 0.0f;
        for (int i = 0; i < GROUP; ++i) {
            const float l = static_cast<float>(tried[i]), w = weights[i];
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x[i];
        }
        const float determinant = sum_w * sum_l2 - sum_l * sum_l;
        if (!(determinant > 0.0f)) continue;
        float this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        float this_least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if (this_least > 0.0f) {
            this_least = 0.0f;
            this_scale = sum_xl / sum_l2;
        }
        const float found = error(tried, this_scale, this_least);
        if (found < best) {
            std::memcpy(codes, tried, GROUP);
            best = found;
            scale = this_scale;
            least = this_least;
        }
    }
    return {scale, -least};
}

// The scale of 16 numbers as scale (code - 32), by least squares weighted by squares; of 19 scales the best.
inline float search_scale(const float* x, uint8_t* codes) {
    constexpr int SIZE = 16, HALF = 32;
    float largest = 0.0f, size = 0.0f;
    for (int i = 0; i < SIZE; ++i)
        if (__builtin_fabsf(x[i]) > size) {
            size = __builtin_fabsf(x[i]);
            largest = x[i];
        }
    std::memset(codes, 0, SIZE);
    if (size < LEAST_OF_GROUP) return 0.0f;
    struct Sums {
        float lx, l2;
    };
    auto choose = [&](float times, uint8_t* to) {
        Sums sums{0.0f, 0.0f};
        for (int i = 0; i < SIZE; ++i) {
            const int32_t code = between(nearest(times * x[i]), -HALF, HALF - 1);
            to[i] = static_cast<uint8_t>(code + HALF);
            const float l = static_cast<float>(code), w = x[i] * x[i];
            sums.lx += w * x[i] * l;
            sums.l2 += w * l * l;
        }
        return sums;
    };
    Sums sums = choose(-static_cast<float>(HALF) / largest, codes);
    float scale = sums.l2 != 0.0f ? sums.lx / sums.l2 : 0.0f, best = scale * sums.lx;
    for (int step = -9; step <= 9; ++step) {
        if (step == 0) continue;
        uint8_t tried[SIZE];
        sums = choose(-(static_cast<float>(HALF) + 0.1f * static_cast<float>(step)) / largest, tried);
        if (!(sums.l2 > 0.0f && sums.lx * sums.lx > best * sums.l2)) continue;
        std::memcpy(codes, tried, SIZE);
        scale = sums.lx / sums.l2;
        best = scale * sums.lx;
    }
    return scale;
}

// Which of 16 levels is nearest, of two the upper.
inline int nearest_level(const int8_t* levels, float x) {
    int found = 0;
    for (int j = 1; j < 16; ++j) found += x + x >= static_cast<float>(levels[j - 1] + levels[j]);
    return found;
}

}  // namespace kw

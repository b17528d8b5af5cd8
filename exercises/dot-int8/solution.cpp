#include <cstdint>

extern "C" void dot_int8(const int8_t* x, const int8_t* y, int32_t* result, long n) {
    int32_t sum = 0;
    for (long i = 0; i < n; ++i) {
        sum += x[i] * y[i];
    }
    *result = sum;
}

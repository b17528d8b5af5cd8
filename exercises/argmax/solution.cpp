#include <cstdint>

extern "C" void argmax(const float* x, int64_t* index, long rows, long n) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        long best = 0;
        for (long j = 1; j < n; ++j) {
            if (row[j] > row[best] || (row[j] != row[j] && row[best] == row[best])) {
                best = j;
            }
        }
        index[i] = best;
    }
}

#include <cmath>

extern "C" void softmax(const float* x, float* y, long rows, long n) {
    for (long i = 0; i < rows; ++i) {
        const float* row = x + i * n;
        float* out = y + i * n;
        float largest = row[0];
        for (long j = 1; j < n; ++j) {
            if (row[j] > largest) {
                largest = row[j];
            }
        }
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            out[j] = std::exp(row[j] - largest);
            sum += out[j];
        }
        for (long j = 0; j < n; ++j) {
            out[j] /= sum;
        }
    }
}

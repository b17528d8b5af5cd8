#include <cmath>

extern "C" void rbf_matmul(const float* x, const float* z, const float* v, float* y, long m, long n, long d, float length) {
    for (long i = 0; i < m; ++i) {
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            float square = 0;
            for (long c = 0; c < d; ++c) {
                float difference = x[i * d + c] - z[j * d + c];
                square += difference * difference;
            }
            sum += std::exp(-square / (2 * length * length)) * v[j];
        }
        y[i] = sum;
    }
}

#include <cmath>

// y[i] = sum over j of exp(-|x[i] - z[j]|^2 / (2 length^2)) v[j].
extern "C" void rbf_matmul(const float* x, const float* z, const float* v, float* y, long m, long n, long d, float length) {
    for (long i = 0; i < m; ++i) {
        float sum = 0;
        for (long j = 0; j < n; ++j) {
            float square = 0;  // Yours: the squared distance of x[i] and z[j].
            sum += std::exp(-square / (2 * length * length)) * v[j];
        }
        y[i] = sum;
    }
    (void)x, (void)z, (void)d;  // Says that these are not used yet; take it away.
}

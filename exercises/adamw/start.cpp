#include <cmath>

// One step of AdamW; step counts from 1.
extern "C" void adamw(float* w, const float* grad, float* m, float* v, long n, float lr, float beta1, float beta2, float eps,
                      float decay, long step) {
    for (long i = 0; i < n; ++i) {
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i];
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] * grad[i];
        w[i] -= lr * m[i] / (std::sqrt(v[i]) + eps);  // Yours: decay, and the corrections.
    }
    (void)decay, (void)step;  // Says that these are not used yet; take it away.
}

#include <cmath>

extern "C" void adamw(float* w, const float* grad, float* m, float* v, long n, float lr, float beta1, float beta2, float eps,
                      float decay, long step) {
    float c1 = 1 - std::pow(double(beta1), double(step));
    float c2 = 1 - std::pow(double(beta2), double(step));
    for (long i = 0; i < n; ++i) {
        float g = grad[i];
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        w[i] -= lr * decay * w[i];
        w[i] -= lr * (m[i] / c1) / (std::sqrt(v[i] / c2) + eps);
    }
}

extern "C" void sgd(float* w, const float* grad, float* velocity, long n, float lr, float momentum, float decay) {
    for (long i = 0; i < n; ++i) {
        float g = grad[i] + decay * w[i];
        float v = momentum * velocity[i] + g;
        velocity[i] = v;
        w[i] -= lr * v;
    }
}

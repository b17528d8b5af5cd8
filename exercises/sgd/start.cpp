// g = grad + decay w; velocity = momentum velocity + g; w = w - lr velocity.
extern "C" void sgd(float* w, const float* grad, float* velocity, long n, float lr, float momentum, float decay) {
    for (long i = 0; i < n; ++i) {
        w[i] -= lr * grad[i];  // Yours: decay and velocity.
    }
    (void)velocity, (void)momentum, (void)decay;  // Says that these are not used yet; take it away.
}

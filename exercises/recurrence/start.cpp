// h[t, c] = decay[t, c] * h[t - 1, c] + x[t, c]; y = h; state is h before and after.
extern "C" void recurrence(const float* x, const float* decay, float* state, float* y, long steps, long channels) {
    for (long c = 0; c < channels; ++c) {
        float h = 0;  // Yours: where does the state begin, and where does it go?
        for (long t = 0; t < steps; ++t) {
            h = decay[t * channels + c] * h + x[t * channels + c];
            y[t * channels + c] = h;
        }
    }
    (void)state;  // Says that state is not used yet; take it away.
}

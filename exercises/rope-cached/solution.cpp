static void turn(float* x, const float* cosine, const float* sine, long half) {
    for (long c = 0; c < half; ++c) {
        float first = x[c], second = x[c + half];
        x[c] = first * cosine[c] - second * sine[c];
        x[c + half] = second * cosine[c] + first * sine[c];
    }
}

extern "C" void rope_cached(float* q, float* k, const float* cosine, const float* sine, long length, long heads,
                            long kv_heads, long d) {
    long half = d / 2;
    for (long i = 0; i < length; ++i) {
        for (long h = 0; h < heads; ++h) {
            turn(q + (i * heads + h) * d, cosine + i * half, sine + i * half, half);
        }
        for (long h = 0; h < kv_heads; ++h) {
            turn(k + (i * kv_heads + h) * d, cosine + i * half, sine + i * half, half);
        }
    }
}

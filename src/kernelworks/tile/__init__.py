"""Device functions in Triton that several op packages share, one subject a file; what ``simd/`` is to C++."""

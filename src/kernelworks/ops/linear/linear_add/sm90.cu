// linear_add for 16-bit elements on Hopper, by element type.
#include "epilogue.cuh"

KW_FUSED(add_bfloat16, Bf16, Added)
KW_FUSED(add_float16, F16, Added)

// gcc's <immintrin.h> for a target without AVX-512: the headers of what the target has, and none of AVX-512's, whose
// 60,000 lines take half a second of each compile. Declarations alone: libraries are the same to the byte.
//
// Listed is what is read, not what is left out: a later gcc has further headers, which need AVX-512's types.
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__) && !defined(__AVX512F__) && __has_include(<x86gprintrin.h>)
#ifndef _IMMINTRIN_H_INCLUDED
#define _IMMINTRIN_H_INCLUDED  // without it these headers refuse to be read
#include <x86gprintrin.h>

#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <f16cintrin.h>
#include <fmaintrin.h>
#endif
#else
#include_next <immintrin.h>
#endif

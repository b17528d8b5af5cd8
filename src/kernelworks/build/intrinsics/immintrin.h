// gcc's <immintrin.h> for what the target has: AVX-512's 60,000 lines take half a second of each compile, so a target
// without it reads none of them, and one with it none of the extensions that it lacks (half precision, matrix tiles).
// Declarations alone: libraries are the same to the byte.
//
// Listed is what is read, not what is left out: a later gcc has further headers, which need AVX-512's types.
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__) && __has_include(<x86gprintrin.h>)
#ifndef _IMMINTRIN_H_INCLUDED
#define _IMMINTRIN_H_INCLUDED  // without it these headers refuse to be read
#include <x86gprintrin.h>

#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#if defined(__AVX512F__)
#include <avx512fintrin.h>
#include <avx512cdintrin.h>
#include <avx512vlintrin.h>
#include <avx512bwintrin.h>
#include <avx512dqintrin.h>
#include <avx512vlbwintrin.h>
#include <avx512vldqintrin.h>
#if defined(__AVX512VNNI__)
#include <avx512vnniintrin.h>
#include <avx512vnnivlintrin.h>
#endif
#endif
#include <fmaintrin.h>
#include <f16cintrin.h>
#if defined(__AVX512BF16__)
#include <avx512bf16vlintrin.h>
#include <avx512bf16intrin.h>
#endif
#endif
#else
#include_next <immintrin.h>
#endif

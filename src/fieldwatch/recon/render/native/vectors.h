/* Vectors of eight floats in the extensions common to GCC and Clang, without intrinsics except for the sign bits. */
#ifndef FIELDWATCH_VECTORS_H
#define FIELDWATCH_VECTORS_H

#include <stdint.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#define FW_EXPORT __attribute__((visibility("default")))
#define FW_INLINE static inline __attribute__((always_inline))
#define LANES 8

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));

/* Unlike fminf and fmaxf one instruction each; with a NaN they give b. */
FW_INLINE float smaller(float a, float b) { return a < b ? a : b; }

FW_INLINE float larger(float a, float b) { return a > b ? a : b; }

FW_INLINE vf broadcast(float x) { return (vf){x, x, x, x, x, x, x, x}; }

FW_INLINE vf keep(vi mask, vf x) { return (vf)((vi)x & mask); }

FW_INLINE vf choose(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }

/* Whether any lane of a mask is set. */
FW_INLINE int any(vi mask) {
#ifdef __AVX__
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    return (mask[0] | mask[1] | mask[2] | mask[3] | mask[4] | mask[5] | mask[6] | mask[7]) != 0;
#endif
}

/* Sum of the lanes, always in the same order. */
FW_INLINE float total(vf x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* 2^x for -126 < x < 126, to 1.2e-7 relative: the Chebyshev interpolant of degree 6 on [-1/2, 1/2]. */
FW_INLINE vf power_of_two(vf x) {
    const vf shift = broadcast(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf shifted = x + shift;
    vf f = x - (shifted - shift);
    vi exponent = ((vi)shifted - (vi)shift + 127) << 23;
    vf y = broadcast(0.0001546144472f);
    y = y * f + 0.001340042818f;
    y = y * f + 0.009618056678f;
    y = y * f + 0.05550327227f;
    y = y * f + 0.2402265092f;
    y = y * f + 0.6931472067f;
    y = y * f + 1.0f;
    return y * (vf)exponent;
}

#endif

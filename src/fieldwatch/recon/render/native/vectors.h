/* Vectors of eight floats in the extensions common to GCC and Clang, without intrinsics except for the sign bits. */
#ifndef FIELDWATCH_VECTORS_H
#define FIELDWATCH_VECTORS_H

#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#define FW_EXPORT __attribute__((visibility("default")))
#define FW_INLINE static inline __attribute__((always_inline))
#define LANES 8

typedef float vf __attribute__((vector_size(32)));
typedef int32_t vi __attribute__((vector_size(32)));

/* Lanes of two vectors by their numbers; those of the second begin at 8. gcc before 12 lacks clang's builtin. */
#ifdef __clang__
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

/* Unlike fminf and fmaxf one instruction each; with a NaN they give b. */
FW_INLINE float smaller(float a, float b) { return a < b ? a : b; }

FW_INLINE float larger(float a, float b) { return a > b ? a : b; }

FW_INLINE vf load(const float *from) {
    vf v;
    memcpy(&v, from, sizeof v);
    return v;
}

FW_INLINE void store(float *to, vf v) { memcpy(to, &v, sizeof v); }

FW_INLINE vf broadcast(float x) { return (vf){x, x, x, x, x, x, x, x}; }

FW_INLINE vf keep(vi mask, vf x) { return (vf)((vi)x & mask); }

FW_INLINE vf choose(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }

/* The lanes of a mask that are set, as bits. */
FW_INLINE uint32_t bits(vi mask) {
#ifdef __AVX__
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#else
    uint32_t set = 0;
    for (int k = 0; k < LANES; k++) set |= (uint32_t)(mask[k] & 1) << k;
    return set;
#endif
}

/* Whether any lane of a mask is set. */
FW_INLINE int any(vi mask) { return bits(mask) != 0; }

/* Sum of the lanes, always in the same order. */
FW_INLINE float total(vf x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* The sums of the lanes of eight vectors, each in the order of `total`. */
FW_INLINE vf totals(const vf *x) {
    vf halves[4], quarters[2];
    for (int i = 0; i < 4; i++)
        halves[i] = SHUFFLED(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
                    SHUFFLED(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++)
        quarters[i] = SHUFFLED(halves[2 * i], halves[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                      SHUFFLED(halves[2 * i], halves[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLED(quarters[0], quarters[1], 0, 2, 8, 10, 4, 6, 12, 14) +
           SHUFFLED(quarters[0], quarters[1], 1, 3, 9, 11, 5, 7, 13, 15);
}

/* Rows of eight vectors become columns. */
FW_INLINE void transpose(vf *x) {
    vf pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = SHUFFLED(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = SHUFFLED(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = SHUFFLED(pairs[i + j], pairs[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            fours[i + 2 * j + 1] = SHUFFLED(pairs[i + j], pairs[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        x[i] = SHUFFLED(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[i + 4] = SHUFFLED(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
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

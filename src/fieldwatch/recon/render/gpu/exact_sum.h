/* Sums of floats that are exact, and therefore the same in any order of threads and blocks.
 *
 * A first kernel finds the largest exponent of what is added to a sum, or to a group of sums (`raise_exponent`). A
 * second one adds the numbers as integers, in units of 2^-35 of that power of two (`add_exactly`). A third one turns
 * the integers into floats (`exact_sum`). Exponents and integers begin at 0. A number that is not finite makes the
 * sums of its group NaN. */
#ifndef FIELDWATCH_EXACT_SUM_H
#define FIELDWATCH_EXACT_SUM_H

#include "kernel.h"

#define SUM_BITS 35    /* of the largest number of a group; 27 more hold the sum of 2^27 of them */
#define NOT_FINITE 256 /* what `exponent_of` returns for infinity and NaN */

/* Exponent of a float, as it is stored, and 1 more; so that 0 means no number. */
DEVICE int exponent_of(float x) {
    union {
        float number;
        uint32_t bits;
    } both;
    both.number = x;
    return x == 0.0f ? 0 : (int)(both.bits >> 23 & 255) + 1;
}

/* 2^n. */
DEVICE double power_of_two(int n) {
    union {
        uint64_t bits;
        double number;
    } both;
    both.bits = (uint64_t)(n + 1023) << 52;
    return both.number;
}

DEVICE int shift_of(int exponent) { return SUM_BITS + 126 - (exponent - 1); }

DEVICE void raise_exponent(int *exponent, float x) {
    const int found = exponent_of(x);
    /* It only rises: a number that was read too early costs an atomic operation, no more. */
    if (found > *exponent) atomicMax(exponent, found);
}

DEVICE void add_exactly(int64_t *sum, int exponent, float x) {
    if (x == 0.0f || exponent == NOT_FINITE) return;
    const double scaled = (double)x * power_of_two(shift_of(exponent));
    const int64_t whole = (int64_t)(scaled + (scaled < 0 ? -0.5 : 0.5));
    atomicAdd((uint64_t *)sum, (uint64_t)whole);
}

DEVICE float exact_sum(int64_t sum, int exponent) {
    if (exponent == 0) return 0.0f;
    if (exponent == NOT_FINITE) return sqrtf(-1.0f);
    return (float)((double)sum * power_of_two(-shift_of(exponent)));
}

#endif

/* Kernels that show what the language of kernels does. */
#include "kernel.h"

#define THREADS 32

/* Reverses each block's share of a vector twice over, through shared memory. */
KERNEL(reversed_sums, THREADS, int64_t count, float factor, const float *in, float *out) {
    SHARED(float, kept[THREADS]);
    PER_THREAD(float, sum);
    PHASE {
        const int64_t i = (int64_t)BLOCK * THREADS + THREAD;
        kept[THREAD] = i < count ? in[i] : 0;
        sum[SELF] = 0;
    }
    for (int turn = 0; turn < 2; turn++) PHASE { sum[SELF] += kept[THREADS - 1 - THREAD]; }
    PHASE {
        const int64_t i = (int64_t)BLOCK * THREADS + THREAD;
        if (i >= count) continue;
        out[i] = factor * sum[SELF];
    }
}

/* Adds several vectors, each with a weight. */
KERNEL(weighted_sum, THREADS, int several, LISTED List<const float *> in, LISTED List<double> weights, float *out) {
    PHASE {
        double sum = 0;
        for (int k = 0; k < several; k++) sum += weights.at[k] * in.at[k][THREAD];
        out[THREAD] = (float)sum;
    }
}

/* Counts the positive values: the order of additions of integers does not matter. */
KERNEL(count_positive, THREADS, int64_t count, const float *in, int *found) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * THREADS + THREAD;
        if (i < count && in[i] > 0) atomicAdd(found, 1);
    }
}

/* Wrong: a thread reads what its neighbor writes in the same phase. */
KERNEL(racing, THREADS, float *values) {
    PHASE { values[THREAD] = 1 + values[(THREAD + 1) % THREADS]; }
}

/* Wrong: the last thread writes beyond the tensor. */
KERNEL(beyond, THREADS, float *values) {
    PHASE { values[THREAD] = 0; }
}

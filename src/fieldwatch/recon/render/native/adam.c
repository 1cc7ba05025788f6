/* One step of Adam (Kingma 2015) on selected rows of a parameter. */
#include <math.h>

#include "vectors.h"

FW_INLINE void step_entries(int64_t n, const float *restrict g, float old_square, float new_mean, float new_square,
                            float rate, float over_root, float eps, float *restrict p, float *restrict m,
                            float *restrict v) {
    for (int64_t j = 0; j < n; j++) {
        m[j] += (g[j] - m[j]) * new_mean;
        v[j] = v[j] * old_square + new_square * g[j] * g[j];
        p[j] -= rate * m[j] / (sqrtf(v[j]) * over_root + eps);
    }
}

/* Weights of the old and new second and of the new first moment; `rate` is the learning rate over the first bias
 * correction, `root` the square root of the second. Consecutive rows are updated as one. */
FW_EXPORT void fw_adam(int64_t count, const int64_t *ids, int64_t width, const float *gradient, float old_square,
                       float new_mean, float new_square, float rate, float root, float eps, int threads,
                       float *parameter, float *mean, float *square) {
    const int64_t shares = threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t share = 0; share < shares; share++) {
        for (int64_t k = count * share / shares, end = count * (share + 1) / shares, run; k < end; k += run) {
            for (run = 1; k + run < end && ids[k + run] == ids[k] + run;) run++;
            step_entries(run * width, gradient + ids[k] * width, old_square, new_mean, new_square, rate, 1 / root, eps,
                         parameter + ids[k] * width, mean + ids[k] * width, square + ids[k] * width);
        }
    }
}

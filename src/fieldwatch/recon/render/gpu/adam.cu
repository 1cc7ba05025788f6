/* One step of Adam (Kingma 2015) on the visible rows of a parameter. */
#include "kernel.h"

#define ADAM_THREADS 256

/* `step` counts this step already; nothing changes if `refused`, which may be null, is not 0. */
KERNEL(adam_visible, ADAM_THREADS, int64_t count, int64_t width, const uint8_t *visible, const float *gradient,
       const float *step, const float *refused, double beta1, double beta2, double rate, float eps, float *parameter,
       float *mean, float *square) {
    SHARED(float, corrected[2]);
    if (refused && refused[0] != 0) return;
    PHASE {
        /* In double precision: 1 - 0.999 has a relative error of 5e-5 in single precision. */
        if (THREAD == 0) corrected[0] = (float)(rate / (1 - pow(beta1, (double)step[0])));
        if (THREAD == 1) corrected[1] = (float)(1 / sqrt(1 - pow(beta2, (double)step[0])));
    }
    PHASE {
        const int64_t i = (int64_t)BLOCK * ADAM_THREADS + THREAD;
        if (i >= count * width || !visible[i / width]) continue;
        const float g = gradient[i], m = mean[i] + (g - mean[i]) * (float)(1 - beta1);
        const float v = square[i] * (float)beta2 + (float)(1 - beta2) * g * g;
        mean[i] = m;
        square[i] = v;
        parameter[i] -= corrected[0] * m / (sqrtf(v) * corrected[1] + eps);
    }
}

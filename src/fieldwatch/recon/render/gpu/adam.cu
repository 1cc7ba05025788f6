/* One step of Adam (Kingma 2015) on the visible rows of several parameters. */
#include "kernel.h"

#define ADAM_THREADS 256

/* `ends` are the blocks up to the end of each parameter, `widths` its numbers per row. `visible` may be null: all rows.
 * `steps` count the steps before this one, and `counted` receive numbers that count this one too: other tensors, as
 * blocks run in any order. Nothing else changes if `refused`, which may be null, is not 0. */
KERNEL(adam_visible, ADAM_THREADS, int several, LISTED List<int64_t> ends, LISTED List<int64_t> sizes,
       LISTED List<int64_t> widths, const uint8_t *visible, LISTED List<const float *> gradients,
       LISTED List<const float *> steps, const float *refused, LISTED List<double> beta1, LISTED List<double> beta2,
       LISTED List<double> rates, LISTED List<float> eps, LISTED List<float *> parameters,
       LISTED List<float *> means, LISTED List<float *> squares,
       LISTED List<float *> counted) {
    SHARED(float, corrected[2]);
    const bool stays = refused && refused[0] != 0;
    int which = 0;
    while (which < several - 1 && BLOCK >= ends.at[which]) which++;
    const int64_t first = which ? ends.at[which - 1] : 0;
    const double decay1 = beta1.at[which], decay2 = beta2.at[which];
    PHASE {
        const double step = (double)steps.at[which][0] + 1;
        if (THREAD == 0 && BLOCK == first) counted.at[which][0] = stays ? steps.at[which][0] : (float)step;
        /* In double precision: 1 - 0.999 has a relative error of 5e-5 in single precision. */
        if (THREAD == 0) corrected[0] = (float)(rates.at[which] / (1 - pow(decay1, step)));
        if (THREAD == 1) corrected[1] = (float)(1 / sqrt(1 - pow(decay2, step)));
    }
    PHASE {
        const int64_t i = (BLOCK - first) * ADAM_THREADS + THREAD;
        if (stays || i >= sizes.at[which] || (visible && !visible[i / widths.at[which]])) continue;
        float *mean = means.at[which] + i, *square = squares.at[which] + i;
        const float g = gradients.at[which][i], m = *mean + (g - *mean) * (float)(1 - decay1);
        const float v = *square * (float)decay2 + (float)(1 - decay2) * g * g;
        *mean = m;
        *square = v;
        parameters.at[which][i] -= corrected[0] * m / (sqrtf(v) * corrected[1] + eps.at[which]);
    }
}

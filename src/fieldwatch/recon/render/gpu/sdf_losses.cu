/* Losses of rendered rays and their gradients: normals, silhouettes, and lengths of gradients (see losses/
 * rendered_surface.py), and the loss of each view. Only the first `*kept` rays count: the others were not rendered.
 *
 * Sums are in double precision and in a fixed order: a thread adds every n-th number, and threads' sums are added in
 * their order. */
#include "kernel.h"

#define LOSS_THREADS 256
#define EIKONAL_BLOCKS 128 /* mirrored in sdf_gpu */
#define FLOOR 1e-5f         /* distance of opacities from 0 and 1 */
#define NO_LENGTH 1e-24f    /* squared length below which a gradient has no direction */

struct Residual {
    float error, counted;  /* of the normal */
    float entropy, weight; /* of the silhouette */
};

struct Rays {
    const float *opacity, *normal, *observed, *weights;
    const uint8_t *mask, *known;
    int64_t kept;
    float least_opacity; /* of rays with a direction; negative if sums of gradients are compared themselves */
    int absolute;        /* differences of normals, not their squares */
    float robust;        /* length of differences from which squares grow linearly; 0 for squares alone */
};

DEVICE bool is_compared(const Rays *rays, int64_t i) {
    if (i >= rays->kept || !rays->known[i]) return false;
    return rays->least_opacity < 0.0f || rays->opacity[i] > rays->least_opacity;
}

/* 1 / opacity of rays whose directions are compared, else 1. */
DEVICE float scale_of(const Rays *rays, int64_t i) {
    return rays->least_opacity < 0.0f ? 1.0f : 1.0f / fmaxf(rays->opacity[i], rays->least_opacity);
}

DEVICE float error_of(const Rays *rays, int64_t i) {
    float error = 0.0f;
    for (int d = 0; d < 3; d++) {
        const float difference = rays->normal[3 * i + d] * scale_of(rays, i) - rays->observed[3 * i + d];
        error += rays->absolute ? fabsf(difference) : difference * difference;
    }
    if (rays->absolute || rays->robust <= 0.0f) return error;
    const float squared = rays->robust * rays->robust;
    return 2.0f * squared * (sqrtf(1.0f + error / squared) - 1.0f);
}

/* Factor that the robust cost puts on the slope of squares. */
DEVICE float weight_of(const Rays *rays, int64_t i) {
    if (rays->absolute || rays->robust <= 0.0f) return 1.0f;
    float squares = 0.0f;
    for (int d = 0; d < 3; d++) {
        const float difference = rays->normal[3 * i + d] * scale_of(rays, i) - rays->observed[3 * i + d];
        squares += difference * difference;
    }
    return 1.0f / sqrtf(1.0f + squares / (rays->robust * rays->robust));
}

DEVICE float rescaled(float opacity) { return FLOOR + (1.0f - 2.0f * FLOOR) * opacity; }

DEVICE float share_of(const Rays *rays, int64_t i) { return i >= rays->kept ? 0.0f : rays->weights ? rays->weights[i] : 1.0f; }

/* Sums of a block's threads, added in their order. */
DEVICE void add_in_order(const double *sums, int numbers, double *totals) {
    PHASE {
        if (THREAD >= numbers) continue;
        double total = 0;
        for (int i = 0; i < LOSS_THREADS; i++) total += sums[THREAD * LOSS_THREADS + i];
        totals[THREAD] = total;
    }
}

/* Sum of (|gradient| - 1)^2 for each of EIKONAL_BLOCKS blocks. */
KERNEL(eikonal_sums, LOSS_THREADS, const int *count, const float *gradients, double *block_sums) {
    SHARED(double, sums[LOSS_THREADS]);
    PHASE {
        double sum = 0;
        for (int64_t e = (int64_t)BLOCK * LOSS_THREADS + THREAD; e < *count; e += (int64_t)BLOCKS * LOSS_THREADS) {
            const float *g = gradients + 3 * e;
            const float squared = g[0] * g[0] + g[1] * g[1] + g[2] * g[2];
            const float length = squared <= NO_LENGTH ? 0.0f : sqrtf(squared); /* NaN stays */
            sum += (double)(length - 1.0f) * (length - 1.0f);
        }
        sums[THREAD] = sum;
    }
    add_in_order(sums, 1, block_sums + BLOCK);
}

/* The terms normal, mask and eikonal, and what they are means over: one block. */
KERNEL(ray_terms, LOSS_THREADS, int64_t room, const int *kept, const float *opacity, const float *normal,
       const float *observed, const uint8_t *mask, const uint8_t *known, const float *weights, float least_opacity,
       int absolute, float robust, const int *ends, const double *block_sums, float *terms, float *amounts) {
    SHARED(double, sums[4 * LOSS_THREADS]);
    SHARED(double, totals[4]);
    const Rays rays = {opacity, normal, observed, weights, mask, known, *kept, least_opacity, absolute, robust};
    PHASE {
        double sum[4] = {0, 0, 0, 0};
        for (int64_t i = THREAD; i < room && i < rays.kept; i += LOSS_THREADS) {
            if (is_compared(&rays, i)) {
                sum[0] += error_of(&rays, i);
                sum[1] += 1;
            }
            const float x = rescaled(opacity[i]), share = share_of(&rays, i);
            sum[2] -= (double)share * logf(mask[i] ? x : rescaled(1.0f - opacity[i]));
            sum[3] += share;
        }
        for (int k = 0; k < 4; k++) sums[k * LOSS_THREADS + THREAD] = sum[k];
    }
    add_in_order(sums, 4, totals);
    PHASE {
        if (THREAD > 2) continue;
        double total = 0, amount = *ends;
        if (THREAD < 2) {
            total = totals[2 * THREAD];
            amount = totals[2 * THREAD + 1];
        } else if (block_sums) {
            for (int b = 0; b < EIKONAL_BLOCKS; b++) total += block_sums[b];
        }
        if (!(amount > 0)) amount = 1;
        terms[THREAD] = (float)(total / amount);
        amounts[THREAD] = (float)amount;
    }
}

/* The gradient of the eikonal term by the gradient at an end. */
DEVICE void eikonal_backward(int64_t e, const int *count, const float *gradients, const float *amounts,
                             const float *by_term, float *by_gradients) {
    float factor = 0.0f;
    const float *g = gradients + 3 * e;
    if (e < *count) {
        const float squared = g[0] * g[0] + g[1] * g[1] + g[2] * g[2], length = sqrtf(squared);
        if (!(squared <= NO_LENGTH)) factor = *by_term / amounts[2] * 2.0f * (length - 1.0f) / length;
    }
    for (int d = 0; d < 3; d++) by_gradients[3 * e + d] = e < *count ? factor * g[d] : 0.0f;
}

/* Gradients of the terms: a thread for each ray, then, in the blocks from `ray_blocks` on, one for each of the `ends`
 * that there is room for; no such blocks without a gradient of the eikonal term. */
KERNEL(ray_terms_backward, LOSS_THREADS, int64_t room, const int *kept, const float *opacity, const float *normal,
       const float *observed, const uint8_t *mask, const uint8_t *known, const float *weights, float least_opacity,
       int absolute, float robust, const float *amounts, const float *by_normal_term, const float *by_mask_term,
       float *by_opacity, float *by_normal, float *by_observed, int ray_blocks, const int *count, int64_t ends,
       const float *gradients, const float *by_eikonal, float *by_gradients) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * LOSS_THREADS + THREAD, e = i - (int64_t)ray_blocks * LOSS_THREADS;
        if (e >= 0) {
            if (e < ends) eikonal_backward(e, count, gradients, amounts, by_eikonal, by_gradients);
            continue;
        }
        if (i >= room) continue;
        const Rays rays = {opacity, normal, observed, weights, mask, known, *kept, least_opacity, absolute, robust};
        float by = 0.0f, to[3] = {0.0f, 0.0f, 0.0f};
        if (by_normal_term && is_compared(&rays, i)) {
            const float factor = *by_normal_term / amounts[0] * weight_of(&rays, i), scale = scale_of(&rays, i);
            for (int d = 0; d < 3; d++) {
                const float n = normal[3 * i + d] * scale, difference = n - observed[3 * i + d];
                const float slope = absolute ? (float)((difference > 0) - (difference < 0)) : 2.0f * difference;
                to[d] = factor * slope;
                if (difference != difference) to[d] = difference;
                if (least_opacity >= 0.0f) by -= to[d] * n * scale;
            }
        }
        for (int d = 0; d < 3; d++) {
            by_normal[3 * i + d] = to[d] * (i < rays.kept ? scale_of(&rays, i) : 0.0f);
            if (by_observed) by_observed[3 * i + d] = -to[d];
        }
        if (by_mask_term && i < rays.kept) {
            const float factor = *by_mask_term * share_of(&rays, i) / amounts[1] * (1.0f - 2.0f * FLOOR);
            by += mask[i] ? -factor / rescaled(opacity[i]) : factor / rescaled(1.0f - opacity[i]);
        }
        by_opacity[i] = by;
    }
}

/* Mean loss of each view: a block for each, whose rays are `per_view` in a row. NaN if none was rendered. */
KERNEL(view_losses, LOSS_THREADS, int64_t room, int64_t per_view, const int *kept, const float *opacity,
       const float *normal, const float *observed, const uint8_t *mask, const uint8_t *known, const float *weights,
       float least_opacity, int absolute, float robust, float normal_weight, float mask_weight, float *losses) {
    SHARED(double, sums[4 * LOSS_THREADS]);
    SHARED(double, totals[4]);
    const Rays rays = {opacity, normal, observed, weights, mask, known, *kept, least_opacity, absolute, robust};
    const int64_t first = (int64_t)BLOCK * per_view;
    PHASE {
        double sum[4] = {0, 0, 0, 0};
        for (int64_t i = first + THREAD; i < first + per_view && i < room && i < rays.kept; i += LOSS_THREADS) {
            if (is_compared(&rays, i)) {
                sum[0] += error_of(&rays, i);
                sum[1] += 1;
            }
            const float clamped = fminf(fmaxf(opacity[i], FLOOR), 1.0f - FLOOR), share = share_of(&rays, i);
            sum[2] -= (double)share * logf(mask[i] ? clamped : 1.0f - clamped);
            sum[3] += share;
        }
        for (int k = 0; k < 4; k++) sums[k * LOSS_THREADS + THREAD] = sum[k];
    }
    add_in_order(sums, 4, totals);
    PHASE {
        if (THREAD > 0) continue;
        double loss = 0;
        if (normal_weight != 0.0f) loss += normal_weight * totals[0] / fmax(totals[1], 1e-6);
        if (mask_weight != 0.0f) loss += mask_weight * totals[2] / fmax(totals[3], 1e-6);
        losses[BLOCK] = first < rays.kept ? (float)loss : sqrtf(-1.0f);
    }
}

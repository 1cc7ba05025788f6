/* Opacities of ray sections and their blending, forward and backward. The formulas are those of native/compositing.c:
 * with a = s f0 and b = s f1 at the ends of a section, S the sigmoid and e = exp(b - a),
 *     alpha = (1 - e) S(-b),   1 - alpha = S(b) + e S(-b)     (a > b; else alpha = 0),
 *     dalpha/da = e S(-b),     dalpha/db = -(1 - alpha) S(-b).
 * With T_i the transmittance in front of section i, w_i = T_i alpha_i and g_i = dL/dw_i, from back to front
 *     dL/dalpha_i = T_i (g_i - B_i),   B_{i-1} = g_i alpha_i + (1 - alpha_i) B_i,   B_last = dL/dT (behind the ray).
 *
 * A thread computes a ray, in double precision; opacities and gradients at ends are computed by a thread each. An end
 * takes its gradient from the two sections beside it, so no sum depends on an order. */
#include "kernel.h"

#define SECTION_THREADS 128
#define RAY_THREADS 32 /* few, so that the rays are spread over the whole GPU */

struct Opacity {
    double alpha, clear;
    double by_start, by_end; /* derivatives of alpha by s f0 and s f1 */
};

DEVICE Opacity opacity_of(double a, double b) {
    const bool leaves = a < b;
    const double e = leaves ? 1 : exp(b - a), t = exp(b > 0 ? -b : b);
    const double more = 1 / (1 + t), less = t * more; /* S(|b|), S(-|b|) */
    const double inside = b > 0 ? less : more, outside = b > 0 ? more : less; /* S(-b), S(b) */
    Opacity opacity;
    opacity.alpha = leaves ? 0 : -expm1(b - a) * inside;
    opacity.clear = outside + e * inside;
    opacity.by_start = leaves ? 0 : e * inside;
    opacity.by_end = leaves ? 0 : -opacity.clear * inside;
    return opacity;
}

KERNEL(section_opacities, SECTION_THREADS, const int *count, int64_t room, const float *values, const int *first_end,
       const float *sharpness, double *alpha, double *clear) {
    PHASE {
        const int64_t s = (int64_t)BLOCK * SECTION_THREADS + THREAD;
        if (s >= room || s >= *count) continue;
        const float *at = values + first_end[s];
        const Opacity opacity = opacity_of((double)*sharpness * at[0], (double)*sharpness * at[1]);
        alpha[s] = opacity.alpha;
        clear[s] = opacity.clear;
    }
}

/* Opacity, sum of weight times distance, and sum of weight times gradient of each ray; the light in front of each
 * section. `ray_sums` is where the sections of each ray end. */
KERNEL(blend_sections, RAY_THREADS, int64_t rays, const int *ray_sums, const int *first_end, const float *distance,
       const float *gradients, const double *alpha, const double *clear, float *light, float *opacity, float *depth,
       float *normal) {
    PHASE {
        const int64_t ray = (int64_t)BLOCK * RAY_THREADS + THREAD;
        if (ray >= rays) continue;
        double left = 1, sum = 0, normals[3] = {0, 0, 0};
        for (int s = ray ? ray_sums[ray - 1] : 0; s < ray_sums[ray]; s++) {
            const int64_t e = first_end[s];
            const float weight = (float)(left * alpha[s]), middle = 0.5f * (distance[e] + distance[e + 1]);
            light[s] = (float)left;
            sum += (double)weight * middle;
            for (int d = 0; d < 3; d++)
                normals[d] += weight * (0.5 * ((double)gradients[3 * e + d] + gradients[3 * e + 3 + d]));
            left *= clear[s];
        }
        opacity[ray] = (float)(1 - left);
        depth[ray] = (float)sum;
        for (int d = 0; d < 3; d++) normal[3 * ray + d] = (float)normals[d];
    }
}

/* dL/dalpha of each section. */
KERNEL(blend_backward, RAY_THREADS, int64_t rays, const int *ray_sums, const int *first_end, const float *distance,
       const float *gradients, const double *alpha, const double *clear, const float *light, const float *by_opacity,
       const float *by_depth, const float *by_normal, double *by_alpha) {
    PHASE {
        const int64_t ray = (int64_t)BLOCK * RAY_THREADS + THREAD;
        if (ray >= rays) continue;
        double behind = by_opacity ? -(double)by_opacity[ray] : 0;
        for (int s = ray_sums[ray] - 1; s >= (ray ? ray_sums[ray - 1] : 0); s--) {
            const int64_t e = first_end[s];
            double gain = by_depth ? (double)by_depth[ray] * (0.5f * (distance[e] + distance[e + 1])) : 0;
            for (int d = 0; by_normal && d < 3; d++)
                gain += (double)by_normal[3 * ray + d] *
                        (0.5 * ((double)gradients[3 * e + d] + gradients[3 * e + 3 + d]));
            by_alpha[s] = light[s] * (gain - behind);
            behind = gain * alpha[s] + clear[s] * behind;
        }
    }
}

/* Gradients by the field's value and gradient at each end, and each end's share of the gradient by the sharpness. Behind
 * the last end they are 0. */
KERNEL(ends_backward, SECTION_THREADS, const int *count, int64_t room, const float *values, const int *end_ray,
       const int *end_section, const float *sharpness, const double *alpha, const float *light, const double *by_alpha,
       const float *by_normal, float *by_values, float *by_gradients, float *by_sharpness) {
    PHASE {
        const int64_t e = (int64_t)BLOCK * SECTION_THREADS + THREAD;
        if (e >= room) continue;
        const bool live = e < *count;
        const int here = live ? end_section[e] : -1, last = live && e > 0 ? end_section[e - 1] : -1;
        const double s = *sharpness;
        double by = 0;
        float half = 0;
        if (here >= 0) {
            by += by_alpha[here] * opacity_of(s * values[e], s * values[e + 1]).by_start;
            half += 0.5f * (float)(light[here] * alpha[here]);
        }
        if (last >= 0) {
            by += by_alpha[last] * opacity_of(s * values[e - 1], s * values[e]).by_end;
            half += 0.5f * (float)(light[last] * alpha[last]);
        }
        by_values[e] = (float)(s * by);
        if (by_sharpness) by_sharpness[e] = live ? (float)(by * values[e]) : 0.0f;
        for (int d = 0; by_gradients && d < 3; d++)
            by_gradients[3 * e + d] = live && by_normal ? half * by_normal[3 * (int64_t)end_ray[e] + d] : 0.0f;
    }
}

/* s = exp(10 v) of the stored v within bounds, as `Deviation` computes it. */
KERNEL(sharpness_forward, RAY_THREADS, float low, float high, const float *stored, float *sharpness) {
    PHASE {
        if (THREAD == 0) *sharpness = expf(10.0f * fminf(fmaxf(*stored, low), high));
    }
}

/* At a bound, a gradient that a descent step would follow outward is 0. */
KERNEL(sharpness_backward, RAY_THREADS, float low, float high, const float *stored, const float *sharpness,
       const float *by_sharpness, float *by_stored) {
    PHASE {
        if (THREAD) continue;
        const float by = *by_sharpness * *sharpness * 10.0f;
        const float side = (*stored <= low ? 1.0f : 0.0f) - (*stored >= high ? 1.0f : 0.0f);
        *by_stored = side * by > 0 ? 0 : by;
    }
}

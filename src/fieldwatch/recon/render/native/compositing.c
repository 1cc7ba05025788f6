/* Opacities of ray sections (NeuS, Wang 2021, eq. 13) and their front-to-back blending (Max 1995), forward and
 * backward.
 *
 * With a = s f0 and b = s f1 at the ends of a section and S the sigmoid, e = exp(b - a):
 *     alpha = 1 - S(b) / S(a) = (1 - e) S(-b),   1 - alpha = S(b) + e S(-b)     (a > b; else alpha = 0),
 *     dalpha/da = e S(-b),                       dalpha/db = -(1 - alpha) S(-b):
 * without a division by 0 or a difference of large numbers, so this is exact deep inside the surface too.
 * With T_i the transmittance in front of sample i, w_i = T_i alpha_i and g_i = dL/dw_i, from back to front
 *     dL/dalpha_i = T_i (g_i - B_i),   B_{i-1} = g_i alpha_i + (1 - alpha_i) B_i,   B_last = dL/dT (behind the ray):
 * the gradient of the product itself, also for alpha = 1.
 *
 * All computations are in double precision. One thread processes a ray, and totals add the sums of the rays in order,
 * so the result does not depend on the number of threads.
 */
#include <string.h>

#include "compositing.h"
#include "vectors.h"

#define BLOCK 64   /* samples of a ray whose opacities are calculated together */
#define GROUP 16   /* rays, or blocks of them, that a thread takes at a time */
#define FEW 2048   /* samples below which one thread is quicker */
#define COLUMNS 4  /* of a quantity that are summed together */

enum { UNSORTED = 1, NO_SUCH_RAY = 2, NO_OPACITY = 4, NO_SECTION = 8 };

/* A quantity that is blended: a row per sample or per end; the sums per ray, or their gradients; its own gradient. */
typedef struct {
    const float *values;
    float *sums, *slopes;
    int64_t width;
} Part;

typedef struct {
    const float *values; /* at the ends */
    const int64_t *start;
    double s;
} Field;

/* Opacities of a block of samples, and what is left of the light behind each. */
typedef struct {
    double alpha[BLOCK], clear[BLOCK];
} Opacities;

/* Derivatives of the opacities by s f0 and s f1. */
typedef struct {
    double start[BLOCK], end[BLOCK];
} Slopes;

typedef struct {
    double whole, less_one;
} Power;

/* e^x and e^x - 1 for x <= 0, below -700 as at -700: to 2e-16 by the series around the nearest multiple of log 2. */
FW_INLINE Power power(double x) {
    const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    x = x < -700 ? -700 : x;
    double shifted = x * 1.4426950408889634 + shift, n = shifted - shift;
    double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r;
    int64_t bits;
    double scale;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (int64_t)((uint64_t)(bits + 1023) << 52);
    memcpy(&scale, &bits, sizeof scale);
    return (Power){scale * p + scale, scale * p + (scale - 1)};
}

/* Opacities of `count` sections, rounded up to whole vectors, from s f0 and s f1; slopes where they are wanted. */
FW_INLINE void opacities_of(int64_t count, const double *a, const double *b, Opacities *out, Slopes *slopes) {
    for (int64_t k = 0; k < ((count + 3) & ~(int64_t)3); k++) {
        double fall = a[k] - b[k];
        int leaves = fall < 0;
        Power e = power(leaves ? 0 : -fall), t = power(b[k] > 0 ? -b[k] : b[k]);
        double more = 1 / (1 + t.whole), less = t.whole * more; /* S(|b|), S(-|b|) */
        double inside = b[k] > 0 ? less : more, outside = b[k] > 0 ? more : less; /* S(-b), S(b) */
        double clear = outside + e.whole * inside;
        out->alpha[k] = -e.less_one * inside;
        out->clear[k] = clear;
        if (!slopes) continue;
        slopes->start[k] = leaves ? 0 : e.whole * inside;
        slopes->end[k] = leaves ? 0 : -clear * inside;
    }
}

FW_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

FW_INLINE void sections_of(int64_t from, int64_t count, const Field *field, Opacities *out, Slopes *slopes) {
    double a[BLOCK], b[BLOCK];
    for (int64_t k = 0; k < count; k++) {
        const float *at = field->values + field->start[from + k];
        a[k] = field->s * at[0], b[k] = field->s * at[1];
    }
    for (int64_t k = count; k < least(count + 3, BLOCK); k++) a[k] = b[k] = 0;
    opacities_of(count, a, b, out, slopes);
}

FW_INLINE void given(int64_t from, int64_t count, const float *alpha, Opacities *out) {
    for (int64_t k = 0; k < count; k++) out->alpha[k] = alpha[from + k], out->clear[k] = 1 - (double)alpha[from + k];
}

/* One number of a quantity at a sample: its own, or the mean of those at the section's ends. */
FW_INLINE double number_at(const Part *part, const int64_t *start, int64_t sample, int64_t column) {
    const float *at = part->values + (start ? start[sample] : sample) * part->width + column;
    return start ? 0.5 * ((double)at[0] + at[part->width]) : at[0];
}

FW_INLINE void sum_columns(const Part *part, const int64_t *start, const float *weights, int64_t from, int64_t to,
                           int64_t column, int64_t count, float *sums) {
    double sum[COLUMNS] = {0};
    for (int64_t i = from; i < to; i++)
        for (int64_t c = 0; c < count; c++) sum[c] += weights[i] * number_at(part, start, i, column + c);
    for (int64_t c = 0; c < count; c++) sums[column + c] = (float)sum[c];
}

FW_INLINE void sum_part(const Part *part, const int64_t *start, const float *weights, int64_t from, int64_t to,
                        float *sums) {
    for (int64_t column = 0; column < part->width; column += COLUMNS) switch (part->width - column) {
            case 1: sum_columns(part, start, weights, from, to, column, 1, sums); break;
            case 2: sum_columns(part, start, weights, from, to, column, 2, sums); break;
            case 3: sum_columns(part, start, weights, from, to, column, 3, sums); break;
            default: sum_columns(part, start, weights, from, to, column, COLUMNS, sums);
        }
}

/* Where each ray's samples begin, with one more entry; what is wrong with the order of the samples, else 0. */
static int64_t bounds_of(int64_t n, const int64_t *ray_index, int64_t rays, int threads, int64_t *bounds) {
    int64_t faults = 0;
#pragma omp parallel for num_threads(threads) if (n > FEW) reduction(| : faults) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t ray = ray_index[i], last = i ? ray_index[i - 1] : -1;
        if (ray < 0 || ray >= rays) faults |= NO_SUCH_RAY;
        if (i && ray < last) faults |= UNSORTED;
        if (ray < 0 || ray >= rays || last < -1) continue;
        for (int64_t r = last + 1; r <= ray; r++) bounds[r] = i; /* no two samples write the same if they are sorted */
    }
    if (faults) return faults;
    for (int64_t r = n ? ray_index[n - 1] + 1 : 0; r <= rays; r++) bounds[r] = n;
    return 0;
}

/* Light along one ray. Returns what is left behind its last sample. */
FW_INLINE double blend_ray(int64_t from, int64_t to, const float *given_alpha, const Field *field,
                           const float *distances, float *alpha, float *reaching, float *weights, double *depth) {
    double light = 1, sum = 0;
    Opacities at;
    for (int64_t first = from; first < to; first += BLOCK) {
        const int64_t count = least(BLOCK, to - first);
        if (field) sections_of(first, count, field, &at, NULL);
        else given(first, count, given_alpha, &at);
        for (int64_t k = 0; k < count; k++) {
            const double weight = light * at.alpha[k];
            if (alpha) alpha[first + k] = (float)at.alpha[k];
            if (reaching) reaching[first + k] = (float)light;
            if (weights) weights[first + k] = (float)weight, sum += weight * distances[first + k];
            light *= at.clear[k];
        }
    }
    *depth = sum;
    return light;
}

/* Either `given_alpha` or `field`. Outputs that are not wanted are NULL; without `opacity` nothing is summed. */
FW_INLINE void blend(int64_t n, int64_t rays, const int64_t *bounds, const float *given_alpha, const Field *field,
                     const float *distances, int64_t parts, const Part *part, int threads, float *alpha,
                     float *reaching, float *weights, float *opacity, float *depth) {
    const int64_t *start = field ? field->start : NULL;
#pragma omp parallel for num_threads(threads) if (n > FEW) schedule(dynamic, GROUP)
    for (int64_t ray = 0; ray < rays; ray++) {
        const int64_t from = bounds[ray], to = bounds[ray + 1];
        double sum;
        double left = blend_ray(from, to, given_alpha, field, distances, alpha, reaching, weights, &sum);
        if (!opacity) continue;
        opacity[ray] = (float)(1 - left), depth[ray] = (float)sum;
        for (int64_t p = 0; p < parts; p++)
            sum_part(part + p, start, weights, from, to, part[p].sums + ray * part[p].width);
    }
}

/* What the weight of each of a block's samples is worth: dL/dw. */
FW_INLINE void gains_of(int64_t ray, int64_t first, int64_t count, const int64_t *start, const float *dweights,
                        double ddepth, const float *distances, int64_t parts, const Part *part, double *gain) {
    for (int64_t k = 0; k < count; k++)
        gain[k] = (dweights ? dweights[first + k] : 0) + ddepth * distances[first + k];
    for (int64_t p = 0; p < parts; p++) {
        const float *dsums = part[p].sums + ray * part[p].width;
        if (!part[p].sums) continue;
        if (part[p].width == 3) {
            const Part three = {part[p].values, NULL, NULL, 3};
            const double x = dsums[0], y = dsums[1], z = dsums[2];
            for (int64_t k = 0; k < count; k++)
                gain[k] += x * number_at(&three, start, first + k, 0) + y * number_at(&three, start, first + k, 1) +
                           z * number_at(&three, start, first + k, 2);
        } else {
            for (int64_t k = 0; k < count; k++)
                for (int64_t c = 0; c < part[p].width; c++)
                    gain[k] += dsums[c] * number_at(part + p, start, first + k, c);
        }
    }
}

/* From back to front: dL/dalpha in place of the gains; `behind` goes on to the block in front. */
FW_INLINE void pass_back(int64_t first, int64_t count, const Opacities *at, const float *reaching, double *gain,
                         double *behind) {
    double b = *behind;
    for (int64_t k = count - 1; k >= 0; k--) {
        const double g = gain[k];
        gain[k] = reaching[first + k] * (g - b);
        b = g * at->alpha[k] + at->clear[k] * b;
    }
    *behind = b;
}

/* Gradients of the quantities: dL/d(sum) times the weight, half of it at either end of a section. */
FW_INLINE void hand_back(int64_t ray, int64_t first, int64_t count, const int64_t *start, const Opacities *at,
                         const float *reaching, int64_t parts, const Part *part) {
    for (int64_t p = 0; p < parts; p++) {
        const int64_t width = part[p].width;
        const float *dsums = part[p].sums + ray * width;
        if (!part[p].slopes || !part[p].sums) continue;
        for (int64_t k = 0; k < count; k++) {
            const float weight = (float)(reaching[first + k] * at->alpha[k]), half = 0.5f * weight;
            float *to = part[p].slopes + (start ? start[first + k] : first + k) * width;
            for (int64_t c = 0; c < width; c++) {
                if (start) to[c] += half * dsums[c], to[c + width] += half * dsums[c];
                else to[c] = weight * dsums[c];
            }
        }
    }
}

void blend_opacities(int64_t n, double s, const float *start, const float *end, double *alpha, double *clear) {
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = least(BLOCK, n - first);
        double a[BLOCK] = {0}, b[BLOCK] = {0};
        Opacities at;
        for (int64_t k = 0; k < count; k++) a[k] = s * start[first + k], b[k] = s * end[first + k];
        opacities_of(count, a, b, &at, NULL);
        memcpy(alpha + first, at.alpha, (size_t)count * sizeof(double));
        memcpy(clear + first, at.clear, (size_t)count * sizeof(double));
    }
}

/* Opacities of sections of length 1 each: `n` numbers f0, f1 and alpha. */
FW_EXPORT void fw_section_alpha(int64_t n, const float *start, const float *end, double s, int threads, float *alpha) {
#pragma omp parallel for num_threads(threads) if (n > FEW) schedule(static)
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = least(BLOCK, n - first);
        double a[BLOCK] = {0}, b[BLOCK] = {0};
        Opacities at;
        for (int64_t k = 0; k < count; k++) a[k] = s * start[first + k], b[k] = s * end[first + k];
        opacities_of(count, a, b, &at, NULL);
        for (int64_t k = 0; k < count; k++) alpha[first + k] = (float)at.alpha[k];
    }
}

/* Gradients by f0, f1 and, returned, by s. `shares` holds a double per BLOCK samples begun. */
FW_EXPORT double fw_section_alpha_backward(int64_t n, const float *start, const float *end, double s,
                                           const float *dalpha, int threads, double *shares, float *dstart,
                                           float *dend) {
#pragma omp parallel for num_threads(threads) if (n > FEW) schedule(static)
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t count = least(BLOCK, n - first);
        double a[BLOCK] = {0}, b[BLOCK] = {0}, share = 0;
        Opacities at;
        Slopes by;
        for (int64_t k = 0; k < count; k++) a[k] = s * start[first + k], b[k] = s * end[first + k];
        opacities_of(count, a, b, &at, &by);
        for (int64_t k = 0; k < count; k++) {
            const double g = dalpha[first + k], by_start = g * by.start[k], by_end = g * by.end[k];
            dstart[first + k] = (float)(s * by_start), dend[first + k] = (float)(s * by_end);
            share += by_start * start[first + k] + by_end * end[first + k];
        }
        shares[first / BLOCK] = share;
    }
    double ds = 0;
    for (int64_t k = 0; k < (n + BLOCK - 1) / BLOCK; k++) ds += shares[k];
    return ds;
}

/* Blends samples whose opacities are given. Returns what is wrong with them, else 0. `reaching` is the light in front
 * of each; with weights, opacity and depth NULL that is all. */
FW_EXPORT int64_t fw_composite(int64_t n, const int64_t *ray_index, int64_t rays, int64_t *bounds, const float *alpha,
                               const float *distances, int64_t parts, const Part *part, int threads, float *reaching,
                               float *weights, float *opacity, float *depth) {
    int64_t faults = bounds_of(n, ray_index, rays, threads, bounds);
    for (int64_t i = 0; i < n; i++) faults |= alpha[i] < 0 || alpha[i] > 1 ? NO_OPACITY : 0; /* NaN passes: it shows */
    if (!faults)
        blend(n, rays, bounds, alpha, NULL, distances, parts, part, threads, NULL, reaching, weights, opacity, depth);
    return faults;
}

/* Gradients by alpha, distances (may be NULL) and the quantities. Incoming ones may be NULL: zero. */
FW_EXPORT void fw_composite_backward(int64_t n, int64_t rays, const int64_t *bounds, const float *alpha,
                                     const float *reaching, const float *distances, int64_t parts, const Part *part,
                                     int threads, const float *dweights, const float *dopacity, const float *ddepth,
                                     float *dalpha, float *ddistances) {
#pragma omp parallel for num_threads(threads) if (n > FEW) schedule(dynamic, GROUP)
    for (int64_t ray = 0; ray < rays; ray++) {
        const int64_t from = bounds[ray], to = bounds[ray + 1];
        const double by_depth = ddepth ? ddepth[ray] : 0;
        double behind = dopacity ? -(double)dopacity[ray] : 0, gain[BLOCK];
        Opacities at;
        for (int64_t last = to; last > from;) {
            const int64_t first = last - from > BLOCK ? last - BLOCK : from, count = last - first;
            given(first, count, alpha, &at);
            gains_of(ray, first, count, NULL, dweights, by_depth, distances, parts, part, gain);
            pass_back(first, count, &at, reaching, gain, &behind);
            for (int64_t k = 0; k < count; k++) dalpha[first + k] = (float)gain[k];
            if (ddistances)
                for (int64_t k = 0; k < count; k++)
                    ddistances[first + k] = (float)(by_depth * reaching[first + k] * at.alpha[k]);
            hand_back(ray, first, count, NULL, &at, reaching, parts, part);
            last = first;
        }
    }
}

/* Whether each sample has two ends that follow on one another, and shares them with none but the next of its ray. */
static int64_t wrong_sections(int64_t n, const int64_t *ray_index, int64_t ends, const int64_t *start,
                              const int64_t *end, int threads) {
    int64_t faults = 0;
#pragma omp parallel for num_threads(threads) if (n > FEW) reduction(| : faults) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t free = i ? start[i - 1] + (ray_index[i] == ray_index[i - 1] ? 1 : 2) : 0;
        if (start[i] < free || start[i] >= ends - 1 || end[i] != start[i] + 1) faults |= NO_SECTION;
    }
    return faults;
}

/* Blends sections of a field that is known at their ends; quantities too are given there. Outputs as of fw_composite. */
FW_EXPORT int64_t fw_composite_sections(int64_t n, const int64_t *ray_index, int64_t rays, int64_t *bounds,
                                        int64_t ends, const int64_t *start, const int64_t *end, const float *values,
                                        double s, const float *distances, int64_t parts, const Part *part, int threads,
                                        float *alpha, float *reaching, float *weights, float *opacity, float *depth) {
    const Field field = {values, start, s};
    int64_t faults = bounds_of(n, ray_index, rays, threads, bounds);
    if (!faults) faults = wrong_sections(n, ray_index, ends, start, end, threads);
    if (!faults)
        blend(n, rays, bounds, NULL, &field, distances, parts, part, threads, alpha, reaching, weights, opacity, depth);
    return faults;
}

/* Gradients by the values and the quantities at the ends, which are added to (hand in zeros), and, returned, by s.
 * `shares` holds a double per ray. */
FW_EXPORT double fw_composite_sections_backward(int64_t n, int64_t rays, const int64_t *bounds, const int64_t *start,
                                                const float *values, double s, const float *reaching,
                                                const float *distances, int64_t parts, const Part *part, int threads,
                                                const float *dweights, const float *dopacity, const float *ddepth,
                                                double *shares, float *dvalues) {
    const Field field = {values, start, s};
#pragma omp parallel for num_threads(threads) if (n > FEW) schedule(dynamic, GROUP)
    for (int64_t ray = 0; ray < rays; ray++) {
        const int64_t from = bounds[ray], to = bounds[ray + 1];
        double behind = dopacity ? -(double)dopacity[ray] : 0, share = 0, gain[BLOCK];
        Opacities at;
        Slopes by;
        for (int64_t last = to; last > from;) {
            const int64_t first = last - from > BLOCK ? last - BLOCK : from, count = last - first;
            sections_of(first, count, &field, &at, &by);
            gains_of(ray, first, count, start, dweights, ddepth ? ddepth[ray] : 0, distances, parts, part, gain);
            pass_back(first, count, &at, reaching, gain, &behind);
            for (int64_t k = 0; k < count; k++) {
                const int64_t e = start[first + k];
                const double by_start = gain[k] * by.start[k], by_end = gain[k] * by.end[k];
                dvalues[e] += (float)(s * by_start), dvalues[e + 1] += (float)(s * by_end);
                share += by_start * values[e] + by_end * values[e + 1];
            }
            hand_back(ray, first, count, start, &at, reaching, parts, part);
            last = first;
        }
        shares[ray] = share;
    }
    double ds = 0;
    for (int64_t ray = 0; ray < rays; ray++) ds += shares[ray];
    return ds;
}

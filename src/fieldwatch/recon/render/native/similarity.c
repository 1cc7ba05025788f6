/* L1 and SSIM (Wang 2004) of two images [height, width, channels], with the gradient of the first image, in one pass.
 *
 * Gaussian window of 11 x 11 pixels with sigma 1.5, zero padding, mean over all pixels and channels.
 */
#include <math.h>

#include "splats.h"
#include "vectors.h"

#define REACH 5
#define TAPS (2 * REACH + 1)
#define C1 (0.01f * 0.01f)
#define C2 (0.03f * 0.03f)

/* Rows of planar maps are padded, so that a blur along a row reads zeros beyond its ends. */
static int64_t stride_of(int64_t width) { return (width + 2 * REACH + LANES - 1) / LANES * LANES + LANES; }

static void window(float *taps) {
    double sum = 0, w[TAPS];
    for (int i = 0; i < TAPS; i++) sum += w[i] = exp(-(i - REACH) * (i - REACH) / (2 * 1.5 * 1.5));
    for (int i = 0; i < TAPS; i++) taps[i] = (float)(w[i] / sum);
}

/* out[x] = sum of taps over in[x - 5] ... in[x + 5]; `in` points at pixel 0 of a padded row. */
FW_INLINE void blur_along(const float *restrict taps, const float *restrict in, int64_t width, float *restrict out) {
    for (int64_t x = 0; x < width; x++) {
        float sum = taps[REACH] * in[x];
        for (int k = 1; k <= REACH; k++) sum += taps[REACH - k] * (in[x - k] + in[x + k]);
        out[x] = sum;
    }
}

/* The same over rows y - 5 ... y + 5 of a plane; rows outside are zero. */
FW_INLINE void blur_across(const float *restrict taps, const float *restrict plane, int64_t stride, int64_t height,
                           int64_t y, const float *zeros, int64_t width, float *restrict out) {
    const float *rows[TAPS];
    for (int k = 0; k < TAPS; k++) {
        int64_t at = y + k - REACH;
        rows[k] = at >= 0 && at < height ? plane + at * stride : zeros;
    }
    for (int64_t x = 0; x < width; x++) {
        float sum = taps[REACH] * rows[REACH][x];
        for (int k = 1; k <= REACH; k++) sum += taps[REACH - k] * (rows[REACH - k][x] + rows[REACH + k][x]);
        out[x] = sum;
    }
}

/* Floats that fw_similarity needs as scratch. */
FW_EXPORT int64_t fw_similarity_scratch(int64_t width, int64_t height, int64_t channels) {
    return stride_of(width) * 7 * channels * height;
}

/* Blurs x, y, x^2 + y^2 and x y of one row along the row. */
static void statistics_along(const float *taps, const float *a, const float *b, int64_t width, int64_t channels,
                             int64_t stride, float *line, float **out) {
    float *x = line + REACH, *y = x + stride, *z = y + stride, *p = z + stride;
    memset(line, 0, sizeof(float) * (size_t)(4 * stride));
    for (int64_t i = 0; i < width; i++) x[i] = a[i * channels], y[i] = b[i * channels];
    for (int64_t i = 0; i < width; i++) z[i] = x[i] * x[i] + y[i] * y[i], p[i] = x[i] * y[i];
    blur_along(taps, x, width, out[0]);
    blur_along(taps, y, width, out[1]);
    blur_along(taps, z, width, out[2]);
    blur_along(taps, p, width, out[3]);
}

/* SSIM of one row from its blurred statistics (`lines`: mean x, mean y, mean squares, mean product), and its
 * derivatives with respect to mean x, mean squares and mean product. Returns the sum over the row. */
static double index_of_row(const float *lines, int64_t stride, int64_t width, float *dmean, float *dsquares,
                           float *dproduct) {
    const float *mx = lines, *my = mx + stride, *sq = my + stride, *pr = sq + stride;
    double sum = 0;
    for (int64_t from = 0; from < width; from += 256) {
        float part = 0;
        for (int64_t x = from; x < width && x < from + 256; x++) {
            float xy = mx[x] * my[x], both = mx[x] * mx[x] + my[x] * my[x];
            float l = 2 * xy + C1, lb = both + C1, c = 2 * (pr[x] - xy) + C2, cb = sq[x] - both + C2;
            float scale = 1 / (lb * cb), s = l * c * scale;
            part += s;
            dproduct[x] = 2 * l * scale;
            dsquares[x] = -s / cb;
            dmean[x] = 2 * my[x] * (c - l) * scale - 2 * mx[x] * s / lb + 2 * mx[x] * s / cb;
        }
        sum += part;
    }
    return sum;
}

/* Mean SSIM and mean absolute difference into result[0], result[1]; `gradient` of the mean SSIM, by x, may be NULL.
 * `sums` has 2 * channels * height doubles: rows are added up in their order, whatever the number of threads. */
FW_EXPORT void fw_similarity(int64_t width, int64_t height, int64_t channels, const float *a, const float *b,
                             int threads, float *scratch, double *sums, float *result, float *gradient) {
    const int64_t stride = stride_of(width), plane = stride * height, lines = channels * height;
    float taps[TAPS];
    window(taps);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t k = 0; k < lines; k++) {
            int64_t c = k / height, y = k % height;
            float local[4 * stride], *out[4];
            for (int m = 0; m < 4; m++) out[m] = scratch + (c * 7 + m) * plane + y * stride;
            const float *ra = a + y * width * channels + c, *rb = b + y * width * channels + c;
            double apart = 0;
            for (int64_t x = 0; x < width; x++) apart += fabsf(ra[x * channels] - rb[x * channels]);
            sums[lines + k] = apart;
            statistics_along(taps, ra, rb, width, channels, stride, local, out);
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < lines; k++) {
            int64_t c = k / height, y = k % height;
            float local[4 * stride], padded[3 * stride], zeros[stride], *base = scratch + c * 7 * plane;
            memset(zeros, 0, sizeof zeros);
            memset(padded, 0, sizeof padded);
            for (int m = 0; m < 4; m++)
                blur_across(taps, base + m * plane, stride, height, y, zeros, width, local + m * stride);
            float *d = padded + REACH;
            sums[k] = index_of_row(local, stride, width, d, d + stride, d + 2 * stride);
            if (gradient)
                for (int m = 0; m < 3; m++)
                    blur_along(taps, d + m * stride, width, base + (4 + m) * plane + y * stride);
        }
        if (gradient) {
            const float share = 1.0f / (float)(width * height * channels);
#pragma omp for schedule(static)
            for (int64_t k = 0; k < lines; k++) {
                int64_t c = k / height, y = k % height;
                float local[3 * stride], zeros[stride], *base = scratch + (c * 7 + 4) * plane;
                memset(zeros, 0, sizeof zeros);
                for (int m = 0; m < 3; m++)
                    blur_across(taps, base + m * plane, stride, height, y, zeros, width, local + m * stride);
                const float *ra = a + y * width * channels + c, *rb = b + y * width * channels + c;
                float *out = gradient + y * width * channels + c;
                for (int64_t x = 0; x < width; x++)
                    out[x * channels] = share * (local[x] + 2 * ra[x * channels] * local[stride + x] +
                                                 rb[x * channels] * local[2 * stride + x]);
            }
        }
    }
    double ssim = 0, apart = 0;
    for (int64_t k = 0; k < lines; k++) ssim += sums[k], apart += sums[lines + k];
    result[0] = (float)(ssim / (double)(width * height * channels));
    result[1] = (float)(apart / (double)(width * height * channels));
}

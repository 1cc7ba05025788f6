/* Consistency of blended normals with the normals of the blended depth (2DGS, Huang 2024, eq. 14), with all gradients.
 *
 * Computed in double precision, because differences of neighboring depths would cancel the digits of single precision.
 * A pixel writes the gradients of its four neighbors into four planes, from which each pixel gathers its own. This
 * needs no atomics, and the result does not depend on the number of threads.
 */
#include <math.h>

#include "splats.h"
#include "vectors.h"

#define LEAST_ALPHA 1e-6    /* what depth is divided by at least */
#define SMALLEST_AREA 1e-20 /* squared, of a parallelogram that has a normal */

typedef struct {
    int64_t width, height, stride; /* of the image; of a row of a plane, which has a 0 at both ends */
    double per_x, per_y, cx, cy, opaque; /* one over fx and fy */
    const float *normals, *alpha, *depth;
    const uint8_t *mask; /* or NULL */
    double *expected;    /* depth over alpha, 0 where no surface is seen */
    float *planes[4];    /* for the pixels right, left, below and above */
} Maps;

typedef struct {
    double *n[3], *inverse, *right[3], *down[3]; /* 0 where not valid */
} Row;

FW_INLINE double direction_x(const Maps *m, int64_t x) { return ((double)x + 0.5 - m->cx) * m->per_x; }

FW_INLINE double direction_y(const Maps *m, int64_t y) { return ((double)y + 0.5 - m->cy) * m->per_y; }

static void expect_row(const Maps *m, int64_t y) {
    for (int64_t at = y * m->width; at < (y + 1) * m->width; at++) {
        double alpha = m->alpha[at], depth = m->depth[at] / (alpha > LEAST_ALPHA ? alpha : LEAST_ALPHA);
        int seen = (alpha > m->opaque) & (depth > 0) & (!m->mask || m->mask[at]);
        m->expected[at] = seen ? depth : 0;
    }
}

/* Unit normals of a row, towards the camera, and the differences they are made of. */
static void normals_of_row(const Maps *m, int64_t y, Row *row) {
    const double *here = m->expected + y * m->width, *above = here - m->width, *below = here + m->width;
    const double middle = direction_y(m, y), upper = direction_y(m, y - 1), lower = direction_y(m, y + 1);
    for (int64_t x = 1; x < m->width - 1; x++) {
        double e = here[x + 1], w = here[x - 1], s = below[x], n = above[x], across = direction_x(m, x);
        double r0 = direction_x(m, x + 1) * e - direction_x(m, x - 1) * w, r1 = middle * (e - w), r2 = e - w;
        double d0 = across * (s - n), d1 = lower * s - upper * n, d2 = s - n;
        double a0 = d1 * r2 - d2 * r1, a1 = d2 * r0 - d0 * r2, a2 = d0 * r1 - d1 * r0;
        double square = a0 * a0 + a1 * a1 + a2 * a2;
        int valid = (here[x] > 0) & (e > 0) & (w > 0) & (s > 0) & (n > 0) & (square > SMALLEST_AREA);
        double inverse = valid ? 1 / sqrt(valid ? square : 1) : 0;
        row->inverse[x] = inverse;
        row->n[0][x] = valid ? a0 * inverse : 0;
        row->n[1][x] = valid ? a1 * inverse : 0;
        row->n[2][x] = valid ? a2 * inverse : 0;
        row->right[0][x] = valid ? r0 : 0, row->right[1][x] = valid ? r1 : 0, row->right[2][x] = valid ? r2 : 0;
        row->down[0][x] = valid ? d0 : 0, row->down[1][x] = valid ? d1 : 0, row->down[2][x] = valid ? d2 : 0;
    }
}

/* Adds up a row; a number that is not finite shows, wherever it stands. */
static void sum_row(const Maps *m, int64_t y, const Row *row, double *sums) {
    const float *b = m->normals + 3 * y * m->width, *alpha = m->alpha + y * m->width;
    double sum = 0, count = 0;
    for (int64_t x = 0; x < m->width; x++) {
        double valid = row->inverse[x] > 0;
        count += valid;
        double along = b[3 * x] * row->n[0][x] + b[3 * x + 1] * row->n[1][x] + b[3 * x + 2] * row->n[2][x];
        sum += valid * (alpha[x] - along);
    }
    sums[0] = sum, sums[1] = count;
}

/* Gradients of the sum by a row's normals and alpha, and what its pixels hand their neighbors. */
static void hand_out_row(const Maps *m, int64_t y, const Row *row, float *dnormals, float *dalpha) {
    const float *b = m->normals + 3 * y * m->width;
    const double middle = direction_y(m, y), upper = direction_y(m, y - 1), lower = direction_y(m, y + 1);
    float *out[4];
    for (int k = 0; k < 4; k++) out[k] = m->planes[k] + y * m->stride + 1, out[k][-1] = out[k][m->width] = 0;
    for (int64_t x = 0; x < m->width; x++) {
        double n0 = row->n[0][x], n1 = row->n[1][x], n2 = row->n[2][x], inverse = row->inverse[x];
        double b0 = b[3 * x], b1 = b[3 * x + 1], b2 = b[3 * x + 2], along = b0 * n0 + b1 * n1 + b2 * n2;
        double g0 = (n0 * along - b0) * inverse, g1 = (n1 * along - b1) * inverse, g2 = (n2 * along - b2) * inverse;
        double r0 = row->right[0][x], r1 = row->right[1][x], r2 = row->right[2][x];
        double d0 = row->down[0][x], d1 = row->down[1][x], d2 = row->down[2][x];
        double right0 = g1 * d2 - g2 * d1, right1 = g2 * d0 - g0 * d2, right2 = g0 * d1 - g1 * d0;
        double down0 = r1 * g2 - r2 * g1, down1 = r2 * g0 - r0 * g2, down2 = r0 * g1 - r1 * g0;
        double level = middle * right1 + right2, upright = direction_x(m, x) * down0 + down2;
        out[0][x] = (float)(direction_x(m, x + 1) * right0 + level);
        out[1][x] = (float)-(direction_x(m, x - 1) * right0 + level);
        out[2][x] = (float)(upright + lower * down1);
        out[3][x] = (float)-(upright + upper * down1);
        dnormals[3 * (y * m->width + x)] = (float)-n0;
        dnormals[3 * (y * m->width + x) + 1] = (float)-n1;
        dnormals[3 * (y * m->width + x) + 2] = (float)-n2;
        dalpha[y * m->width + x] = inverse > 0;
    }
}

/* Gathers what a row's pixels were handed, and passes it on to depth and alpha. */
static void gather_row(const Maps *m, int64_t y, float *ddepth, float *dalpha) {
    const int64_t at = y * m->stride + 1, first = y * m->width;
    const float *from_left = m->planes[0] + at - 1, *from_right = m->planes[1] + at + 1;
    const float *from_above = y ? m->planes[2] + at - m->stride : 0;
    const float *from_below = y + 1 < m->height ? m->planes[3] + at + m->stride : 0;
    for (int64_t x = 0; x < m->width; x++) {
        double given = (double)from_left[x] + from_right[x];
        if (from_above) given += from_above[x];
        if (from_below) given += from_below[x];
        double alpha = m->alpha[first + x], over = given / (alpha > LEAST_ALPHA ? alpha : LEAST_ALPHA);
        ddepth[first + x] = (float)over;
        dalpha[first + x] -= given != 0 ? (float)(over * m->expected[first + x]) : 0; /* 0, though it may be infinite */
    }
}

/* result[0]: mean over pixels that show a surface, as their four neighbors do, of alpha - <blended normal, N>;
 * result[1]: one over their number; both 0 where there are none. The gradients, of the sum, may be NULL.
 * `expected` has width * height numbers, `planes` 4 * (width + 2) * height, `sums` 2 * height. */
FW_EXPORT void fw_depth_normals(int64_t width, int64_t height, double fx, double fy, double cx, double cy,
                                double opaque, const float *normals, const float *alpha, const float *depth,
                                const uint8_t *mask, int threads, double *expected, float *planes, double *sums,
                                double *result, float *dnormals, float *dalpha, float *ddepth) {
    const int64_t stride = width + 2, plane = stride * height;
    const Maps m = {width, height, stride, 1 / fx, 1 / fy, cx, cy, opaque, normals, alpha, depth, mask, expected,
                    {planes, planes + plane, planes + 2 * plane, planes + 3 * plane}};
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t y = 0; y < height; y++) expect_row(&m, y);
#pragma omp for schedule(static)
        for (int64_t y = 0; y < height; y++) {
            double local[10 * width], *c = local;
            Row row = {{c, c + width, c + 2 * width}, c + 3 * width, {c + 4 * width, c + 5 * width, c + 6 * width},
                       {c + 7 * width, c + 8 * width, c + 9 * width}};
            memset(local, 0, sizeof local);
            if (y && y + 1 < height) normals_of_row(&m, y, &row);
            sum_row(&m, y, &row, sums + 2 * y);
            if (dnormals) hand_out_row(&m, y, &row, dnormals, dalpha);
        }
        if (dnormals) {
#pragma omp for schedule(static)
            for (int64_t y = 0; y < height; y++) gather_row(&m, y, ddepth, dalpha);
        }
    }
    double sum = 0, count = 0;
    for (int64_t y = 0; y < height; y++) sum += sums[2 * y], count += sums[2 * y + 1];
    result[1] = count > 0 ? 1 / count : 0;
    result[0] = sum / (count > 0 ? count : 1);
}

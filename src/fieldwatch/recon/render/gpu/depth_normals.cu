/* Consistency of blended normals with the normals of the blended depth, with all gradients: alpha - <blended, N> (2DGS,
 * Huang 2024, eq. 14), or 1 - cosine with the weight alpha, which is a constant then (SuGaR, Guedon 2024).
 *
 * Single precision. The cross product of the differences of neighboring points is multiplied out, so that only depths
 * are subtracted: with p = east - west, u = east + west, q = south - north, t = south + north, the area is
 * (t p / fy, u q / fx, -(t u / (fx fy) + y u q / fx + x t p / fy)), in which (x, y, 1) is the ray of the pixel. */
#include "kernel.h"

#define SURFACE_THREADS 256
#define LEAST_ALPHA 1e-6f    /* what depth is divided by at least */
#define SHORTEST 1e-2f       /* blended normal whose cosine is taken */
#define SMALLEST_AREA 1e-20f /* squared, of a parallelogram that has a normal */

struct Wall {
    int cosine, width, height;
    float per_x, per_y, cx, cy, opaque; /* one over fx and fy */
    const float *alpha, *depth;
    const uint8_t *mask; /* may be null */
};

/* A pixel's normal from depth, and what it is made of; `inverse` is 0 where there is none. */
struct Patch {
    float across, down, p, u, q, t, n0, n1, n2, inverse;
};

/* Depth over alpha, 0 where no surface is seen. */
DEVICE float expected(const Wall &m, int64_t at) {
    const float alpha = m.alpha[at], depth = m.depth[at] / fmaxf(alpha, LEAST_ALPHA);
    return alpha > m.opaque && depth > 0 && (!m.mask || m.mask[at]) ? depth : 0.0f;
}

DEVICE Patch patch_of(const Wall &m, int x, int y) {
    Patch f = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    if (x < 1 || y < 1 || x >= m.width - 1 || y >= m.height - 1) return f;
    const int64_t at = (int64_t)y * m.width + x;
    const float east = expected(m, at + 1), west = expected(m, at - 1);
    const float south = expected(m, at + m.width), north = expected(m, at - m.width);
    if (!(expected(m, at) > 0 && east > 0 && west > 0 && south > 0 && north > 0)) return f;
    f.across = ((float)x + 0.5f - m.cx) * m.per_x;
    f.down = ((float)y + 0.5f - m.cy) * m.per_y;
    f.p = east - west;
    f.u = east + west;
    f.q = south - north;
    f.t = south + north;
    const float a0 = m.per_y * f.t * f.p, a1 = m.per_x * f.u * f.q;
    const float a2 = -(m.per_x * f.u * (m.per_y * f.t) + a1 * f.down + a0 * f.across);
    const float square = a0 * a0 + a1 * a1 + a2 * a2;
    if (!(square > SMALLEST_AREA)) return f;
    f.inverse = 1 / sqrtf(square);
    f.n0 = a0 * f.inverse;
    f.n1 = a1 * f.inverse;
    f.n2 = a2 * f.inverse;
    return f;
}

/* A blended normal, or for cosines alpha times the unit vector; what it was multiplied by, and whether it was short. */
struct Blended {
    float b[3], factor;
    bool is_short;
};

DEVICE Blended blended_of(const Wall &m, const float *normals, int64_t at) {
    Blended n;
    for (int d = 0; d < 3; d++) n.b[d] = normals[3 * at + d];
    n.factor = 1;
    n.is_short = false;
    if (!m.cosine) return n;
    const float length = sqrtf(n.b[0] * n.b[0] + n.b[1] * n.b[1] + n.b[2] * n.b[2]);
    n.is_short = length < SHORTEST;
    n.factor = m.alpha[at] / (n.is_short ? SHORTEST : length);
    for (int d = 0; d < 3; d++) n.b[d] *= n.factor;
    return n;
}

/* What a pixel hands its neighbor at (side_x, side_y): the gradient of the sum by that one's expected depth. */
DEVICE float handed(const Wall &m, const float *normals, int x, int y, int side_x, int side_y) {
    const Patch f = patch_of(m, x, y);
    if (!(f.inverse > 0)) return 0;
    const Blended n = blended_of(m, normals, (int64_t)y * m.width + x);
    const float *b = n.b;
    const float along = b[0] * f.n0 + b[1] * f.n1 + b[2] * f.n2;
    const float g0 = (f.n0 * along - b[0]) * f.inverse, g1 = (f.n1 * along - b[1]) * f.inverse;
    const float g2 = (f.n2 * along - b[2]) * f.inverse;
    const float h0 = m.per_y * (g0 - g2 * f.across), h1 = m.per_x * (g1 - g2 * f.down), h2 = g2 * m.per_x * m.per_y;
    if (side_x) return h1 * f.q - h2 * f.t + (float)side_x * h0 * f.t;
    return h0 * f.p - h2 * f.u + (float)side_y * h1 * f.u;
}

/* sums: per block, alpha - <blended normal, normal from depth> where there is one, and the weight of such pixels: 1, or
 * alpha for cosines. A number that is not finite shows, wherever it stands. */
KERNEL(depth_normals_forward, SURFACE_THREADS, int cosine, int width, int height, float per_x, float per_y, float cx,
       float cy, float opaque, const float *normals, const float *alpha, const float *depth, const uint8_t *mask, float *sums) {
    SHARED(float, totals[2 * SURFACE_THREADS]);
    PHASE {
        const Wall m = {cosine, width, height, per_x, per_y, cx, cy, opaque, alpha, depth, mask};
        const int64_t at = (int64_t)BLOCK * SURFACE_THREADS + THREAD;
        totals[THREAD] = totals[SURFACE_THREADS + THREAD] = 0;
        if (at >= (int64_t)width * height) continue;
        const Patch f = patch_of(m, (int)(at % width), (int)(at / width));
        const Blended n = blended_of(m, normals, at);
        const float valid = f.inverse > 0 ? 1.0f : 0.0f;
        totals[THREAD] = valid * (alpha[at] - (n.b[0] * f.n0 + n.b[1] * f.n1 + n.b[2] * f.n2));
        totals[SURFACE_THREADS + THREAD] = cosine ? valid * alpha[at] : valid;
    }
    for (int half = SURFACE_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            totals[THREAD] += totals[THREAD + half];
            totals[SURFACE_THREADS + THREAD] += totals[SURFACE_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD < 2) sums[2 * (int64_t)BLOCK + THREAD] = totals[THREAD * SURFACE_THREADS];
    }
}

/* result: the mean, and one over the sum of the weights; both 0 where there are none. One block. */
KERNEL(depth_normals_mean, SURFACE_THREADS, int blocks, const float *sums, float *result) {
    SHARED(double, totals[2 * SURFACE_THREADS]);
    PHASE {
        double sum = 0, count = 0;
        for (int k = THREAD; k < blocks; k += SURFACE_THREADS) {
            sum += sums[2 * (int64_t)k];
            count += sums[2 * (int64_t)k + 1];
        }
        totals[THREAD] = sum;
        totals[SURFACE_THREADS + THREAD] = count;
    }
    for (int half = SURFACE_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            totals[THREAD] += totals[THREAD + half];
            totals[SURFACE_THREADS + THREAD] += totals[SURFACE_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD) continue;
        const double sum = totals[0], count = totals[SURFACE_THREADS];
        result[0] = (float)(sum / (count > 0 ? count : 1));
        result[1] = (float)(count > 0 ? 1 / count : 0);
    }
}

/* Gradients of the mean, times `upstream`. A pixel gathers what its four neighbors hand it, in this order: left, right,
 * above, below. */
KERNEL(depth_normals_backward, SURFACE_THREADS, int cosine, int width, int height, float per_x, float per_y, float cx,
       float cy, float opaque, const float *normals, const float *alpha, const float *depth, const uint8_t *mask,
       const float *result, const float *upstream, float *dnormals, float *dalpha, float *ddepth) {
    PHASE {
        const Wall m = {cosine, width, height, per_x, per_y, cx, cy, opaque, alpha, depth, mask};
        const int64_t at = (int64_t)BLOCK * SURFACE_THREADS + THREAD;
        if (at >= (int64_t)width * height) continue;
        const int x = (int)(at % width), y = (int)(at / width);
        const float scale = upstream[0] * result[1];
        const Patch f = patch_of(m, x, y);
        const Blended n = blended_of(m, normals, at);
        /* Of a cosine, the part across the blended normal, which has the length alpha here. */
        const float along = n.b[0] * f.n0 + n.b[1] * f.n1 + n.b[2] * f.n2;
        const float over_square = cosine && !n.is_short && f.inverse > 0 ? along / (alpha[at] * alpha[at]) : 0.0f;
        dnormals[3 * at] = (over_square * n.b[0] - f.n0) * n.factor * scale;
        dnormals[3 * at + 1] = (over_square * n.b[1] - f.n1) * n.factor * scale;
        dnormals[3 * at + 2] = (over_square * n.b[2] - f.n2) * n.factor * scale;
        float given = handed(m, normals, x - 1, y, 1, 0);
        given += handed(m, normals, x + 1, y, -1, 0);
        given += handed(m, normals, x, y - 1, 0, 1);
        given += handed(m, normals, x, y + 1, 0, -1);
        const float over = given / fmaxf(alpha[at], LEAST_ALPHA);
        ddepth[at] = over * scale;
        const float through = given != 0 ? over * expected(m, at) : 0.0f; /* 0, though it may be infinite */
        dalpha[at] = ((f.inverse > 0 && !cosine ? 1.0f : 0.0f) - through) * scale;
    }
}

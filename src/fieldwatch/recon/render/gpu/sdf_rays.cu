/* Rays of a training step: their observations, camera poses, and their place in the scene, with gradients to the poses.
 * The formulas are those of `Pixels.directions`, `exponential`, `Poses` and `BoundedRays.in_sphere`. */
#include "kernel.h"

#define RAYS_THREADS 128
#define POSE_THREADS 32
#define VIEW_THREADS 128
#define SMALL_ANGLE 1e-6 /* squared, below which series are used */

/* Gathers the observations of drawn pixels: `drawn` has their places in the list `regions`, then their views. */
KERNEL(draw_rays, RAYS_THREADS, int64_t rays, const int64_t *drawn, const int64_t *regions, const int64_t *offsets,
       const int64_t *widths, const float *lenses, const float *normals, const uint8_t *mask, const uint8_t *known,
       const float *distance, int64_t *view, int64_t *pixel, float *ray_directions, float *ray_normals,
       uint8_t *ray_mask, uint8_t *ray_known, float *ray_distance) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * RAYS_THREADS + THREAD;
        if (i >= rays) continue;
        const int64_t at = regions[drawn[i]], v = drawn[rays + i], row = offsets[v] + at;
        const float *lens = lenses + 4 * v;
        /* Pixel centers are at +0.5. */
        const float x = ((float)(at % widths[v]) + 0.5f - lens[2]) / lens[0];
        const float y = ((float)(at / widths[v]) + 0.5f - lens[3]) / lens[1];
        const float length = sqrtf(x * x + y * y + 1.0f);
        view[i] = v;
        pixel[i] = at;
        ray_directions[3 * i] = x / length;
        ray_directions[3 * i + 1] = y / length;
        ray_directions[3 * i + 2] = 1.0f / length;
        for (int d = 0; d < 3; d++) ray_normals[3 * i + d] = normals[3 * row + d];
        ray_mask[i] = mask[row];
        ray_known[i] = known[row];
        ray_distance[i] = distance[row];
    }
}

/* Factors of Rodrigues' formula, I + a K + b K^2, and their derivatives by the squared angle. */
struct Turn {
    double a, b, by_a, by_b;
};

DEVICE Turn turn_of(const double *r) {
    const double squared = r[0] * r[0] + r[1] * r[1] + r[2] * r[2];
    Turn turn = {1 - squared / 6, 0.5 - squared / 24, -1.0 / 6, -1.0 / 24};
    if (squared >= SMALL_ANGLE) {
        const double angle = sqrt(squared), half = sin(0.5 * angle) / angle;
        turn.a = sin(angle) / angle;
        turn.b = 2 * half * half;
        turn.by_a = (cos(angle) - turn.a) / (2 * squared);
        turn.by_b = (turn.a - 2 * turn.b) / (2 * squared);
    }
    return turn;
}

/* Skew matrix of a vector, and its square, row by row. */
DEVICE void skew_of(const double *r, double *k, double *squared) {
    const double rows[9] = {0, -r[2], r[1], r[2], 0, -r[0], -r[1], r[0], 0};
    for (int i = 0; i < 9; i++) k[i] = rows[i];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            squared[3 * i + j] = 0;
            for (int m = 0; m < 3; m++) squared[3 * i + j] += rows[3 * i + m] * rows[3 * m + j];
        }
}

/* Poses [Exp(r) | t] start of views. */
KERNEL(move_poses, POSE_THREADS, int views, const float *rotations, const float *translations, const float *start,
       float *poses) {
    PHASE {
        const int v = BLOCK * POSE_THREADS + THREAD;
        if (v >= views) continue;
        double r[3], k[9], squared[9];
        for (int d = 0; d < 3; d++) r[d] = rotations[3 * v + d];
        const Turn turn = turn_of(r);
        skew_of(r, k, squared);
        const float *from = start + 16 * v;
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                double sum = i == 3 ? from[12 + j] : (double)translations[3 * v + i] * from[12 + j];
                for (int m = 0; i < 3 && m < 3; m++)
                    sum += ((i == m ? 1 : 0) + turn.a * k[3 * i + m] + turn.b * squared[3 * i + m]) * from[4 * m + j];
                poses[16 * v + 4 * i + j] = (float)sum;
            }
    }
}

KERNEL(move_poses_backward, POSE_THREADS, int views, const float *rotations, const float *start,
       const float *by_poses, float *by_rotations, float *by_translations) {
    PHASE {
        const int v = BLOCK * POSE_THREADS + THREAD;
        if (v >= views) continue;
        const float *from = start + 16 * v, *by = by_poses + 16 * v;
        double r[3], k[9], squared[9], turned[9], by_k[9], by_a = 0, by_b = 0;
        for (int d = 0; d < 3; d++) r[d] = rotations[3 * v + d];
        const Turn turn = turn_of(r);
        skew_of(r, k, squared);
        for (int i = 0; i < 3; i++) {
            double moved = 0;
            for (int j = 0; j < 4; j++) moved += (double)by[4 * i + j] * from[12 + j];
            by_translations[3 * v + i] = (float)moved;
            for (int m = 0; m < 3; m++) {
                double sum = 0; /* gradient by the rotation matrix */
                for (int j = 0; j < 4; j++) sum += (double)by[4 * i + j] * from[4 * m + j];
                turned[3 * i + m] = sum;
                by_a += sum * k[3 * i + m];
                by_b += sum * squared[3 * i + m];
            }
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) {
                double sum = turn.a * turned[3 * i + j];
                for (int m = 0; m < 3; m++) /* of K^2: G K^T + K^T G */
                    sum += turn.b * (turned[3 * i + m] * k[3 * j + m] + k[3 * m + i] * turned[3 * m + j]);
                by_k[3 * i + j] = sum;
            }
        const double axes[3] = {by_k[7] - by_k[5], by_k[2] - by_k[6], by_k[3] - by_k[1]};
        for (int d = 0; d < 3; d++)
            by_rotations[3 * v + d] = (float)(axes[d] + 2 * r[d] * (by_a * turn.by_a + by_b * turn.by_b));
    }
}

/* Origins, directions, bounds in a sphere, and observed normals of rays in the frame of the scene. */
KERNEL(place_rays, RAYS_THREADS, int64_t rays, float radius, const int64_t *view, const float *directions,
       const float *normals, const float *poses, float *origins, float *turned, float *near, float *far,
       float *observed) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * RAYS_THREADS + THREAD;
        if (i >= rays) continue;
        const float *pose = poses + 16 * view[i], *d = directions + 3 * i, *n = normals + 3 * i;
        float o[3], v[3], middle = 0.0f, passes = 0.0f;
        for (int axis = 0; axis < 3; axis++) {
            const float *row = pose + 4 * axis;
            o[axis] = origins[3 * i + axis] = row[3];
            v[axis] = turned[3 * i + axis] = row[0] * d[0] + row[1] * d[1] + row[2] * d[2];
            observed[3 * i + axis] = row[0] * n[0] + row[1] * n[1] + row[2] * n[2];
            middle -= o[axis] * v[axis];
        }
        for (int axis = 0; axis < 3; axis++) {
            const float at = o[axis] + middle * v[axis];
            passes += at * at;
        }
        const float square = radius * radius - passes, half = sqrtf(square < 0.0f ? 0.0f : square); /* NaN stays */
        near[i] = middle - half < 0.0f ? 0.0f : middle - half;
        far[i] = middle + half < 0.0f ? 0.0f : middle + half;
    }
}

/* Gradient by the poses: a block for each view, whose threads' sums are added in their order. */
KERNEL(place_rays_backward, VIEW_THREADS, int64_t rays, const int64_t *view, const float *directions,
       const float *normals, const float *by_origins, const float *by_directions, const float *by_observed,
       float *by_poses) {
    SHARED(double, sums[12 * VIEW_THREADS]);
    PHASE {
        double sum[12];
        for (int k = 0; k < 12; k++) sum[k] = 0;
        for (int64_t i = THREAD; i < rays; i += VIEW_THREADS) {
            if (view[i] != BLOCK) continue;
            for (int axis = 0; axis < 3; axis++) {
                const double by = by_directions ? by_directions[3 * i + axis] : 0;
                const double seen = by_observed ? by_observed[3 * i + axis] : 0;
                for (int d = 0; d < 3; d++)
                    sum[4 * axis + d] += by * directions[3 * i + d] + seen * normals[3 * i + d];
                if (by_origins) sum[4 * axis + 3] += by_origins[3 * i + axis];
            }
        }
        for (int k = 0; k < 12; k++) sums[k * VIEW_THREADS + THREAD] = sum[k];
    }
    PHASE {
        if (THREAD >= 16) continue;
        double sum = 0;
        for (int i = 0; THREAD < 12 && i < VIEW_THREADS; i++) sum += sums[THREAD * VIEW_THREADS + i];
        by_poses[16 * BLOCK + THREAD] = (float)sum;
    }
}

/* First hit of the ray through each pixel center with a triangle mesh.
 *
 * Edge functions of homogeneous coordinates (Olano & Greer 1997): with corners a, b, c in camera axes, the ray along d
 * hits the triangle if d.(b x c), d.(c x a) and d.(a x b) have the same sign. Divided by their sum they are the
 * barycentric weights of the hit. No division by a depth happens before it is known to be positive, so triangles that
 * cross the camera plane need no clipping.
 *
 * Neighboring triangles compute exactly opposite values on their common edge: multiplications must not be fused with
 * additions. Both include the edge and the range of its rounding, so a closed surface has no holes.
 */
#include <math.h>
#include <string.h>

#include "vectors.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define BLUR 4e-15 /* of an edge function, over the lengths of its factors: more than its rounding, far below a pixel */
#define SLACK 1e-3 /* pixels by which a box is wider than what it holds */

typedef struct {
    double x, y, z; /* camera axes */
    double size;    /* |x| + |y| + |z| */
    double u, v;    /* on the image; 0 where not in front */
} Corner;

typedef struct {
    int32_t left, right, top, bottom; /* right and bottom are the first beyond it */
} Box;

typedef struct {
    const double *pose; /* camera_from_world, upper three rows */
    double fx, fy, cx, cy, near_plane;
    int64_t width, height;
} Eye;

typedef struct {
    int64_t *faces;
    float *depth, *weights; /* depth 0: nothing yet */
} Found;

static void to_camera(const Eye *e, const double *p, Corner *c) {
    double *out[3] = {&c->x, &c->y, &c->z};
    for (int i = 0; i < 3; i++) {
        const double *r = e->pose + 4 * i;
        *out[i] = ((r[0] * p[0] + r[1] * p[1]) + r[2] * p[2]) + r[3];
    }
    c->size = (fabs(c->x) + fabs(c->y)) + fabs(c->z);
    int front = c->z >= e->near_plane;
    c->u = front ? e->fx * c->x / c->z + e->cx : 0;
    c->v = front ? e->fy * c->y / c->z + e->cy : 0;
}

/* First pixel whose center is at x or beyond, within 0 .. count; 0 for a NaN. */
FW_INLINE int32_t pixel_from(double x, int64_t count) {
    double first = ceil(x - 0.5);
    return (int32_t)(first > 0 ? (first < (double)count ? first : (double)count) : 0);
}

FW_INLINE void widen(double *bounds, double u, double v) {
    bounds[0] = u < bounds[0] ? u : bounds[0];
    bounds[1] = u > bounds[1] ? u : bounds[1];
    bounds[2] = v < bounds[2] ? v : bounds[2];
    bounds[3] = v > bounds[3] ? v : bounds[3];
}

/* Pixels that the part of a triangle beyond the near plane may cover. */
static Box box_of(const Eye *e, const Corner *const *corner) {
    double bounds[4] = {INFINITY, -INFINITY, INFINITY, -INFINITY}, near_plane = e->near_plane;
    for (int i = 0; i < 3; i++) {
        const Corner *a = corner[i], *b = corner[i < 2 ? i + 1 : 0];
        if (a->z >= near_plane) widen(bounds, a->u, a->v);
        if ((a->z >= near_plane) == (b->z >= near_plane)) continue;
        double share = (near_plane - a->z) / (b->z - a->z);
        double x = a->x + share * (b->x - a->x), y = a->y + share * (b->y - a->y);
        widen(bounds, e->fx * x / near_plane + e->cx, e->fy * y / near_plane + e->cy);
    }
    if (!(bounds[0] <= bounds[1] && bounds[2] <= bounds[3])) return (Box){0, 0, 0, 0};
    return (Box){pixel_from(bounds[0] - SLACK, e->width), pixel_from(bounds[1] + SLACK, e->width),
                 pixel_from(bounds[2] - SLACK, e->height), pixel_from(bounds[3] + SLACK, e->height)};
}

/* The edge function opposite to a corner: its normal, and how far rounding may move it. */
FW_INLINE double edge_between(const Corner *a, const Corner *b, double reach, double *n) {
    n[0] = a->y * b->z - a->z * b->y;
    n[1] = a->z * b->x - a->x * b->z;
    n[2] = a->x * b->y - a->y * b->x;
    return BLUR * reach * (a->size * b->size);
}

FW_INLINE double positive(double x) { return x > 0 ? x : 0; }

static void draw_face(const Eye *e, const Corner *const *c, const double *across, double reach, const Box *box,
                      int64_t face, const Found *found) {
    double n[3][3], blur[3];
    for (int i = 0; i < 3; i++) blur[i] = edge_between(c[(i + 1) % 3], c[(i + 2) % 3], reach, n[i]);
    const double flat = (blur[0] + blur[1]) + blur[2], near_plane = e->near_plane;
    const double z0 = c[0]->z, z1 = c[1]->z, z2 = c[2]->z;
    for (int64_t y = box->top; y < box->bottom; y++) {
        const double down = ((double)y + 0.5 - e->cy) / e->fy;
        const double r0 = down * n[0][1] + n[0][2], r1 = down * n[1][1] + n[1][2], r2 = down * n[2][1] + n[2][2];
        for (int64_t x = box->left; x < box->right; x++) {
            double e0 = across[x] * n[0][0] + r0, e1 = across[x] * n[1][0] + r1, e2 = across[x] * n[2][0] + r2;
            int inside = (e0 >= -blur[0]) & (e1 >= -blur[1]) & (e2 >= -blur[2]);
            int turned = (e0 <= blur[0]) & (e1 <= blur[1]) & (e2 <= blur[2]);
            double sum = (e0 + e1) + e2;
            if (!(inside | turned) || !(fabs(sum) > flat)) continue;
            double sign = sum < 0 ? -1 : 1;
            double b0 = positive(sign * e0), b1 = positive(sign * e1), b2 = positive(sign * e2), all = (b0 + b1) + b2;
            double z = ((b0 * z0 + b1 * z1) + b2 * z2) / all;
            int64_t at = y * e->width + x;
            if (!(z >= near_plane) || (found->depth[at] > 0 && !((float)z < found->depth[at]))) continue;
            found->faces[at] = face;
            found->depth[at] = (float)z;
            found->weights[3 * at] = (float)(b0 / all);
            found->weights[3 * at + 1] = (float)(b1 / all);
            found->weights[3 * at + 2] = (float)(b2 / all);
        }
    }
}

/* `lens` is fx, fy, cx, cy, near. `corners` holds 6 doubles per vertex, `boxes` 4 integers per face, `across` one
 * double per column: room to work in. Faces come in their order within each band of rows: of equally near ones the
 * first stays, for any number of threads. */
FW_EXPORT void fw_cast_triangles(int64_t n, const double *vertices, int64_t m, const int64_t *faces, const double *pose,
                                 const double *lens, int64_t width, int64_t height, int threads, Corner *corners,
                                 Box *boxes, double *across, int64_t *found_faces, float *depth, float *weights) {
    const Eye e = {pose, lens[0], lens[1], lens[2], lens[3], lens[4], width, height};
    const Found found = {found_faces, depth, weights};
    const int64_t bands = height < 4 * (int64_t)threads ? height : 4 * (int64_t)threads;
    double reach = 1;
    for (int64_t x = 0; x < width; x++) {
        across[x] = ((double)x + 0.5 - e.cx) / e.fx;
        reach = fabs(across[x]) > reach ? fabs(across[x]) : reach;
    }
    for (int64_t y = 0; y < height; y += height > 1 ? height - 1 : 1) {
        double down = fabs(((double)y + 0.5 - e.cy) / e.fy);
        reach = down > reach ? down : reach;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; i++) to_camera(&e, vertices + 3 * i, corners + i);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t f = 0; f < m; f++) {
        const Corner *corner[3] = {corners + faces[3 * f], corners + faces[3 * f + 1], corners + faces[3 * f + 2]};
        boxes[f] = box_of(&e, corner);
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t band = 0; band < bands; band++) {
        int32_t top = (int32_t)(height * band / bands), bottom = (int32_t)(height * (band + 1) / bands);
        for (int64_t f = 0; f < m; f++) {
            Box box = boxes[f];
            box.top = box.top > top ? box.top : top;
            box.bottom = box.bottom < bottom ? box.bottom : bottom;
            if (box.top >= box.bottom || box.left >= box.right) continue;
            const Corner *corner[3] = {corners + faces[3 * f], corners + faces[3 * f + 1], corners + faces[3 * f + 2]};
            draw_face(&e, corner, across, reach, &box, f, &found);
        }
    }
}

/* Projection of Gaussians (EWA splatting, Zwicker 2001; 3DGS, Kerbl 2023), forward and backward.
 *
 * With M = J W R S, whose two rows m1 and m2 have three entries, the image-space covariance is M M^T + eps2d I. Its
 * determinant is |m1 x m2|^2 + eps2d (|m1|^2 + |m2|^2) + eps2d^2 (Cauchy-Binet), with positive terms only, so it is
 * exact for needles too. The rasterizer gets the upper triangular whitening (l1, l2, l3): u = l1 dx + l2 dy, v = l3 dy,
 * with the exponent -(u^2 + v^2) / 2.
 *
 * Computed in double precision: image positions and needles involve differences of large numbers, to whose last digits
 * the gradients are sensitive. Only inputs and outputs are in single precision.
 */
#include <math.h>

#include "splats.h"
#include "vectors.h"

#define LARGEST 1e30 /* a determinant above is no Gaussian one can draw */

typedef struct {
    double rotation[9];        /* of the Gaussian: columns are its axes */
    double norm, q[4];         /* of the quaternion, and normalized */
    double x, y, z, offset[3]; /* in the camera; from the camera, in world axes */
    double ratio_x, ratio_y;   /* x / z, y / z, clamped */
    int inside_x, inside_y;    /* whether not clamped */
    double p1[3], p2[3], a1[3], a2[3], m1[3], m2[3], cross[3];
    double var_x, cov, var_y, core, det;
} Projected;

/* With a NaN they give the bound. */
FW_INLINE double at_least(double x, double low) { return x > low ? x : low; }

FW_INLINE double at_most(double x, double high) { return x < high ? x : high; }

FW_INLINE double dot(const double *a, const double *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

FW_INLINE void cross(const double *a, const double *b, double *out) {
    out[0] = a[1] * b[2] - a[2] * b[1];
    out[1] = a[2] * b[0] - a[0] * b[2];
    out[2] = a[0] * b[1] - a[1] * b[0];
}

FW_INLINE void rotate(Projected *g, const float *quaternion) {
    double square = 0;
    for (int i = 0; i < 4; i++) square += (double)quaternion[i] * quaternion[i];
    double n = sqrt(square);
    g->norm = n > 1e-12 ? n : (n == n ? 1e-12 : n);
    for (int i = 0; i < 4; i++) g->q[i] = quaternion[i] / g->norm;
    double w = g->q[0], x = g->q[1], y = g->q[2], z = g->q[3];
    double r[9] = {1 - 2 * (y * y + z * z), 2 * (x * y - w * z),     2 * (x * z + w * y),
                   2 * (x * y + w * z),     1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                   2 * (x * z - w * y),     2 * (y * z + w * x),     1 - 2 * (x * x + y * y)};
    memcpy(g->rotation, r, sizeof r);
}

/* Returns 0 for a Gaussian that cannot be drawn: not in front of the camera, or not finite. */
static int project(const Camera *c, const float *mean, const float *quaternion, const float *scale, Projected *g) {
    const double *W = c->rotation, at[3] = {mean[0], mean[1], mean[2]};
    g->x = dot(W, at) + c->translation[0];
    g->y = dot(W + 3, at) + c->translation[1];
    g->z = dot(W + 6, at) + c->translation[2];
    if (!(g->z > c->near_plane)) return 0;
    double inverse = 1 / g->z, tx = g->x * inverse, ty = g->y * inverse;
    g->inside_x = tx >= c->left && tx <= c->right;
    g->inside_y = ty >= c->top && ty <= c->bottom;
    g->ratio_x = at_most(at_least(tx, c->left), c->right);
    g->ratio_y = at_most(at_least(ty, c->top), c->bottom);
    rotate(g, quaternion);
    for (int i = 0; i < 3; i++) {
        g->p1[i] = c->fx * inverse * (W[i] - g->ratio_x * W[6 + i]);
        g->p2[i] = c->fy * inverse * (W[3 + i] - g->ratio_y * W[6 + i]);
        g->offset[i] = at[i] - c->position[i];
    }
    for (int k = 0; k < 3; k++) {
        g->a1[k] = g->p1[0] * g->rotation[k] + g->p1[1] * g->rotation[3 + k] + g->p1[2] * g->rotation[6 + k];
        g->a2[k] = g->p2[0] * g->rotation[k] + g->p2[1] * g->rotation[3 + k] + g->p2[2] * g->rotation[6 + k];
        g->m1[k] = scale[k] * g->a1[k];
        g->m2[k] = scale[k] * g->a2[k];
    }
    cross(g->m1, g->m2, g->cross);
    double s1 = dot(g->m1, g->m1), s2 = dot(g->m2, g->m2);
    g->core = dot(g->cross, g->cross);
    g->var_x = s1 + c->eps2d;
    g->var_y = s2 + c->eps2d;
    g->cov = dot(g->m1, g->m2);
    g->det = g->core + c->eps2d * (s1 + s2) + c->eps2d * c->eps2d;
    return g->det > 0 && g->det < LARGEST;
}

FW_INLINE int thinnest(const float *scale) {
    int k = scale[1] < scale[0] ? 1 : 0;
    return scale[2] < scale[k] ? 2 : k;
}

/* The thinnest axis in camera axes, towards the camera. */
static double normal_of(const Camera *c, const Projected *g, int axis, float *normal) {
    const double *R = g->rotation;
    double a[3] = {R[axis], R[3 + axis], R[6 + axis]};
    double sign = dot(a, g->offset) > 0 ? -1.0 : 1.0;
    for (int i = 0; i < 3; i++) normal[i] = (float)(sign * dot(c->rotation + 3 * i, a));
    return sign;
}

typedef struct {
    double y[3], weight[3], h[3], m; /* offset in own axes, (s_min / s)^2, weight * y, y . h */
} Tangent;

static void tangent_of(const Projected *g, const float *scale, Tangent *t) {
    double least = at_least(scale[thinnest(scale)], 1e-8);
    for (int k = 0; k < 3; k++) {
        double ratio = least / at_least(scale[k], 1e-8);
        t->weight[k] = ratio * ratio;
        t->y[k] = g->rotation[k] * g->offset[0] + g->rotation[3 + k] * g->offset[1] +
                  g->rotation[6 + k] * g->offset[2];
        t->h[k] = t->weight[k] * t->y[k];
    }
    t->m = at_least(dot(t->y, t->h), 1e-20);
}

/* Change of depth per pixel of the plane on which the Gaussian is largest along each ray. */
static void slope_of(const Camera *c, const Projected *g, const Tangent *t, double *slope) {
    double world[3];
    for (int i = 0; i < 3; i++) world[i] = dot(g->rotation + 3 * i, t->h);
    double f = -g->z * g->z / t->m;
    slope[0] = f * dot(c->rotation, world) / c->fx;
    slope[1] = f * dot(c->rotation + 3, world) / c->fy;
}

/* Projects n Gaussians and packs the visible ones, in order; returns how many. `normals`, `slopes` may be NULL. */
FW_EXPORT int64_t fw_project(const Camera *camera, int64_t n, const float *means, const float *quaternions,
                             const float *scales, const float *opacities, int threads, int64_t *ids, float *means2d,
                             float *whitening, float *depths, float *alphas, float *radii, float *normals,
                             float *slopes) {
    const Camera c = *camera;
    const int64_t chunk = 1024, chunks = (n + chunk - 1) / chunk;
    int64_t visible = 0;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t b = 0; b < chunks; b++) {
        int64_t put = b * chunk, end = (b + 1) * chunk < n ? (b + 1) * chunk : n;
        for (int64_t i = b * chunk; i < end; i++) {
            Projected g;
            if (!project(&c, means + 3 * i, quaternions + 4 * i, scales + 3 * i, &g)) continue;
            float alpha = (float)(opacities[i] * (c.antialiased ? sqrt(g.core / g.det) : 1));
            if (!(alpha >= THRESHOLD)) continue;
            double u = c.fx * g.x / g.z + c.cx, v = c.fy * g.y / g.z + c.cy;
            double reach = sqrt(2 * logf(alpha / THRESHOLD));
            double ex = reach * sqrt(g.var_x), ey = reach * sqrt(g.var_y);
            if (!(u + ex >= 0.5 && u - ex <= c.width - 0.5 && v + ey >= 0.5 && v - ey <= c.height - 0.5)) continue;
            double middle = 0.5 * (g.var_x + g.var_y), gap = 0.5 * (g.var_x - g.var_y);
            ids[put] = i;
            means2d[2 * put] = (float)u;
            means2d[2 * put + 1] = (float)v;
            whitening[3 * put] = (float)sqrt(g.var_y / g.det);
            whitening[3 * put + 1] = (float)(-g.cov / sqrt(g.var_y * g.det));
            whitening[3 * put + 2] = (float)(1 / sqrt(g.var_y));
            depths[put] = (float)g.z;
            alphas[put] = alpha;
            radii[put] = (float)(3 * sqrt(middle + sqrt(gap * gap + g.cov * g.cov)));
            if (normals) normal_of(&c, &g, thinnest(scales + 3 * i), normals + 3 * put);
            if (slopes) {
                Tangent t;
                double slope[2];
                tangent_of(&g, scales + 3 * i, &t);
                slope_of(&c, &g, &t, slope);
                for (int k = 0; k < 2; k++) slopes[2 * put + k] = (float)slope[k];
            }
            put++;
        }
        if (put < end) ids[put] = -1; /* the end of what this chunk packed */
    }
    for (int64_t b = 0; b < chunks; b++) {
        int64_t from = b * chunk, end = (b + 1) * chunk < n ? (b + 1) * chunk : n, count = 0;
        while (from + count < end && ids[from + count] >= 0) count++;
        if (from != visible && count) {
            memmove(ids + visible, ids + from, (size_t)count * sizeof(int64_t));
            float *columns[] = {means2d, whitening, depths, alphas, radii, normals, slopes};
            const int widths[] = {2, 3, 1, 1, 1, 3, 2};
            for (int k = 0; k < 7; k++)
                if (columns[k])
                    memmove(columns[k] + visible * widths[k], columns[k] + from * widths[k],
                            (size_t)(count * widths[k]) * sizeof(float));
        }
        visible += count;
    }
    return visible;
}

/* d(rotation) to d(quaternion), through the normalization. */
static void quaternion_backward(const Projected *g, const double *d, float *out) {
    double w = g->q[0], x = g->q[1], y = g->q[2], z = g->q[3];
    double e[4] = {2 * (x * (d[7] - d[5]) + y * (d[2] - d[6]) + z * (d[3] - d[1])),
                   2 * (w * (d[7] - d[5]) + y * (d[1] + d[3]) + z * (d[2] + d[6]) - 2 * x * (d[4] + d[8])),
                   2 * (w * (d[2] - d[6]) + x * (d[1] + d[3]) + z * (d[5] + d[7]) - 2 * y * (d[0] + d[8])),
                   2 * (w * (d[3] - d[1]) + x * (d[2] + d[6]) + y * (d[5] + d[7]) - 2 * z * (d[0] + d[4]))};
    double along = e[0] * w + e[1] * x + e[2] * y + e[3] * z;
    for (int i = 0; i < 4; i++) out[i] = (float)((e[i] - along * g->q[i]) / g->norm);
}

/* d(whitening) and d(alpha) to d(m1), d(m2) and d(opacity). */
static double covariance_backward(const Camera *c, const Projected *g, const float *whitening, const float *d,
                                  double opacity, double dalpha, double *dm1, double *dm2) {
    double d1 = d[0] * whitening[0], d2 = d[1] * whitening[1], d3 = d[2] * whitening[2];
    double by_det = -0.5 * (d1 + d2) / g->det, by_cov = -d[1] / sqrt(g->var_y * g->det);
    double by_var_y = (d1 - d2 - d3) / g->var_y, by_area = 0, factor = 1;
    if (c->antialiased) {
        double area = sqrt(g->core), root = 1 / sqrt(g->det);
        factor = area * root;
        by_det -= 0.5 * dalpha * opacity * factor / g->det;
        by_area = area > 0 ? dalpha * opacity * root / area : 0;
    }
    double n1[3], n2[3], f = 2 * by_det + by_area;
    cross(g->m2, g->cross, n1);
    cross(g->cross, g->m1, n2);
    for (int i = 0; i < 3; i++) {
        dm1[i] = f * n1[i] + 2 * by_det * c->eps2d * g->m1[i] + by_cov * g->m2[i];
        dm2[i] = f * n2[i] + (2 * by_det * c->eps2d + by_var_y) * g->m2[i] + by_cov * g->m1[i];
    }
    return dalpha * factor;
}

/* d(slope) to d(offset), d(scale), d(rotation); returns d(z). */
static double slope_backward(const Camera *c, const Projected *g, const float *scale, const float *d, double *doffset,
                             double *dscale, double *drotation) {
    Tangent t;
    double slope[2], world[3], own[3], dy[3];
    tangent_of(g, scale, &t);
    slope_of(c, g, &t, slope);
    double along = d[0] * slope[0] + d[1] * slope[1], f = -g->z * g->z / t.m;
    double dm = -along / t.m;
    for (int i = 0; i < 3; i++) world[i] = f * (c->rotation[i] * d[0] / c->fx + c->rotation[3 + i] * d[1] / c->fy);
    for (int k = 0; k < 3; k++) {
        own[k] = g->rotation[k] * world[0] + g->rotation[3 + k] * world[1] + g->rotation[6 + k] * world[2];
        dy[k] = t.weight[k] * own[k] + 2 * dm * t.h[k];
        double dweight = t.y[k] * own[k] + dm * t.y[k] * t.y[k];
        if (scale[k] > 1e-8) dscale[k] += -2 * dweight * t.weight[k] / scale[k];
    }
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            drotation[3 * i + k] += world[i] * t.h[k] + g->offset[i] * dy[k];
            doffset[i] += g->rotation[3 * i + k] * dy[k];
        }
    return 2 * along / g->z;
}

static void project_row_backward(const Camera *c, const float *mean, const float *quaternion, const float *scale,
                                 double opacity, const float *whitening, const float *dmean2d, const float *dwhitening,
                                 double ddepth, double dalpha, const float *dnormal, const float *dslope, float *dmean,
                                 float *dquaternion, float *dscale, float *dopacity) {
    Projected g;
    double dm1[3], dm2[3], ds[3], dp1[3] = {0}, dp2[3] = {0}, drotation[9] = {0}, doffset[3] = {0};
    project(c, mean, quaternion, scale, &g);
    *dopacity = (float)covariance_backward(c, &g, whitening, dwhitening, opacity, dalpha, dm1, dm2);
    for (int k = 0; k < 3; k++) {
        ds[k] = dm1[k] * g.a1[k] + dm2[k] * g.a2[k];
        double da1 = scale[k] * dm1[k], da2 = scale[k] * dm2[k];
        for (int i = 0; i < 3; i++) {
            dp1[i] += da1 * g.rotation[3 * i + k];
            dp2[i] += da2 * g.rotation[3 * i + k];
            drotation[3 * i + k] = da1 * g.p1[i] + da2 * g.p2[i];
        }
    }
    double inverse = 1 / g.z, fx = c->fx * inverse, fy = c->fy * inverse;
    double dtx = g.inside_x ? -fx * dot(dp1, c->rotation + 6) : 0;
    double dty = g.inside_y ? -fy * dot(dp2, c->rotation + 6) : 0;
    double dx = (dtx + dmean2d[0] * c->fx) * inverse, dy = (dty + dmean2d[1] * c->fy) * inverse;
    double dz = ddepth - (dot(dp1, g.p1) + dot(dp2, g.p2)) * inverse - (dx * g.x + dy * g.y) * inverse;
    if (dslope) dz += slope_backward(c, &g, scale, dslope, doffset, ds, drotation);
    if (dnormal) {
        float unused[3];
        int axis = thinnest(scale);
        double sign = normal_of(c, &g, axis, unused);
        for (int i = 0; i < 3; i++)
            drotation[3 * i + axis] += sign * (c->rotation[i] * dnormal[0] + c->rotation[3 + i] * dnormal[1] +
                                               c->rotation[6 + i] * dnormal[2]);
    }
    for (int i = 0; i < 3; i++) {
        dmean[i] = (float)(doffset[i] + c->rotation[i] * dx + c->rotation[3 + i] * dy + c->rotation[6 + i] * dz);
        dscale[i] = (float)ds[i];
    }
    quaternion_backward(&g, drotation, dquaternion);
}

/* Gradients of all n Gaussians from those of the packed ones; invisible ones get 0. */
FW_EXPORT void fw_project_backward(const Camera *camera, int64_t n, int64_t visible, const int64_t *ids,
                                   const float *means, const float *quaternions, const float *scales,
                                   const float *opacities, const float *whitening, const float *dmeans2d,
                                   const float *dwhitening, const float *ddepths, const float *dalphas,
                                   const float *dnormals, const float *dslopes, int threads, float *dmeans,
                                   float *dquaternions, float *dscales, float *dopacities) {
    const Camera c = *camera;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k <= visible; k++) {
        int64_t i = k < visible ? ids[k] : n, from = k ? ids[k - 1] + 1 : 0;
        clear_rows(dmeans, from, i, 3);
        clear_rows(dquaternions, from, i, 4);
        clear_rows(dscales, from, i, 3);
        clear_rows(dopacities, from, i, 1);
        if (k < visible)
            project_row_backward(&c, means + 3 * i, quaternions + 4 * i, scales + 3 * i, opacities[i],
                                 whitening + 3 * k, dmeans2d + 2 * k, dwhitening + 3 * k, ddepths[k], dalphas[k],
                                 dnormals ? dnormals + 3 * k : 0, dslopes ? dslopes + 2 * k : 0, dmeans + 3 * i,
                                 dquaternions + 4 * i, dscales + 3 * i, dopacities + i);
    }
}

/* Projection of Gaussians (EWA splatting, Zwicker 2001; 3DGS, Kerbl 2023), culling and colors, forward and backward.
 *
 * With M = J W R S, whose two rows m1 and m2 have three entries, the covariance on the image is M M^T + eps2d I. Its
 * determinant is |m1 x m2|^2 + eps2d (|m1|^2 + |m2|^2) + eps2d^2 (Cauchy-Binet), with positive terms only, so that
 * single precision is enough for needles.
 *
 * One thread per Gaussian. An invisible one gets radius 0, alpha 0 and no tiles. The way back computes everything anew,
 * so that nothing but the inputs is kept. */
#include "splats.h"

#define PROJECT_THREADS 128
#define LARGEST 1e30f /* a determinant above is no Gaussian one can draw */
#define MOST 16       /* coefficients of degree 3 */

struct Camera {
    float rotation[9], translation[3], position[3];
    float fx, fy, cx, cy, near_plane, eps2d, left, right, top, bottom;
    int antialiased;
};

struct Projected {
    float rotation[9], q[4], norm;
    float x, y, z, offset[3];
    int inside_x, inside_y;
    float p1[3], p2[3], a1[3], a2[3], m1[3], m2[3], cross[3];
    float var_x, cov, var_y, core, det;
};

DEVICE float dot3(const float *a, const float *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

DEVICE void cross3(const float *a, const float *b, float *out) {
    out[0] = a[1] * b[2] - a[2] * b[1];
    out[1] = a[2] * b[0] - a[0] * b[2];
    out[2] = a[0] * b[1] - a[1] * b[0];
}

/* world: the rigid transform to the camera, 4 x 4; lens: fx, fy, cx, cy, near, eps2d, left, right, top, bottom. */
DEVICE Camera camera_of(const float *world, const float *lens, int antialiased) {
    Camera c;
    UNROLL for (int i = 0; i < 3; i++) {
        UNROLL for (int k = 0; k < 3; k++) c.rotation[3 * i + k] = world[4 * i + k];
        c.translation[i] = world[4 * i + 3];
    }
    UNROLL for (int k = 0; k < 3; k++)
        c.position[k] = -(c.rotation[k] * c.translation[0] + c.rotation[3 + k] * c.translation[1] +
                          c.rotation[6 + k] * c.translation[2]);
    c.fx = lens[0], c.fy = lens[1], c.cx = lens[2], c.cy = lens[3], c.near_plane = lens[4], c.eps2d = lens[5];
    c.left = lens[6], c.right = lens[7], c.top = lens[8], c.bottom = lens[9];
    c.antialiased = antialiased;
    return c;
}

/* Returns false for a Gaussian that cannot be drawn: not in front of the camera, or not finite. */
DEVICE bool project(const Camera &c, const float *mean, const float *quaternion, const float *scale, Projected &g) {
    const float *W = c.rotation;
    g.x = dot3(W, mean) + c.translation[0];
    g.y = dot3(W + 3, mean) + c.translation[1];
    g.z = dot3(W + 6, mean) + c.translation[2];
    if (!(g.z > c.near_plane)) return false;
    const float inverse = 1 / g.z, tx = g.x * inverse, ty = g.y * inverse;
    g.inside_x = tx >= c.left && tx <= c.right;
    g.inside_y = ty >= c.top && ty <= c.bottom;
    const float ratio_x = fminf(fmaxf(tx, c.left), c.right), ratio_y = fminf(fmaxf(ty, c.top), c.bottom);
    float square = 0;
    UNROLL for (int i = 0; i < 4; i++) square += quaternion[i] * quaternion[i];
    const float n = sqrtf(square);
    g.norm = n > 1e-12f ? n : n == n ? 1e-12f : n;
    UNROLL for (int i = 0; i < 4; i++) g.q[i] = quaternion[i] / g.norm;
    const float w = g.q[0], x = g.q[1], y = g.q[2], z = g.q[3];
    g.rotation[0] = 1 - 2 * (y * y + z * z), g.rotation[1] = 2 * (x * y - w * z), g.rotation[2] = 2 * (x * z + w * y);
    g.rotation[3] = 2 * (x * y + w * z), g.rotation[4] = 1 - 2 * (x * x + z * z), g.rotation[5] = 2 * (y * z - w * x);
    g.rotation[6] = 2 * (x * z - w * y), g.rotation[7] = 2 * (y * z + w * x), g.rotation[8] = 1 - 2 * (x * x + y * y);
    UNROLL for (int i = 0; i < 3; i++) {
        g.p1[i] = c.fx * inverse * (W[i] - ratio_x * W[6 + i]);
        g.p2[i] = c.fy * inverse * (W[3 + i] - ratio_y * W[6 + i]);
        g.offset[i] = mean[i] - c.position[i];
    }
    UNROLL for (int k = 0; k < 3; k++) {
        g.a1[k] = g.p1[0] * g.rotation[k] + g.p1[1] * g.rotation[3 + k] + g.p1[2] * g.rotation[6 + k];
        g.a2[k] = g.p2[0] * g.rotation[k] + g.p2[1] * g.rotation[3 + k] + g.p2[2] * g.rotation[6 + k];
        g.m1[k] = scale[k] * g.a1[k];
        g.m2[k] = scale[k] * g.a2[k];
    }
    cross3(g.m1, g.m2, g.cross);
    const float s1 = dot3(g.m1, g.m1), s2 = dot3(g.m2, g.m2);
    g.core = dot3(g.cross, g.cross);
    g.var_x = s1 + c.eps2d;
    g.var_y = s2 + c.eps2d;
    g.cov = dot3(g.m1, g.m2);
    g.det = g.core + c.eps2d * (s1 + s2) + c.eps2d * c.eps2d;
    return g.det > 0 && g.det < LARGEST;
}

DEVICE int thinnest(const float *scale) {
    const int k = scale[1] < scale[0] ? 1 : 0;
    return scale[2] < scale[k] ? 2 : k;
}

/* Column k of the rotation; a constant index keeps the matrix in registers. */
DEVICE void axis_of(const float *rotation, int k, float *out) {
    UNROLL for (int i = 0; i < 3; i++)
        out[i] = k == 0 ? rotation[3 * i] : k == 1 ? rotation[3 * i + 1] : rotation[3 * i + 2];
}

/* The thinnest axis in camera axes, towards the camera; returns its sign. */
DEVICE float normal_of(const Camera &c, const Projected &g, int axis, float *normal) {
    float a[3];
    axis_of(g.rotation, axis, a);
    const float sign = dot3(a, g.offset) > 0 ? -1.0f : 1.0f;
    UNROLL for (int i = 0; i < 3; i++) normal[i] = sign * dot3(c.rotation + 3 * i, a);
    return sign;
}

struct Tangent {
    float y[3], weight[3], h[3], m; /* offset in own axes, (s_min / s)^2, weight * y, y . h */
};

DEVICE Tangent tangent_of(const Projected &g, const float *scale) {
    Tangent t;
    const float least = fmaxf(fminf(fminf(scale[0], scale[1]), scale[2]), 1e-8f);
    t.m = 0;
    UNROLL for (int k = 0; k < 3; k++) {
        const float ratio = least / fmaxf(scale[k], 1e-8f);
        t.weight[k] = ratio * ratio;
        t.y[k] = g.rotation[k] * g.offset[0] + g.rotation[3 + k] * g.offset[1] + g.rotation[6 + k] * g.offset[2];
        t.h[k] = t.weight[k] * t.y[k];
        t.m += t.y[k] * t.h[k];
    }
    t.m = fmaxf(t.m, 1e-20f);
    return t;
}

/* Change of depth per pixel of the plane on which the Gaussian is largest along each ray (RaDe-GS, Zhang 2024). */
DEVICE void slope_of(const Camera &c, const Projected &g, const Tangent &t, float *slope) {
    float world[3];
    UNROLL for (int i = 0; i < 3; i++)
        world[i] = g.rotation[3 * i] * t.h[0] + g.rotation[3 * i + 1] * t.h[1] + g.rotation[3 * i + 2] * t.h[2];
    const float f = -g.z * g.z / t.m;
    slope[0] = f * dot3(c.rotation, world) / c.fx;
    slope[1] = f * dot3(c.rotation + 3, world) / c.fy;
}

/* The basis of real spherical harmonics at a unit direction, in the order and with the signs of the 3DGS files. */
DEVICE void basis_at(int degree, float x, float y, float z, float *b) {
    b[0] = 0.28209479177387814f;
    if (degree < 1) return;
    b[1] = -0.4886025119029199f * y;
    b[2] = 0.4886025119029199f * z;
    b[3] = -0.4886025119029199f * x;
    if (degree < 2) return;
    const float xx = x * x, yy = y * y, zz = z * z;
    b[4] = 1.0925484305920792f * x * y;
    b[5] = -1.0925484305920792f * y * z;
    b[6] = 0.31539156525252005f * (2 * zz - xx - yy);
    b[7] = -1.0925484305920792f * x * z;
    b[8] = 0.5462742152960396f * (xx - yy);
    if (degree < 3) return;
    b[9] = -0.5900435899266435f * y * (3 * xx - yy);
    b[10] = 2.890611442640554f * x * y * z;
    b[11] = -0.4570457994644658f * y * (4 * zz - xx - yy);
    b[12] = 0.3731763325901154f * z * (2 * zz - 3 * xx - 3 * yy);
    b[13] = -0.4570457994644658f * x * (4 * zz - xx - yy);
    b[14] = 1.445305721320277f * z * (xx - yy);
    b[15] = -0.5900435899266435f * x * (xx - 3 * yy);
}

/* d(basis) to d(direction). */
DEVICE void basis_backward(int degree, float x, float y, float z, const float *d, float *out) {
    out[0] = out[1] = out[2] = 0;
    if (degree < 1) return;
    out[0] = -0.4886025119029199f * d[3];
    out[1] = -0.4886025119029199f * d[1];
    out[2] = 0.4886025119029199f * d[2];
    if (degree < 2) return;
    const float e = 1.0925484305920792f, f = 0.31539156525252005f, g = 0.5462742152960396f;
    out[0] += e * (y * d[4] - z * d[7]) - 2 * f * x * d[6] + 2 * g * x * d[8];
    out[1] += e * (x * d[4] - z * d[5]) - 2 * f * y * d[6] - 2 * g * y * d[8];
    out[2] += e * (-y * d[5] - x * d[7]) + 4 * f * z * d[6];
    if (degree < 3) return;
    const float xx = x * x, yy = y * y, zz = z * z;
    const float p = 0.5900435899266435f, q = 2.890611442640554f, r = 0.4570457994644658f, s = 0.3731763325901154f,
                t = 1.445305721320277f;
    out[0] += -6 * p * x * y * d[9] + q * y * z * d[10] + 2 * r * x * y * d[11] - 6 * s * x * z * d[12] -
              r * (4 * zz - 3 * xx - yy) * d[13] + 2 * t * x * z * d[14] - 3 * p * (xx - yy) * d[15];
    out[1] += -3 * p * (xx - yy) * d[9] + q * x * z * d[10] - r * (4 * zz - xx - 3 * yy) * d[11] -
              6 * s * y * z * d[12] + 2 * r * x * y * d[13] - 2 * t * y * z * d[14] + 6 * p * x * y * d[15];
    out[2] += q * x * y * d[10] - 8 * r * y * z * d[11] + s * (6 * zz - 3 * xx - 3 * yy) * d[12] -
              8 * r * x * z * d[13] + t * (xx - yy) * d[14];
}

DEVICE float direction_of(const float *offset, float *direction) {
    const float length = fmaxf(sqrtf(dot3(offset, offset)), 1e-12f);
    UNROLL for (int i = 0; i < 3; i++) direction[i] = offset[i] / length;
    return length;
}

DEVICE void color_of(int degree, const float *direction, const float *dc, const float *rest, float *color) {
    float b[MOST];
    basis_at(degree, direction[0], direction[1], direction[2], b);
    UNROLL for (int j = 0; j < 3; j++) color[j] = 0.5f + b[0] * dc[j];
    UNROLL for (int m = 1; m < MOST; m++) {
        if (m >= (degree + 1) * (degree + 1)) continue;
        UNROLL for (int j = 0; j < 3; j++) color[j] += b[m] * rest[3 * (m - 1) + j];
    }
}

/* Channels per Gaussian, in this order: 3 colors (dc), `given` features, depth (mode 1: at the center; 2: of its plane
 * at the middle of the image, and two slopes), 3 for the normal. `dc`, `rest` and `features` may be null. */
KERNEL(project_forward, PROJECT_THREADS, int64_t count, int width, int height, const float *world, const float *lens,
       int antialiased, const float *means, const float *quaternions, const float *scales, const float *opacities,
       const float *dc, const float *rest, int coefficients, int degree, const float *features, int given, int depth,
       int normals, int channels, float *packed, float *means2d, float *whitening, float *alphas, float *depths,
       float *radii, uint8_t *visible, int *tiles) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD;
        if (i >= count) continue;
        const Camera c = camera_of(world, lens, antialiased);
        Projected g;
        float *out = packed + i * channels;
        for (int k = 0; k < channels; k++) out[k] = 0;
        means2d[2 * i] = means2d[2 * i + 1] = 0;
        whitening[3 * i] = whitening[3 * i + 1] = whitening[3 * i + 2] = 0;
        alphas[i] = depths[i] = radii[i] = 0;
        visible[i] = 0;
        tiles[i] = 0;
        if (!project(c, means + 3 * i, quaternions + 4 * i, scales + 3 * i, g)) continue;
        const float alpha = opacities[i] * (antialiased ? sqrtf(g.core / g.det) : 1.0f);
        if (!(alpha >= THRESHOLD)) continue;
        const float u = c.fx * g.x / g.z + c.cx, v = c.fy * g.y / g.z + c.cy;
        const float reach = sqrtf(2 * logf(alpha / THRESHOLD));
        const float ex = reach * sqrtf(g.var_x), ey = reach * sqrtf(g.var_y);
        if (!(u + ex >= 0.5f && u - ex <= width - 0.5f && v + ey >= 0.5f && v - ey <= height - 0.5f)) continue;
        const float middle = 0.5f * (g.var_x + g.var_y), gap = 0.5f * (g.var_x - g.var_y);
        means2d[2 * i] = u, means2d[2 * i + 1] = v;
        whitening[3 * i] = sqrtf(g.var_y / g.det);
        whitening[3 * i + 1] = -g.cov / (sqrtf(g.var_y) * sqrtf(g.det));
        whitening[3 * i + 2] = rsqrtf(g.var_y);
        alphas[i] = alpha;
        depths[i] = g.z;
        radii[i] = 3 * sqrtf(middle + sqrtf(gap * gap + g.cov * g.cov));
        visible[i] = 1;
        if (dc) {
            float direction[3], color[3];
            direction_of(g.offset, direction);
            color_of(degree, direction, dc + 3 * i, rest + 3 * coefficients * i, color);
            for (int j = 0; j < 3; j++) *out++ = color[j] < 0 ? 0 : color[j];
        }
        for (int k = 0; k < given; k++) *out++ = features[i * given + k];
        if (depth == 1) *out++ = g.z;
        if (depth == 2) {
            float slope[2];
            slope_of(c, g, tangent_of(g, scales + 3 * i), slope);
            *out++ = g.z + slope[0] * (0.5f * width - u) + slope[1] * (0.5f * height - v);
            *out++ = slope[0];
            *out++ = slope[1];
        }
        if (normals) normal_of(c, g, thinnest(scales + 3 * i), out);
        const Shape shape = shape_of(means2d + 2 * i, whitening + 3 * i, alpha);
        const Reach box = reach_of(shape);
        const int columns = (width + TILE - 1) / TILE;
        const Span down = box_span(shape.y, box.y, (height + TILE - 1) / TILE);
        int touched = 0;
        for (int row = down.from; row < down.end; row++) {
            const Span across = row_span(shape, box, row, columns);
            if (across.end > across.from) touched += across.end - across.from;
        }
        tiles[i] = touched;
    }
}

/* d(whitening) and d(alpha) to d(m1), d(m2); returns d(opacity). */
DEVICE float covariance_backward(const Camera &c, const Projected &g, const float *d, float opacity, float dalpha,
                                 float *dm1, float *dm2) {
    const float d1 = d[0] * sqrtf(g.var_y / g.det), d2 = d[1] * (-g.cov / (sqrtf(g.var_y) * sqrtf(g.det))),
                d3 = d[2] * rsqrtf(g.var_y);
    float by_det = -0.5f * (d1 + d2) / g.det, by_area = 0, factor = 1;
    const float by_cov = -d[1] / (sqrtf(g.var_y) * sqrtf(g.det)), by_var_y = (d1 - d2 - d3) / g.var_y;
    if (c.antialiased) {
        const float area = sqrtf(g.core), root = rsqrtf(g.det);
        factor = area * root;
        by_det -= 0.5f * dalpha * opacity * factor / g.det;
        by_area = area > 0 ? dalpha * opacity * root / area : 0;
    }
    float n1[3], n2[3];
    const float f = 2 * by_det + by_area;
    cross3(g.m2, g.cross, n1);
    cross3(g.cross, g.m1, n2);
    UNROLL for (int i = 0; i < 3; i++) {
        dm1[i] = f * n1[i] + 2 * by_det * c.eps2d * g.m1[i] + by_cov * g.m2[i];
        dm2[i] = f * n2[i] + (2 * by_det * c.eps2d + by_var_y) * g.m2[i] + by_cov * g.m1[i];
    }
    return dalpha * factor;
}

/* d(slope) to d(offset), d(scale), d(rotation); returns d(z). */
DEVICE float slope_backward(const Camera &c, const Projected &g, const float *scale, const float *d, float *doffset,
                            float *dscale, float *drotation) {
    const Tangent t = tangent_of(g, scale);
    float slope[2], world[3], dy[3];
    slope_of(c, g, t, slope);
    const float along = d[0] * slope[0] + d[1] * slope[1], f = -g.z * g.z / t.m, dm = -along / t.m;
    UNROLL for (int i = 0; i < 3; i++)
        world[i] = f * (c.rotation[i] * d[0] / c.fx + c.rotation[3 + i] * d[1] / c.fy);
    UNROLL for (int k = 0; k < 3; k++) {
        const float own = g.rotation[k] * world[0] + g.rotation[3 + k] * world[1] + g.rotation[6 + k] * world[2];
        dy[k] = t.weight[k] * own + 2 * dm * t.h[k];
        const float dweight = t.y[k] * own + dm * t.y[k] * t.y[k];
        if (scale[k] > 1e-8f) dscale[k] += -2 * dweight * t.weight[k] / scale[k];
    }
    UNROLL for (int i = 0; i < 3; i++) UNROLL for (int k = 0; k < 3; k++) {
        drotation[3 * i + k] += world[i] * t.h[k] + g.offset[i] * dy[k];
        doffset[i] += g.rotation[3 * i + k] * dy[k];
    }
    return 2 * along / g.z;
}

/* d(rotation) to d(quaternion), through the normalization. */
DEVICE void quaternion_backward(const Projected &g, const float *d, float *out) {
    const float w = g.q[0], x = g.q[1], y = g.q[2], z = g.q[3];
    const float e[4] = {2 * (x * (d[7] - d[5]) + y * (d[2] - d[6]) + z * (d[3] - d[1])),
                        2 * (w * (d[7] - d[5]) + y * (d[1] + d[3]) + z * (d[2] + d[6]) - 2 * x * (d[4] + d[8])),
                        2 * (w * (d[2] - d[6]) + x * (d[1] + d[3]) + z * (d[5] + d[7]) - 2 * y * (d[0] + d[8])),
                        2 * (w * (d[3] - d[1]) + x * (d[2] + d[6]) + y * (d[5] + d[7]) - 2 * z * (d[0] + d[4]))};
    const float along = e[0] * w + e[1] * x + e[2] * y + e[3] * z;
    UNROLL for (int i = 0; i < 4; i++) out[i] = (e[i] - along * g.q[i]) / g.norm;
}

/* Gradients of all Gaussians; invisible ones get 0. `dpacked` has the channels of the way there. `dmeans2d` contains
 * what the planes' depth at the middle of the image takes from the position. */
KERNEL(project_backward, PROJECT_THREADS, int64_t count, int width, int height, const float *world, const float *lens,
       int antialiased, const float *means, const float *quaternions, const float *scales, const float *opacities,
       const float *dc, const float *rest, int coefficients, int degree, int given, int depth, int normals,
       int channels, const uint8_t *visible, const float *dpacked, const float *dmeans2d, const float *dwhitening,
       const float *dalphas, float *dmeans, float *dquaternions, float *dscales, float *dopacities, float *ddc,
       float *drest, float *dfeatures) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD;
        if (i >= count) continue;
        const Camera c = camera_of(world, lens, antialiased);
        Projected g;
        const float *d = dpacked + i * channels;
        const bool shown = visible[i];
        if (drest && !shown)
            for (int k = 0; k < 3 * coefficients; k++) drest[3 * coefficients * i + k] = 0;
        if (ddc && !shown)
            for (int k = 0; k < 3; k++) ddc[3 * i + k] = 0;
        for (int k = 0; dfeatures && k < given; k++) dfeatures[i * given + k] = shown ? d[(dc ? 3 : 0) + k] : 0;
        if (!shown || !project(c, means + 3 * i, quaternions + 4 * i, scales + 3 * i, g)) {
            UNROLL for (int k = 0; k < 3; k++) dmeans[3 * i + k] = dscales[3 * i + k] = 0;
            UNROLL for (int k = 0; k < 4; k++) dquaternions[4 * i + k] = 0;
            dopacities[i] = 0;
            continue;
        }
        const float *scale = scales + 3 * i;
        float dm1[3], dm2[3], ds[3], dp1[3] = {0, 0, 0}, dp2[3] = {0, 0, 0}, drotation[9], doffset[3] = {0, 0, 0};
        dopacities[i] = covariance_backward(c, g, dwhitening + 3 * i, opacities[i], dalphas[i], dm1, dm2);
        UNROLL for (int k = 0; k < 3; k++) {
            ds[k] = dm1[k] * g.a1[k] + dm2[k] * g.a2[k];
            const float da1 = scale[k] * dm1[k], da2 = scale[k] * dm2[k];
            UNROLL for (int j = 0; j < 3; j++) {
                dp1[j] += da1 * g.rotation[3 * j + k];
                dp2[j] += da2 * g.rotation[3 * j + k];
                drotation[3 * j + k] = da1 * g.p1[j] + da2 * g.p2[j];
            }
        }
        const float inverse = 1 / g.z, fx = c.fx * inverse, fy = c.fy * inverse;
        const float dtx = g.inside_x ? -fx * dot3(dp1, c.rotation + 6) : 0;
        const float dty = g.inside_y ? -fy * dot3(dp2, c.rotation + 6) : 0;
        const float dx = (dtx + dmeans2d[2 * i] * c.fx) * inverse, dy = (dty + dmeans2d[2 * i + 1] * c.fy) * inverse;
        float dz = -(dot3(dp1, g.p1) + dot3(dp2, g.p2)) * inverse - (dx * g.x + dy * g.y) * inverse;
        if (dc) {
            float direction[3], color[3], b[MOST], db[MOST], by[3], dd[3];
            const float length = direction_of(g.offset, direction);
            const float *own = rest + 3 * coefficients * i;
            const int used = (degree + 1) * (degree + 1);
            color_of(degree, direction, dc + 3 * i, own, color);
            basis_at(degree, direction[0], direction[1], direction[2], b);
            UNROLL for (int j = 0; j < 3; j++) {
                by[j] = color[j] > 0 ? d[j] : 0;
                if (ddc) ddc[3 * i + j] = b[0] * by[j];
            }
            UNROLL for (int m = 1; m < MOST; m++) {
                db[m] = 0;
                if (m >= used) continue;
                db[m] = own[3 * m - 3] * by[0] + own[3 * m - 2] * by[1] + own[3 * m - 1] * by[2];
                if (!drest) continue;
                UNROLL for (int j = 0; j < 3; j++) drest[3 * coefficients * i + 3 * (m - 1) + j] = b[m] * by[j];
            }
            if (drest)
                for (int k = 3 * (used - 1); k < 3 * coefficients; k++) drest[3 * coefficients * i + k] = 0;
            basis_backward(degree, direction[0], direction[1], direction[2], db, dd);
            const float along = dot3(dd, direction);
            UNROLL for (int j = 0; j < 3; j++) doffset[j] += (dd[j] - along * direction[j]) / length;
            d += 3;
        }
        d += given;
        if (depth) dz += d[0];
        if (depth == 2) {
            const float u = c.fx * g.x / g.z + c.cx, v = c.fy * g.y / g.z + c.cy;
            const float dslope[2] = {d[1] + d[0] * (0.5f * width - u), d[2] + d[0] * (0.5f * height - v)};
            dz += slope_backward(c, g, scale, dslope, doffset, ds, drotation);
        }
        d += depth == 2 ? 3 : depth;
        if (normals) {
            float unused[3];
            const int axis = thinnest(scale);
            const float sign = normal_of(c, g, axis, unused);
            UNROLL for (int j = 0; j < 3; j++) {
                const float by =
                    sign * (c.rotation[j] * d[0] + c.rotation[3 + j] * d[1] + c.rotation[6 + j] * d[2]);
                UNROLL for (int k = 0; k < 3; k++) drotation[3 * j + k] += k == axis ? by : 0;
            }
        }
        UNROLL for (int j = 0; j < 3; j++) {
            dmeans[3 * i + j] = doffset[j] + c.rotation[j] * dx + c.rotation[3 + j] * dy + c.rotation[6 + j] * dz;
            dscales[3 * i + j] = ds[j];
        }
        quaternion_backward(g, drotation, dquaternions + 4 * i);
    }
}

/* Scales and opacities of stored logarithms and logits. */
KERNEL(shapes_forward, PROJECT_THREADS, int64_t count, const float *log_scales, const float *logits, float *scales,
       float *opacities) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD;
        if (i >= 4 * count) continue;
        if (i < 3 * count) scales[i] = expf(log_scales[i]);
        else opacities[i - 3 * count] = 1 / (1 + expf(-logits[i - 3 * count]));
    }
}

/* Gradients of the logarithms and logits; those of scales or opacities may be null. */
KERNEL(shapes_backward, PROJECT_THREADS, int64_t count, const float *scales, const float *opacities,
       const float *dscales, const float *dopacities, float *dlog_scales, float *dlogits) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD, k = i - 3 * count;
        if (i >= 4 * count) continue;
        if (k < 0) dlog_scales[i] = dscales ? dscales[i] * scales[i] : 0;
        else dlogits[k] = dopacities ? dopacities[k] * opacities[k] * (1 - opacities[k]) : 0;
    }
}

/* Adds what densification asks about a step: lengths of the view-space gradients, which count for visible Gaussians if
 * they are finite, how often they count, and the largest radius. `half_width` and `half_height` are those of the image. */
KERNEL(add_statistics, PROJECT_THREADS, int64_t count, float half_width, float half_height, const uint8_t *visible,
       const float *by_position, const float *radii, float *gradients, float *counts, float *largest) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD;
        if (i >= count) continue;
        const float x = by_position[2 * i] * half_width, y = by_position[2 * i + 1] * half_height;
        const float length = sqrtf(x * x + y * y);
        if (visible[i] && length - length == 0) {
            gradients[i] += length;
            counts[i] += 1;
        }
        if (!(radii[i] <= largest[i])) largest[i] = radii[i];
    }
}

/* Index of the smallest of three scales, and how many are equal to it. */
DEVICE int smallest(const float *scale, int *equal) {
    int at = 0;
    for (int k = 1; k < 3; k++)
        if (scale[k] < scale[at]) at = k;
    *equal = 0;
    for (int k = 0; k < 3; k++) *equal += scale[k] == scale[at];
    return at;
}

/* Per block, the sum of the smallest scales of visible Gaussians, and their number. */
KERNEL(flatness_sums, PROJECT_THREADS, int64_t count, const float *scales, const uint8_t *visible, float *sums) {
    SHARED(float, totals[2 * PROJECT_THREADS]);
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD;
        totals[THREAD] = totals[PROJECT_THREADS + THREAD] = 0;
        if (i >= count) continue;
        const float *s = scales + 3 * i, shown = visible[i] ? 1 : 0;
        float least = s[0];
        for (int k = 1; k < 3; k++)
            if (s[k] < least || s[k] != s[k]) least = s[k]; /* a value that is not a number stays */
        totals[THREAD] = least * shown;
        totals[PROJECT_THREADS + THREAD] = shown;
    }
    for (int half = PROJECT_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            totals[THREAD] += totals[THREAD + half];
            totals[PROJECT_THREADS + THREAD] += totals[PROJECT_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD < 2) sums[2 * (int64_t)BLOCK + THREAD] = totals[THREAD * PROJECT_THREADS];
    }
}

/* By one block, from the sums of `parts` blocks: the mean times `factor`, 0 without a visible Gaussian, and `factor` by
 * their number. */
KERNEL(flatness_mean, PROJECT_THREADS, int parts, float factor, const float *sums, float *result) {
    SHARED(double, totals[2 * PROJECT_THREADS]);
    PHASE {
        double sum = 0, counted = 0;
        for (int64_t k = THREAD; k < parts; k += PROJECT_THREADS) {
            sum += sums[2 * k];
            counted += sums[2 * k + 1];
        }
        totals[THREAD] = sum;
        totals[PROJECT_THREADS + THREAD] = counted;
    }
    for (int half = PROJECT_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            totals[THREAD] += totals[THREAD + half];
            totals[PROJECT_THREADS + THREAD] += totals[PROJECT_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD) continue;
        const double counted = totals[PROJECT_THREADS], by = factor / (counted > 0 ? counted : 1);
        result[0] = (float)(totals[0] * by);
        result[1] = (float)by;
    }
}

/* Gradient of the mean; equal smallest scales of a Gaussian share it. */
KERNEL(flatness_backward, PROJECT_THREADS, int64_t count, const float *scales, const uint8_t *visible,
       const float *result, const float *upstream, float *dscales) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * PROJECT_THREADS + THREAD;
        if (i >= count) continue;
        int equal;
        const float *s = scales + 3 * i, least = s[smallest(s, &equal)];
        const float by = visible[i] ? upstream[0] * result[1] / (equal ? equal : 1) : 0;
        for (int k = 0; k < 3; k++) dscales[3 * i + k] = s[k] == least ? by : 0;
    }
}

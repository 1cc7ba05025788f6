/* View-dependent color from real spherical harmonics of degree 0 to 3, forward and backward. */
#include <math.h>

#include "splats.h"
#include "vectors.h"

#define MOST 16

/* The basis at a unit direction, in the order and with the signs of the 3DGS files. */
FW_INLINE void basis_at(int degree, float x, float y, float z, float *b) {
    b[0] = 0.28209479177387814f;
    if (degree < 1) return;
    b[1] = -0.4886025119029199f * y;
    b[2] = 0.4886025119029199f * z;
    b[3] = -0.4886025119029199f * x;
    if (degree < 2) return;
    float xx = x * x, yy = y * y, zz = z * z;
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
FW_INLINE void basis_backward(int degree, float x, float y, float z, const float *d, float *out) {
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
    float xx = x * x, yy = y * y, zz = z * z;
    const float p = 0.5900435899266435f, q = 2.890611442640554f, r = 0.4570457994644658f, s = 0.3731763325901154f,
                t = 1.445305721320277f;
    out[0] += -6 * p * x * y * d[9] + q * y * z * d[10] + 2 * r * x * y * d[11] - 6 * s * x * z * d[12] -
              r * (4 * zz - 3 * xx - yy) * d[13] + 2 * t * x * z * d[14] - 3 * p * (xx - yy) * d[15];
    out[1] += -3 * p * (xx - yy) * d[9] + q * x * z * d[10] - r * (4 * zz - xx - 3 * yy) * d[11] -
              6 * s * y * z * d[12] + 2 * r * x * y * d[13] - 2 * t * y * z * d[14] + 6 * p * x * y * d[15];
    out[2] += q * x * y * d[10] - 8 * r * y * z * d[11] + s * (6 * zz - 3 * xx - 3 * yy) * d[12] -
              8 * r * x * z * d[13] + t * (xx - yy) * d[14];
}

FW_INLINE float direction_of(const float *mean, const float *position, float *direction) {
    float v[3] = {mean[0] - position[0], mean[1] - position[1], mean[2] - position[2]};
    float length = larger(sqrtf(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), 1e-12f);
    for (int i = 0; i < 3; i++) direction[i] = v[i] / length;
    return length;
}

/* Colors of the visible Gaussians, + 0.5 and at least 0. `rest` holds `stride` coefficients of 3 per Gaussian. */
FW_EXPORT void fw_harmonics(int64_t visible, const int64_t *ids, const float *position, const float *means,
                            const float *dc, const float *rest, int64_t stride, int degree, int threads,
                            float *colors) {
    const int count = (degree + 1) * (degree + 1) - 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < visible; k++) {
        int64_t i = ids[k];
        float d[3], b[MOST], c[3];
        const float *own = rest + 3 * stride * i;
        direction_of(means + 3 * i, position, d);
        basis_at(degree, d[0], d[1], d[2], b);
        for (int j = 0; j < 3; j++) c[j] = 0.5f + b[0] * dc[3 * i + j];
        for (int m = 0; m < count; m++)
            for (int j = 0; j < 3; j++) c[j] += b[m + 1] * own[3 * m + j];
        for (int j = 0; j < 3; j++) colors[3 * k + j] = c[j] < 0 ? 0 : c[j];
    }
}

/* Gradients of all n Gaussians' means and coefficients; a clamped channel and invisible Gaussians get 0. */
FW_EXPORT void fw_harmonics_backward(int64_t n, int64_t visible, const int64_t *ids, const float *position,
                                     const float *means, const float *rest, int64_t stride, int degree,
                                     const float *colors, const float *dcolors, int threads, float *dmeans,
                                     float *ddc, float *drest) {
    const int count = (degree + 1) * (degree + 1) - 1;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k <= visible; k++) {
        int64_t i = k < visible ? ids[k] : n, from = k ? ids[k - 1] + 1 : 0;
        clear_rows(dmeans, from, i, 3);
        clear_rows(ddc, from, i, 3);
        clear_rows(drest, from, i, 3 * stride);
        if (k == visible) continue;
        float d[3], b[MOST], db[MOST] = {0}, g[3], dd[3];
        const float *own = rest + 3 * stride * i;
        float *out = drest + 3 * stride * i;
        float length = direction_of(means + 3 * i, position, d);
        basis_at(degree, d[0], d[1], d[2], b);
        for (int j = 0; j < 3; j++) {
            g[j] = colors[3 * k + j] > 0 ? dcolors[3 * k + j] : 0;
            ddc[3 * i + j] = b[0] * g[j];
        }
        for (int m = 0; m < count; m++) {
            db[m + 1] = own[3 * m] * g[0] + own[3 * m + 1] * g[1] + own[3 * m + 2] * g[2];
            for (int j = 0; j < 3; j++) out[3 * m + j] = b[m + 1] * g[j];
        }
        clear_rows(out, count, stride, 3);
        basis_backward(degree, d[0], d[1], d[2], db, dd);
        float along = dd[0] * d[0] + dd[1] * d[1] + dd[2] * d[2];
        for (int j = 0; j < 3; j++) dmeans[3 * i + j] = (dd[j] - along * d[j]) / length;
    }
}

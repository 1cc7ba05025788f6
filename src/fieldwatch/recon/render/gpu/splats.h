/* Shared by the splat kernels: the constants of blending, and which tiles a Gaussian touches. */
#ifndef FIELDWATCH_GPU_SPLATS_H
#define FIELDWATCH_GPU_SPLATS_H

#include "kernel.h"

#define TILE 16
#define THRESHOLD (1.0f / 255.0f) /* a smaller alpha does not contribute */
#define FAINT -7.99435343685886f  /* log2 of it */
#define CEILING 0.99f             /* no larger alpha */
#define OPAQUE 1e-4f              /* behind a smaller transmittance nothing contributes */
#define ROOT 0.849321800288019f   /* sqrt(log2(e) / 2): scales the whitening so that alpha is a power of two */

/* A visible Gaussian on the image: alpha = 2^(level - (l1 dx + l2 dy)^2 - (l3 dy)^2). */
struct Shape {
    float x, y, l1, l2, l3, level;
};

DEVICE Shape shape_of(const float *mean, const float *whitening, float alpha) {
    Shape s;
    s.x = mean[0], s.y = mean[1];
    s.l1 = ROOT * whitening[0], s.l2 = ROOT * whitening[1], s.l3 = ROOT * whitening[2];
    s.level = log2f(alpha);
    return s;
}

/* Tiles of an ellipse, row by row: the same for counting them and for listing them. */
struct Reach {
    float room, x, y, tilt; /* log2(alpha / threshold); half the box; dy of the rightmost point */
};

DEVICE Reach reach_of(const Shape &s) {
    Reach r;
    const float length = sqrtf(s.l2 * s.l2 + s.l3 * s.l3);
    r.room = fmaxf(s.level - FAINT, 0.0f);
    r.y = sqrtf(r.room) / s.l3;
    r.x = sqrtf(r.room) * length / (s.l1 * s.l3);
    r.tilt = -sqrtf(r.room) * s.l2 / (s.l3 * length);
    return r;
}

struct Span {
    int from, end;
};

/* Rows, or columns, of tiles that a box touches. */
DEVICE Span box_span(float center, float reach, int count) {
    const float slack = 0.01f + 1e-5f * reach;
    const float first = floorf((center - reach - slack - (TILE - 0.5f)) / TILE + 1);
    const float last = floorf((center + reach + slack - 0.5f) / TILE);
    Span span;
    span.from = (int)fmaxf(fminf(first, (float)count), 0.0f);
    span.end = (int)fmaxf(fminf(last, (float)(count - 1)), -1.0f) + 1;
    return span;
}

/* Tiles of one row of tiles that the ellipse touches. */
DEVICE Span row_span(const Shape &s, const Reach &r, int row, int columns) {
    Span whole = box_span(s.x, r.x, columns);
    if (whole.end - whole.from <= 1) return whole;
    const float top = (float)(row * TILE) + 0.5f - s.y;
    const float low = fmaxf(top, -r.y), high = fminf(top + (TILE - 1), r.y);
    const float a = fminf(fmaxf(r.tilt, low), high), b = fminf(fmaxf(-r.tilt, low), high);
    const float right = (sqrtf(fmaxf(r.room - s.l3 * s.l3 * a * a, 0.0f)) - s.l2 * a) / s.l1;
    const float left = (-sqrtf(fmaxf(r.room - s.l3 * s.l3 * b * b, 0.0f)) - s.l2 * b) / s.l1;
    const float slack = 0.01f + 1e-5f * r.x;
    Span span;
    span.from = (int)fmaxf(floorf((s.x + left - slack - (TILE - 0.5f)) / TILE + 1), (float)whole.from);
    span.end = (int)fminf(floorf((s.x + right + slack - 0.5f) / TILE), (float)(whole.end - 1)) + 1;
    return span;
}

#endif

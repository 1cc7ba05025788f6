/* A neural SDF with its gradient, forward and backward: hash encoding and one hidden layer. The formulas are those of
 * native/sdf_field.c: with in = [x, F(y)], y = (x + 1) / 2, J = dF/dy, a = W in + b and h Softplus,
 *     f = v . h(a) + c        s = v h'(a)        u = W^T s        g = u_x + J^T u_F / 2.
 * Given df and dg, t = [dg, J dg / 2], p = W t:
 *     da = df s + v h''(a) p,   dv = df h + h' p,   dW = da in^T + s t^T,   db = da,   din = W^T da.
 *
 * A thread computes a point, and a block goes through the units in tiles of UNITS. Nothing is kept for the backward
 * pass but the points: features are interpolated again.
 *
 * Sums have a fixed order. Those of the network are added point by point within a block, and then block by block. A row
 * of the table gets numbers from points in any order: they are added as integers, in units of 2^-35 of the largest
 * power of two among them, which is exact. So they are rounded at 2^-35 of the row's largest number.
 *
 * `count` is the number of points, on the device; there is room for `room` of them. What lies behind is written as 0. */
#include "exact_sum.h"

#define UNITS 8        /* of the hidden layer that are computed together */
#define SPARE 1        /* numbers between the rows of shared memory, against conflicts of its banks */
#define SHARES 512     /* blocks of the backward pass, each with its own sums; mirrored in sdf_gpu */
#define TABLE_THREADS 128
#define CORNERS 8
#define MOST_LEVELS 32
#define PRIME_Y 2654435761u
#define PRIME_Z 805459861u
#define OUTSIDE 1      /* fault bits, mirrored in sdf_gpu */

/* Loops that the compiler would unroll for seconds without gain. */
#ifdef __CUDACC__
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

struct Place {
    float fraction[3];
    uint32_t row[CORNERS]; /* bit 0 of a corner's number is its x, bit 1 its y, bit 2 its z */
    float weight, steep;   /* of the level, and times its resolution */
};

struct Trilinear {
    float value, slope[3];
    float xy, xz, yz; /* mixed second derivatives */
};

/* Weight of a level (Park 2021, eq. 8). */
DEVICE float weight_of(const float *active, int level) {
    const float share = fminf(fmaxf(*active - (float)level, 0.0f), 1.0f);
    return 0.5f * (1.0f - cosf(3.14159265358979f * share));
}

/* Cell of a point in the unit cube, and its corners' rows in the table. Levels are rows of resolution, start, rows. */
DEVICE void locate(const float *at, const int64_t *level, Place *place) {
    const int64_t edge = level[0] + 1;
    const float n = (float)level[0];
    const bool hashed = level[2] < edge * edge * edge;
    const uint32_t by_y = hashed ? PRIME_Y : (uint32_t)edge, by_z = hashed ? PRIME_Z : (uint32_t)(edge * edge);
    const uint32_t mask = (uint32_t)level[2] - 1;
    int cell[3];
    for (int d = 0; d < 3; d++) {
        float where = at[d] * n;
        where = where < n - 1 ? where : n - 1; /* a NaN is put into the last cell */
        int c = where > 0.0f ? (int)where : 0;
        float f = fmaf(at[d], n, -(float)c);
        if (f < 0.0f && c > 0) c--, f += 1.0f; /* at * n was rounded up to the next cell */
        cell[d] = c;
        place->fraction[d] = f;
    }
    for (int c = 0; c < CORNERS; c++) {
        const uint32_t x = (uint32_t)(cell[0] + (c & 1)), y = (uint32_t)(cell[1] + (c >> 1 & 1)) * by_y;
        const uint32_t z = (uint32_t)(cell[2] + (c >> 2)) * by_z;
        place->row[c] = (uint32_t)level[1] + (hashed ? (x ^ y ^ z) & mask : x + y + z);
    }
}

/* Interpolates one feature; `table` is its column. */
DEVICE void interpolate(const float *table, int width, const Place *place, Trilinear *out) {
    const float x = place->fraction[0], y = place->fraction[1], z = place->fraction[2];
    float along[4], slope[4]; /* on the four edges parallel to x */
    for (int s = 0; s < 4; s++) {
        const float low = table[(int64_t)place->row[2 * s] * width];
        slope[s] = table[(int64_t)place->row[2 * s + 1] * width] - low;
        along[s] = low + x * slope[s];
    }
    const float y0 = along[1] - along[0], y1 = along[3] - along[2];
    const float face0 = along[0] + y * y0, face1 = along[2] + y * y1;
    const float xy0 = slope[1] - slope[0], xy1 = slope[3] - slope[2];
    const float x0 = slope[0] + y * xy0, x1 = slope[2] + y * xy1;
    out->slope[0] = x0 + z * (x1 - x0);
    out->slope[1] = y0 + z * (y1 - y0);
    out->slope[2] = face1 - face0;
    out->value = face0 + z * out->slope[2];
    out->xy = xy0 + z * (xy1 - xy0);
    out->xz = x1 - x0;
    out->yz = y1 - y0;
}

/* What one feature's gradients, by value and slopes, give the eight corners: the transpose of `interpolate`. */
DEVICE void hand_out(const Place *place, float value, const float *slope, float *corner) {
    const float x = place->fraction[0], y = place->fraction[1], z = place->fraction[2];
    for (int cx = 0; cx < 2; cx++) {
        const float near_x = cx ? x : 1.0f - x, kept = near_x * value + (cx ? slope[0] : -slope[0]);
        const float by_y = near_x * slope[1], by_z = near_x * slope[2];
        for (int cy = 0; cy < 2; cy++) {
            const float near_y = cy ? y : 1.0f - y, both = near_y * kept + (cy ? by_y : -by_y), steep = near_y * by_z;
            corner[cx + 2 * cy] = (1.0f - z) * both - steep;
            corner[cx + 2 * cy + 4] = z * both + steep;
        }
    }
}

struct Unit {
    float value, slope, curve; /* h, h' and h'' */
};

DEVICE Unit softplus(float a, float sharpness) {
    const float e = expf(-sharpness * fabsf(a)), r = 1.0f / (1.0f + e);
    Unit unit;
    unit.value = (a > 0.0f ? a : 0.0f) + log1pf(e) / sharpness;
    if (a != a) unit.value = a;
    unit.slope = a > 0.0f ? r : e * r;
    unit.curve = sharpness * (e * r * r);
    return unit;
}

/* A point's coordinates in the unit cube; whether it is in the box. */
DEVICE bool to_unit(const float *point, float *unit) {
    bool inside = true;
    for (int d = 0; d < 3; d++) {
        if (point[d] < -1.0f || point[d] > 1.0f) inside = false; /* NaN passes: it shows in the result */
        unit[d] = 0.5f * (point[d] + 1.0f);
    }
    return inside;
}

DEVICE int64_t points_of(const int *count, int64_t room) { return count && *count < room ? *count : room; }

/* Computes the weights of the levels once for all points of a block. */
DEVICE void weigh_levels(float *weights, const float *active, int levels) {
    PHASE {
        if (THREAD < levels) weights[THREAD] = weight_of(active, THREAD);
    }
}

/* Copies a tile of the weights to shared memory: UNITS rows of W, b and v. */
DEVICE void load_tile(float *tile, int first, int hidden, int columns, const float *w1, const float *b1,
                      const float *w2, int threads) {
    PHASE {
        for (int i = THREAD; i < UNITS * (columns + 2); i += threads) {
            const int unit = first + i / (columns + 2), k = i % (columns + 2);
            float weight = 0.0f;
            if (unit < hidden)
                weight = k < columns ? w1[(int64_t)unit * columns + k] : k == columns ? b1[unit] : w2[unit];
            tile[i] = weight;
        }
    }
}

template <int MOST, int POINTS>
DEVICE void distances(const int *count, int64_t room, const float *points, int levels, int width,
                      const int64_t *layout, const float *active, const float *table, int hidden, const float *w1,
                      const float *b1, const float *w2, const float *b2, float sharpness, float *distance,
                      float *gradient, int *faults) {
    SHARED(float, in[(MOST + 3) * POINTS]);
    SHARED(float, u[(MOST + 3) * POINTS]);
    SHARED(float, tile[UNITS * (MOST + 5)]);
    SHARED(float, weights[MOST_LEVELS]);
    PER_THREAD(float, sum);
    const int64_t live = points_of(count, room), first = (int64_t)BLOCK * POINTS;
    const int features = levels * width, columns = features + 3;
    if (first >= live) { /* the same for all threads */
        PHASE {
            const int64_t i = first + THREAD;
            if (i >= room) continue;
            distance[i] = 0.0f;
            for (int d = 0; gradient && d < 3; d++) gradient[3 * i + d] = 0.0f;
        }
        return;
    }
    weigh_levels(weights, active, levels);
    PHASE {
        const int64_t i = first + THREAD;
        sum[SELF] = 0.0f;
        float unit[3];
        ROLLED for (int k = 0; k < columns; k++) in[k * POINTS + THREAD] = u[k * POINTS + THREAD] = 0.0f;
        if (i >= live) continue;
        if (!to_unit(points + 3 * i, unit)) atomicOr(faults, OUTSIDE);
        for (int d = 0; d < 3; d++) in[d * POINTS + THREAD] = points[3 * i + d];
        ROLLED for (int l = 0; l < levels; l++) {
            const float weight = weights[l];
            if (weight == 0.0f) continue;
            Place place;
            Trilinear t;
            locate(unit, layout + 3 * l, &place);
            ROLLED for (int k = 0; k < width; k++) {
                interpolate(table + k, width, &place, &t);
                in[(3 + l * width + k) * POINTS + THREAD] = weight * t.value;
            }
        }
    }
    for (int j0 = 0; j0 < hidden; j0 += UNITS) {
        load_tile(tile, j0, hidden, columns, w1, b1, w2, POINTS);
        PHASE {
            float a[UNITS], s[UNITS];
            UNROLL for (int j = 0; j < UNITS; j++) a[j] = tile[j * (columns + 2) + columns];
            ROLLED for (int k = 0; k < columns; k++) {
                const float x = in[k * POINTS + THREAD];
                UNROLL for (int j = 0; j < UNITS; j++) a[j] += tile[j * (columns + 2) + k] * x;
            }
            UNROLL for (int j = 0; j < UNITS; j++) {
                const float v = tile[j * (columns + 2) + columns + 1];
                const Unit unit = softplus(a[j], sharpness);
                sum[SELF] += v * unit.value;
                s[j] = v * unit.slope;
            }
            ROLLED for (int k = 0; gradient && k < columns; k++) {
                float pulled = u[k * POINTS + THREAD];
                UNROLL for (int j = 0; j < UNITS; j++) pulled += tile[j * (columns + 2) + k] * s[j];
                u[k * POINTS + THREAD] = pulled;
            }
        }
    }
    PHASE {
        const int64_t i = first + THREAD;
        if (i >= room) continue;
        distance[i] = i < live ? sum[SELF] + *b2 : 0.0f;
        if (!gradient) continue;
        float g[3] = {0.0f, 0.0f, 0.0f}, unit[3];
        if (i < live) {
            to_unit(points + 3 * i, unit);
            ROLLED for (int l = 0; l < levels; l++) {
                const float steep = 0.5f * weights[l] * (float)layout[3 * l];
                if (steep == 0.0f) continue;
                Place place;
                Trilinear t;
                locate(unit, layout + 3 * l, &place);
                ROLLED for (int k = 0; k < width; k++) {
                    interpolate(table + k, width, &place, &t);
                    const float by = steep * u[(3 + l * width + k) * POINTS + THREAD];
                    for (int d = 0; d < 3; d++) g[d] += by * t.slope[d];
                }
            }
        }
        for (int d = 0; d < 3; d++) gradient[3 * i + d] = i < live ? g[d] + u[d * POINTS + THREAD] : 0.0f;
    }
}

/* Gradients of the corners of a level's cell by one feature, given by the feature and by u. */
DEVICE void corners_of(const Place *place, float resolution, float weight, float by_feature, float u, const float *dg,
                       float *corner) {
    float slope[3];
    for (int d = 0; d < 3; d++) slope[d] = dg ? 0.5f * weight * resolution * u * dg[d] : 0.0f;
    hand_out(place, weight * by_feature, slope, corner);
}

template <int MOST, int POINTS>
DEVICE void distances_backward(const int *count, int64_t room, const float *points, int levels, int width,
                               const int64_t *layout, const float *active, const float *table, int hidden,
                               const float *w1, const float *b1, const float *w2, float sharpness,
                               const float *by_distance, const float *by_gradient, float *shares, float *pulled,
                               int *exponents, float *by_points) {
    constexpr int STRIDE = POINTS + SPARE;
    SHARED(float, in[(MOST + 3) * STRIDE]);
    SHARED(float, t[(MOST + 3) * STRIDE]);
    SHARED(float, din[(MOST + 3) * STRIDE]);
    SHARED(float, u[(MOST + 3) * STRIDE]);
    SHARED(float, tile[UNITS * (MOST + 5)]);
    SHARED(float, weights[MOST_LEVELS]);
    SHARED(float, da[UNITS * STRIDE]);
    SHARED(float, ds[UNITS * STRIDE]);
    SHARED(float, dv[UNITS * STRIDE]);
    SHARED(float, df[POINTS]);
    const int64_t live = points_of(count, room);
    const int features = levels * width, columns = features + 3;
    const int64_t numbers = (int64_t)hidden * (columns + 2) + 1;
    float *mine = shares + BLOCK * numbers;
    if ((int64_t)BLOCK * POINTS < live) weigh_levels(weights, active, levels); /* the same for all threads */
    for (int64_t first = (int64_t)BLOCK * POINTS; first < live; first += (int64_t)SHARES * POINTS) {
        const bool begun = first >= (int64_t)SHARES * POINTS;
        PHASE {
            const int64_t i = first + THREAD;
            float unit[3], dg[3] = {0.0f, 0.0f, 0.0f};
            ROLLED for (int k = 0; k < columns; k++)
                in[k * STRIDE + THREAD] = t[k * STRIDE + THREAD] = din[k * STRIDE + THREAD] =
                    u[k * STRIDE + THREAD] = 0.0f;
            df[THREAD] = i < live && by_distance ? by_distance[i] : 0.0f;
            if (i >= live) continue;
            to_unit(points + 3 * i, unit);
            for (int d = 0; d < 3; d++) {
                if (by_gradient) dg[d] = by_gradient[3 * i + d];
                in[d * STRIDE + THREAD] = points[3 * i + d];
                t[d * STRIDE + THREAD] = dg[d];
            }
            ROLLED for (int l = 0; l < levels; l++) {
                const float weight = weights[l], steep = 0.5f * weight * (float)layout[3 * l];
                if (weight == 0.0f) continue;
                Place place;
                Trilinear f;
                locate(unit, layout + 3 * l, &place);
                ROLLED for (int k = 0; k < width; k++) {
                    interpolate(table + k, width, &place, &f);
                    const int row = (3 + l * width + k) * STRIDE + THREAD;
                    in[row] = weight * f.value;
                    t[row] = steep * (f.slope[0] * dg[0] + f.slope[1] * dg[1] + f.slope[2] * dg[2]);
                }
            }
        }
        for (int j0 = 0; j0 < hidden; j0 += UNITS) {
            load_tile(tile, j0, hidden, columns, w1, b1, w2, POINTS);
            PHASE {
                const bool here = first + THREAD < live;
                float a[UNITS], p[UNITS];
                UNROLL for (int j = 0; j < UNITS; j++) a[j] = tile[j * (columns + 2) + columns], p[j] = 0.0f;
                ROLLED for (int k = 0; k < columns; k++) {
                    const float x = in[k * STRIDE + THREAD], y = t[k * STRIDE + THREAD];
                    UNROLL for (int j = 0; j < UNITS; j++) {
                        const float w = tile[j * (columns + 2) + k];
                        a[j] += w * x;
                        p[j] += w * y;
                    }
                }
                UNROLL for (int j = 0; j < UNITS; j++) {
                    const float v = tile[j * (columns + 2) + columns + 1], f = df[THREAD];
                    const Unit unit = softplus(a[j], sharpness);
                    const int row = j * STRIDE + THREAD;
                    ds[row] = here ? v * unit.slope : 0.0f;
                    da[row] = here ? f * (v * unit.slope) + v * unit.curve * p[j] : 0.0f;
                    dv[row] = here ? f * unit.value + unit.slope * p[j] : 0.0f;
                }
                ROLLED for (int k = 0; k < columns; k++) {
                    float by = din[k * STRIDE + THREAD], to = u[k * STRIDE + THREAD];
                    UNROLL for (int j = 0; j < UNITS; j++) {
                        const float w = tile[j * (columns + 2) + k];
                        by += w * da[j * STRIDE + THREAD];
                        to += w * ds[j * STRIDE + THREAD];
                    }
                    din[k * STRIDE + THREAD] = by;
                    u[k * STRIDE + THREAD] = to;
                }
            }
            PHASE {
                for (int e = THREAD; e < UNITS * (columns + 2); e += POINTS) {
                    const int j = e / (columns + 2), k = e % (columns + 2);
                    if (j0 + j >= hidden) continue;
                    float sum = 0.0f;
                    for (int q = 0; q < POINTS; q++) {
                        if (k < columns)
                            sum += da[j * STRIDE + q] * in[k * STRIDE + q] + ds[j * STRIDE + q] * t[k * STRIDE + q];
                        else
                            sum += k == columns ? da[j * STRIDE + q] : dv[j * STRIDE + q];
                    }
                    float *to = mine + (int64_t)(j0 + j) * (columns + 2) + k;
                    *to = begun ? *to + sum : sum;
                }
                if (j0 == 0 && THREAD == 0) {
                    float sum = 0.0f;
                    for (int q = 0; q < POINTS; q++) sum += df[q];
                    mine[numbers - 1] = begun ? mine[numbers - 1] + sum : sum;
                }
            }
        }
        PHASE {
            const int64_t i = first + THREAD;
            if (i >= live) continue;
            const float *dg = by_gradient ? by_gradient + 3 * i : nullptr;
            float unit[3], by[3];
            to_unit(points + 3 * i, unit);
            for (int d = 0; d < 3; d++) by[d] = din[d * STRIDE + THREAD];
            ROLLED for (int l = 0; l < levels; l++) {
                const float n = (float)layout[3 * l], weight = weights[l];
                Place place;
                Trilinear f;
                if (weight != 0.0f) locate(unit, layout + 3 * l, &place);
                ROLLED for (int k = 0; k < width; k++) {
                    const int column = l * width + k;
                    const float to = din[(3 + column) * STRIDE + THREAD], q = u[(3 + column) * STRIDE + THREAD];
                    pulled[2 * i * features + column] = to;
                    pulled[(2 * i + 1) * features + column] = q;
                    if (weight == 0.0f) continue;
                    if (exponents) {
                        float corner[CORNERS];
                        corners_of(&place, n, weight, to, q, dg, corner);
                        for (int c = 0; c < CORNERS; c++) raise_exponent(exponents + place.row[c], corner[c]);
                    }
                    if (by_points) {
                        interpolate(table + k, width, &place, &f);
                        const float steep = 0.5f * weight * n, curve = 0.5f * steep * n * q;
                        for (int d = 0; d < 3; d++) by[d] += steep * to * f.slope[d];
                        if (dg) {
                            by[0] += curve * (dg[1] * f.xy + dg[2] * f.xz);
                            by[1] += curve * (dg[0] * f.xy + dg[2] * f.yz);
                            by[2] += curve * (dg[0] * f.xz + dg[1] * f.yz);
                        }
                    }
                }
            }
            for (int d = 0; by_points && d < 3; d++) by_points[3 * i + d] = by[d];
        }
    }
    if (!by_points) return;
    for (int64_t first = (int64_t)BLOCK * POINTS; first < room; first += (int64_t)SHARES * POINTS) {
        PHASE {
            const int64_t i = first + THREAD;
            if (i < live || i >= room) continue;
            for (int d = 0; d < 3; d++) by_points[3 * i + d] = 0.0f;
        }
    }
}

/* For up to 16 and up to 64 features: shared memory holds the numbers of a block's points. */
KERNEL(sdf_16, 64, const int *count, int64_t room, const float *points, int levels, int width,
       const int64_t *layout, const float *active, const float *table, int hidden, const float *w1, const float *b1,
       const float *w2, const float *b2, float sharpness, float *distance, float *gradient, int *faults) {
    distances<16, 64>(count, room, points, levels, width, layout, active, table, hidden, w1, b1, w2, b2, sharpness,
                      distance, gradient, faults);
}

KERNEL(sdf_backward_16, 64, const int *count, int64_t room, const float *points, int levels, int width,
       const int64_t *layout, const float *active, const float *table, int hidden, const float *w1, const float *b1,
       const float *w2, float sharpness, const float *by_distance, const float *by_gradient, float *shares,
       float *pulled, int *exponents, float *by_points) {
    distances_backward<16, 64>(count, room, points, levels, width, layout, active, table, hidden, w1, b1, w2,
                               sharpness, by_distance, by_gradient, shares, pulled, exponents, by_points);
}

KERNEL(sdf_64, 32, const int *count, int64_t room, const float *points, int levels, int width,
       const int64_t *layout, const float *active, const float *table, int hidden, const float *w1, const float *b1,
       const float *w2, const float *b2, float sharpness, float *distance, float *gradient, int *faults) {
    distances<64, 32>(count, room, points, levels, width, layout, active, table, hidden, w1, b1, w2, b2, sharpness,
                      distance, gradient, faults);
}

KERNEL(sdf_backward_64, 32, const int *count, int64_t room, const float *points, int levels, int width,
       const int64_t *layout, const float *active, const float *table, int hidden, const float *w1, const float *b1,
       const float *w2, float sharpness, const float *by_distance, const float *by_gradient, float *shares,
       float *pulled, int *exponents, float *by_points) {
    distances_backward<64, 32>(count, room, points, levels, width, layout, active, table, hidden, w1, b1, w2,
                               sharpness, by_distance, by_gradient, shares, pulled, exponents, by_points);
}

/* Adds the blocks' sums of a number of the network. */
DEVICE void add_shares(int64_t i, const int *count, int64_t room, int points, int hidden, int columns,
                       const float *shares, float *by_w1, float *by_b1, float *by_w2, float *by_b2) {
    const int64_t numbers = (int64_t)hidden * (columns + 2) + 1, live = points_of(count, room);
    const int64_t chunks = (live + points - 1) / points;
    if (i >= numbers) return;
    float sum = 0.0f;
    for (int64_t b = 0; b < chunks && b < SHARES; b++) sum += shares[b * numbers + i];
    const int64_t unit = i / (columns + 2), k = i % (columns + 2);
    if (i == numbers - 1)
        *by_b2 = sum;
    else if (k < columns)
        by_w1[unit * columns + k] = sum;
    else
        (k == columns ? by_b1 : by_w2)[unit] = sum;
}

/* Adds what the points give the rows of the table: a thread for each point and level. */
KERNEL(sdf_table_sums, TABLE_THREADS, const int *count, int64_t room, const float *at, int levels, int width,
       const int64_t *layout, const float *active, const float *by_gradient, const float *pulled, const int *exponents,
       int64_t *sums) {
    PHASE {
        const int64_t item = (int64_t)BLOCK * TABLE_THREADS + THREAD, i = item / levels;
        const int l = (int)(item % levels), features = levels * width;
        if (i >= points_of(count, room)) continue;
        const float weight = weight_of(active, l);
        if (weight == 0.0f) continue;
        float unit[3], corner[CORNERS];
        Place place;
        to_unit(at + 3 * i, unit);
        locate(unit, layout + 3 * l, &place);
        for (int k = 0; k < width; k++) {
            const float *from = pulled + 2 * i * features + l * width + k;
            corners_of(&place, (float)layout[3 * l], weight, from[0], from[features],
                       by_gradient ? by_gradient + 3 * i : nullptr, corner);
            for (int c = 0; c < CORNERS; c++)
                add_exactly(sums + (int64_t)place.row[c] * width + k, exponents[place.row[c]], corner[c]);
        }
    }
}

/* Turns the sums of the table's rows and of the network into gradients: a thread for each number of the table, then, in
 * the blocks from `table_blocks` on, one for each number of the network. */
KERNEL(sdf_gradients, TABLE_THREADS, int64_t numbers, int width, const int *exponents, const int64_t *sums,
       float *by_table, int table_blocks, const int *count, int64_t room, int points, int hidden, int columns,
       const float *shares, float *by_w1, float *by_b1, float *by_w2, float *by_b2) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * TABLE_THREADS + THREAD, first = (int64_t)table_blocks * TABLE_THREADS;
        if (i >= first)
            add_shares(i - first, count, room, points, hidden, columns, shares, by_w1, by_b1, by_w2, by_b2);
        else if (i < numbers)
            by_table[i] = exact_sum(sums[i], exponents[i / width]);
    }
}

#define ROW_THREADS 64

/* Adds up a number of each thread; `sums[0]` is the result in the next phase. */
DEVICE void add_up(float *sums) {
    for (int half = ROW_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD < half) sums[THREAD] += sums[THREAD + half];
        }
}

/* Weights w = g v / |v| of both layers (Salimans 2016): a block for each row, the last one for the last layer. */
KERNEL(sdf_weights, ROW_THREADS, int hidden, int columns, const float *g1, const float *v1, const float *g2,
       const float *v2, float *w1, float *w2, float *lengths) {
    SHARED(float, sums[ROW_THREADS]);
    const bool first = BLOCK < hidden;
    const int64_t count = first ? columns : hidden, row = first ? BLOCK : 0;
    const float *v = (first ? v1 : v2) + row * count;
    PHASE {
        float sum = 0;
        for (int64_t k = THREAD; k < count; k += ROW_THREADS) sum += v[k] * v[k];
        sums[THREAD] = sum;
    }
    add_up(sums);
    PHASE {
        const float length = sqrtf(sums[0]), scale = (first ? g1 : g2)[row] / length;
        if (THREAD == 0) lengths[BLOCK] = length;
        for (int64_t k = THREAD; k < count; k += ROW_THREADS) ((first ? w1 : w2) + row * count)[k] = scale * v[k];
    }
}

/* The gradients by g and v. */
KERNEL(sdf_weights_backward, ROW_THREADS, int hidden, int columns, const float *g1, const float *v1, const float *g2,
       const float *v2, const float *lengths, const float *by_w1, const float *by_w2, float *by_g1, float *by_v1,
       float *by_g2, float *by_v2) {
    SHARED(float, sums[ROW_THREADS]);
    const bool first = BLOCK < hidden;
    const int64_t count = first ? columns : hidden, row = first ? BLOCK : 0;
    const float *v = (first ? v1 : v2) + row * count, *by = (first ? by_w1 : by_w2) + row * count;
    PHASE {
        float sum = 0;
        for (int64_t k = THREAD; k < count; k += ROW_THREADS) sum += by[k] * v[k];
        sums[THREAD] = sum;
    }
    add_up(sums);
    PHASE {
        const float length = lengths[BLOCK], along = sums[0] / length, scale = (first ? g1 : g2)[row] / length;
        if (THREAD == 0) (first ? by_g1 : by_g2)[row] = along;
        for (int64_t k = THREAD; k < count; k += ROW_THREADS)
            ((first ? by_v1 : by_v2) + row * count)[k] = scale * (by[k] - v[k] * (along / length));
    }
}

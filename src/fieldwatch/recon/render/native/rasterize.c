/* Front-to-back blending of one tile per thread, forward and backward, for any number of channels.
 *
 * The backward pass runs back to front, where the contribution behind a Gaussian is a growing sum. In front-to-back
 * order it would be a difference of large numbers, multiplied by up to 99. The pass writes one row of gradients per
 * pair of Gaussian and tile, then adds the rows of each Gaussian in the order of its tiles. This needs no atomics, and
 * the result does not depend on the number of threads.
 */
#include <math.h>

#include "splats.h"
#include "tiles.h"
#include "vectors.h"

#define PIXELS (TILE * TILE)
#define VECTORS (PIXELS / LANES) /* of one channel of a tile */
#define PER_ROW (TILE / LANES)
#define GEOMETRY 8 /* gradients per pair beside the channels: mean 2, whitening 3, opacity 1, absgrad 2 */

/* How the blending of a tile's pixels ended: the light that passes, and the last pair of Gaussian and tile that could
 * take some: the one that made the pixel opaque, or the tile's last; -1 beside the image. */
typedef struct {
    vf passed[VECTORS];
    vi last[VECTORS];
} Ends;

typedef struct {
    int64_t width, height, channels;
    int32_t columns, rows;
    const Ranked *ranked;
    const int32_t *members, *starts;
    const float *features; /* packed Gaussians, channels */
} Scene;

FW_INLINE vf lane_centers(void) { return (vf){0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f, 6.5f, 7.5f}; }

/* 1 in the pixels of a tile that lie on the image, else 0. */
static void clear_tile(const Scene *s, int64_t left, int64_t top, vf *transmittance) {
    float *t = (float *)transmittance;
    for (int y = 0; y < TILE; y++)
        for (int x = 0; x < TILE; x++) t[y * TILE + x] = top + y < s->height && left + x < s->width;
}

static uint32_t live_vectors(const vf *transmittance) {
    uint32_t live = 0;
    for (int v = 0; v < VECTORS; v++)
        if (any(transmittance[v] > OPAQUE)) live |= 1u << v;
    return live;
}

/* Asks for the Gaussian that comes a few places later: they lie scattered over more memory than a near cache holds. */
FW_INLINE void announce(const Scene *s, int32_t p, int32_t last, int step, int channels) {
    if ((last - p) * step < 4) return;
    __builtin_prefetch(s->ranked + s->members[p + 4 * step]);
    __builtin_prefetch(s->features + (int64_t)s->ranked[s->members[p + 2 * step]].source * channels);
}

/* Rows and halves of rows of the tile that the Gaussian's box touches. */
FW_INLINE void box_in_tile(const Ranked *g, float left, float top, int *row, int *end, int *from, int *to) {
    float y = g->y - top - 0.5f, x = g->x - left - 0.5f, sx = 0.01f + 1.00001f * g->reach_x,
          sy = 0.01f + 1.00001f * g->reach_y;
    *row = (int)smaller(ceilf(larger(y - sy, 0)), TILE), *end = (int)larger(floorf(smaller(y + sy, TILE - 1)), -1) + 1;
    *from = x - sx > LANES - 1, *to = x + sx < LANES ? 1 : 2;
}

/* log2 of alpha of 8 pixels before the ceiling. Both ways must round alike: a pixel at the threshold counts in both. */
FW_INLINE vf exponent(vf u, float rest) { return rest - u * u; }

FW_INLINE __attribute__((flatten)) void forward_tile(const Scene *s, int64_t tile, const int channels,
                                                     const int middle, vf *restrict sum, float *features, float *alpha,
                                                     Ends *ends, int32_t *median) {
    const float faint = log2f(THRESHOLD);
    const int32_t begin = s->starts[tile], end = s->starts[tile + 1];
    const int64_t left = tile % s->columns * TILE, top = tile / s->columns * TILE;
    vf t[VECTORS];
    vi rank_half[VECTORS], last_pair[VECTORS];
    clear_tile(s, left, top, t);
    for (int v = 0; v < VECTORS; v++) last_pair[v] = ((t[v] > 0) & (end - 1)) | (t[v] <= 0);
    memset(sum, 0, sizeof(vf) * VECTORS * (size_t)channels);
    if (middle) memset(rank_half, -1, sizeof rank_half);
    uint32_t live = live_vectors(t);
    for (int32_t p = begin; live && p < end; p++) {
        const Ranked *g = s->ranked + s->members[p];
        announce(s, p, end - 1, 1, channels);
        const float *f = s->features + (int64_t)g->source * channels;
        int row, bottom, first, last;
        box_in_tile(g, (float)left, (float)top, &row, &bottom, &first, &last);
        vf dx[PER_ROW];
        for (int h = 0; h < PER_ROW; h++) dx[h] = (lane_centers() + ((float)(left + h * LANES) - g->x)) * g->l1;
        for (; row < bottom; row++) {
            float dy = (float)(top + row) + 0.5f - g->y, v = g->l3 * dy, rest = g->level - v * v, shift = g->l2 * dy;
            for (int h = first; h < last; h++) {
                int at = row * PER_ROW + h;
                if (!(live >> at & 1)) continue;
                vf power = exponent(dx[h] + shift, rest);
                vi mask = (power >= faint) & (t[at] > OPAQUE);
                vf a = power_of_two(choose(mask, power, broadcast(-100)));
                a = keep(mask, choose(a > CEILING, broadcast(CEILING), a));
                vf w = a * t[at], after = t[at] * (1 - a);
                if (middle) {
                    vi crossed = (t[at] > 0.5f) & (after <= 0.5f);
                    rank_half[at] = (rank_half[at] & ~crossed) | (crossed & g->source);
                }
                t[at] = after;
                for (int c = 0; c < channels; c++) sum[c * VECTORS + at] += w * f[c];
                vi ending = mask & (after <= OPAQUE);
                if (!any(ending)) continue;
                last_pair[at] = (last_pair[at] & ~ending) | (ending & p);
                if (!any(after > OPAQUE)) live &= ~(1u << at);
            }
        }
    }
    memcpy(ends->passed, t, sizeof t);
    memcpy(ends->last, last_pair, sizeof last_pair);
    for (int64_t y = 0; y < TILE && top + y < s->height; y++)
        for (int64_t x = 0; x < TILE && left + x < s->width; x++) {
            int64_t from = y * TILE + x, to = (top + y) * s->width + left + x;
            for (int c = 0; c < channels; c++) features[to * channels + c] = ((float *)sum)[c * PIXELS + from];
            alpha[to] = 1 - ((float *)t)[from];
            if (middle) median[to] = ((int32_t *)rank_half)[from];
        }
}

/* Blends all tiles. `ends`, one per tile, is for the way back. `median` may be NULL: else the packed row of the
 * Gaussian at which the transmittance passes 1/2. */
FW_EXPORT void fw_blend(int64_t width, int64_t height, int64_t channels, int columns, int rows, const Ranked *ranked,
                        const int32_t *members, const int32_t *starts, const float *packed, int threads,
                        float *features, float *alpha, Ends *ends, int32_t *median) {
    const Scene scene = {width, height, channels, columns, rows, ranked, members, starts, packed};
    const int64_t tiles = (int64_t)columns * rows;
#pragma omp parallel num_threads(threads)
    {
        vf sum[VECTORS * (channels ? channels : 1)];
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < tiles; tile++) {
            if (median) forward_tile(&scene, tile, (int)channels, 1, sum, features, alpha, ends + tile, median);
            else switch (channels) {
                case 3: forward_tile(&scene, tile, 3, 0, sum, features, alpha, ends + tile, median); break;
                case 4: forward_tile(&scene, tile, 4, 0, sum, features, alpha, ends + tile, median); break;
                case 7: forward_tile(&scene, tile, 7, 0, sum, features, alpha, ends + tile, median); break;
                case 9: forward_tile(&scene, tile, 9, 0, sum, features, alpha, ends + tile, median); break;
                default: forward_tile(&scene, tile, (int)channels, 0, sum, features, alpha, ends + tile, median);
            }
        }
    }
}

typedef struct {
    const Ends *ends;
    const float *dfeatures, *dalpha; /* gradients of the image */
} Given;

/* Loads a tile's gradients channel by channel, and what all that lies behind each pixel's Gaussians gives: what alpha's
 * gradient takes. */
FW_INLINE void load_tile(const Scene *s, const int n, int64_t left, int64_t top, const Given *given, vf *gradient,
                         const Ends *ends, vf *behind) {
    memset(gradient, 0, sizeof(vf) * VECTORS * (size_t)n);
    memset(behind, 0, sizeof(vf) * VECTORS);
    for (int64_t y = 0; y < TILE && top + y < s->height; y++)
        for (int64_t x = 0; x < TILE && left + x < s->width; x++) {
            int64_t to = y * TILE + x, from = (top + y) * s->width + left + x;
            ((float *)behind)[to] = -given->dalpha[from] * ((const float *)ends->passed)[to];
            for (int c = 0; c < n; c++) ((float *)gradient)[c * PIXELS + to] = given->dfeatures[from * n + c];
        }
}

/* The vectors in which pair p takes light or one behind it does, and in `next` the pair before p that adds some. */
static uint32_t reached_vectors(const vi *last, int32_t p, int32_t *next) {
    uint32_t live = 0;
    *next = -1;
    for (int v = 0; v < VECTORS; v++) {
        int32_t most = last[v][0];
        for (int k = 1; k < LANES; k++) most = last[v][k] > most ? last[v][k] : most;
        if (most >= p) live |= 1u << v;
        else if (most > *next) *next = most;
    }
    return live;
}

typedef struct {
    vf e, eu, eux, euy, ey, eyy, ax, ay; /* sums over pixels of e = alpha dL/dalpha times whitened offsets */
} Moments;

/* One Gaussian's gradients in one tile, from the sums over its pixels. */
FW_INLINE void write_row(const Ranked *g, const Moments *m, const vf *df, int channels, int absgrad, float *row) {
    const float root = sqrtf(HALF_LOG2E), u = total(m->eu), y = total(m->ey);
    const float back = 1 / (root * root), e = total(m->e);
    for (int c = 0; c < channels; c++) row[c] = total(df[c]);
    row += channels;
    row[0] = back * u * g->l1;
    row[1] = back * (u * g->l2 + y * g->l3 * g->l3);
    row[2] = -total(m->eux) / root;
    row[3] = -total(m->euy) / root;
    row[4] = -total(m->eyy) * g->l3 / root;
    row[5] = e * exp2f(-g->level);
    row[6] = absgrad ? back * total(m->ax) : 0;
    row[7] = absgrad ? back * total(m->ay) : 0;
}

FW_INLINE __attribute__((flatten)) void backward_tile(const Scene *s, int64_t tile, const int channels,
                                                      const int absgrad, const Given *given, vf *restrict gradient,
                                                      vf *restrict behind, vf *restrict df, float *rows_out) {
    const float faint = log2f(THRESHOLD);
    const int width = channels + GEOMETRY;
    const int32_t begin = s->starts[tile], end = s->starts[tile + 1];
    const int64_t left = tile % s->columns * TILE, top = tile / s->columns * TILE;
    Ends ends = given->ends[tile];
    load_tile(s, channels, left, top, given, gradient, &ends, behind);
    int32_t next;
    uint32_t live = reached_vectors(ends.last, end, &next);
    int32_t p = next < begin ? begin - 1 : next;
    memset(rows_out + (int64_t)(p + 1) * width, 0, sizeof(float) * (size_t)width * (size_t)(end - p - 1));
    for (; p >= begin; p--) {
        if (p == next) live = reached_vectors(ends.last, p, &next);
        const Ranked *g = s->ranked + s->members[p];
        announce(s, p, begin, -1, channels);
        const float *f = s->features + (int64_t)g->source * channels;
        int row, bottom, first, last, touched = 0;
        box_in_tile(g, (float)left, (float)top, &row, &bottom, &first, &last);
        Moments m = {0};
        vf dx[PER_ROW], along[PER_ROW];
        for (int c = 0; c < channels; c++) df[c] = broadcast(0);
        for (int h = 0; h < PER_ROW; h++) {
            dx[h] = lane_centers() + ((float)(left + h * LANES) - g->x);
            along[h] = dx[h] * g->l1;
        }
        for (; row < bottom; row++) {
            float dy = (float)(top + row) + 0.5f - g->y, v = g->l3 * dy, rest = g->level - v * v, shift = g->l2 * dy;
            for (int h = first; h < last; h++) {
                int at = row * PER_ROW + h;
                if (!(live >> at & 1)) continue;
                vf u = along[h] + shift, power = exponent(u, rest);
                vi mask = (power >= faint) & (ends.last[at] >= p);
                if (!any(mask)) continue;
                touched = 1;
                vf free = power_of_two(choose(mask, power, broadcast(-100)));
                vi clipped = free > CEILING;
                vf a = keep(mask, choose(clipped, broadcast(CEILING), free));
                vf grown = 1 / (1 - a), before = ends.passed[at] * grown, w = a * before, value = broadcast(0);
                for (int c = 0; c < channels; c++) {
                    vf d = gradient[c * VECTORS + at];
                    value += d * f[c];
                    df[c] += w * d;
                }
                vf e = keep(mask & ~clipped, w * value - a * grown * behind[at]);
                ends.passed[at] = before;
                behind[at] += w * value;
                vf eu = e * u;
                m.e += e;
                m.eu += eu;
                m.eux += eu * dx[h];
                m.euy += eu * dy;
                m.ey += e * dy;
                m.eyy += e * (dy * dy);
                if (absgrad) {
                    vf px = eu * g->l1, py = eu * g->l2 + e * (v * g->l3);
                    m.ax += choose(px < 0, -px, px);
                    m.ay += choose(py < 0, -py, py);
                }
            }
        }
        if (touched) write_row(g, &m, df, channels, absgrad, rows_out + (int64_t)p * width);
        else memset(rows_out + (int64_t)p * width, 0, sizeof(float) * (size_t)width);
    }
}

/* Adds up the rows of each Gaussian. */
static void gather(int64_t n, int64_t channels, const Ranked *ranked, int64_t pairs, const int32_t *places,
                   const float *rows, int threads, float *dpacked, float *dmeans, float *dwhitening, float *dopacities,
                   float *absgrad) {
    const int64_t width = channels + GEOMETRY;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < n; r++) {
        const int64_t to = ranked[r].source, end = r + 1 < n ? ranked[r + 1].start : pairs;
        float *df = dpacked + to * channels, sum[GEOMETRY] = {0};
        memset(df, 0, sizeof(float) * (size_t)channels);
        for (int64_t k = ranked[r].start; k < end; k++) {
            const float *row = rows + places[k] * width;
            for (int64_t c = 0; c < channels; c++) df[c] += row[c];
            for (int j = 0; j < GEOMETRY; j++) sum[j] += row[channels + j];
        }
        memcpy(dmeans + 2 * to, sum, 2 * sizeof(float));
        memcpy(dwhitening + 3 * to, sum + 2, 3 * sizeof(float));
        dopacities[to] = sum[5];
        if (absgrad) memcpy(absgrad + 2 * to, sum + 6, 2 * sizeof(float));
    }
}

/* Gradients of n packed Gaussians. `rows_out` has pairs * (channels + 8) floats; `absgrad` may be NULL: else per
 * Gaussian the sums over pixels of the absolute gradient of its place on the image (AbsGS, Ye 2024). */
FW_EXPORT void fw_blend_backward(int64_t n, int64_t width, int64_t height, int64_t channels, int columns, int rows,
                                 const Ranked *ranked, int64_t pairs, const int32_t *members, const int32_t *places,
                                 const int32_t *starts, const float *packed, const Ends *ends,
                                 const float *dfeatures, const float *dalpha, int threads, float *rows_out,
                                 float *dpacked, float *dmeans, float *dwhitening, float *dopacities,
                                 float *absgrad) {
    const Scene scene = {width, height, channels, columns, rows, ranked, members, starts, packed};
    const Given given = {ends, dfeatures, dalpha};
    const int64_t tiles = (int64_t)columns * rows;
#pragma omp parallel num_threads(threads)
    {
        vf gradient[VECTORS * (channels ? channels : 1)], behind[VECTORS], df[channels ? channels : 1];
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < tiles; tile++) {
            if (absgrad) switch (channels) {
                case 3: backward_tile(&scene, tile, 3, 1, &given, gradient, behind, df, rows_out); break;
                case 7: backward_tile(&scene, tile, 7, 1, &given, gradient, behind, df, rows_out); break;
                default: backward_tile(&scene, tile, (int)channels, 1, &given, gradient, behind, df, rows_out);
            }
            else switch (channels) {
                case 3: backward_tile(&scene, tile, 3, 0, &given, gradient, behind, df, rows_out); break;
                case 4: backward_tile(&scene, tile, 4, 0, &given, gradient, behind, df, rows_out); break;
                case 7: backward_tile(&scene, tile, 7, 0, &given, gradient, behind, df, rows_out); break;
                case 9: backward_tile(&scene, tile, 9, 0, &given, gradient, behind, df, rows_out); break;
                default: backward_tile(&scene, tile, (int)channels, 0, &given, gradient, behind, df, rows_out);
            }
        }
    }
    gather(n, channels, ranked, pairs, places, rows_out, threads, dpacked, dmeans, dwhitening, dopacities, absgrad);
}

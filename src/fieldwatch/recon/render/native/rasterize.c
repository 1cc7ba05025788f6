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
#define GROUP 16                 /* pairs of Gaussian and tile at most that are taken together */
#define MOST 128                 /* vectors of pixels at most in which these show: their list fits into a near cache */
#define GEOMETRY 8               /* gradients per pair beside the channels: mean 2, whitening 3, opacity 1, absgrad 2 */

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

/* Asks for the Gaussians of later groups: they lie scattered over more memory than a near cache holds. */
FW_INLINE void announce(const Scene *s, int32_t p, int32_t last, int step, int channels) {
    if ((last - p) * step < 2 * GROUP) return;
    const Ranked *g = s->ranked + s->members[p + 2 * GROUP * step];
    __builtin_prefetch(g);
    __builtin_prefetch(&g->tilt);
    const float *f = s->features + (int64_t)s->ranked[s->members[p + GROUP * step]].source * channels;
    __builtin_prefetch(f);
    __builtin_prefetch(f + channels - 1);
}

/* A tile's pixels as a Gaussian sees them: offsets from its center, and their parts of u = l1 dx + l2 dy and of
 * log2(alpha) = rest - u^2. */
typedef struct {
    vf dx[PER_ROW], along[PER_ROW];
    float dy[TILE], shift[TILE], rest[TILE];
} Offsets;

/* Returns as bits the vectors of the tile that the Gaussian's box touches. */
FW_INLINE uint32_t offsets_of(const Ranked *g, int64_t left, int64_t top, Offsets *o) {
    const float reach_x = 0.01f + 1.00001f * g->reach_x, reach_y = 0.01f + 1.00001f * g->reach_y;
    uint32_t halves = 0, rows = 0;
    for (int h = 0; h < PER_ROW; h++) {
        o->dx[h] = lane_centers() + ((float)(left + h * LANES) - g->x);
        o->along[h] = o->dx[h] * g->l1;
        halves |= any((o->dx[h] >= -reach_x) & (o->dx[h] <= reach_x)) ? 0x55555555u << h : 0;
    }
    for (int y = 0; y < TILE; y += LANES) {
        vf dy = (lane_centers() + (float)(top + y)) - g->y, v = g->l3 * dy;
        store(o->dy + y, dy), store(o->shift + y, g->l2 * dy), store(o->rest + y, g->level - v * v);
        rows |= bits((dy >= -reach_y) & (dy <= reach_y)) << y;
    }
    /* Rows are touched without a gap: their bits twice as far apart, and those between, are a difference of powers. */
    if (!rows) return 0;
    const int first = __builtin_ctz(rows), last = 31 - __builtin_clz(rows);
    return halves & (uint32_t)((4ull << 2 * last) - (1ull << 2 * first));
}

/* Pairs of Gaussian and tile that are taken together, and the vectors of pixels in which their Gaussians show, in the
 * order of the pairs. How many vectors a small Gaussian touches cannot be predicted. A processor that finds out pair by
 * pair waits each time; here the numbers are known long before the loops that depend on them. */
typedef struct {
    int pairs, count;
    const Ranked *gaussian[GROUP];
    const float *features[GROUP];
    Offsets offsets[GROUP];
    uint32_t boxed[GROUP];
    int32_t end[GROUP];           /* of the pair's entries in the list of vectors: */
    int32_t at[MOST], pair[MOST]; /* pair: its place in the group */
    vf u[MOST], power[MOST];      /* power: log2 of alpha before the ceiling, far below where not seen */
    vf weight[MOST], slope[MOST]; /* on the way back: alpha times the light that arrives, alpha dL/dalpha */
} Group;

/* Lists the vectors in which the Gaussians of pairs p, p + step, ... are above the threshold, and the pixel has a
 * `last` pair that is not before theirs, unless NULL. */
FW_INLINE void look(const Scene *s, int64_t left, int64_t top, int32_t p, int32_t pairs, int step, int channels,
                    const vi *last, Group *group) {
    const float faint = log2f(THRESHOLD);
    int k = 0, most = 0, count = 0;
    for (; k < GROUP && k < pairs && most + VECTORS <= MOST; k++) {
        const Ranked *g = s->ranked + s->members[p + k * step];
        announce(s, p + k * step, p + (pairs - 1) * step, step, channels);
        group->gaussian[k] = g, group->features[k] = s->features + (int64_t)g->source * channels;
        group->boxed[k] = offsets_of(g, left, top, group->offsets + k);
        most += __builtin_popcount(group->boxed[k]);
    }
    group->pairs = k;
    for (k = 0; k < group->pairs; k++) {
        const Offsets *o = group->offsets + k;
        for (uint32_t boxed = group->boxed[k]; boxed; boxed &= boxed - 1) {
            const int at = __builtin_ctz(boxed);
            vf u = o->along[at % PER_ROW] + o->shift[at / PER_ROW], power = o->rest[at / PER_ROW] - u * u;
            vi mask = power >= faint;
            if (last) mask &= last[at] >= p + k * step;
            group->at[count] = at, group->pair[count] = k, group->u[count] = u;
            group->power[count] = choose(mask, power, broadcast(-100));
            count += any(mask);
        }
        group->end[k] = count;
    }
    group->count = count;
}

/* Eight pixels of the image, `channels` numbers each, become one vector per channel. */
FW_INLINE void load_pixels(const float *image, const int channels, vf *to) {
    vf x[LANES];
    if (channels > LANES) {
        for (int k = 0; k < LANES; k++)
            for (int c = 0; c < channels; c++) ((float *)(to + c))[k] = image[k * channels + c];
        return;
    }
    for (int k = 0; k < LANES; k++) {
        /* Reads more than the pixel has, but nothing beyond the last one. */
        const int whole = k * channels + LANES <= LANES * channels;
        x[k] = whole ? load(image + k * channels) : broadcast(0);
        if (!whole) memcpy(x + k, image + k * channels, (size_t)channels * sizeof(float));
    }
    transpose(x);
    memcpy(to, x, (size_t)channels * sizeof(vf));
}

/* The inverse. */
FW_INLINE void store_pixels(const vf *from, const int channels, float *image) {
    vf x[LANES];
    if (channels > LANES) {
        for (int k = 0; k < LANES; k++)
            for (int c = 0; c < channels; c++) image[k * channels + c] = ((const float *)(from + c))[k];
        return;
    }
    for (int c = 0; c < LANES; c++) x[c] = c < channels ? from[c] : broadcast(0);
    transpose(x);
    for (int k = 0; k < LANES; k++) {
        /* What is written beyond a pixel, the next ones overwrite. */
        if (k * channels + LANES <= LANES * channels) store(image + k * channels, x[k]);
        else memcpy(image + k * channels, x + k, (size_t)channels * sizeof(float));
    }
}

FW_INLINE __attribute__((flatten)) void forward_tile(const Scene *s, int64_t tile, const int channels,
                                                     const int middle, vf *restrict sum, Group *restrict group,
                                                     float *features, float *alpha, Ends *ends, int32_t *median) {
    const float faint = log2f(THRESHOLD);
    const int32_t begin = s->starts[tile], end = s->starts[tile + 1];
    const int64_t left = tile % s->columns * TILE, top = tile / s->columns * TILE;
    vf t[VECTORS];
    vi rank_half[VECTORS], last_pair[VECTORS];
    clear_tile(s, left, top, t);
    for (int v = 0; v < VECTORS; v++) last_pair[v] = ((t[v] > 0) & (end - 1)) | (t[v] <= 0);
    memset(sum, 0, sizeof(vf) * VECTORS * (size_t)channels);
    if (middle) memset(rank_half, -1, sizeof rank_half);
    uint32_t live = 0; /* vectors with a pixel that is not opaque */
    for (int v = 0; v < VECTORS; v++) live |= (uint32_t)any(t[v] > OPAQUE) << v;
    for (int32_t p = begin; live && p < end; p += group->pairs) {
        look(s, left, top, p, end - p, 1, channels, 0, group);
        for (int i = 0; i < group->count; i++) {
            const int at = group->at[i], k = group->pair[i];
            const vi mask = (group->power[i] >= faint) & (t[at] > OPAQUE);
            if (!any(mask)) continue; /* a color that is not finite does not reach opaque pixels */
            vf a = power_of_two(group->power[i]);
            a = keep(mask, choose(a > CEILING, broadcast(CEILING), a));
            vf w = a * t[at], after = t[at] * (1 - a);
            if (middle) {
                vi crossed = (t[at] > 0.5f) & (after <= 0.5f);
                rank_half[at] = (rank_half[at] & ~crossed) | (crossed & group->gaussian[k]->source);
            }
            t[at] = after;
            for (int c = 0; c < channels; c++) sum[at * channels + c] += w * group->features[k][c];
            vi ending = mask & (after <= OPAQUE);
            if (!any(ending)) continue;
            last_pair[at] = (last_pair[at] & ~ending) | (ending & (p + k));
            if (!any(after > OPAQUE)) live &= ~(1u << at);
        }
    }
    memcpy(ends->passed, t, sizeof t);
    memcpy(ends->last, last_pair, sizeof last_pair);
    for (int v = 0; v < VECTORS; v++) {
        const int64_t y = top + v / PER_ROW, x = left + v % PER_ROW * LANES, to = y * s->width + x;
        if (y >= s->height || x >= s->width) continue;
        const vf *colors = sum + v * channels, shown = 1 - t[v];
        if (x + LANES <= s->width) {
            store_pixels(colors, channels, features + to * channels);
            store(alpha + to, shown);
            if (middle) memcpy(median + to, rank_half + v, sizeof(vi));
            continue;
        }
        for (int k = 0; x + k < s->width; k++) {
            for (int c = 0; c < channels; c++) features[(to + k) * channels + c] = colors[c][k];
            alpha[to + k] = shown[k];
            if (middle) median[to + k] = rank_half[v][k];
        }
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
        Group group;
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < tiles; tile++) {
            if (median) forward_tile(&scene, tile, (int)channels, 1, sum, &group, features, alpha, ends + tile, median);
            else switch (channels) {
                case 3: forward_tile(&scene, tile, 3, 0, sum, &group, features, alpha, ends + tile, median); break;
                case 4: forward_tile(&scene, tile, 4, 0, sum, &group, features, alpha, ends + tile, median); break;
                case 7: forward_tile(&scene, tile, 7, 0, sum, &group, features, alpha, ends + tile, median); break;
                case 9: forward_tile(&scene, tile, 9, 0, sum, &group, features, alpha, ends + tile, median); break;
                default: forward_tile(&scene, tile, (int)channels, 0, sum, &group, features, alpha, ends + tile, 0);
            }
        }
    }
}

typedef struct {
    const Ends *ends;
    const float *dfeatures, *dalpha; /* gradients of the image */
} Given;

/* Loads a tile's gradients, vector by vector, and what all that lies behind each pixel's Gaussians gives: what alpha's
 * gradient takes. */
FW_INLINE void load_tile(const Scene *s, const int n, int64_t left, int64_t top, const Given *given, vf *gradient,
                         const Ends *ends, vf *behind) {
    memset(gradient, 0, sizeof(vf) * VECTORS * (size_t)n);
    memset(behind, 0, sizeof(vf) * VECTORS);
    for (int v = 0; v < VECTORS; v++) {
        const int64_t y = top + v / PER_ROW, x = left + v % PER_ROW * LANES, from = y * s->width + x;
        if (y >= s->height || x >= s->width) continue;
        if (x + LANES <= s->width) {
            load_pixels(given->dfeatures + from * n, n, gradient + v * n);
            behind[v] = -load(given->dalpha + from) * ends->passed[v];
            continue;
        }
        for (int k = 0; x + k < s->width; k++) {
            for (int c = 0; c < n; c++) gradient[v * n + c][k] = given->dfeatures[(from + k) * n + c];
            behind[v][k] = -given->dalpha[from + k] * ends->passed[v][k];
        }
    }
}

/* The last pair of Gaussian and tile that takes light from any pixel. */
static int32_t last_of(const Ends *ends) {
    int32_t most = -1;
    for (int v = 0; v < VECTORS; v++)
        for (int k = 0; k < LANES; k++) most = ends->last[v][k] > most ? ends->last[v][k] : most;
    return most;
}

/* Gradients of up to eight channels from a pair's entries: sums over pixels of weight times gradient. */
FW_INLINE void sum_channels(const int channels, int first, const int32_t *at, const vf *weight, int count,
                            const vf *gradient, float *row) {
    const int here = channels - first < LANES ? channels - first : LANES;
    vf sum[LANES];
    float sums[LANES];
    for (int c = 0; c < LANES; c++) sum[c] = broadcast(0);
    for (int i = 0; i < count; i++)
        for (int c = 0; c < here; c++) sum[c] += weight[i] * gradient[at[i] * channels + first + c];
    store(sums, totals(sum));
    memcpy(row + first, sums, sizeof(float) * (size_t)here);
}

/* A Gaussian's other gradients in one tile, from sums over pixels of e = alpha dL/dalpha times whitened offsets. */
FW_INLINE void sum_geometry(const Ranked *g, const Offsets *o, const int32_t *at, const vf *slope, const vf *across,
                            int count, int absgrad, float *row) {
    enum { E, EU, EUX, EUY, EY, EYY, AX, AY };
    const float root = sqrtf(HALF_LOG2E), back = 1 / (root * root);
    vf sum[GEOMETRY];
    float m[GEOMETRY];
    for (int j = 0; j < GEOMETRY; j++) sum[j] = broadcast(0);
    for (int i = 0; i < count; i++) {
        const float dy = o->dy[at[i] / PER_ROW];
        vf e = slope[i], eu = e * across[i];
        sum[E] += e;
        sum[EU] += eu;
        sum[EUX] += eu * o->dx[at[i] % PER_ROW];
        sum[EUY] += eu * dy;
        sum[EY] += e * dy;
        sum[EYY] += e * (dy * dy);
        if (absgrad) {
            vf px = eu * g->l1, py = eu * g->l2 + e * (g->l3 * dy * g->l3);
            sum[AX] += choose(px < 0, -px, px);
            sum[AY] += choose(py < 0, -py, py);
        }
    }
    store(m, totals(sum));
    row[0] = back * m[EU] * g->l1;
    row[1] = back * (m[EU] * g->l2 + m[EY] * g->l3 * g->l3);
    row[2] = -m[EUX] / root;
    row[3] = -m[EUY] / root;
    row[4] = -m[EYY] * g->l3 / root;
    row[5] = m[E] * g->inverse;
    row[6] = absgrad ? back * m[AX] : 0;
    row[7] = absgrad ? back * m[AY] : 0;
}

FW_INLINE __attribute__((flatten)) void backward_tile(const Scene *s, int64_t tile, const int channels,
                                                      const int absgrad, const Given *given, vf *restrict gradient,
                                                      vf *restrict behind, Group *restrict group, float *rows_out) {
    const float faint = log2f(THRESHOLD);
    const int width = channels + GEOMETRY;
    const int32_t begin = s->starts[tile], end = s->starts[tile + 1];
    const int64_t left = tile % s->columns * TILE, top = tile / s->columns * TILE;
    Ends ends = given->ends[tile];
    load_tile(s, channels, left, top, given, gradient, &ends, behind);
    int32_t p = last_of(&ends);
    p = p < begin ? begin - 1 : p;
    memset(rows_out + (int64_t)(p + 1) * width, 0, sizeof(float) * (size_t)width * (size_t)(end - p - 1));
    for (; p >= begin; p -= group->pairs) {
        look(s, left, top, p, p + 1 - begin, -1, channels, ends.last, group);
        for (int i = 0; i < group->count; i++) {
            const int at = group->at[i];
            const float *f = group->features[group->pair[i]];
            const vi mask = group->power[i] >= faint;
            vf free = power_of_two(group->power[i]);
            vi clipped = free > CEILING;
            vf a = keep(mask, choose(clipped, broadcast(CEILING), free));
            vf grown = 1 / (1 - a), before = ends.passed[at] * grown, w = a * before, value = broadcast(0);
            for (int c = 0; c < channels; c++) value += gradient[at * channels + c] * f[c];
            group->slope[i] = keep(mask & ~clipped, w * value - a * grown * behind[at]);
            group->weight[i] = w;
            ends.passed[at] = before;
            behind[at] += w * value;
        }
        for (int k = 0; k < group->pairs; k++) {
            const int from = k ? group->end[k - 1] : 0, to = group->end[k];
            float *row = rows_out + (int64_t)(p - k) * width;
            if (from == to) {
                memset(row, 0, sizeof(float) * (size_t)width);
                continue;
            }
            for (int c = 0; c < channels; c += LANES)
                sum_channels(channels, c, group->at + from, group->weight + from, to - from, gradient, row);
            sum_geometry(group->gaussian[k], group->offsets + k, group->at + from, group->slope + from,
                         group->u + from, to - from, absgrad, row + channels);
        }
    }
}

/* Where the gradients of packed Gaussians go. */
typedef struct {
    float *packed, *means, *whitening, *opacities, *absgrad; /* absgrad: or NULL */
} Gradients;

FW_INLINE void announce_gradients(Gradients d, int64_t channels, int64_t to) {
    __builtin_prefetch(d.packed + to * channels, 1);
    __builtin_prefetch(d.means + 2 * to, 1);
    __builtin_prefetch(d.whitening + 3 * to, 1);
    __builtin_prefetch(d.opacities + to, 1);
}

/* Adds up the rows of each Gaussian, in the order of its tiles: eight columns at a time, of which the last are the last
 * eight, some of them once more. */
static void gather(int64_t n, int64_t channels, const Ranked *ranked, int64_t pairs, const int32_t *places,
                   const float *rows, int threads, Gradients d) {
    const int64_t width = channels + GEOMETRY, ahead = 2 * GROUP;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < n; r++) {
        const int64_t to = ranked[r].source, end = r + 1 < n ? ranked[r + 1].start : pairs;
        float sums[width];
        if (r + ahead < n) announce_gradients(d, channels, ranked[r + ahead].source);
        for (int64_t k = ranked[r].start; k < end && k + ahead < pairs; k++) {
            __builtin_prefetch(rows + places[k + ahead] * width);
            __builtin_prefetch(rows + (places[k + ahead] + 1) * width - 1);
        }
        for (int64_t c = 0; c < width; c += LANES) {
            const int64_t from = c + LANES < width ? c : width - LANES;
            vf sum = broadcast(0);
            for (int64_t k = ranked[r].start; k < end; k++) sum += load(rows + places[k] * width + from);
            store(sums + from, sum);
        }
        memcpy(d.packed + to * channels, sums, (size_t)channels * sizeof(float));
        memcpy(d.means + 2 * to, sums + channels, 2 * sizeof(float));
        memcpy(d.whitening + 3 * to, sums + channels + 2, 3 * sizeof(float));
        d.opacities[to] = sums[channels + 5];
        if (d.absgrad) memcpy(d.absgrad + 2 * to, sums + channels + 6, 2 * sizeof(float));
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
        vf gradient[VECTORS * (channels ? channels : 1)], behind[VECTORS];
        Group group;
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < tiles; tile++) {
            if (absgrad) switch (channels) {
                case 3: backward_tile(&scene, tile, 3, 1, &given, gradient, behind, &group, rows_out); break;
                case 7: backward_tile(&scene, tile, 7, 1, &given, gradient, behind, &group, rows_out); break;
                default: backward_tile(&scene, tile, (int)channels, 1, &given, gradient, behind, &group, rows_out);
            }
            else switch (channels) {
                case 3: backward_tile(&scene, tile, 3, 0, &given, gradient, behind, &group, rows_out); break;
                case 4: backward_tile(&scene, tile, 4, 0, &given, gradient, behind, &group, rows_out); break;
                case 7: backward_tile(&scene, tile, 7, 0, &given, gradient, behind, &group, rows_out); break;
                case 9: backward_tile(&scene, tile, 9, 0, &given, gradient, behind, &group, rows_out); break;
                default: backward_tile(&scene, tile, (int)channels, 0, &given, gradient, behind, &group, rows_out);
            }
        }
    }
    gather(n, channels, ranked, pairs, places, rows_out, threads,
           (Gradients){dpacked, dmeans, dwhitening, dopacities, absgrad});
}

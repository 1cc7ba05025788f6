/* Binning of Gaussians into tiles: sort by depth, count the Gaussians per tile, then fill the lists of the tiles. */
#include <math.h>
#include <stdlib.h>

#include "splats.h"
#include "tiles.h"
#include "vectors.h"

#define DIGIT 11
#define BUCKETS (1 << DIGIT)

/* Stable order by depth. Depths are positive, so their bits sort as integers do: three passes of a radix sort. */
static void order_by_depth(int64_t n, const float *depths, uint32_t *keys, int32_t *order, uint32_t *keys2,
                           int32_t *order2) {
    static const int shifts[3] = {0, DIGIT, 2 * DIGIT};
    int32_t counts[3][BUCKETS] = {{0}};
    for (int64_t i = 0; i < n; i++) {
        memcpy(keys + i, depths + i, sizeof(uint32_t));
        order[i] = (int32_t)i;
        for (int p = 0; p < 3; p++) counts[p][(keys[i] >> shifts[p]) & (BUCKETS - 1)]++;
    }
    for (int p = 0; p < 3; p++) {
        int32_t sum = 0;
        for (int b = 0; b < BUCKETS; b++) {
            int32_t here = counts[p][b];
            counts[p][b] = sum;
            sum += here;
        }
        for (int64_t i = 0; i < n; i++) {
            int32_t to = counts[p][(keys[i] >> shifts[p]) & (BUCKETS - 1)]++;
            keys2[to] = keys[i];
            order2[to] = order[i];
        }
        uint32_t *k = keys;
        int32_t *o = order;
        keys = keys2, keys2 = k;
        order = order2, order2 = o;
    }
}

/* Tiles from..to (exclusive) of one row of tiles that the ellipse touches. */
FW_INLINE void span_in_row(const Ranked *g, float room, int row, int columns, int *from, int *to) {
    /* The leftmost and rightmost points on the strip, seen from the center: at the ellipse's own extreme points, or at
     * the strip's edges where those lie outside. */
    float low = (float)(row * TILE) + 0.5f - g->y, high = low + (TILE - 1);
    low = larger(low, -g->reach_y), high = smaller(high, g->reach_y);
    float a = smaller(larger(g->tilt, low), high), b = smaller(larger(-g->tilt, low), high);
    float right = (sqrtf(larger(room - g->l3 * g->l3 * a * a, 0)) - g->l2 * a) / g->l1;
    float left = (-sqrtf(larger(room - g->l3 * g->l3 * b * b, 0)) - g->l2 * b) / g->l1;
    float slack = 0.01f + 1e-5f * g->reach_x;
    float first = floorf((g->x + left - slack - (TILE - 0.5f)) / TILE + 1);
    float last = floorf((g->x + right + slack - 0.5f) / TILE);
    *from = (int)larger(first, 0), *to = (int)smaller(last, (float)(columns - 1)) + 1;
}

/* Rows (or columns) of tiles from..to (exclusive) that the ellipse's box touches. */
FW_INLINE void box_of(float center, float reach, int rows, int *from, int *to) {
    float slack = 0.01f + 1e-5f * reach;
    float first = floorf((center - reach - slack - (TILE - 0.5f)) / TILE + 1);
    float last = floorf((center + reach + slack - 0.5f) / TILE);
    *from = (int)larger(smaller(first, (float)rows), 0), *to = (int)larger(smaller(last, (float)(rows - 1)), -1) + 1;
}

FW_INLINE void rank_one(const float *mean, const float *whitening, float opacity, Ranked *g) {
    const float root = sqrtf(HALF_LOG2E);
    g->x = mean[0], g->y = mean[1];
    g->l1 = root * whitening[0], g->l2 = root * whitening[1], g->l3 = root * whitening[2];
    g->level = log2f(opacity);
    float room = larger(g->level - log2f(THRESHOLD), 0);
    g->reach_y = sqrtf(room) / g->l3;
    g->reach_x = sqrtf(room) * sqrtf(g->l2 * g->l2 + g->l3 * g->l3) / (g->l1 * g->l3);
    g->tilt = -sqrtf(room) * g->l2 / (g->l3 * sqrtf(g->l2 * g->l2 + g->l3 * g->l3));
    g->inverse = exp2f(-g->level);
}

/* Calls `per_tile` for every tile that a Gaussian touches, row by row. */
#define FOR_TILES(g, columns, rows, per_tile)                                                                  \
    do {                                                                                                       \
        float room_ = larger((g)->level - log2f(THRESHOLD), 0);                                                \
        int row_, end_, first_, last_;                                                                         \
        box_of((g)->x, (g)->reach_x, (columns), &first_, &last_);                                              \
        for (box_of((g)->y, (g)->reach_y, (rows), &row_, &end_); row_ < end_; row_++) {                        \
            int from_ = first_, to_ = last_;                                                                   \
            if (to_ - from_ > 1) span_in_row((g), room_, row_, (columns), &from_, &to_);                       \
            for (int64_t tile = (int64_t)row_ * (columns) + from_; from_ < to_; from_++, tile++) { per_tile; } \
        }                                                                                                      \
    } while (0)

/* Ranks the visible Gaussians by depth and counts their tiles.
 *
 * `counts` has room for threads * tiles numbers: afterwards the place where each thread's share of each tile begins.
 * `starts` has tiles + 1. `scratch` has 4 * n words. Returns the number of pairs, or -1 where it exceeds 2^31 - 1.
 */
FW_EXPORT int64_t fw_rank(int64_t n, const float *means2d, const float *whitening, const float *depths,
                          const float *opacities, int columns, int rows, int threads, int32_t *scratch, Ranked *ranked,
                          int32_t *counts, int32_t *starts) {
    const int64_t tiles = (int64_t)columns * rows;
    int32_t *order = scratch + 3 * n; /* three passes end in the second buffer */
    order_by_depth(n, depths, (uint32_t *)scratch, scratch + n, (uint32_t *)scratch + 2 * n, order);
    int64_t *per_share = malloc((size_t)threads * sizeof(int64_t));
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int s = 0; s < threads; s++) {
        int32_t *mine = counts + tiles * s;
        int64_t pairs = 0;
        memset(mine, 0, (size_t)tiles * sizeof(int32_t));
        for (int64_t r = n * s / threads; r < n * (s + 1) / threads; r++) {
            Ranked *g = ranked + r;
            int32_t i = order[r], later = order[r + 8 < n ? r + 8 : n - 1];
            __builtin_prefetch(means2d + 2 * later);
            __builtin_prefetch(whitening + 3 * later);
            __builtin_prefetch(opacities + later);
            rank_one(means2d + 2 * i, whitening + 3 * i, opacities[i], g);
            g->source = i;
            g->start = (int32_t)pairs;
            FOR_TILES(g, columns, rows, mine[tile]++; pairs++);
        }
        per_share[s] = pairs;
    }
    int64_t sum = 0;
    for (int64_t tile = 0; tile < tiles; tile++) {
        starts[tile] = (int32_t)sum;
        for (int s = 0; s < threads; s++) {
            int32_t here = counts[tiles * s + tile];
            counts[tiles * s + tile] = (int32_t)sum;
            sum += here;
        }
    }
    starts[tiles] = (int32_t)sum;
    int64_t before = 0;
    for (int s = 0; s < threads; s++) {
        if (before)
            for (int64_t r = n * s / threads; r < n * (s + 1) / threads; r++) ranked[r].start += (int32_t)before;
        before += per_share[s];
    }
    free(per_share);
    return sum > INT32_MAX ? -1 : sum;
}

/* Lists the ranks of each tile in order of depth (`members`), and where each Gaussian's pairs stand (`places`). */
FW_EXPORT void fw_fill(int64_t n, const Ranked *ranked, int columns, int rows, int threads, int32_t *counts,
                       int32_t *members, int32_t *places) {
    const int64_t tiles = (int64_t)columns * rows;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int s = 0; s < threads; s++) {
        int32_t *mine = counts + tiles * s;
        for (int64_t r = n * s / threads; r < n * (s + 1) / threads; r++) {
            const Ranked *g = ranked + r;
            int32_t slot = g->start;
            FOR_TILES(g, columns, rows, members[mine[tile]] = (int32_t)r; places[slot++] = mine[tile]++);
        }
    }
}

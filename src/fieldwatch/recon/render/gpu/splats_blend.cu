/* Lists of Gaussians per tile, and their blending from front to back, forward and backward, for CHANNELS channels.
 *
 * The way back runs from back to front, where the contribution behind a Gaussian is a growing sum. It writes one row of
 * gradients per pair of Gaussian and tile, and adds the rows of each Gaussian in the order of its tiles: no sum depends
 * on the order in which blocks run. */
#include "splats.h"

#ifndef CHANNELS
#define CHANNELS 9 /* colors, planar depth and normals */
#endif

#define LIST_THREADS 128
#define BLEND_THREADS 256 /* the pixels of a tile */
#define BATCH 64          /* Gaussians that a tile loads at a time */
#define GROUP 8           /* Gaussians whose pixels a tile adds up at a time, one warp for each */
#define GEOMETRY 8        /* gradients per pair beside the channels: mean 2, whitening 3, alpha 1, absolute mean 2 */
#define WIDTH (CHANNELS + GEOMETRY)
static_assert(WIDTH <= 32, "a warp adds up the gradients of a Gaussian, one column per thread");

#define NO_PAIR 0x7fffffffffffffff

/* Writes the pairs of each Gaussian: a key of tile and depth, and the row. Pairs beyond `room` are left out, which the
 * host sees by the number of pairs; places without a pair get the largest key. `absolute`, which may be null, gets 0. */
KERNEL(list_pairs, LIST_THREADS, int64_t count, int width, int height, int64_t room, const float *means2d,
       const float *whitening, const float *alphas, const float *depths, const int *tiles, const int64_t *ends,
       int64_t *keys, int *owners, float *absolute) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * LIST_THREADS + THREAD, pairs = count ? ends[count - 1] : 0;
        for (int64_t slot = pairs + i; slot < room; slot += (int64_t)BLOCKS * LIST_THREADS) keys[slot] = NO_PAIR;
        if (absolute && i < count) absolute[2 * i] = absolute[2 * i + 1] = 0;
        if (i >= count || tiles[i] == 0 || ends[i] - tiles[i] >= room) continue;
        const Shape shape = shape_of(means2d + 2 * i, whitening + 3 * i, alphas[i]);
        const Reach box = reach_of(shape);
        const int columns = (width + TILE - 1) / TILE;
        const Span down = box_span(shape.y, box.y, (height + TILE - 1) / TILE);
        /* Depths are positive, so their bits sort as integers do. */
        union {
            float number;
            uint32_t bits;
        } depth;
        depth.number = depths[i];
        int64_t slot = ends[i] - tiles[i];
        for (int row = down.from; row < down.end; row++) {
            const Span across = row_span(shape, box, row, columns);
            for (int column = across.from; column < across.end; column++, slot++) {
                if (slot >= room) continue;
                keys[slot] = ((int64_t)row * columns + column) << 32 | depth.bits;
                owners[slot] = (int)i;
            }
        }
    }
}

/* First pair of each tile among the sorted keys, and the end of the last one's. */
KERNEL(tile_starts, LIST_THREADS, int64_t tiles, int64_t room, const int64_t *keys, int *starts) {
    PHASE {
        const int64_t tile = (int64_t)BLOCK * LIST_THREADS + THREAD;
        if (tile > tiles) continue;
        int64_t low = 0, high = room;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (keys[middle] < tile << 32) low = middle + 1;
            else high = middle;
        }
        starts[tile] = (int)low;
    }
}

/* log2 of alpha at an offset from the center. Both ways must round alike: a pixel at the threshold counts in both. */
DEVICE float exponent(const Shape &s, float dx, float dy) {
    const float u = s.l1 * dx + s.l2 * dy, v = s.l3 * dy;
    return s.level - u * u - v * v;
}

struct Pixel {
    int x, y;
    bool inside;
    int64_t at;
};

DEVICE Pixel pixel_of(int tile, int thread, int width, int height) {
    const int columns = (width + TILE - 1) / TILE;
    Pixel p;
    p.x = tile % columns * TILE + thread % TILE;
    p.y = tile / columns * TILE + thread / TILE;
    p.inside = p.x < width && p.y < height;
    p.at = (int64_t)p.y * width + p.x;
    return p;
}

/* Channels are `given` features, then depth (mode 1: one; 2: at the middle of the image, and two slopes), then normals.
 * `median` may be null: else the row of the Gaussian at which the transmittance passes 1/2. */
KERNEL(blend_forward, BLEND_THREADS, int width, int height, const int *starts, const int64_t *order, const int *owners,
       const float *means2d, const float *whitening, const float *alphas, const float *packed, int given, int depth,
       const float *background, float *image, float *alpha, float *depth_map, float *normal_map,
       int *median, float *passed, int *last) {
    SHARED(Shape, shapes[BATCH]);
    SHARED(float, values[BATCH * CHANNELS]);
    SHARED(int, rows[BATCH]);
    SHARED(int, live[2]);
    PER_THREAD(float, light);
    PER_THREAD(float, sums, [CHANNELS]);
    PER_THREAD(int, final);
    PER_THREAD(int, half);
    const int begin = starts[BLOCK], end = starts[BLOCK + 1];
    PHASE {
        light[SELF] = pixel_of(BLOCK, THREAD, width, height).inside ? 1 : 0;
        final[SELF] = half[SELF] = -1;
        UNROLL for (int c = 0; c < CHANNELS; c++) sums[SELF][c] = 0;
        if (THREAD < 2) live[THREAD] = 0;
    }
    for (int base = begin, round = 0; base < end; base += BATCH, round ^= 1) {
        PHASE {
            if (THREAD == 0) live[round ^ 1] = 0;
            if (light[SELF] > OPAQUE) atomicOr(&live[round], 1);
            if (THREAD >= BATCH || base + THREAD >= end) continue;
            const int64_t i = owners[order[base + THREAD]];
            rows[THREAD] = (int)i;
            shapes[THREAD] = shape_of(means2d + 2 * i, whitening + 3 * i, alphas[i]);
            UNROLL for (int c = 0; c < CHANNELS; c++) values[THREAD * CHANNELS + c] = packed[i * CHANNELS + c];
        }
        if (!UNIFORM(live[round])) break;
        PHASE {
            const Pixel p = pixel_of(BLOCK, THREAD, width, height);
            const int count = end - base < BATCH ? end - base : BATCH;
            for (int k = 0; k < count; k++) {
                if (!(light[SELF] > OPAQUE)) break;
                const float power = exponent(shapes[k], p.x + 0.5f - shapes[k].x, p.y + 0.5f - shapes[k].y);
                if (!(power >= FAINT)) continue;
                const float a = fminf(exp2f(power), CEILING), w = a * light[SELF], after = light[SELF] * (1 - a);
                UNROLL for (int c = 0; c < CHANNELS; c++) sums[SELF][c] += w * values[k * CHANNELS + c];
                if (light[SELF] > 0.5f && after <= 0.5f) half[SELF] = rows[k];
                light[SELF] = after;
                final[SELF] = base + k;
            }
        }
    }
    PHASE {
        const Pixel p = pixel_of(BLOCK, THREAD, width, height);
        if (!p.inside) continue;
        const float right = p.x + 0.5f - 0.5f * width, below = p.y + 0.5f - 0.5f * height;
        const int plane = given + (depth == 2 ? 3 : depth);
        alpha[p.at] = 1 - light[SELF];
        passed[p.at] = light[SELF];
        last[p.at] = final[SELF];
        if (median) median[p.at] = half[SELF];
        float deep = 0;
        UNROLL for (int c = 0; c < CHANNELS; c++) {
            if (c < given) image[p.at * given + c] = sums[SELF][c] + (background ? light[SELF] * background[c] : 0);
            else if (c < plane) deep += sums[SELF][c] * (c == given ? 1 : c == given + 1 ? right : below);
            else normal_map[p.at * 3 + c - plane] = sums[SELF][c];
        }
        if (depth) depth_map[p.at] = deep;
    }
}

/* One column of a Gaussian's gradients is a sum over pixels of a coefficient times (a0 + a1 dx + a2 dy) (b0 + b1 dx +
 * b2 dy); the last two columns are sums of absolute values. */
struct Column {
    float a0, a1, a2, b0, b1, b2;
};

DEVICE Column column_of(const Shape &s, int column) {
    const float back = 1 / (ROOT * ROOT);
    Column c = {0, s.l1, s.l2, 0, 0, 0}; /* u = l1 dx + l2 dy */
    if (column == 0 || column == 6) c.b0 = back * s.l1;
    if (column == 1 || column == 7) c = {0, back * s.l1 * s.l2, back * (s.l2 * s.l2 + s.l3 * s.l3), 1, 0, 0};
    if (column == 2) c.b1 = -1 / ROOT;
    if (column == 3) c.b2 = -1 / ROOT;
    if (column == 4) c = {0, 0, s.l3, 0, 0, -1 / ROOT};
    if (column == 5) c = {1, 0, 0, exp2f(-s.level), 0, 0};
    return c;
}

/* Gradients of the maps may be null. */
KERNEL(blend_backward, BLEND_THREADS, int width, int height, const int *starts, const int64_t *order,
       const int *owners, const float *means2d, const float *whitening, const float *alphas, const float *packed,
       int given, int depth, const float *background, const float *passed, const int *last,
       const float *dimage, const float *dalpha, const float *ddepth, const float *dnormals, float *gradients) {
    SHARED(float, upstream[BLEND_THREADS * CHANNELS]);
    SHARED(float, weights[GROUP * BLEND_THREADS]);
    SHARED(float, pulls[GROUP * BLEND_THREADS]);
    SHARED(Shape, shapes[GROUP]);
    SHARED(float, values[GROUP * CHANNELS]);
    SHARED(int, from[GROUP]); /* first and last pixel of the tile in which the Gaussian is seen */
    SHARED(int, to[GROUP]);
    SHARED(int, furthest[1]);
    PER_THREAD(float, light);
    PER_THREAD(float, behind);
    PER_THREAD(int, final);
    const int begin = starts[BLOCK], end = starts[BLOCK + 1];
    PHASE {
        const Pixel p = pixel_of(BLOCK, THREAD, width, height);
        if (THREAD == 0) furthest[0] = begin - 1;
        light[SELF] = p.inside ? passed[p.at] : 0;
        final[SELF] = p.inside ? last[p.at] : -1;
        float by_light = p.inside && dalpha ? -dalpha[p.at] : 0;
        const float right = p.x + 0.5f - 0.5f * width, below = p.y + 0.5f - 0.5f * height;
        const int plane = given + (depth == 2 ? 3 : depth);
        UNROLL for (int c = 0; c < CHANNELS; c++) {
            float d = 0;
            if (p.inside && c < given && dimage) {
                d = dimage[p.at * given + c];
                if (background) by_light += d * background[c];
            } else if (p.inside && c >= given && c < plane && ddepth) {
                d = ddepth[p.at] * (c == given ? 1 : c == given + 1 ? right : below);
            } else if (p.inside && c >= plane && dnormals) {
                d = dnormals[p.at * 3 + c - plane];
            }
            upstream[THREAD * CHANNELS + c] = d;
        }
        behind[SELF] = by_light * light[SELF];
    }
    PHASE { atomicMax(&furthest[0], final[SELF]); }
    const int top = UNIFORM(furthest[0]);
    PHASE {
        for (int k = THREAD; k < (end - 1 - top) * WIDTH; k += BLEND_THREADS)
            gradients[order[top + 1 + k / WIDTH] * WIDTH + k % WIDTH] = 0;
    }
    for (int base = top; base >= begin; base -= GROUP) {
        const int count = base - begin + 1 < GROUP ? base - begin + 1 : GROUP;
        PHASE {
            if (THREAD < GROUP) from[THREAD] = BLEND_THREADS, to[THREAD] = -1;
            if (THREAD >= count) continue;
            const int64_t i = owners[order[base - THREAD]];
            shapes[THREAD] = shape_of(means2d + 2 * i, whitening + 3 * i, alphas[i]);
            UNROLL for (int c = 0; c < CHANNELS; c++) values[THREAD * CHANNELS + c] = packed[i * CHANNELS + c];
        }
        PHASE {
            const Pixel p = pixel_of(BLOCK, THREAD, width, height);
            for (int k = 0; k < count; k++) {
                float w = 0, e = 0;
                if (base - k <= final[SELF]) {
                    const float power = exponent(shapes[k], p.x + 0.5f - shapes[k].x, p.y + 0.5f - shapes[k].y);
                    if (power >= FAINT) {
                        const float free = exp2f(power), a = fminf(free, CEILING), grown = 1 / (1 - a);
                        const float before = light[SELF] * grown;
                        float value = 0;
                        UNROLL for (int c = 0; c < CHANNELS; c++)
                            value += upstream[THREAD * CHANNELS + c] * values[k * CHANNELS + c];
                        w = a * before;
                        e = free > CEILING ? 0 : w * value - a * grown * behind[SELF];
                        light[SELF] = before;
                        behind[SELF] += w * value;
                        atomicMin(&from[k], THREAD);
                        atomicMax(&to[k], THREAD);
                    }
                }
                weights[k * BLEND_THREADS + THREAD] = w;
                pulls[k * BLEND_THREADS + THREAD] = e;
            }
        }
        PHASE {
            const int k = THREAD / 32, column = THREAD % 32;
            if (k >= count || column >= WIDTH) continue;
            float sum = 0;
            if (from[k] <= to[k]) {
                const Column of = column_of(shapes[k], column - CHANNELS);
                const float *factors = column < CHANNELS ? weights : pulls;
                const bool absolute = column >= CHANNELS + 6;
                const Pixel first = pixel_of(BLOCK, 0, width, height);
                for (int at = from[k]; at <= to[k]; at++) {
                    const float dx = first.x + at % TILE + 0.5f - shapes[k].x;
                    const float dy = first.y + at / TILE + 0.5f - shapes[k].y;
                    const float share = (of.a0 + of.a1 * dx + of.a2 * dy) * (of.b0 + of.b1 * dx + of.b2 * dy);
                    const float part = factors[k * BLEND_THREADS + at] *
                                       (column < CHANNELS ? upstream[at * CHANNELS + column] : share);
                    sum += absolute ? fabsf(part) : part;
                }
            }
            gradients[order[base - k] * WIDTH + column] = sum;
        }
    }
}

/* Adds up the rows of each Gaussian's pairs, in the order of its tiles; one thread per column. `plane` is the channel of
 * the planes' depth at the middle of the image, which depends on the position; -1 without planes. */
KERNEL(gather_gradients, LIST_THREADS, int64_t count, int plane, const int *tiles, const int64_t *ends,
       const float *packed, const float *gradients, float *dpacked, float *dmeans2d, float *dwhitening,
       float *dalphas, float *absolute) {
    PHASE {
        const int64_t at = (int64_t)BLOCK * LIST_THREADS + THREAD;
        const int64_t i = at / WIDTH, end = i < count ? ends[i] : 0;
        const int column = (int)(at % WIDTH), geometry = column - CHANNELS;
        if (i >= count) continue;
        float sum = 0, deep = 0;
        for (int64_t pair = end - tiles[i]; pair < end; pair++) {
            sum += gradients[pair * WIDTH + column];
            if (plane >= 0 && (geometry == 0 || geometry == 1)) deep += gradients[pair * WIDTH + plane];
        }
        if (geometry < 0) dpacked[i * CHANNELS + column] = sum;
        else if (geometry < 2)
            dmeans2d[2 * i + geometry] = sum - (plane >= 0 ? deep * packed[i * CHANNELS + plane + 1 + geometry] : 0);
        else if (geometry < 5) dwhitening[3 * i + geometry - 2] = sum;
        else if (geometry == 5) dalphas[i] = sum;
        else if (absolute) absolute[2 * i + geometry - 6] = sum;
    }
}

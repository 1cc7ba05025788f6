/* Lattice cells of a hash encoding (see encoding.c), for blocks of points stored axis by axis. Define BLOCK, the number
 * of points per block and a multiple of LANES, before including this file.
 *
 * Features are read and written in pairs. In levels without hashing, the two corners along the x axis are adjacent rows
 * and are read as one.
 */
#ifndef FIELDWATCH_LATTICE_H
#define FIELDWATCH_LATTICE_H

#include <stdint.h>
#include <string.h>

#include "vectors.h"

#ifndef BLOCK
#error "define BLOCK, the points of a block, before lattice.h is included"
#endif
#define CORNERS 8 /* of a cell; bit 0 of a corner's number is its x, bit 1 its y, bit 2 its z */
#define PRIME_Y 2654435761u
#define PRIME_Z 805459861u
#define ALIGNED __attribute__((aligned(64))) /* to lines of the cache */
/* A multiplication and an addition, rounded once, are one instruction. Only gcc defines the first name. */
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define HAS_FMA
#endif
#ifdef HAS_FMA
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FUSED(a, b, c) ((float)((double)(a) * (double)(b) + (double)(c))) /* the same bits */
#endif

typedef struct {
    int64_t resolution; /* cells along an edge */
    int64_t start;      /* its first row in the table */
    int64_t rows;       /* (resolution + 1)^3, or a power of two below: then hashed */
} Level; /* mirrored by `_layout` in encoding.py */

typedef struct {
    int64_t n;
    const float *points; /* in the box that the kernel takes */
    int64_t levels, width; /* width: features per level, even */
    const Level *level;
    const float *weights; /* of the levels; one of weight 0 is not looked at */
    const float *table;
} Grid;

typedef struct {
    int hashed;
    ALIGNED float fraction[3][BLOCK]; /* place within the cell */
    uint32_t row[CORNERS][BLOCK]; /* of the corners, from the level's start */
} Cells;

typedef double vd __attribute__((vector_size(32))); /* four pairs of floats */
typedef uint32_t vu __attribute__((vector_size(32)));
typedef float v2 __attribute__((vector_size(8)));
typedef float v4 __attribute__((vector_size(16)));

/* Trilinear interpolation of one feature at eight points, in units of cells. */
typedef struct {
    vf value, slope[3];
    vf xy, xz, yz; /* mixed second derivatives */
} Trilinear;

FW_INLINE vi load_whole(const int32_t *from) {
    vi v;
    memcpy(&v, from, sizeof v);
    return v;
}

FW_INLINE int level_hashed(const Level *level) {
    const int64_t edge = level->resolution + 1;
    return level->rows < edge * edge * edge;
}

/* Cells along one axis of points in the unit cube. The fraction is rounded once: x * n alone would lose the digits that
 * it has in front. */
FW_INLINE void locate_axis(const float *at, int32_t resolution, int32_t *cell, float *fraction) {
    const float n = (float)resolution;
    const vf last = broadcast((float)(resolution - 1));
    for (int i = 0; i < BLOCK; i += LANES) {
        vf place = load(at + i) * n;
        place = choose(place < last, place, last); /* a NaN is put into the last cell */
        vi c = __builtin_convertvector(keep(place > 0.0f, place), vi);
        memcpy(cell + i, &c, sizeof c);
    }
    for (int i = 0; i < BLOCK; i++) fraction[i] = FUSED(at[i], n, -(float)cell[i]);
    for (int i = 0; i < BLOCK; i += LANES) {
        vf f = load(fraction + i);
        vi c = load_whole(cell + i), before = (f < 0.0f) & (c > 0); /* -1: x * n was rounded up to the next cell */
        c += before, f += keep(before, broadcast(1.0f));
        memcpy(cell + i, &c, sizeof c), store(fraction + i, f);
    }
}

/* Finds the cells of a block whose coordinates lie in the unit cube, axis by axis. */
FW_INLINE void locate(const float *at, const Level *level, Cells *cells) {
    const uint32_t side = (uint32_t)level->resolution + 1, mask = (uint32_t)level->rows - 1;
    const int hashed = cells->hashed = level_hashed(level);
    const uint32_t by_y = hashed ? PRIME_Y : side, by_z = hashed ? PRIME_Z : side * side;
    ALIGNED int32_t cell[3][BLOCK];
    for (int d = 0; d < 3; d++) locate_axis(at + d * BLOCK, (int32_t)level->resolution, cell[d], cells->fraction[d]);
    for (int i = 0; i < BLOCK; i += LANES) {
        vu x0 = (vu)load_whole(cell[0] + i), y0 = (vu)load_whole(cell[1] + i) * by_y;
        vu z0 = (vu)load_whole(cell[2] + i) * by_z;
        for (int c = 0; c < CORNERS; c++) {
            vu x = c & 1 ? x0 + 1 : x0, y = c & 2 ? y0 + by_y : y0, z = c & 4 ? z0 + by_z : z0;
            vu row = hashed ? (x ^ y ^ z) & mask : x + y + z;
            memcpy(cells->row[c] + i, &row, sizeof row);
        }
    }
}

/* Two floats as they lie in memory, moved as one. */
FW_INLINE double load_pair(const float *from) {
    double pair;
    memcpy(&pair, from, sizeof pair);
    return pair;
}

/* Points 0, 1, 4, 5 in one vector of pairs and 2, 3, 6, 7 in the other become two vectors of eight points. */
FW_INLINE void part(vd near, vd far, vf *out) {
    out[0] = SHUFFLED((vf)near, (vf)far, 0, 2, 8, 10, 4, 6, 12, 14);
    out[1] = SHUFFLED((vf)near, (vf)far, 1, 3, 9, 11, 5, 7, 13, 15);
}

/* A pair of features of eight rows. */
FW_INLINE void gather(const float *table, const int64_t width, const uint32_t *row, vf *out) {
    vd near = {load_pair(table + row[0] * width), load_pair(table + row[1] * width),
               load_pair(table + row[4] * width), load_pair(table + row[5] * width)};
    vd far = {load_pair(table + row[2] * width), load_pair(table + row[3] * width),
              load_pair(table + row[6] * width), load_pair(table + row[7] * width)};
    part(near, far, out);
}

FW_INLINE vf load_two(const float *low, const float *high) {
    vf v;
    memcpy(&v, low, sizeof v / 2), memcpy((float *)&v + LANES / 2, high, sizeof v / 2);
    return v;
}

/* The pairs of eight rows and of the rows after them: four numbers of each point. */
FW_INLINE void gather_edge(const float *table, const uint32_t *row, vf *lower, vf *upper) {
    vf p[4];
    for (int i = 0; i < 4; i++) p[i] = load_two(table + row[i] * 2, table + row[i + 4] * 2);
    vf a = SHUFFLED(p[0], p[1], 0, 8, 1, 9, 4, 12, 5, 13);
    vf b = SHUFFLED(p[2], p[3], 0, 8, 1, 9, 4, 12, 5, 13);
    vf c = SHUFFLED(p[0], p[1], 2, 10, 3, 11, 6, 14, 7, 15);
    vf d = SHUFFLED(p[2], p[3], 2, 10, 3, 11, 6, 14, 7, 15);
    lower[0] = SHUFFLED(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    lower[1] = SHUFFLED(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    upper[0] = SHUFFLED(c, d, 0, 1, 8, 9, 4, 5, 12, 13);
    upper[1] = SHUFFLED(c, d, 2, 3, 10, 11, 6, 7, 14, 15);
}

/* The inverse: of two features and two rows, four numbers for each of eight points. */
FW_INLINE void join_edge(const vf *lower, const vf *upper, float *to) {
    vf a = SHUFFLED(lower[0], lower[1], 0, 8, 1, 9, 4, 12, 5, 13);
    vf b = SHUFFLED(upper[0], upper[1], 0, 8, 1, 9, 4, 12, 5, 13);
    vf c = SHUFFLED(lower[0], lower[1], 2, 10, 3, 11, 6, 14, 7, 15);
    vf d = SHUFFLED(upper[0], upper[1], 2, 10, 3, 11, 6, 14, 7, 15);
    store(to, SHUFFLED(a, b, 0, 1, 8, 9, 2, 3, 10, 11));
    store(to + 8, SHUFFLED(c, d, 0, 1, 8, 9, 2, 3, 10, 11));
    store(to + 16, SHUFFLED(a, b, 4, 5, 12, 13, 6, 7, 14, 15));
    store(to + 24, SHUFFLED(c, d, 4, 5, 12, 13, 6, 7, 14, 15));
}

FW_INLINE void add_four(float *to, const float *more) {
    v4 sum, by;
    memcpy(&sum, to, sizeof sum), memcpy(&by, more, sizeof by);
    sum += by;
    memcpy(to, &sum, sizeof sum);
}

FW_INLINE void add_two(float *to, const float *more) {
    v2 sum, by;
    memcpy(&sum, to, sizeof sum), memcpy(&by, more, sizeof by);
    sum += by;
    memcpy(to, &sum, sizeof sum);
}

/* Interpolates a pair of features, of which `table` is the entry in the level's first row. Where the level is `dense`,
 * not hashed, two features are read from two corners at once; the numbers are the same. */
FW_INLINE void interpolate(const float *table, const int64_t width, const int dense, const Cells *cells, int64_t i,
                           const int curved, Trilinear *out) {
    const vf x = load(cells->fraction[0] + i), y = load(cells->fraction[1] + i), z = load(cells->fraction[2] + i);
    vf corner[CORNERS][2];
    for (int c = 0; c < CORNERS; c += 2) {
        if (dense && width == 2) {
            gather_edge(table, cells->row[c] + i, corner[c], corner[c + 1]);
        } else {
            gather(table, width, cells->row[c] + i, corner[c]);
            gather(table, width, cells->row[c + 1] + i, corner[c + 1]);
        }
    }
    for (int k = 0; k < 2; k++) {
        vf along[4], slope[4]; /* on the four edges parallel to x */
        for (int s = 0; s < 4; s++) {
            slope[s] = corner[2 * s + 1][k] - corner[2 * s][k];
            along[s] = corner[2 * s][k] + x * slope[s];
        }
        vf y0 = along[1] - along[0], y1 = along[3] - along[2], face0 = along[0] + y * y0, face1 = along[2] + y * y1;
        vf xy0 = slope[1] - slope[0], xy1 = slope[3] - slope[2], x0 = slope[0] + y * xy0, x1 = slope[2] + y * xy1;
        out[k].slope[0] = x0 + z * (x1 - x0), out[k].slope[1] = y0 + z * (y1 - y0), out[k].slope[2] = face1 - face0;
        out[k].value = face0 + z * out[k].slope[2];
        if (curved) out[k].xy = xy0 + z * (xy1 - xy0), out[k].xz = x1 - x0, out[k].yz = y1 - y0;
    }
}

/* What one feature's gradients, by value and slopes, at eight points give the eight corners: the transpose of
 * `interpolate`. */
FW_INLINE void hand_out(const Cells *cells, int64_t i, vf value, const vf *slope, vf *corner) {
    const vf x = load(cells->fraction[0] + i), y = load(cells->fraction[1] + i), z = load(cells->fraction[2] + i);
    for (int cx = 0; cx < 2; cx++) {
        vf near_x = cx ? x : 1.0f - x, kept = near_x * value + (cx ? slope[0] : -slope[0]);
        vf by_y = near_x * slope[1], by_z = near_x * slope[2];
        for (int cy = 0; cy < 2; cy++) {
            vf near_y = cy ? y : 1.0f - y, both = near_y * kept + (cy ? by_y : -by_y), steep = near_y * by_z;
            corner[cx + 2 * cy] = (1.0f - z) * both - steep;
            corner[cx + 2 * cy + 4] = z * both + steep;
        }
    }
}

#endif

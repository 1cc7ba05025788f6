/* Multiresolution hash encoding (Mueller 2022) with its Jacobian, and what both hand back.
 *
 * Features F and Jacobian J = dF/dx are linear in the table, so one pass takes (dL/dF, dL/dJ) to it. F is trilinear in
 * the point: J is bilinear, and what J hands back to the point are the mixed second derivatives, the only ones that a
 * trilinear function has.
 *
 * Points are taken in blocks, eight to a vector, and features in pairs: eight bytes per access. The table's gradient is
 * threaded over levels, each of which one thread fills in the order of the points; all else over points. So there are
 * no atomics, and the bits are the same for any number of threads.
 */
#include <stdint.h>
#include <string.h>

#include "vectors.h"

#define BLOCK 128 /* points located at a time */
#define CORNERS 8 /* of a cell; bit 0 of a corner's number is its x, bit 1 its y, bit 2 its z */
#define TOGETHER 4 /* levels at most that a thread takes through the gradients in one go: a cache line holds several */
#define PRIME_Y 2654435761u
#define PRIME_Z 805459861u
#ifdef __FP_FAST_FMAF
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
    const float *points; /* in [0, 1] */
    int64_t levels, width; /* width: features per level, even */
    const Level *level;
    const float *weights; /* of the levels; one of weight 0 is not looked at */
    const float *table;
} Encoding;

typedef struct {
    int64_t count;      /* points in the block */
    float at[3][BLOCK]; /* their coordinates, 0 behind the last one */
} Block;

typedef struct {
    float fraction[3][BLOCK];     /* place within the cell */
    uint32_t row[CORNERS][BLOCK]; /* of the corners, from the level's start */
} Cells;

typedef double vd __attribute__((vector_size(32))); /* four pairs of floats */
typedef uint32_t vu __attribute__((vector_size(32)));
typedef float v2 __attribute__((vector_size(8)));

/* Trilinear interpolation of one feature at eight points, in units of cells. */
typedef struct {
    vf value, slope[3];
    vf xy, xz, yz; /* mixed second derivatives */
} Trilinear;

FW_INLINE vf load(const float *from) {
    vf v;
    memcpy(&v, from, sizeof v);
    return v;
}

FW_INLINE vi load_whole(const int32_t *from) {
    vi v;
    memcpy(&v, from, sizeof v);
    return v;
}

static Block block_from(const Encoding *e, int64_t first) {
    Block b = {.count = e->n - first < BLOCK ? e->n - first : BLOCK};
    for (int64_t i = 0; i < b.count; i++)
        for (int d = 0; d < 3; d++) b.at[d][i] = e->points[3 * (first + i) + d];
    return b;
}

static int64_t outside(const Block *b) {
    int64_t found = 0;
    for (int64_t i = 0; i < b->count; i++) {
        float x = b->at[0][i], y = b->at[1][i], z = b->at[2][i];
        found += (x < 0) | (x > 1) | (y < 0) | (y > 1) | (z < 0) | (z > 1);
    }
    return found;
}

/* Cells along one axis. The fraction is rounded once: x * n alone would lose the digits that it has in front. */
static void locate_axis(const float *at, int32_t resolution, int32_t *cell, float *fraction) {
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
        memcpy(cell + i, &c, sizeof c), memcpy(fraction + i, &f, sizeof f);
    }
}

static void locate(const Block *b, const Level *level, Cells *cells) {
    int32_t cell[3][BLOCK];
    const uint32_t side = (uint32_t)level->resolution + 1, mask = (uint32_t)level->rows - 1;
    const int64_t edge = level->resolution + 1;
    const int hashed = level->rows < edge * edge * edge;
    const uint32_t by_y = hashed ? PRIME_Y : side, by_z = hashed ? PRIME_Z : side * side;
    for (int d = 0; d < 3; d++) locate_axis(b->at[d], (int32_t)level->resolution, cell[d], cells->fraction[d]);
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
    out[0] = __builtin_shufflevector((vf)near, (vf)far, 0, 2, 8, 10, 4, 6, 12, 14);
    out[1] = __builtin_shufflevector((vf)near, (vf)far, 1, 3, 9, 11, 5, 7, 13, 15);
}

/* A pair of features of eight rows. */
FW_INLINE void gather(const float *table, const int64_t width, const uint32_t *row, vf *out) {
    vd near = {load_pair(table + row[0] * width), load_pair(table + row[1] * width),
               load_pair(table + row[4] * width), load_pair(table + row[5] * width)};
    vd far = {load_pair(table + row[2] * width), load_pair(table + row[3] * width),
              load_pair(table + row[6] * width), load_pair(table + row[7] * width)};
    part(near, far, out);
}

/* Two neighbouring numbers of each of up to eight points; 0 for the rest. */
FW_INLINE void take(const float *from, int64_t stride, int64_t live, vf *out) {
    float some[LANES * 2] = {0};
    if (live < LANES) {
        for (int64_t i = 0; i < live; i++) memcpy(some + 2 * i, from + i * stride, 2 * sizeof *some);
        from = some, stride = 2;
    }
    vd near = {load_pair(from), load_pair(from + stride), load_pair(from + 4 * stride), load_pair(from + 5 * stride)};
    vd far = {load_pair(from + 2 * stride), load_pair(from + 3 * stride), load_pair(from + 6 * stride),
              load_pair(from + 7 * stride)};
    part(near, far, out);
}

FW_INLINE void add_pair(float *to, const double *pair) {
    v2 sum, more;
    memcpy(&sum, to, sizeof sum), memcpy(&more, pair, sizeof more);
    sum += more;
    memcpy(to, &sum, sizeof sum);
}

/* The inverse: pairs, in the order of the points. */
FW_INLINE void join(vf first, vf second, double *pair) {
    vd near = (vd)__builtin_shufflevector(first, second, 0, 8, 1, 9, 4, 12, 5, 13);
    vd far = (vd)__builtin_shufflevector(first, second, 2, 10, 3, 11, 6, 14, 7, 15);
    pair[0] = near[0], pair[1] = near[1], pair[4] = near[2], pair[5] = near[3];
    pair[2] = far[0], pair[3] = far[1], pair[6] = far[2], pair[7] = far[3];
}

FW_INLINE void give(vf first, vf second, float *to, int64_t stride, int64_t live) {
    double pair[LANES];
    join(first, second, pair);
    if (live >= LANES)
        for (int i = 0; i < LANES; i++) memcpy(to + i * stride, pair + i, sizeof *pair);
    else
        for (int64_t i = 0; i < live; i++) memcpy(to + i * stride, pair + i, sizeof *pair);
}

/* Interpolates a pair of features, of which `table` is the entry in the level's first row. */
FW_INLINE void interpolate(const float *table, const int64_t width, const Cells *cells, int64_t i, const int curved,
                           Trilinear *out) {
    const vf x = load(cells->fraction[0] + i), y = load(cells->fraction[1] + i), z = load(cells->fraction[2] + i);
    vf corner[CORNERS][2];
    for (int c = 0; c < CORNERS; c++) gather(table, width, cells->row[c] + i, corner[c]);
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

/* A level's features, and Jacobian if wanted, of a block; both point at the block's first number of that level. */
FW_INLINE void encode_level(const Encoding *e, int64_t l, const Cells *cells, int64_t count, const int64_t width,
                            float *features, float *jacobian) {
    const float *table = e->table + e->level[l].start * width;
    const vf weight = broadcast(e->weights[l]), steep = weight * (float)e->level[l].resolution;
    const int64_t stride = e->levels * width;
    for (int64_t i = 0; i < count; i += LANES)
        for (int64_t k = 0; k < width; k += 2) {
            const int64_t at = i * stride + k;
            Trilinear t[2];
            interpolate(table + k, width, cells, i, 0, t);
            give(weight * t[0].value, weight * t[1].value, features + at, stride, count - i);
            if (!jacobian) continue;
            give(steep * t[0].slope[0], steep * t[0].slope[1], jacobian + 3 * at, 3 * stride, count - i);
            give(steep * t[0].slope[2], steep * t[1].slope[0], jacobian + 3 * at + 2, 3 * stride, count - i);
            give(steep * t[1].slope[1], steep * t[1].slope[2], jacobian + 3 * at + 4, 3 * stride, count - i);
        }
}

/* A level without weight has features and Jacobian 0. */
static void clear_level(const Encoding *e, int64_t count, float *features, float *jacobian) {
    const int64_t stride = e->levels * e->width;
    for (int64_t i = 0; i < count; i++) {
        memset(features + i * stride, 0, (size_t)e->width * sizeof(float));
        if (jacobian) memset(jacobian + 3 * i * stride, 0, (size_t)(3 * e->width) * sizeof(float));
    }
}

static void encode_block(const Encoding *e, const Block *b, float *features, float *jacobian) {
    Cells cells;
    for (int64_t l = 0; l < e->levels; l++) {
        float *f = features + l * e->width, *j = jacobian ? jacobian + 3 * l * e->width : 0;
        if (e->weights[l] == 0) {
            clear_level(e, b->count, f, j);
            continue;
        }
        locate(b, e->level + l, &cells);
        if (e->width == 2)
            encode_level(e, l, &cells, b->count, 2, f, j);
        else
            encode_level(e, l, &cells, b->count, e->width, f, j);
    }
}

/* Gradients by a pair of features, and by their slopes in units of cells, at eight points. */
FW_INLINE void take_gradients(const float *dfeatures, const float *djacobian, int64_t stride, int64_t live, vf weight,
                              vf steep, vf *value, vf (*slope)[3]) {
    const vf zero = broadcast(0.0f);
    vf given[3][2] = {{zero, zero}, {zero, zero}, {zero, zero}};
    value[0] = value[1] = zero;
    if (dfeatures) take(dfeatures, stride, live, value);
    for (int d = 0; djacobian && d < 3; d++) take(djacobian + 2 * d, 3 * stride, live, given[d]);
    for (int k = 0; k < 2; k++) value[k] *= weight;
    slope[0][0] = steep * given[0][0], slope[0][1] = steep * given[0][1], slope[0][2] = steep * given[1][0];
    slope[1][0] = steep * given[1][1], slope[1][1] = steep * given[2][0], slope[1][2] = steep * given[2][1];
}

/* What one feature's gradients at eight points give the eight corners: the transpose of `interpolate`. */
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

/* Adds what a block's gradients, which point at its first number of the level, give the level's rows. */
FW_INLINE void spread_level(const Encoding *e, int64_t l, const Cells *cells, int64_t count, const int64_t width,
                            const float *dfeatures, const float *djacobian, float *dtable) {
    const vf weight = broadcast(e->weights[l]), steep = weight * (float)e->level[l].resolution;
    const int64_t stride = e->levels * width;
    for (int64_t i = 0; i < count; i += LANES)
        for (int64_t k = 0; k < width; k += 2) {
            const int64_t live = count - i < LANES ? count - i : LANES, at = i * stride + k;
            const float *df = dfeatures ? dfeatures + at : 0, *dj = djacobian ? djacobian + 3 * at : 0;
            vf value[2], slope[2][3], corner[2][CORNERS];
            double given[CORNERS][LANES];
            take_gradients(df, dj, stride, live, weight, steep, value, slope);
            for (int f = 0; f < 2; f++) hand_out(cells, i, value[f], slope[f], corner[f]);
            for (int c = 0; c < CORNERS; c++) join(corner[0][c], corner[1][c], given[c]);
            for (int64_t p = 0; p < live; p++)
                for (int c = 0; c < CORNERS; c++) add_pair(dtable + cells->row[c][i + p] * width + k, given[c] + p);
        }
}

/* Gradient of the rows of the levels from `first` to before `end`. */
static void table_gradient(const Encoding *e, int64_t first, int64_t end, const float *dfeatures,
                           const float *djacobian, float *dtable) {
    const int64_t stride = e->levels * e->width;
    Cells cells;
    for (int64_t l = first; l < end; l++)
        memset(dtable + e->level[l].start * e->width, 0, (size_t)(e->level[l].rows * e->width) * sizeof(float));
    for (int64_t from = 0; from < e->n; from += BLOCK) {
        Block b = block_from(e, from);
        for (int64_t l = first; l < end; l++) {
            if (e->weights[l] == 0) continue;
            const int64_t at = from * stride + l * e->width;
            const float *df = dfeatures ? dfeatures + at : 0, *dj = djacobian ? djacobian + 3 * at : 0;
            float *to = dtable + e->level[l].start * e->width;
            locate(&b, e->level + l, &cells);
            if (e->width == 2)
                spread_level(e, l, &cells, b.count, 2, df, dj, to);
            else
                spread_level(e, l, &cells, b.count, e->width, df, dj, to);
        }
    }
}

/* Adds what a level's features and Jacobian hand back to the points of a block. */
FW_INLINE void return_level(const Encoding *e, int64_t l, const Cells *cells, int64_t count, const int64_t width,
                            const float *dfeatures, const float *djacobian, float *dpoints) {
    const float *table = e->table + e->level[l].start * width;
    const float n = (float)e->level[l].resolution;
    const vf steep = broadcast(e->weights[l] * n), curve = steep * n;
    const int64_t stride = e->levels * width;
    for (int64_t i = 0; i < count; i += LANES) {
        vf sum[3] = {load(dpoints + i), load(dpoints + BLOCK + i), load(dpoints + 2 * BLOCK + i)};
        for (int64_t k = 0; k < width; k += 2) {
            const int64_t at = i * stride + k;
            const float *df = dfeatures ? dfeatures + at : 0, *dj = djacobian ? djacobian + 3 * at : 0;
            Trilinear t[2];
            vf given[2], h[2][3];
            interpolate(table + k, width, cells, i, 1, t);
            take_gradients(df, dj, stride, count - i, steep, curve, given, h);
            for (int f = 0; f < 2; f++) {
                sum[0] += given[f] * t[f].slope[0] + h[f][1] * t[f].xy + h[f][2] * t[f].xz;
                sum[1] += given[f] * t[f].slope[1] + h[f][0] * t[f].xy + h[f][2] * t[f].yz;
                sum[2] += given[f] * t[f].slope[2] + h[f][0] * t[f].xz + h[f][1] * t[f].yz;
            }
        }
        for (int d = 0; d < 3; d++) memcpy(dpoints + d * BLOCK + i, &sum[d], sizeof(vf));
    }
}

static void point_gradient(const Encoding *e, int64_t from, const float *dfeatures, const float *djacobian,
                           float *dpoints) {
    float sum[3 * BLOCK] = {0};
    Cells cells;
    Block b = block_from(e, from);
    for (int64_t l = 0; l < e->levels; l++) {
        if (e->weights[l] == 0) continue;
        const int64_t at = (from * e->levels + l) * e->width;
        const float *df = dfeatures ? dfeatures + at : 0, *dj = djacobian ? djacobian + 3 * at : 0;
        locate(&b, e->level + l, &cells);
        if (e->width == 2)
            return_level(e, l, &cells, b.count, 2, df, dj, sum);
        else
            return_level(e, l, &cells, b.count, e->width, df, dj, sum);
    }
    for (int64_t i = 0; i < b.count; i++)
        for (int d = 0; d < 3; d++) dpoints[3 * (from + i) + d] = sum[d * BLOCK + i];
}

/* Features (n, levels * width) and, unless NULL, Jacobian (n, levels * width, 3). Returns how many points are outside
 * [0, 1]: what was written for those means nothing. */
FW_EXPORT int64_t fw_encode(int64_t n, const float *points, int64_t levels, int64_t width, const Level *level,
                            const float *weights, const float *table, int threads, float *features, float *jacobian) {
    const Encoding e = {n, points, levels, width, level, weights, table};
    const int64_t stride = levels * width;
    int64_t found = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) reduction(+ : found)
    for (int64_t from = 0; from < n; from += BLOCK) {
        Block b = block_from(&e, from);
        found += outside(&b);
        encode_block(&e, &b, features + from * stride, jacobian ? jacobian + 3 * from * stride : 0);
    }
    return found;
}

/* Any of the gradients given and wanted may be NULL; those wanted are overwritten. */
FW_EXPORT void fw_encode_backward(int64_t n, const float *points, int64_t levels, int64_t width, const Level *level,
                                  const float *weights, const float *table, int threads, const float *dfeatures,
                                  const float *djacobian, float *dtable, float *dpoints) {
    const Encoding e = {n, points, levels, width, level, weights, table};
    int64_t together = levels / (2 * threads); /* two shares per thread, so that none waits long for the others */
    together = together < 1 ? 1 : together < TOGETHER ? together : TOGETHER;
#pragma omp parallel num_threads(threads)
    {
        if (dtable) {
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t l = 0; l < levels; l += together)
                table_gradient(&e, l, l + together < levels ? l + together : levels, dfeatures, djacobian, dtable);
        }
        if (dpoints) {
#pragma omp for schedule(dynamic, 4)
            for (int64_t from = 0; from < n; from += BLOCK) point_gradient(&e, from, dfeatures, djacobian, dpoints);
        }
    }
}

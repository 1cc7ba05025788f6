/* Multiresolution hash encoding (Mueller 2022) with its Jacobian, forward and backward.
 *
 * Features F and Jacobian J = dF/dx are linear in the table, so one pass backpropagates both (dL/dF, dL/dJ) to it. F is
 * trilinear in the point and J bilinear; the gradient from J to the point consists of the mixed second derivatives, the
 * only nonzero ones of a trilinear function.
 *
 * Points are processed in blocks with eight points per vector, and features in pairs, eight bytes per access. The
 * gradient of the table is parallel over levels; one thread fills a level in the order of the points. Everything else
 * is parallel over points. This needs no atomics, and the result does not depend on the number of threads.
 */
#define BLOCK 128 /* points located at a time */
#include "lattice.h"

#define TOGETHER 4 /* levels at most that a thread takes through the gradients in one go: a cache line holds several */

typedef struct {
    int64_t count;       /* points in the block */
    float at[3 * BLOCK]; /* their coordinates, axis by axis; 0 behind the last one */
} Block;

static Block block_from(const Grid *e, int64_t first) {
    Block b = {.count = e->n - first < BLOCK ? e->n - first : BLOCK};
    for (int64_t i = 0; i < b.count; i++)
        for (int d = 0; d < 3; d++) b.at[d * BLOCK + i] = e->points[3 * (first + i) + d];
    return b;
}

static int64_t outside(const Block *b) {
    int64_t found = 0;
    for (int64_t i = 0; i < b->count; i++) {
        float x = b->at[i], y = b->at[BLOCK + i], z = b->at[2 * BLOCK + i];
        found += (x < 0) | (x > 1) | (y < 0) | (y > 1) | (z < 0) | (z > 1);
    }
    return found;
}

/* Two neighboring numbers of each of up to eight points; 0 for the rest. */
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

/* The inverse of `part`: pairs, in the order of the points. */
FW_INLINE void join(vf first, vf second, double *pair) {
    vd near = (vd)SHUFFLED(first, second, 0, 8, 1, 9, 4, 12, 5, 13);
    vd far = (vd)SHUFFLED(first, second, 2, 10, 3, 11, 6, 14, 7, 15);
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

/* A level's features, and Jacobian if wanted, of a block; both point at the block's first number of that level. */
FW_INLINE void encode_level(const Grid *e, int64_t l, const Cells *cells, int64_t count, const int64_t width,
                            float *features, float *jacobian) {
    const float *table = e->table + e->level[l].start * width;
    const vf weight = broadcast(e->weights[l]), steep = weight * (float)e->level[l].resolution;
    const int64_t stride = e->levels * width;
    for (int64_t i = 0; i < count; i += LANES)
        for (int64_t k = 0; k < width; k += 2) {
            const int64_t at = i * stride + k;
            Trilinear t[2];
            interpolate(table + k, width, 0, cells, i, 0, t);
            give(weight * t[0].value, weight * t[1].value, features + at, stride, count - i);
            if (!jacobian) continue;
            give(steep * t[0].slope[0], steep * t[0].slope[1], jacobian + 3 * at, 3 * stride, count - i);
            give(steep * t[0].slope[2], steep * t[1].slope[0], jacobian + 3 * at + 2, 3 * stride, count - i);
            give(steep * t[1].slope[1], steep * t[1].slope[2], jacobian + 3 * at + 4, 3 * stride, count - i);
        }
}

/* A level without weight has features and Jacobian 0. */
static void clear_level(const Grid *e, int64_t count, float *features, float *jacobian) {
    const int64_t stride = e->levels * e->width;
    for (int64_t i = 0; i < count; i++) {
        memset(features + i * stride, 0, (size_t)e->width * sizeof(float));
        if (jacobian) memset(jacobian + 3 * i * stride, 0, (size_t)(3 * e->width) * sizeof(float));
    }
}

static void encode_block(const Grid *e, const Block *b, float *features, float *jacobian) {
    Cells cells;
    for (int64_t l = 0; l < e->levels; l++) {
        float *f = features + l * e->width, *j = jacobian ? jacobian + 3 * l * e->width : 0;
        if (e->weights[l] == 0) {
            clear_level(e, b->count, f, j);
            continue;
        }
        locate(b->at, e->level + l, &cells);
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

/* Adds what a block's gradients, which point at its first number of the level, give the level's rows. */
FW_INLINE void spread_level(const Grid *e, int64_t l, const Cells *cells, int64_t count, const int64_t width,
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
                for (int c = 0; c < CORNERS; c++)
                    add_two(dtable + cells->row[c][i + p] * width + k, (const float *)(given[c] + p));
        }
}

/* Gradient of the rows of the levels from `first` to before `end`. */
static void table_gradient(const Grid *e, int64_t first, int64_t end, const float *dfeatures,
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
            locate(b.at, e->level + l, &cells);
            if (e->width == 2)
                spread_level(e, l, &cells, b.count, 2, df, dj, to);
            else
                spread_level(e, l, &cells, b.count, e->width, df, dj, to);
        }
    }
}

/* Adds what a level's features and Jacobian hand back to the points of a block. */
FW_INLINE void return_level(const Grid *e, int64_t l, const Cells *cells, int64_t count, const int64_t width,
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
            interpolate(table + k, width, 0, cells, i, 1, t);
            take_gradients(df, dj, stride, count - i, steep, curve, given, h);
            for (int f = 0; f < 2; f++) {
                sum[0] += given[f] * t[f].slope[0] + h[f][1] * t[f].xy + h[f][2] * t[f].xz;
                sum[1] += given[f] * t[f].slope[1] + h[f][0] * t[f].xy + h[f][2] * t[f].yz;
                sum[2] += given[f] * t[f].slope[2] + h[f][0] * t[f].xz + h[f][1] * t[f].yz;
            }
        }
        for (int d = 0; d < 3; d++) store(dpoints + d * BLOCK + i, sum[d]);
    }
}

static void point_gradient(const Grid *e, int64_t from, const float *dfeatures, const float *djacobian,
                           float *dpoints) {
    float sum[3 * BLOCK] = {0};
    Cells cells;
    Block b = block_from(e, from);
    for (int64_t l = 0; l < e->levels; l++) {
        if (e->weights[l] == 0) continue;
        const int64_t at = (from * e->levels + l) * e->width;
        const float *df = dfeatures ? dfeatures + at : 0, *dj = djacobian ? djacobian + 3 * at : 0;
        locate(b.at, e->level + l, &cells);
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
    const Grid e = {n, points, levels, width, level, weights, table};
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
    const Grid e = {n, points, levels, width, level, weights, table};
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

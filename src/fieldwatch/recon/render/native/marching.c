/* Samples along rays in the occupied cells of a grid: first their numbers, then, with their count known, the samples.
 *
 * Sample k of a ray extends from first + k step to first + (k + 1) step and is kept if its midpoint is in an occupied
 * cell and before `far`. Stretches of `stride` samples are first looked up in the table dilated by one cell; only
 * stretches near an occupied cell are looked up sample by sample. All values are rounded as in sdf/marching.py, so that
 * both find the same samples: multiplications must not be fused with additions.
 */
#include <math.h>
#include <string.h>

#include "vectors.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define BLOCK 64 /* places that are calculated together */
#define GROUP 8  /* rays that a thread takes at a time */

/* Both tables have a rim of empty cells, so that what lies outside the box reads those. They hold eight cells a byte,
 * the first in the lowest bit: a grid of 128^3 then fits into a core's cache. */
typedef struct {
    const uint8_t *occupied, *near;
    int32_t size;        /* cells along an axis, with the rim */
    float low[3], up[3]; /* corner of the box; cells per unit */
} Grid;

typedef struct {
    float origin[3], direction[3], first, far, step;
} Ray;

FW_INLINE int32_t cell_along(float coordinate, float low, float up, float last) {
    float place = floorf((coordinate - low) * up + 1);
    place = place > 0 ? place : 0; /* a NaN too reads the rim */
    return (int32_t)(place < last ? place : last);
}

FW_INLINE int is_set(const uint8_t *table, int32_t row) { return table[row >> 3] >> (row & 7) & 1; }

/* Rows of the cells at distances along a ray. */
FW_INLINE void rows_at(const Ray *ray, const Grid *grid, const float *distances, int32_t *rows) {
    const float last = (float)(grid->size - 1);
    for (int k = 0; k < BLOCK; k++) {
        const float t = distances[k];
        int32_t x = cell_along(ray->origin[0] + t * ray->direction[0], grid->low[0], grid->up[0], last);
        int32_t y = cell_along(ray->origin[1] + t * ray->direction[1], grid->low[1], grid->up[1], last);
        int32_t z = cell_along(ray->origin[2] + t * ray->direction[2], grid->low[2], grid->up[2], last);
        rows[k] = (x * grid->size + y) * grid->size + z;
    }
}

/* Of these numbers, the samples that are there, in their order. Returns how many. */
FW_INLINE int64_t take(const Ray *ray, const Grid *grid, const int32_t *numbers, int count, int32_t *out) {
    float middle[BLOCK];
    int32_t rows[BLOCK];
    int64_t found = 0;
    for (int k = 0; k < BLOCK; k++) middle[k] = ray->first + ((float)numbers[k] + 0.5f) * ray->step;
    rows_at(ray, grid, middle, rows);
    for (int k = 0; k < count; k++) {
        out[found] = numbers[k]; /* there is room for all that are looked up: one behind the last is written over */
        found += is_set(grid->occupied, rows[k]) & (middle[k] < ray->far);
    }
    return found;
}

static int64_t march(const Ray *ray, const Grid *grid, int64_t count, int64_t stride, int32_t *out) {
    const int64_t stretches = (count + stride - 1) / stride;
    const float half = (float)(0.5 * (double)stride);
    int32_t numbers[BLOCK] = {0}, rows[BLOCK];
    float middle[BLOCK];
    int64_t found = 0;
    int waiting = 0;
    for (int64_t from = 0; from < stretches; from += BLOCK) {
        const int some = stretches - from < BLOCK ? (int)(stretches - from) : BLOCK;
        for (int k = 0; k < BLOCK; k++)
            middle[k] = ray->first + ((float)(int32_t)((from + k) * stride) + half) * ray->step;
        rows_at(ray, grid, middle, rows);
        for (int k = 0; k < some; k++) {
            if (!is_set(grid->near, rows[k])) continue;
            for (int64_t number = (from + k) * stride; number < (from + k + 1) * stride; number++) {
                numbers[waiting++] = (int32_t)number;
                if (waiting < BLOCK) continue;
                found += take(ray, grid, numbers, BLOCK, out + found);
                waiting = 0;
            }
        }
    }
    return found + take(ray, grid, numbers, waiting, out + found);
}

/* Numbers of the samples of each ray, from `begin` of the ray on in `numbers`, and how many. `counts` are to be looked
 * at, and there is room for one stride more; both stay below 2^30. `box` is the lowest corner and the cells per unit
 * along x, y and z. */
FW_EXPORT void fw_march(int64_t rays, const float *origins, const float *directions, const float *first,
                        const float *far, const int64_t *counts, float step, int64_t stride, int32_t size,
                        const float *box, const uint8_t *occupied, const uint8_t *near, int threads,
                        const int64_t *begin, int32_t *numbers, int64_t *found) {
    const Grid grid = {occupied, near, size, {box[0], box[1], box[2]}, {box[3], box[4], box[5]}};
#pragma omp parallel for num_threads(threads) schedule(dynamic, GROUP)
    for (int64_t i = 0; i < rays; i++) {
        const float *o = origins + 3 * i, *d = directions + 3 * i;
        const Ray ray = {{o[0], o[1], o[2]}, {d[0], d[1], d[2]}, first[i], far[i], step};
        found[i] = march(&ray, &grid, counts[i], stride, numbers + begin[i]);
    }
}

/* The samples with those numbers, packed: those of ray i go to `offsets`[i] on. */
FW_EXPORT void fw_march_samples(int64_t rays, const float *first, float step, const int64_t *begin,
                                const int32_t *numbers, const int64_t *found, const int64_t *offsets, int threads,
                                float *start, float *end, int64_t *ray_index) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, GROUP)
    for (int64_t i = 0; i < rays; i++)
        for (int64_t k = 0; k < found[i]; k++) {
            const int32_t number = numbers[begin[i] + k];
            start[offsets[i] + k] = first[i] + (float)number * step;
            end[offsets[i] + k] = first[i] + (float)(number + 1) * step;
            ray_index[offsets[i] + k] = i;
        }
}

/* out[i] = any of in[i - by], in[i], in[i + by], where there is one. */
static void grow(int64_t count, int64_t by, const uint8_t *restrict in, uint8_t *restrict out, int threads) {
    for (int64_t i = 0; i < by; i++) {
        out[i] = in[i] | in[i + by];
        out[count - 1 - i] = in[count - 1 - i] | in[count - 1 - i - by];
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = by; i < count - by; i++) out[i] = in[i - by] | in[i] | in[i + by];
}

/* Eight bytes that are 0 or 1 to the bits of one: byte i is moved to bit 56 + i by 7 (8 - i), and nothing else gets
 * there. What is missing at the end counts as 0. Little-endian, as all machines that this is built for. */
static void pack(int64_t count, const uint8_t *cells, uint8_t *bits, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < (count + 7) / 8; k++) {
        uint64_t eight = 0;
        if (8 * k + 8 <= count) memcpy(&eight, cells + 8 * k, 8);
        else memcpy(&eight, cells + 8 * k, (size_t)(count - 8 * k));
        bits[k] = (uint8_t)((eight * 0x0102040810204080) >> 56);
    }
}

/* A table of n^3 cells with a rim of empty ones, and the same with the 26 neighbors of every cell added; then the bits
 * of both. Steps of one cell along an axis are steps of 1, n + 2 and (n + 2)^2 in the table: they lead from row to row
 * through the rim. */
FW_EXPORT void fw_rim(int64_t n, const uint8_t *cells, int threads, uint8_t *occupied, uint8_t *scratch, uint8_t *near,
                      uint8_t *occupied_bits, uint8_t *near_bits) {
    const int64_t size = n + 2, count = size * size * size;
    memset(occupied, 0, (size_t)count);
    for (int64_t x = 0; x < n; x++)
        for (int64_t y = 0; y < n; y++)
            memcpy(occupied + ((x + 1) * size + y + 1) * size + 1, cells + (x * n + y) * n, (size_t)n);
    grow(count, 1, occupied, near, threads);
    grow(count, size, near, scratch, threads);
    grow(count, size * size, scratch, near, threads);
    pack(count, occupied, occupied_bits, threads);
    pack(count, near, near_bits, threads);
}

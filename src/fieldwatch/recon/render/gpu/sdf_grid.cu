/* Update of an occupancy grid: see `OccupancyGrid`. Cells are numbered with z fastest. */
#include "kernel.h"

#define CELL_THREADS 128
#define BAD_VALUE 4 /* fault bit, mirrored in sdf_gpu */

/* Flags the cells to evaluate: all, or the occupied ones and those of every period-th diagonal. If more than one in
 * `period` cells is occupied, the occupied ones take turns too. */
KERNEL(grid_flags, CELL_THREADS, int resolution, int all, int period, int turn, const uint8_t *occupied,
       const int64_t *occupied_count, int *flags) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * CELL_THREADS + THREAD, n = resolution, cells = n * n * n;
        if (i >= cells) continue;
        const int64_t sum = i / (n * n) + i / n % n + i % n + turn;
        const bool crowded = *occupied_count * period > cells;
        const bool held = occupied[i] && (!crowded || (sum + period / 2) % period == 0);
        flags[i] = all || held || sum % period == 0;
    }
}

/* Lists the flagged cells and their centers; `sums` are running sums of the flags. */
KERNEL(grid_centers, CELL_THREADS, int resolution, float low_x, float low_y, float low_z, float edge_x, float edge_y,
       float edge_z, const int *sums, int *cells, float *points) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * CELL_THREADS + THREAD, n = resolution;
        if (i >= n * n * n || sums[i] == (i ? sums[i - 1] : 0)) continue;
        const int64_t row = sums[i] - 1;
        cells[row] = (int)i;
        points[3 * row] = ((float)(i / (n * n)) + 0.5f) * edge_x + low_x;
        points[3 * row + 1] = ((float)(i / n % n) + 0.5f) * edge_y + low_y;
        points[3 * row + 2] = ((float)(i % n) + 0.5f) * edge_z + low_z;
    }
}

/* Writes the occupancy of the listed cells: the larger one of the new value and the decayed old one. */
KERNEL(grid_values, CELL_THREADS, const int *count, int64_t room, const int *cells, const float *distances,
       float most_sharpness, const float *sharpness, float reach, float decay, float *values, int *faults) {
    PHASE {
        const int64_t row = (int64_t)BLOCK * CELL_THREADS + THREAD;
        if (row >= room || row >= *count) continue;
        if (!(fabsf(distances[row]) < 3e38f)) {
            atomicOr(faults, BAD_VALUE);
            continue;
        }
        const float s = sharpness ? fminf(most_sharpness, *sharpness) : most_sharpness;
        const float found = 1.0f / (1.0f + expf(s * (distances[row] - reach)));
        values[cells[row]] = fmaxf(decay * values[cells[row]], found);
    }
}

/* Samples along rays in the occupied cells of a grid, close enough to the surface, and visible: see `march_samples`,
 * `fill_empty` and `visible_samples`, whose samples these are.
 *
 * No number is read by the host. Each list has room for the most that it can hold, and its length is on the device:
 * kernels flag what they keep, torch adds the flags, and a second kernel writes each kept item to its place.
 *
 * Samples are sections of rays between two ends. The ends of a ray are one list; adjacent sections share an end. Section
 * s lies between ends first_end[s] and first_end[s] + 1; end_section[e] is the section that begins at end e, or -1. */
#include "kernel.h"

#define MARCH_THREADS 128
#define RAY_THREADS 32 /* few, so that the rays are spread over the whole GPU */

/* Places in the counts of a step, mirrored in sdf_gpu. */
#define KEPT_RAYS 0
#define STRIDES 1
#define STARVED 2
#define MASKED 3
#define FILLED 4
#define FAULTS 5
#define SECTIONS 6

#define BAD_RAY 2 /* fault bit, mirrored in sdf_gpu */

DEVICE float start_of(int64_t ray, const float *near, const float *jitter, float stride) {
    return near[ray] + stride * (jitter ? jitter[ray] : 0.0f);
}

/* Flags the strides of rays with a midpoint in an occupied cell and before `far`: a thread for each of `most` strides
 * of each ray. */
KERNEL(march_flags, MARCH_THREADS, int64_t rays, int most, float stride, int resolution, float low_x, float low_y,
       float low_z, float per_x, float per_y, float per_z, const uint8_t *occupied, const float *origins,
       const float *directions, const float *near, const float *far, const float *jitter, int *flags, int *counts) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * MARCH_THREADS + THREAD, ray = i / most, m = i % most;
        if (ray >= rays) continue;
        const float *o = origins + 3 * ray, *v = directions + 3 * ray;
        const float first = start_of(ray, near, jitter, stride), middle = first + ((float)m + 0.5f) * stride;
        if (m == 0) {
            float all = first + far[ray];
            for (int d = 0; d < 3; d++) all += o[d] + v[d];
            if (!(fabsf(all) < 3e38f)) atomicOr(counts + FAULTS, BAD_RAY);
        }
        const float low[3] = {low_x, low_y, low_z}, per[3] = {per_x, per_y, per_z};
        int64_t row = 0;
        bool inside = middle < far[ray];
        for (int d = 0; d < 3; d++) {
            /* As in `Cells.lookup`, whose table has a rim of one cell. */
            const float cell = floorf((o[d] + middle * v[d] - low[d]) * per[d] + 1.0f);
            if (!(cell >= 1.0f && cell <= (float)resolution)) inside = false;
            row = row * resolution + (inside ? (int)cell - 1 : 0);
        }
        flags[i] = inside && occupied[row] ? 1 : 0;
    }
}

/* Whether a ray is among the first ones that have at most `bound` strides in total. */
DEVICE bool is_kept(int64_t ray, int most, int64_t bound, const int *strides) {
    return strides[(ray + 1) * most - 1] <= bound;
}

/* Lists the flagged strides of the rays that are kept, with the points at their midpoints; `strides` are running sums
 * of the flags. */
KERNEL(march_strides, MARCH_THREADS, int64_t rays, int most, int64_t bound, float stride, const float *origins,
       const float *directions, const float *near, const float *far, const float *jitter, const int *strides,
       int *stride_ray, int *stride_number, float *points, int *counts) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * MARCH_THREADS + THREAD, ray = i / most, m = i % most;
        if (ray >= rays || !is_kept(ray, most, bound, strides)) continue;
        if (m == 0 && (ray + 1 == rays || !is_kept(ray + 1, most, bound, strides))) {
            counts[KEPT_RAYS] = (int)ray + 1;
            counts[STRIDES] = strides[(ray + 1) * most - 1];
        }
        if (strides[i] == (i ? strides[i - 1] : 0)) continue;
        const int64_t row = strides[i] - 1;
        const float first = start_of(ray, near, jitter, stride);
        /* The last stride of a ray may leave the sphere, where the field is undefined. */
        const float begin = first + (float)m * stride, end = fminf(first + (float)(m + 1) * stride, far[ray]);
        const float middle = 0.5f * (begin + end);
        stride_ray[row] = (int)ray;
        stride_number[row] = (int)m;
        for (int d = 0; d < 3; d++) points[3 * row + d] = origins[3 * ray + d] + middle * directions[3 * ray + d];
    }
}

/* Whether the blurred surface may reach into a stride; `values` is the field at midpoints, or null if all are kept. */
DEVICE bool is_near(int64_t row, const float *values, float slack, float range, const float *sharpness) {
    return !values || fabsf(values[row]) <= slack + range / *sharpness;
}

/* Number of ends that a stride of `parts` sections adds; 0 if it is not kept. The next one may begin with its last. */
DEVICE int ends_of(int64_t row, int64_t strides, int parts, const int *stride_ray, const int *stride_number,
                   const float *values, float slack, float range, const float *sharpness) {
    if (!is_near(row, values, slack, range, sharpness)) return 0;
    const bool linked = row + 1 < strides && stride_ray[row + 1] == stride_ray[row] &&
                        stride_number[row + 1] == stride_number[row] + 1 &&
                        is_near(row + 1, values, slack, range, sharpness);
    return parts + (linked ? 0 : 1);
}

/* Flags the strides close enough to the surface, and writes how many ends they add, as two rows of `room`. */
KERNEL(march_near, MARCH_THREADS, int64_t room, int parts, const int *stride_ray, const int *stride_number,
       const float *values, float slack, float range, const float *sharpness, const int *counts, int *flags) {
    PHASE {
        const int64_t row = (int64_t)BLOCK * MARCH_THREADS + THREAD, strides = counts[STRIDES];
        if (row >= room) continue;
        const int ends = row < strides ? ends_of(row, strides, parts, stride_ray, stride_number, values, slack, range,
                                                 sharpness)
                                       : 0;
        flags[row] = ends > 0;
        flags[room + row] = ends;
    }
}

DEVICE int before(const int *sums, int64_t row) { return row > 0 ? sums[row - 1] : 0; }

/* Number of sections and ends of each ray, as two rows; rays in the mask without any get stratified ones. */
KERNEL(march_rays, MARCH_THREADS, int64_t rays, int most, int64_t bound, int64_t room, int parts, int empty_samples,
       const uint8_t *mask, const float *near, const float *far, const int *strides, const int *sums, int *flags,
       int *counts) {
    PHASE {
        const int64_t ray = (int64_t)BLOCK * MARCH_THREADS + THREAD;
        if (ray >= rays) continue;
        int sections = 0, ends = 0;
        if (is_kept(ray, most, bound, strides)) {
            const int from = before(strides, ray * most), to = strides[(ray + 1) * most - 1];
            sections = parts * (before(sums, to) - before(sums, from));
            ends = before(sums + room, to) - before(sums + room, from);
            if (mask[ray]) atomicAdd(counts + MASKED, 1);
            if (mask[ray] && sections == 0) {
                atomicAdd(counts + STARVED, 1);
                if (empty_samples && far[ray] > near[ray]) {
                    atomicAdd(counts + FILLED, 1);
                    sections = empty_samples;
                    ends = empty_samples + 1;
                }
            }
        }
        flags[ray] = sections;
        flags[rays + ray] = ends;
    }
}

struct Ends {
    const float *origins, *directions;
    int *ray, *section;
    float *distance, *points;
};

DEVICE void write_end(const Ends *to, int64_t end, int64_t ray, int section, float distance) {
    to->ray[end] = (int)ray;
    to->section[end] = section;
    to->distance[end] = distance;
    for (int d = 0; d < 3; d++)
        to->points[3 * end + d] = to->origins[3 * ray + d] + distance * to->directions[3 * ray + d];
}

/* Writes the sections and their ends: a thread for each of `parts` sections of each stride that there is room for, then
 * one for each end of stratified samples of each ray. `ray_sums` are running sums of `march_rays`. */
KERNEL(march_sections, MARCH_THREADS, int64_t rays, int most, int64_t room, int parts, int empty_samples,
       float stride, const float *origins, const float *directions, const float *near, const float *far,
       const float *jitter, const float *noise, const int *strides, const int *sums, const int *stride_ray,
       const int *stride_number, const int *ray_sums, int *counts, int *section_ray, int *first_end, int *end_ray,
       int *end_section, float *end_distance, float *points) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * MARCH_THREADS + THREAD;
        if (i == 0) counts[SECTIONS] = ray_sums[rays - 1];
        const Ends to = {origins, directions, end_ray, end_section, end_distance, points};
        if (i < room * parts) {
            const int64_t row = i / parts, part = i % parts;
            if (row >= counts[STRIDES] || sums[row] == before(sums, row)) continue;
            const int64_t ray = stride_ray[row], m = stride_number[row], from = before(strides, ray * most);
            const int64_t section =
                before(ray_sums, ray) + parts * (before(sums, row) - before(sums, from)) + part;
            const int64_t end =
                before(ray_sums + rays, ray) + before(sums + room, row) - before(sums + room, from) + part;
            const float first = start_of(ray, near, jitter, stride);
            const float begin = first + (float)m * stride, last = fminf(first + (float)(m + 1) * stride, far[ray]);
            const float share = (float)part / (float)parts;
            /* Exact at both ends, so that adjacent strides share them. */
            const float at = share < 0.5f ? begin + share * (last - begin) : last - (1.0f - share) * (last - begin);
            section_ray[section] = (int)ray;
            first_end[section] = (int)end;
            write_end(&to, end, ray, (int)section, at);
            if (part == parts - 1 && sums[room + row] - before(sums + room, row) > parts)
                write_end(&to, end + 1, ray, -1, last);
        } else if (empty_samples) {
            const int64_t ray = (i - room * parts) / (empty_samples + 1), part = (i - room * parts) % (empty_samples + 1);
            if (ray >= rays || ray >= counts[KEPT_RAYS] || ray_sums[ray] == before(ray_sums, ray)) continue;
            const int from = before(strides, ray * most), upto = strides[(ray + 1) * most - 1];
            if (before(sums, upto) > before(sums, from)) continue; /* it has samples from the grid */
            const int64_t section = before(ray_sums, ray) + part, end = before(ray_sums + rays, ray) + part;
            const float fraction = (float)part + (noise ? noise[ray * (empty_samples + 1) + part] : 0.5f);
            const bool begins = part < empty_samples;
            if (begins) {
                section_ray[section] = (int)ray;
                first_end[section] = (int)end;
            }
            write_end(&to, end, ray, begins ? (int)section : -1,
                      near[ray] + (far[ray] - near[ray]) * fraction / (float)(empty_samples + 1));
        }
    }
}

/* Flags the sections that light reaches and that are not clear, and writes how many ends they keep, as two rows of
 * `room`: a thread for each ray. Flags behind the last section are 0. `alpha` and `clear` come from
 * `section_opacities`. */
KERNEL(march_visible, RAY_THREADS, int64_t rays, int64_t room, float least_light, float least_alpha,
       const int *ray_sums, const int *first_end, const double *alpha, const double *clear, int *flags) {
    PHASE {
        const int64_t ray = (int64_t)BLOCK * RAY_THREADS + THREAD;
        for (int64_t s = ray_sums[rays - 1] + ray; s < room; s += (int64_t)BLOCKS * RAY_THREADS)
            flags[s] = flags[room + s] = 0;
        if (ray >= rays) continue;
        double light = 1;
        bool kept = false; /* the section before */
        const int from = before(ray_sums, ray), to = ray_sums[ray];
        for (int s = from; s < to; s++) {
            const bool here = (float)light >= least_light && (float)alpha[s] >= least_alpha;
            flags[s] = here ? 1 : 0;
            flags[room + s] = here ? 2 : 0;
            /* The last end of the section before is the first one of this. */
            if (here && kept && first_end[s] == first_end[s - 1] + 1) flags[room + s - 1] = 1;
            kept = here;
            light *= clear[s];
        }
    }
}

/* Lists the kept sections with their ends; `sums` are running sums of the flags. Writes where the rays' new lists end. */
KERNEL(march_kept, MARCH_THREADS, int64_t rays, int64_t room, const int *count, const int *ray_sums, const int *sums,
       const float *origins, const float *directions, const int *section_ray, const int *first_end,
       const float *end_distance, int *new_ray_sums, int *new_section_ray, int *new_first_end, int *end_ray,
       int *end_section, float *new_end_distance, float *points, int *counts) {
    PHASE {
        const int64_t s = (int64_t)BLOCK * MARCH_THREADS + THREAD;
        if (s == 0) counts[SECTIONS] = before(sums, *count);
        const Ends to = {origins, directions, end_ray, end_section, new_end_distance, points};
        if (s < rays) {
            new_ray_sums[s] = before(sums, ray_sums[s]);
            new_ray_sums[rays + s] = before(sums + room, ray_sums[s]);
        }
        if (s >= room || s >= *count || sums[s] == before(sums, s)) continue;
        const int64_t section = sums[s] - 1, end = before(sums + room, s), old = first_end[s], ray = section_ray[s];
        new_section_ray[section] = (int)ray;
        new_first_end[section] = (int)end;
        write_end(&to, end, ray, (int)section, end_distance[old]);
        if (sums[room + s] - before(sums + room, s) == 2) write_end(&to, end + 1, ray, -1, end_distance[old + 1]);
    }
}

/* Adds the gradients of a ray's points: a thread for each ray. */
KERNEL(march_points_backward, RAY_THREADS, int64_t rays, const int *end_sums, const float *end_distance,
       const float *by_points, float *by_origins, float *by_directions) {
    PHASE {
        const int64_t ray = (int64_t)BLOCK * RAY_THREADS + THREAD;
        if (ray >= rays) continue;
        double origin[3] = {0, 0, 0}, direction[3] = {0, 0, 0};
        for (int e = before(end_sums, ray); e < end_sums[ray]; e++)
            for (int d = 0; d < 3; d++) {
                origin[d] += by_points[3 * (int64_t)e + d];
                direction[d] += (double)end_distance[e] * by_points[3 * (int64_t)e + d];
            }
        for (int d = 0; d < 3; d++) {
            by_origins[3 * ray + d] = (float)origin[d];
            by_directions[3 * ray + d] = (float)direction[d];
        }
    }
}

/* What a step records of its counts, added over batches: samples per ray, rays, filled rays, and the share of the rays
 * in the mask without samples. */
KERNEL(march_numbers, RAY_THREADS, int batches, int places, const int *counts, float *numbers) {
    PHASE {
        if (THREAD) continue;
        float rays = 0, samples = 0, filled = 0, starved = 0, masked = 0;
        for (int b = 0; b < batches; b++) {
            const int *here = counts + (int64_t)b * places;
            rays += (float)here[KEPT_RAYS];
            samples += (float)here[SECTIONS];
            filled += (float)here[FILLED];
            starved += (float)here[STARVED];
            masked += (float)here[MASKED];
        }
        numbers[0] = samples / fmaxf(rays, 1);
        numbers[1] = rays;
        numbers[2] = filled;
        numbers[3] = starved / fmaxf(masked, 1);
    }
}

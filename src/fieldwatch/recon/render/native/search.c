/* Search for the visible sections of rays in a neural SDF, from the strides of an occupancy grid.
 *
 * A stride may hold the blurred surface if the distance at its midpoint is at most `reach`. Such a stride is divided
 * into equal sections. Of all sections of a ray, those are found whose opacity is not below `threshold` and in front of
 * which is not less light than `unseen`. That is the definition; what follows only saves evaluations of the field:
 *
 *   - A ray is walked from front to back, and left where it is dark.
 *   - The slope of the field along a ray is at most `slope`. A distance therefore tells of the next strides that they
 *     do not hold the surface. Where faint sections are not wanted, it tells of sections that they are farther away
 *     than `limit`, and so faint. What light these take is not known, but less than FAINT each: a ray for which that
 *     could matter is walked again without leaving any out.
 *
 * Many rays are walked at once, each by one place in every round, so that the field is evaluated in whole blocks. Each
 * ray's result depends on nothing else. Places are rounded as in sdf/samples.py: multiplications must not be fused with
 * additions, unless torch does so.
 */
#include <math.h>
#include <stdint.h>

#include "compositing.h"
#include "sdf_field.h"

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

/* Rays that a thread walks at once: a multiple of BLOCK, and so few that the rows of the table that they need next stay
 * in the cache. */
#define POOL 64
#define FAINT 3.36e-4 /* S(-8): the opacity of a section that is 8 / s in front of the surface, or farther */

typedef struct {
    const float *origins, *directions, *far; /* of the rays */
    const float *start, *end;                /* of the strides, ray by ray */
    const int64_t *bounds;                   /* the first stride of each ray, with one more entry */
    int64_t parts;                           /* sections of a stride; a single one is not looked at as a whole */
    float slope, reach, dark, limit;         /* limit: infinite if faint sections are wanted */
    float unseen, threshold;
    double s;
    int32_t *numbers; /* of the sections found, from the ray's first stride on: room for all of them */
    int64_t *found;   /* sections of each ray */
    uint8_t *reached; /* rays that a stride or the dark shows to meet the surface */
} Search;

/* A value of the field on a ray. */
typedef struct {
    float at, value;
} Known;

typedef struct {
    int64_t ray, stride, last; /* stride: the one looked at; last: behind the ray's last */
    float from, to;            /* its ends */
    int64_t part;              /* the end that is to be evaluated; MIDDLE for the midpoint */
    float at;                  /* its distance */
    Known middle, before;      /* at the last midpoint and at the last end; minus infinity if there is none */
    int follows;               /* whether a section leads from `before` to the place */
    int careful;               /* whether no section is left out */
    int64_t left_out;          /* faint sections */
    double light;
} Walk;

enum { MIDDLE = -1 };

static const Known UNKNOWN = {0, -INFINITY};

/* torch.lerp on the way from `from` to `to`, by a share of `parts`. */
FW_INLINE float end_of_part(float from, float to, int64_t part, int64_t parts) {
    const float share = (float)part / (float)parts, way = to - from;
#ifdef HAS_FMA
    return share < 0.5f ? __builtin_fmaf(share, way, from) : __builtin_fmaf(share - 1, way, to);
#else
    return share < 0.5f ? share * way + from : (share - 1) * way + to;
#endif
}

FW_INLINE float part_at(const Search *s, const Walk *w, int64_t part) {
    return end_of_part(w->from, w->to, part, s->parts);
}

/* The least that the field can be at a distance along the ray. */
FW_INLINE float at_least(const Search *s, const Walk *w, float at) {
    const float by_middle = w->middle.value - s->slope * fabsf(at - w->middle.at);
    const float by_end = w->before.value - s->slope * fabsf(at - w->before.at);
    return by_middle > by_end ? by_middle : by_end;
}

static int next_stride(const Search *s, Walk *w);

/* Goes on to the next end in the stride that has to be evaluated, behind the end `part`, which is known unless it is
 * -1; else to the next stride. Returns whether there is one. */
static int next_end(const Search *s, Walk *w, int64_t part) {
    int64_t next = part + 1;
    if (!w->careful)
        while (next <= s->parts && at_least(s, w, part_at(s, w, next)) >= s->limit) next++;
    const int64_t faint = next - 1; /* the last end of a faint section, if there is one */
    if (faint > part) {
        w->left_out += faint - (part < 0 ? 0 : part), w->follows = 0;
        if (faint == s->parts) return w->stride++, next_stride(s, w);
        next = faint;
    } else {
        if (part == s->parts) return w->stride++, next_stride(s, w);
        w->follows = part >= 0;
    }
    return w->part = next, w->at = part_at(s, w, next), 1;
}

/* Enters a stride that may hold the surface. */
static int enter_stride(const Search *s, Walk *w) {
    s->reached[w->ray] = 1;
    /* An end that the last stride had, too, is known. */
    return next_end(s, w, w->before.value > -INFINITY && w->before.at == w->from ? 0 : -1);
}

/* Goes on to the first place of the stride, or of one behind it, that has to be evaluated. Returns whether there is
 * one. */
static int next_stride(const Search *s, Walk *w) {
    for (; w->stride < w->last; w->stride++) {
        const float end = s->end[w->stride], far = s->far[w->ray];
        w->from = s->start[w->stride], w->to = end < far ? end : far;
        if (!(w->from < w->to)) continue; /* behind the scene */
        if (s->parts == 1) return enter_stride(s, w);
        w->at = 0.5f * (w->from + w->to), w->part = MIDDLE;
        if (!(at_least(s, w, w->at) > s->reach)) return 1;
    }
    return 0;
}

static int begin(const Search *s, Walk *w, int64_t ray, int careful) {
    *w = (Walk){.ray = ray, .stride = s->bounds[ray], .last = s->bounds[ray + 1], .middle = UNKNOWN};
    w->before = UNKNOWN, w->careful = careful, w->light = 1;
    s->found[ray] = 0;
    return next_stride(s, w);
}

/* Goes on from a midpoint. */
static int pass_middle(const Search *s, Walk *w, float value) {
    w->middle = (Known){w->at, value};
    if (fabsf(value) <= s->reach) return enter_stride(s, w);
    if (value < s->dark) return s->reached[w->ray] = 1, 0;
    return w->stride++, next_stride(s, w);
}

/* Takes the section in front of an end, if it is visible, and goes on from there. */
static int pass_end(const Search *s, Walk *w, float value, double alpha, double clear) {
    if (w->follows) {
        const int lit = (float)w->light >= s->unseen;
        if (lit && (float)(w->light * (1 - w->left_out * FAINT)) < s->unseen) return begin(s, w, w->ray, 1);
        if (lit && (float)alpha >= s->threshold) {
            const int64_t first = s->bounds[w->ray], number = (w->stride - first) * s->parts + w->part - 1;
            s->numbers[first * s->parts + s->found[w->ray]++] = (int32_t)number;
        }
        w->light *= clear;
        if ((float)w->light < s->unseen) return 0;
    }
    w->before = (Known){w->at, value};
    return next_end(s, w, w->part);
}

typedef struct {
    ALIGNED float points[3 * POOL];
    float value[POOL], from[POOL], to[POOL];
    double alpha[POOL], clear[POOL];
    Walk walks[POOL];
} Pool;

/* Walks rays from `first` to before `end`. Returns how many places were outside of the box. */
static int64_t walk_rays(const Search *s, int64_t first, int64_t end, Grid *grid, int64_t hidden, const Packed *packed,
                         float *memory, int64_t *evaluated) {
    Pool pool;
    int64_t active = 0, outside = 0;
    while (1) {
        while (active < POOL && first < end) active += begin(s, pool.walks + active, first++, 0);
        if (!active) return outside;
        for (int64_t i = 0; i < active; i++) {
            const Walk *w = pool.walks + i;
            for (int d = 0; d < 3; d++)
                pool.points[3 * i + d] = s->origins[3 * w->ray + d] + w->at * s->directions[3 * w->ray + d];
        }
        grid->n = active, grid->points = pool.points;
        const Shape shape = sdf_shape_of(active, grid->levels * grid->width, hidden, 0);
        outside += sdf_values(grid, shape, packed, memory, pool.value);
        *evaluated += active;
        for (int64_t i = 0; i < active; i++) {
            const Walk *w = pool.walks + i;
            const int section = w->part != MIDDLE && w->follows;
            pool.from[i] = section ? w->before.value : 0, pool.to[i] = section ? pool.value[i] : 0;
        }
        blend_opacities(active, s->s, pool.from, pool.to, pool.alpha, pool.clear);
        int64_t kept = 0;
        for (int64_t i = 0; i < active; i++) {
            Walk *w = pool.walks + i;
            const int goes_on = w->part == MIDDLE ? pass_middle(s, w, pool.value[i])
                                                  : pass_end(s, w, pool.value[i], pool.alpha[i], pool.clear[i]);
            if (goes_on) pool.walks[kept++] = *w;
        }
        active = kept;
    }
}

/* Numbers of memory that `threads` need. */
FW_EXPORT int64_t fw_search_memory(int64_t features, int64_t hidden, int threads) {
    const Shape s = sdf_shape_of(POOL, features, hidden, 0);
    return threads * s.blocks * s.rows * BLOCK;
}

/* `bounds` (rays + 1), `numbers` (strides * parts), `found` and `reached` (rays) are written; so is `counts`: the
 * places outside of the box, and all that were evaluated. */
FW_EXPORT void fw_search(int64_t rays, const float *origins, const float *directions, const float *far,
                         int64_t strides, const float *start, const float *end, const int64_t *ray_index, int64_t parts,
                         const float *limits, double sharpness, int64_t levels, int64_t width, const Level *level,
                         const float *weights, const float *table, int64_t hidden, const float *w1, const float *b1,
                         const float *w2, const float *b2, float softness, int threads, float *memory, int64_t *bounds,
                         int32_t *numbers, int64_t *found, uint8_t *reached, int64_t *counts) {
    const Search s = {origins, directions, far, start, end, bounds, parts, limits[0], limits[1], limits[2], limits[3],
                      limits[4], limits[5], sharpness, numbers, found, reached};
    const Shape shape = sdf_shape_of(POOL, levels * width, hidden, 0);
    int64_t outside = 0, evaluated = 0;
    for (int64_t ray = 0, i = 0; ray <= rays; ray++) {
        while (i < strides && ray_index[i] < ray) i++;
        bounds[ray] = i;
    }
    memset(reached, 0, (size_t)rays);
    const int64_t shares = threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(+ : outside, evaluated)
    for (int64_t share = 0; share < shares; share++) {
        Packed packed;
        sdf_pack(shape, (Network){hidden, w1, b1, w2, b2, softness}, &packed);
        Grid grid = {0, 0, levels, width, level, weights, table};
        outside += walk_rays(&s, rays * share / shares, rays * (share + 1) / shares, &grid, hidden, &packed,
                             memory + share * shape.blocks * shape.rows * BLOCK, &evaluated);
    }
    counts[0] = outside, counts[1] = evaluated;
}

/* The sections with those numbers, packed: those of a ray go to `offsets` of it on. */
FW_EXPORT void fw_search_sections(int64_t rays, const float *far, const float *start, const float *end, int64_t parts,
                                  const int64_t *bounds, const int32_t *numbers, const int64_t *found,
                                  const int64_t *offsets, float *t_start, float *t_end, int64_t *ray_index) {
    for (int64_t ray = 0; ray < rays; ray++)
        for (int64_t k = 0; k < found[ray]; k++) {
            const int64_t number = numbers[bounds[ray] * parts + k], stride = bounds[ray] + number / parts;
            const int64_t part = number % parts, to = offsets[ray] + k;
            const float from = start[stride], behind = end[stride] < far[ray] ? end[stride] : far[ray];
            t_start[to] = end_of_part(from, behind, part, parts);
            t_end[to] = end_of_part(from, behind, part + 1, parts);
            ray_index[to] = ray;
        }
}

/* Terms that compare points near Gaussians with a surface (SuGaR, Guedon 2024), with all gradients. The formulas are
 * those of fieldwatch.recon.losses: `near_depth`, `sample_near`, and the errors of `sample_errors`.
 *
 * A thread computes a sample: it draws its Gaussian and its point, visits the neighbors of the Gaussian, and compares.
 * The backward pass keeps nothing but the random numbers: it computes the sample again. A Gaussian and a pixel get
 * gradients from samples in any order, so they are summed exactly (exact_sum.h): `surface_exponents` and
 * `surface_sums` are the same code, which finds exponents first and adds then. */
#include "exact_sum.h"

#define SAMPLE_THREADS 128
#define SPREAD 1.5f            /* standard deviation of points relative to that of their Gaussian */
#define NEAR 0.01f             /* least depth of a point in world units */
#define DEVIATIONS 2.0f        /* from the depth map, within which a Gaussian is a candidate */
#define SMALLEST_SCALE 1e-8f   /* in world units, where scales are divisors */
#define SMALLEST_BETA 1e-8f
#define SMALLEST_THICKNESS 1e-6f
#define SMALLEST_WEIGHT 1e-6f  /* least sum of weights of normals */
#define SMALLEST_DENSITY 1e-16f
#define FARTHEST 1e8f          /* squared standard deviations, where exp(-x / 2) is 0 */
#define LINEAR_BELOW 1e-4f     /* of -2 log(density), below which its square root is a straight line */
#define PER_EXTENT 10.0f       /* distances are measured in tenths of the extent */

#define BY_DISTANCE 1 /* which terms act: mirrored in render/splats/surface_kernels.py */
#define BY_DENSITY 2
#define BETTER_NORMAL 4
#define ON_SURFACE 8
#define SMOOTHING 16

#define ERRORS 4   /* distance or density, normals, distance to the surface, smoothness */
#define PARTS 6    /* errors, samples with an estimate of the distance, samples */
#define GROUPS 4   /* mean, scales, quaternion, opacity: each has one exponent */
#define NUMBERS 11 /* of a Gaussian: 3 + 3 + 4 + 1 */

struct Gaussians {
    const float *means, *scales, *quaternions, *opacities;
};

/* Blended depth over a background at depth `far`, and its camera. */
struct DepthMap {
    int width, height;
    float fx, fy, cx, cy;
    const float *pose, *alpha, *depth, *far; /* camera from world, 4 x 4 */
};

struct Task {
    int terms, samples, gaussians, neighbors;
    float extent, share;
    const int64_t *draws, *ends; /* sorted, below 2^32; running sum of the candidates */
    const float *noise;
    const int *table;
};

struct Ellipsoid {
    float mean[3], scale[3], unit[4], shortened, axis[3][3], opacity, thickness;
    int thinnest;
};

DEVICE float dot(const float *a, const float *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

DEVICE float sign_of(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }

DEVICE Ellipsoid ellipsoid_of(const Gaussians &all, int64_t row) {
    Ellipsoid e;
    const float *q = all.quaternions + 4 * row;
    for (int d = 0; d < 3; d++) e.mean[d] = all.means[3 * row + d], e.scale[d] = all.scales[3 * row + d];
    e.opacity = all.opacities[row];
    e.shortened = 1 / sqrtf(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3] + 1e-24f);
    for (int d = 0; d < 4; d++) e.unit[d] = q[d] * e.shortened;
    const float w = e.unit[0], x = e.unit[1], y = e.unit[2], z = e.unit[3];
    e.axis[0][0] = 1 - 2 * (y * y + z * z), e.axis[0][1] = 2 * (x * y + w * z), e.axis[0][2] = 2 * (x * z - w * y);
    e.axis[1][0] = 2 * (x * y - w * z), e.axis[1][1] = 1 - 2 * (x * x + z * z), e.axis[1][2] = 2 * (y * z + w * x);
    e.axis[2][0] = 2 * (x * z + w * y), e.axis[2][1] = 2 * (y * z - w * x), e.axis[2][2] = 1 - 2 * (x * x + y * y);
    e.thinnest = 0;
    e.thickness = e.scale[0];
    for (int d = 1; d < 3; d++)
        if (e.scale[d] < e.thickness || e.scale[d] != e.scale[d]) e.thickness = e.scale[d], e.thinnest = d;
    return e;
}

DEVICE void normal_of(const Ellipsoid &e, float *normal) {
    for (int d = 0; d < 3; d++)
        normal[d] = e.thinnest == 0 ? e.axis[0][d] : e.thinnest == 1 ? e.axis[1][d] : e.axis[2][d];
}

/* exp(-|u|^2 / 2), in which u is the offset in standard deviations along the axes. */
DEVICE float bell(const Ellipsoid &e, const float *offset, float *u, float *squared) {
    *squared = 0;
    for (int i = 0; i < 3; i++) {
        u[i] = dot(e.axis[i], offset) / fmaxf(e.scale[i], SMALLEST_SCALE);
        *squared += u[i] * u[i];
    }
    return expf(-0.5f * (*squared > FARTHEST ? FARTHEST : *squared));
}

/* --- The depth map --- */

struct Sight {
    float local[3], right, below, gap[2][2], distance;
    int64_t at[2][2];
    bool valid, inside_x, inside_y;
};

DEVICE void into_camera(const DepthMap &map, const float *point, float *local) {
    for (int r = 0; r < 3; r++) local[r] = dot(map.pose + 4 * r, point) + map.pose[4 * r + 3];
}

/* Distance of a point from the map along the optical axis; the map is interpolated, up to its border and beyond. */
DEVICE Sight sight_of(const DepthMap &map, const float *point) {
    Sight s;
    into_camera(map, point, s.local);
    s.valid = s.local[2] > NEAR;
    const float x = s.valid ? s.local[0] : 0.0f, y = s.valid ? s.local[1] : 0.0f, z = s.valid ? s.local[2] : 1.0f;
    const float across = map.cx - 0.5f + x * map.fx / z, down = map.cy - 0.5f + y * map.fy / z;
    const float last_x = (float)(map.width - 1), last_y = (float)(map.height - 1);
    const float at_x = fminf(fmaxf(across, 0.0f), last_x), at_y = fminf(fmaxf(down, 0.0f), last_y);
    const int x0 = (int)at_x, y0 = (int)at_y;
    const int x1 = x0 + 1 < map.width ? x0 + 1 : x0, y1 = y0 + 1 < map.height ? y0 + 1 : y0;
    s.inside_x = across >= 0 && across <= last_x;
    s.inside_y = down >= 0 && down <= last_y;
    /* A coordinate that is not a number is bounded as an address, and shows in the value. */
    s.right = across == across ? at_x - (float)x0 : across;
    s.below = down == down ? at_y - (float)y0 : down;
    s.at[0][0] = (int64_t)y0 * map.width + x0, s.at[0][1] = (int64_t)y0 * map.width + x1;
    s.at[1][0] = (int64_t)y1 * map.width + x0, s.at[1][1] = (int64_t)y1 * map.width + x1;
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++)
            s.gap[r][c] = map.depth[s.at[r][c]] + (1 - map.alpha[s.at[r][c]]) * map.far[0];
    const float upper = s.gap[0][0] + s.right * (s.gap[0][1] - s.gap[0][0]);
    const float lower = s.gap[1][0] + s.right * (s.gap[1][1] - s.gap[1][0]);
    s.distance = s.valid ? upper + s.below * (lower - upper) - z : 0.0f;
    return s;
}

/* Gradient of the distance by the point, times `given`. */
DEVICE void sight_backward(const DepthMap &map, const Sight &s, float given, float *by_point) {
    const float z = s.local[2];
    const float steep_x = s.gap[0][1] - s.gap[0][0] +
                          s.below * (s.gap[1][1] - s.gap[1][0] - s.gap[0][1] + s.gap[0][0]);
    const float steep_y = s.gap[1][0] - s.gap[0][0] +
                          s.right * (s.gap[1][1] - s.gap[0][1] - s.gap[1][0] + s.gap[0][0]);
    const float a = s.inside_x ? given * steep_x * map.fx / z : 0.0f;
    const float b = s.inside_y ? given * steep_y * map.fy / z : 0.0f;
    const float c = -given - (a * s.local[0] + b * s.local[1]) / z;
    for (int d = 0; d < 3; d++) by_point[d] += a * map.pose[d] + b * map.pose[4 + d] + c * map.pose[8 + d];
}

/* --- A sample --- */

struct Sample {
    int64_t owner;
    float point[3], reach[3], noise[3]; /* reach: along the axes, in world units */
};

DEVICE bool any_candidate(const Task &task) { return task.gaussians && task.ends[task.gaussians - 1] > 0; }

DEVICE Sample sample_of(const Task &task, const Gaussians &all, int i, Ellipsoid *owner) {
    Sample s;
    const int64_t total = task.ends[task.gaussians - 1], pick = (task.draws[i] * total) >> 32;
    int64_t low = 0, high = task.gaussians - 1; /* the first one with more candidates up to it than `pick` */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (task.ends[middle] > pick)
            high = middle;
        else
            low = middle + 1;
    }
    s.owner = low;
    *owner = ellipsoid_of(all, low);
    for (int k = 0; k < 3; k++) {
        s.noise[k] = task.noise[3 * (int64_t)i + k];
        s.reach[k] = SPREAD * owner->scale[k] * s.noise[k];
    }
    for (int d = 0; d < 3; d++)
        s.point[d] = owner->mean[d] + owner->axis[0][d] * s.reach[0] + owner->axis[1][d] * s.reach[1] +
                     owner->axis[2][d] * s.reach[2];
    return s;
}

DEVICE int64_t neighbor_of(const Task &task, const Sample &s, int k) {
    return task.table[s.owner * task.neighbors + k];
}

/* What a sample's neighbors give together. */
struct Surroundings {
    float density, thickness, weight, pull[3], middle[3]; /* sums of weights, and of weighted normals; mean of means */
};

/* Weight of a neighbor's normal, and the side on which it is. */
DEVICE float weight_of(const Ellipsoid &e, const float *offset, const float *normal, float contribution) {
    const float thickness = fmaxf(e.thickness, SMALLEST_THICKNESS);
    return contribution * fabsf(dot(offset, normal)) / (thickness * thickness);
}

DEVICE Surroundings surroundings_of(const Task &task, const Gaussians &all, const Sample &s, const float *normal) {
    Surroundings f = {0, 0, 0, {0, 0, 0}, {0, 0, 0}};
    for (int k = 0; k < task.neighbors; k++) {
        const Ellipsoid e = ellipsoid_of(all, neighbor_of(task, s, k));
        float offset[3], u[3], squared, theirs[3];
        for (int d = 0; d < 3; d++) offset[d] = s.point[d] - e.mean[d], f.middle[d] += e.mean[d];
        const float contribution = e.opacity * bell(e, offset, u, &squared);
        f.density += contribution;
        f.thickness += e.thickness;
        normal_of(e, theirs);
        const float weight = weight_of(e, offset, theirs, contribution);
        const float sided = dot(theirs, normal) < 0 ? -weight : weight;
        f.weight += weight;
        for (int d = 0; d < 3; d++) f.pull[d] += sided * theirs[d];
    }
    const float share = 1.0f / (float)task.neighbors;
    f.thickness *= share;
    for (int d = 0; d < 3; d++) f.middle[d] *= share;
    return f;
}

/* |distance| in tenths of the extent, at most that many extents. */
DEVICE float in_extents(const Task &task, float distance) {
    const float scaled = fabsf(distance) * PER_EXTENT / task.extent, most = PER_EXTENT * task.extent;
    return scaled > most ? most : scaled;
}

DEVICE float in_extents_backward(const Task &task, float distance, float given) {
    const bool bounded = fabsf(distance) * PER_EXTENT / task.extent > PER_EXTENT * task.extent;
    return bounded ? 0.0f : given * sign_of(distance) * PER_EXTENT / task.extent;
}

/* The distance that a density implies, relative to the thickness: sqrt(-2 log(density)). */
struct Root {
    float density, exponent, value;
};

DEVICE Root root_of(float density) {
    Root r;
    r.density = density;
    /* Not fmaxf, which would lose a density that is not a number. */
    const float relative = density >= 1 ? 1.0f : density < SMALLEST_DENSITY ? SMALLEST_DENSITY : density;
    r.exponent = -2 * logf(relative);
    r.value = r.exponent < LINEAR_BELOW ? r.exponent * 100.0f : sqrtf(r.exponent); /* 100 = 1 / sqrt(LINEAR_BELOW) */
    return r;
}

/* Gradient of the root by the density; densities above 1 keep that of log(density). */
DEVICE float root_slope(const Root &r) {
    if (r.density < SMALLEST_DENSITY) return 0.0f;
    const float by_exponent = r.exponent < LINEAR_BELOW ? 100.0f : 0.5f / r.value;
    return by_exponent * -2.0f / r.density;
}

struct Compared {
    Sight sight;
    Root root;
    float normal[3], beside, flat, ideal, ratio, length, slipped; /* of the owner; distance to its plane; ... */
    float difference[3], error[ERRORS];
    bool valid;
};

DEVICE Compared compare(const Task &task, const DepthMap &map, const Gaussians &all, const Sample &s,
                        const Ellipsoid &owner, Surroundings *f) {
    Compared c;
    normal_of(owner, c.normal);
    *f = surroundings_of(task, all, s, c.normal);
    float offset[3], drift[3];
    for (int d = 0; d < 3; d++) offset[d] = s.point[d] - owner.mean[d], drift[d] = owner.mean[d] - f->middle[d];
    c.beside = dot(offset, c.normal);
    c.valid = true;
    c.error[0] = c.error[2] = 0;
    c.slipped = c.flat = c.beside;
    if (task.terms & BY_DISTANCE) {
        c.sight = sight_of(map, s.point);
        c.valid = c.sight.valid;
        c.flat = c.sight.distance;
        c.root = root_of(task.share * f->density);
        c.slipped = f->thickness * c.root.value - fabsf(c.flat);
        c.error[0] = in_extents(task, c.slipped) * (c.valid ? 1.0f : 0.0f);
    } else if (task.terms & BY_DENSITY) {
        c.length = f->thickness < SMALLEST_BETA ? SMALLEST_BETA : f->thickness;
        c.ratio = c.flat / c.length;
        c.ideal = expf(-0.5f * (c.ratio * c.ratio > FARTHEST ? FARTHEST : c.ratio * c.ratio));
        c.error[0] = fabsf(f->density - c.ideal);
    }
    if (task.terms & ON_SURFACE) c.error[2] = in_extents(task, c.flat) * (c.valid ? 1.0f : 0.0f);
    const float total = f->weight < SMALLEST_WEIGHT ? SMALLEST_WEIGHT : f->weight;
    for (int d = 0; d < 3; d++) c.difference[d] = f->weight / total * c.normal[d] - f->pull[d] / total;
    c.error[1] = task.terms & BETTER_NORMAL ? dot(c.difference, c.difference) : 0.0f;
    c.error[3] = task.terms & SMOOTHING ? fabsf(dot(drift, c.normal)) * PER_EXTENT / task.extent : 0.0f;
    return c;
}

/* --- Gradients --- */

/* Where gradients go: exponents first, sums then. Gaussians come first in both, pixels after them. */
struct Sink {
    int *exponents;
    int64_t *sums;
    int gaussians;
};

/* Gradients of one Gaussian: by its mean, scales, axes and opacity. */
struct Pull {
    float mean[3], scale[3], axis[3][3], opacity;
};

DEVICE void clear(Pull *p) {
    for (int d = 0; d < 3; d++) {
        p->mean[d] = p->scale[d] = 0;
        for (int i = 0; i < 3; i++) p->axis[i][d] = 0;
    }
    p->opacity = 0;
}

template <bool SUMS> DEVICE void give(const Sink &sink, int64_t row, int group, int number, float value) {
    int *exponent = sink.exponents + GROUPS * row + group;
    if (SUMS)
        add_exactly(sink.sums + NUMBERS * row + number, *exponent, value);
    else
        raise_exponent(exponent, value);
}

template <bool SUMS> DEVICE void give_pixel(const Sink &sink, int64_t at, float value) {
    int *exponent = sink.exponents + (int64_t)GROUPS * sink.gaussians + at;
    if (SUMS)
        add_exactly(sink.sums + (int64_t)NUMBERS * sink.gaussians + at, *exponent, value);
    else
        raise_exponent(exponent, value);
}

/* Hands a Gaussian its gradients; those by the axes as gradients by the unit quaternion. */
template <bool SUMS> DEVICE void give_all(const Sink &sink, int64_t row, const Ellipsoid &e, const Pull &p) {
    const float w = e.unit[0], x = e.unit[1], y = e.unit[2], z = e.unit[3];
    const float wx = p.axis[1][2] - p.axis[2][1], wy = p.axis[2][0] - p.axis[0][2], wz = p.axis[0][1] - p.axis[1][0];
    const float yz = p.axis[1][2] + p.axis[2][1], xz = p.axis[2][0] + p.axis[0][2], xy = p.axis[0][1] + p.axis[1][0];
    const float xx = p.axis[0][0], yy = p.axis[1][1], zz = p.axis[2][2];
    for (int d = 0; d < 3; d++) give<SUMS>(sink, row, 0, d, p.mean[d]);
    for (int d = 0; d < 3; d++) give<SUMS>(sink, row, 1, 3 + d, p.scale[d]);
    give<SUMS>(sink, row, 2, 6, 2 * (x * wx + y * wy + z * wz));
    give<SUMS>(sink, row, 2, 7, 2 * (w * wx + y * xy + z * xz - 2 * x * (yy + zz)));
    give<SUMS>(sink, row, 2, 8, 2 * (w * wy + x * xy + z * yz - 2 * y * (xx + zz)));
    give<SUMS>(sink, row, 2, 9, 2 * (w * wz + x * xz + y * yz - 2 * z * (xx + yy)));
    give<SUMS>(sink, row, 3, 10, p.opacity);
}

/* Adds a gradient by the normal to that by the thinnest axis. */
DEVICE void pull_normal(const Ellipsoid &e, Pull *p, float factor, const float *direction) {
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < 3; d++) p->axis[i][d] += i == e.thinnest ? factor * direction[d] : 0.0f;
}

/* Adds a gradient by the thickness: equally thin axes share it. */
DEVICE void pull_thickness(const Ellipsoid &e, Pull *p, float given) {
    int thin = 0;
    for (int i = 0; i < 3; i++) thin += e.scale[i] == e.thickness;
    for (int i = 0; i < 3; i++) p->scale[i] += e.scale[i] == e.thickness ? given / (float)thin : 0.0f;
}

/* Gradients of the errors: of the sums of errors over samples, each times a factor. */
template <bool SUMS>
DEVICE void sample_backward(const Task &task, const DepthMap &map, const Gaussians &all, const float *factors, int i,
                            const Sink &sink) {
    Ellipsoid owner;
    Surroundings f;
    const Sample s = sample_of(task, all, i, &owner);
    const Compared c = compare(task, map, all, s, owner, &f);
    float by_density = 0, by_thickness = 0, by_flat = 0, by_point[3] = {0, 0, 0};
    const float drift[3] = {owner.mean[0] - f.middle[0], owner.mean[1] - f.middle[1], owner.mean[2] - f.middle[2]};
    const float smooth = task.terms & SMOOTHING
                             ? factors[3] * sign_of(dot(drift, c.normal)) * PER_EXTENT / task.extent
                             : 0.0f;
    Pull own;
    clear(&own);
    if (task.terms & BY_DISTANCE) {
        const float by = in_extents_backward(task, c.slipped, c.valid ? factors[0] : 0.0f);
        by_thickness = by * c.root.value;
        by_density = by == 0 ? 0.0f : by * f.thickness * root_slope(c.root) * task.share;
        by_flat = -by * sign_of(c.flat);
    } else if (task.terms & BY_DENSITY) {
        const float square = c.ratio * c.ratio;
        by_density = factors[0] * sign_of(f.density - c.ideal);
        const float by_ratio = square > FARTHEST ? 0.0f : by_density * c.ideal * c.ratio; /* -ideal' = ideal ratio */
        by_flat = by_ratio / c.length;
        by_thickness = f.thickness < SMALLEST_BETA ? 0.0f : -by_ratio * c.ratio / c.length;
    }
    if (task.terms & ON_SURFACE) by_flat += in_extents_backward(task, c.flat, c.valid ? factors[2] : 0.0f);
    if (!(task.terms & BY_DISTANCE)) {
        const float offset[3] = {s.point[0] - owner.mean[0], s.point[1] - owner.mean[1], s.point[2] - owner.mean[2]};
        for (int d = 0; d < 3; d++) by_point[d] += by_flat * c.normal[d], own.mean[d] -= by_flat * c.normal[d];
        pull_normal(owner, &own, by_flat, offset);
    } else if (c.valid) {
        sight_backward(map, c.sight, by_flat, by_point);
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 2; k++)
                give_pixel<SUMS>(sink, c.sight.at[r][k],
                                 by_flat * (r ? c.sight.below : 1 - c.sight.below) *
                                     (k ? c.sight.right : 1 - c.sight.right));
    }
    const float total = f.weight < SMALLEST_WEIGHT ? SMALLEST_WEIGHT : f.weight, share = 1.0f / (float)task.neighbors;
    const float turned = task.terms & BETTER_NORMAL ? 2 * factors[1] / total : 0.0f;
    pull_normal(owner, &own, turned * f.weight, c.difference);
    pull_normal(owner, &own, smooth, drift);
    for (int d = 0; d < 3; d++) own.mean[d] += smooth * c.normal[d];
    for (int k = 0; k < task.neighbors; k++) {
        const int64_t row = neighbor_of(task, s, k);
        const Ellipsoid e = ellipsoid_of(all, row);
        float offset[3], u[3], squared, theirs[3];
        Pull p;
        clear(&p);
        for (int d = 0; d < 3; d++) offset[d] = s.point[d] - e.mean[d];
        const float height = bell(e, offset, u, &squared);
        p.opacity = by_density * height;
        const float by_square = squared > FARTHEST ? 0.0f : -0.5f * by_density * e.opacity * height;
        for (int a = 0; a < 3; a++) {
            const float by = 2 * u[a] * by_square, over = by / fmaxf(e.scale[a], SMALLEST_SCALE);
            for (int d = 0; d < 3; d++) {
                p.axis[a][d] += over * offset[d];
                p.mean[d] -= over * e.axis[a][d];
                by_point[d] += over * e.axis[a][d];
            }
            p.scale[a] += e.scale[a] < SMALLEST_SCALE ? 0.0f : -over * u[a];
        }
        pull_thickness(e, &p, by_thickness * share);
        normal_of(e, theirs);
        const float weight = weight_of(e, offset, theirs, e.opacity * height);
        pull_normal(e, &p, (dot(theirs, c.normal) < 0 ? turned : -turned) * weight, c.difference);
        for (int d = 0; d < 3; d++) p.mean[d] -= smooth * share * c.normal[d];
        give_all<SUMS>(sink, row, e, p);
    }
    for (int a = 0; a < 3; a++) {
        own.scale[a] += SPREAD * s.noise[a] * dot(owner.axis[a], by_point);
        for (int d = 0; d < 3; d++) own.axis[a][d] += by_point[d] * s.reach[a];
    }
    for (int d = 0; d < 3; d++) own.mean[d] += by_point[d];
    give_all<SUMS>(sink, s.owner, owner, own);
}

/* --- Kernels --- */

/* Visible Gaussians near the depth map, along the ray. */
KERNEL(surface_candidates, SAMPLE_THREADS, int gaussians, const uint8_t *visible, const float *means,
       const float *scales, const float *quaternions, const float *opacities, int width, int height, float fx,
       float fy, float cx, float cy, const float *pose, const float *alpha, const float *depth, const float *far,
       uint8_t *candidates) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * SAMPLE_THREADS + THREAD;
        if (i >= gaussians) continue;
        const Gaussians all = {means, scales, quaternions, opacities};
        const DepthMap map = {width, height, fx, fy, cx, cy, pose, alpha, depth, far};
        const Ellipsoid e = ellipsoid_of(all, i);
        const Sight s = sight_of(map, e.mean);
        float ray[3] = {0, 0, 0}; /* in world axes; a rotation keeps its length */
        for (int r = 0; r < 3; r++)
            for (int d = 0; d < 3; d++) ray[d] += pose[4 * r + d] * s.local[r];
        const float length = fmaxf(sqrtf(dot(s.local, s.local)), SMALLEST_THICKNESS);
        float square = 0;
        for (int a = 0; a < 3; a++) {
            const float along = e.scale[a] * dot(e.axis[a], ray) / length;
            square += along * along;
        }
        candidates[i] = visible[i] && s.valid && fabsf(s.distance) < DEVIATIONS * sqrtf(square);
    }
}

/* sums: of a block, the errors, the number of samples with an estimate, and the number of samples. */
KERNEL(surface_forward, SAMPLE_THREADS, int terms, int samples, int gaussians, int neighbors, float extent, float share,
       const int64_t *draws, const int64_t *ends, const float *noise, const int *table, const float *means,
       const float *scales, const float *quaternions, const float *opacities, int width, int height, float fx,
       float fy, float cx, float cy, const float *pose, const float *alpha, const float *depth, const float *far,
       float *sums) {
    SHARED(float, totals[PARTS * SAMPLE_THREADS]);
    PHASE {
        const Task task = {terms, samples, gaussians, neighbors, extent, share, draws, ends, noise, table};
        const Gaussians all = {means, scales, quaternions, opacities};
        const DepthMap map = {width, height, fx, fy, cx, cy, pose, alpha, depth, far};
        const int64_t i = (int64_t)BLOCK * SAMPLE_THREADS + THREAD;
        for (int p = 0; p < PARTS; p++) totals[p * SAMPLE_THREADS + THREAD] = 0;
        if (i >= samples || !any_candidate(task)) continue;
        Ellipsoid owner;
        Surroundings f;
        const Sample s = sample_of(task, all, (int)i, &owner);
        const Compared c = compare(task, map, all, s, owner, &f);
        for (int p = 0; p < ERRORS; p++) totals[p * SAMPLE_THREADS + THREAD] = c.error[p];
        totals[ERRORS * SAMPLE_THREADS + THREAD] = c.valid ? 1.0f : 0.0f;
        totals[(ERRORS + 1) * SAMPLE_THREADS + THREAD] = 1;
    }
    for (int half = SAMPLE_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            for (int p = 0; p < PARTS; p++)
                totals[p * SAMPLE_THREADS + THREAD] += totals[p * SAMPLE_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD < PARTS) sums[PARTS * (int64_t)BLOCK + THREAD] = totals[THREAD * SAMPLE_THREADS];
    }
}

/* result: the means of the errors, and what turns gradients of their sums into those of the means. One block. */
KERNEL(surface_means, SAMPLE_THREADS, int blocks, const float *sums, float *result) {
    SHARED(double, totals[PARTS * SAMPLE_THREADS]);
    PHASE {
        for (int p = 0; p < PARTS; p++) {
            double sum = 0;
            for (int k = THREAD; k < blocks; k += SAMPLE_THREADS) sum += sums[PARTS * (int64_t)k + p];
            totals[p * SAMPLE_THREADS + THREAD] = sum;
        }
    }
    for (int half = SAMPLE_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            for (int p = 0; p < PARTS; p++)
                totals[p * SAMPLE_THREADS + THREAD] += totals[p * SAMPLE_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD >= ERRORS) continue;
        /* Distances are compared where there is an estimate. */
        const double count = totals[(THREAD % 2 ? ERRORS + 1 : ERRORS) * SAMPLE_THREADS];
        result[THREAD] = (float)(totals[THREAD * SAMPLE_THREADS] / (count > 0 ? count : 1));
        result[ERRORS + THREAD] = (float)(count > 0 ? 1 / count : 0);
    }
}

/* Of each error, the gradient of the loss by one sample's share of its mean; 0 for one that is not used. */
DEVICE void error_factors(const float *result, const float *by_first, const float *by_normals, const float *by_surface,
                          const float *by_smoothing, float *factors) {
    factors[0] = by_first ? by_first[0] * result[ERRORS] : 0.0f;
    factors[1] = by_normals ? by_normals[0] * result[ERRORS + 1] : 0.0f;
    factors[2] = by_surface ? by_surface[0] * result[ERRORS + 2] : 0.0f;
    factors[3] = by_smoothing ? by_smoothing[0] * result[ERRORS + 3] : 0.0f;
}

/* Of each Gaussian's and each pixel's gradients, the exponent of the largest number that they are sums of. */
KERNEL(surface_exponents, SAMPLE_THREADS, int terms, int samples, int gaussians, int neighbors, float extent,
       float share, const int64_t *draws, const int64_t *ends, const float *noise, const int *table, const float *means,
       const float *scales, const float *quaternions, const float *opacities, int width, int height, float fx,
       float fy, float cx, float cy, const float *pose, const float *alpha, const float *depth, const float *far,
       const float *result, const float *by_first, const float *by_normals, const float *by_surface,
       const float *by_smoothing, int *exponents) {
    PHASE {
        const Task task = {terms, samples, gaussians, neighbors, extent, share, draws, ends, noise, table};
        const Gaussians all = {means, scales, quaternions, opacities};
        const DepthMap map = {width, height, fx, fy, cx, cy, pose, alpha, depth, far};
        const int64_t i = (int64_t)BLOCK * SAMPLE_THREADS + THREAD;
        if (i >= samples || !any_candidate(task)) continue;
        float factors[ERRORS];
        error_factors(result, by_first, by_normals, by_surface, by_smoothing, factors);
        const Sink sink = {exponents, nullptr, gaussians};
        sample_backward<false>(task, map, all, factors, (int)i, sink);
    }
}

/* The sums, as integers. */
KERNEL(surface_sums, SAMPLE_THREADS, int terms, int samples, int gaussians, int neighbors, float extent, float share,
       const int64_t *draws, const int64_t *ends, const float *noise, const int *table, const float *means,
       const float *scales, const float *quaternions, const float *opacities, int width, int height, float fx,
       float fy, float cx, float cy, const float *pose, const float *alpha, const float *depth, const float *far,
       const float *result, const float *by_first, const float *by_normals, const float *by_surface,
       const float *by_smoothing, int *exponents, int64_t *sums) {
    PHASE {
        const Task task = {terms, samples, gaussians, neighbors, extent, share, draws, ends, noise, table};
        const Gaussians all = {means, scales, quaternions, opacities};
        const DepthMap map = {width, height, fx, fy, cx, cy, pose, alpha, depth, far};
        const int64_t i = (int64_t)BLOCK * SAMPLE_THREADS + THREAD;
        if (i >= samples || !any_candidate(task)) continue;
        float factors[ERRORS];
        error_factors(result, by_first, by_normals, by_surface, by_smoothing, factors);
        const Sink sink = {exponents, sums, gaussians};
        sample_backward<true>(task, map, all, factors, (int)i, sink);
    }
}

/* The gradients of Gaussians and pixels: a thread for each Gaussian, then one for each pixel. */
KERNEL(surface_gradients, SAMPLE_THREADS, int gaussians, int pixels, const float *quaternions, const float *far,
       const int *exponents, const int64_t *sums, float *dmeans, float *dscales, float *dquaternions, float *dopacities,
       float *dalpha, float *ddepth) {
    PHASE {
        const int64_t i = (int64_t)BLOCK * SAMPLE_THREADS + THREAD, at = i - gaussians;
        if (at >= pixels) continue;
        if (at >= 0) {
            const float by_depth = exact_sum(sums[(int64_t)NUMBERS * gaussians + at],
                                             exponents[(int64_t)GROUPS * gaussians + at]);
            ddepth[at] = by_depth;
            dalpha[at] = -by_depth * far[0];
            continue;
        }
        const int *exponent = exponents + GROUPS * i;
        const int64_t *sum = sums + NUMBERS * i;
        for (int d = 0; d < 3; d++) dmeans[3 * i + d] = exact_sum(sum[d], exponent[0]);
        for (int d = 0; d < 3; d++) dscales[3 * i + d] = exact_sum(sum[3 + d], exponent[1]);
        dopacities[i] = exact_sum(sum[10], exponent[3]);
        /* Through the division by the length: the part across the quaternion. */
        const float *q = quaternions + 4 * i;
        const float shortened = 1 / sqrtf(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3] + 1e-24f);
        float by[4], along = 0;
        for (int d = 0; d < 4; d++) by[d] = exact_sum(sum[6 + d], exponent[2]), along += q[d] * shortened * by[d];
        for (int d = 0; d < 4; d++) dquaternions[4 * i + d] = shortened * (by[d] - q[d] * shortened * along);
    }
}

/* A neural SDF with its gradient, forward and backward, fused: hash encoding and one hidden layer.
 *
 * With in = [x, F(x)], J = dF/dx, a = W in + b and h Softplus:
 *     f = v . h(a) + c        s = v h'(a)        u = W^T s        g = u_x + J^T u_F.
 * Given df and dg, t = [dg, J dg] is the gradient of u, and p = W t the gradient of s. So
 *     da = df s + v h''(a) p,   dv = df h + h' p,   dW = da in^T + s t^T,   db = da,   din = W^T da.
 * The gradient of J is the outer product u_F dg^T, which is never stored: the row of a corner gets its weight times
 * din_F plus (its slope . dg) u_F, and the point gets din_x + J^T din_F + (d2F/dx2 dg)^T u_F.
 *
 * Points are processed in blocks, stored axis by axis and feature by feature, so that products with W are vectorized
 * over points. The encoding processes a chunk of blocks level by level, which keeps the rows of one level in the cache.
 * The gradient of the table is parallel over levels, everything else over chunks. Neither the chunks nor the result
 * depend on the number of threads.
 */
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

#include "sdf_field.h"

#define LOCAL 8    /* numbers of a tile of dW: ROWS units by 2 inputs */
#define CHUNK 64   /* blocks at most that one thread takes through the levels */
#define SHARES 16  /* chunks at least, where there are that many blocks */

typedef struct {
    vf value, slope, curve;
} Unit; /* of the hidden layer: h, h' and h'' */

static int64_t up_to(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

Shape sdf_shape_of(int64_t n, int64_t features, int64_t hidden, int sloped) {
    Shape s = {.features = features, .inputs = up_to(3 + features + 1, ROWS), .units = up_to(hidden, ROWS)};
    s.slopes = s.inputs, s.pulled = s.slopes + 3 * features;
    s.rows = sloped ? s.pulled + s.inputs : s.inputs;
    s.blocks = up_to(n, BLOCK) / BLOCK;
    s.chunk = s.blocks / SHARES;
    s.chunk = s.chunk < 1 ? 1 : s.chunk < CHUNK ? s.chunk : CHUNK;
    s.chunks = up_to(s.blocks, s.chunk) / s.chunk;
    return s;
}

static int64_t tiles_of(Shape s) { return s.units * s.inputs; }

/* Numbers of a chunk's share of the gradients: of the weights in tiles, of the last ones, of the last bias. */
static int64_t share_of(Shape s) { return tiles_of(s) + s.units * LANES + LANES; }

void sdf_pack(Shape s, Network m, Packed *p) {
    const int64_t inputs = 3 + s.features;
    memset(p->down, 0, (size_t)(s.units * s.inputs) * sizeof(float));
    memset(p->up, 0, (size_t)(s.units * s.inputs) * sizeof(float));
    memset(p->out, 0, (size_t)s.units * sizeof(float));
    for (int64_t i = 0; i < m.hidden; i++) {
        for (int64_t k = 0; k <= inputs; k++) {
            const float w = k < inputs ? m.w1[i * inputs + k] : m.b1[i];
            p->down[(i / ROWS * s.inputs + k) * ROWS + i % ROWS] = w;
            p->up[(k / ROWS * s.units + i) * ROWS + k % ROWS] = w;
        }
        p->out[i] = m.w2[i];
    }
    p->last = m.b2[0], p->sharpness = m.sharpness;
}

/* Softplus and its derivatives: with e = exp(-|z|) and z = sharpness * a, h = max(a, 0) + log(1 + e) / sharpness. An e below
 * 2^-64 is rounded up to that: products of smaller ones are denormal, which costs a hundred times as much. */
FW_INLINE Unit softplus(vf a, float sharpness) {
    const vf floor = broadcast(-64.0f), shift = (vf)((vi)a & 0x7fffffff) * (-1.44269504f * sharpness);
    const vf e = power_of_two(choose(shift < floor, floor, shift)), r = 1.0f / (1.0f + e);
    const vi above = a > 0.0f;
    vf y = broadcast(0.00512610214f); /* log(1 + e) / e on [0, 1], to 1e-7 relative: the Chebyshev interpolant */
    y = y * e - 0.02907406468f;
    y = y * e + 0.07751608674f;
    y = y * e - 0.1360224762f;
    y = y * e + 0.1907688074f;
    y = y * e - 0.2483539899f;
    y = y * e + 0.3331812171f;
    y = y * e - 0.4999944498f;
    y = y * e + 0.9999999659f;
    const vf falling = e * r;
    return (Unit){keep(above, a) + y * (e * (1 / sharpness)), choose(above, r, falling), sharpness * (falling * r)};
}

/* ROWS rows of a product with a weight matrix, at the 16 points from column i. */
FW_INLINE void multiply(const float *weights, int64_t depth, const float *by, vf (*sum)[2]) {
    for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = broadcast(0.0f);
    for (int64_t k = 0; k < depth; k++) {
        const vf a = load(by + k * BLOCK), b = load(by + k * BLOCK + LANES);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
            const vf w = broadcast(weights[k * ROWS + r]);
            sum[r][0] += w * a, sum[r][1] += w * b;
        }
    }
}

/* Inputs' side of a product: up^T `by`. */
static void pull(Shape s, const Packed *p, const float *by, float *to) {
    for (int64_t k = 0; k < s.inputs; k += ROWS)
        for (int64_t i = 0; i < BLOCK; i += 2 * LANES) {
            vf sum[ROWS][2];
            multiply(p->up + k * s.units, s.units, by + i, sum);
            for (int r = 0; r < ROWS; r++)
                store(to + (k + r) * BLOCK + i, sum[r][0]), store(to + (k + r) * BLOCK + i + LANES, sum[r][1]);
        }
}

static int64_t live_of(int64_t n, int64_t block) { return n - block * BLOCK < BLOCK ? n - block * BLOCK : BLOCK; }

/* Lays a block's points out axis by axis, 0 behind the last one. Returns how many are outside the box. */
static int64_t lay_out(const Grid *e, Shape s, int64_t block, float *memory) {
    const int64_t live = live_of(e->n, block);
    int64_t outside = 0;
    memset(memory, 0, 3 * BLOCK * sizeof(float));
    for (int64_t i = 0; i < live; i++) {
        int beyond = 0;
        for (int d = 0; d < 3; d++) {
            const float x = e->points[3 * (block * BLOCK + i) + d];
            memory[d * BLOCK + i] = x, beyond |= (x < -1) | (x > 1);
        }
        outside += beyond;
    }
    memset(memory + (3 + s.features) * BLOCK, 0, (size_t)((s.inputs - 3 - s.features) * BLOCK) * sizeof(float));
    for (int i = 0; i < BLOCK; i++) memory[(3 + s.features) * BLOCK + i] = 1;
    return outside;
}

/* The box as the unit cube. */
FW_INLINE void locate_block(const float *memory, const Level *level, Cells *cells) {
    ALIGNED float at[3 * BLOCK];
    for (int i = 0; i < 3 * BLOCK; i += LANES) store(at + i, load(memory + i) * 0.5f + 0.5f);
    locate(at, level, cells);
}

/* Cells of a block, whose rows are then under way to the cache. The corners along x mostly share a line. */
FW_INLINE void find_cells(const float *memory, const Level *level, const float *table, int64_t width, Cells *cells) {
    locate_block(memory, level, cells);
    for (int c = 0; c < CORNERS; c += 2)
        for (int i = 0; i < BLOCK; i++) __builtin_prefetch(table + cells->row[c][i] * width, 0);
}

FW_INLINE void encode_block(const Grid *e, int64_t l, const int64_t width, const int dense, const Cells *cells,
                            float *features, float *slopes) {
    const float *table = e->table + e->level[l].start * width;
    const vf weight = broadcast(e->weights[l]), steep = weight * (0.5f * (float)e->level[l].resolution);
    for (int64_t i = 0; i < BLOCK; i += LANES)
        for (int64_t k = 0; k < width; k += 2) {
            Trilinear t[2];
            interpolate(table + k, width, dense, cells, i, 0, t);
            for (int f = 0; f < 2; f++) {
                store(features + (k + f) * BLOCK + i, weight * t[f].value);
                for (int d = 0; slopes && d < 3; d++)
                    store(slopes + (3 * (k + f) + d) * BLOCK + i, steep * t[f].slope[d]);
            }
        }
}

static void encode_level(const Grid *e, Shape s, int64_t l, int sloped, int64_t count, float *memory) {
    const int64_t w = e->width, size = s.rows * BLOCK;
    const float *table = e->table + e->level[l].start * w;
    Cells cells[2];
    if (e->weights[l] != 0) find_cells(memory, e->level + l, table, w, cells);
    for (int64_t b = 0; b < count; b++, memory += size) {
        float *features = memory + (3 + l * w) * BLOCK, *slopes = memory + (s.slopes + 3 * l * w) * BLOCK;
        const Cells *here = cells + b % 2;
        if (e->weights[l] == 0) {
            memset(features, 0, (size_t)(w * BLOCK) * sizeof(float));
            if (sloped) memset(slopes, 0, (size_t)(3 * w * BLOCK) * sizeof(float));
            continue;
        }
        if (b + 1 < count) find_cells(memory + size, e->level + l, table, w, cells + (b + 1) % 2);
        if (w != 2)
            encode_block(e, l, w, 0, here, features, sloped ? slopes : 0);
        else if (here->hashed)
            encode_block(e, l, 2, 0, here, features, sloped ? slopes : 0);
        else
            encode_block(e, l, 2, 1, here, features, sloped ? slopes : 0);
    }
}

/* f of a block, and s = v h'(a) unless NULL. */
FW_INLINE void evaluate(Shape s, const Packed *p, const float *in, float *f, float *steep) {
    for (int64_t i = 0; i < BLOCK; i += 2 * LANES) {
        vf value[2] = {broadcast(p->last), broadcast(p->last)};
        for (int64_t h = 0; h < s.units; h += ROWS) {
            vf a[ROWS][2];
            multiply(p->down + h * s.inputs, s.inputs, in + i, a);
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < 2; j++) {
                    const Unit unit = softplus(a[r][j], p->sharpness);
                    value[j] += p->out[h + r] * unit.value;
                    if (steep) store(steep + (h + r) * BLOCK + i + j * LANES, p->out[h + r] * unit.slope);
                }
        }
        store(f + i, value[0]), store(f + i + LANES, value[1]);
    }
}

/* g = u_x + J^T u_F of a block. */
static void slope_block(Shape s, const float *memory, float *g) {
    const float *slopes = memory + s.slopes * BLOCK, *pulled = memory + s.pulled * BLOCK;
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        vf sum[3];
        for (int d = 0; d < 3; d++) sum[d] = load(pulled + d * BLOCK + i);
        for (int64_t k = 0; k < s.features; k++)
            for (int d = 0; d < 3; d++)
                sum[d] += load(pulled + (3 + k) * BLOCK + i) * load(slopes + (3 * k + d) * BLOCK + i);
        for (int d = 0; d < 3; d++) store(g + d * BLOCK + i, sum[d]);
    }
}

static void evaluate_block(Shape s, const Packed *p, int64_t live, float *memory, float *f, float *g) {
    ALIGNED float value[BLOCK], slope[3 * BLOCK], steep[MOST_HIDDEN * BLOCK];
    if (!g) {
        evaluate(s, p, memory, value, 0);
    } else {
        evaluate(s, p, memory, value, steep);
        pull(s, p, steep, memory + s.pulled * BLOCK);
        slope_block(s, memory, slope);
        for (int64_t i = 0; i < live; i++)
            for (int d = 0; d < 3; d++) g[3 * i + d] = slope[d * BLOCK + i];
    }
    memcpy(f, value, (size_t)live * sizeof(float));
}

int64_t sdf_values(const Grid *e, Shape s, const Packed *p, float *memory, float *f) {
    int64_t outside = 0;
    for (int64_t b = 0; b < s.blocks; b++) outside += lay_out(e, s, b, memory + b * s.rows * BLOCK);
    for (int64_t l = 0; l < e->levels; l++) encode_level(e, s, l, 0, s.blocks, memory);
    for (int64_t b = 0; b < s.blocks; b++)
        evaluate_block(s, p, live_of(e->n, b), memory + b * s.rows * BLOCK, f + b * BLOCK, 0);
    return outside;
}

/* Adds the eight sums of a tile's vectors. */
FW_INLINE void add_totals(const vf *x, float *to) {
    vf two[4], four[2];
    for (int i = 0; i < 4; i++)
        two[i] = SHUFFLED(x[2 * i], x[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 SHUFFLED(x[2 * i], x[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; i++)
        four[i] = SHUFFLED(two[2 * i], two[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  SHUFFLED(two[2 * i], two[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    vf all = SHUFFLED(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
             SHUFFLED(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
    store(to, load(to) + all);
}

/* Adds da in^T + s t^T of a block, tile by tile. */
FW_INLINE void weigh(Shape s, const float *in, const float *t, const float *da, const float *steep, float *tiles) {
    for (int64_t h = 0; h < s.units; h += ROWS)
        for (int64_t k = 0; k < s.inputs; k += 2, tiles += LOCAL) {
            vf sum[LOCAL];
            for (int r = 0; r < LOCAL; r++) sum[r] = broadcast(0.0f);
            for (int64_t i = 0; i < BLOCK; i += LANES) {
                const vf a = load(in + k * BLOCK + i), b = load(in + (k + 1) * BLOCK + i);
                for (int r = 0; r < ROWS; r++) {
                    const vf by = load(da + (h + r) * BLOCK + i);
                    sum[2 * r] += by * a, sum[2 * r + 1] += by * b;
                }
            }
            for (int64_t i = 0; t && i < BLOCK; i += LANES) {
                const vf a = load(t + k * BLOCK + i), b = load(t + (k + 1) * BLOCK + i);
                for (int r = 0; r < ROWS; r++) {
                    const vf by = load(steep + (h + r) * BLOCK + i);
                    sum[2 * r] += by * a, sum[2 * r + 1] += by * b;
                }
            }
            add_totals(sum, tiles);
        }
}

/* da and s of a block; adds dv. Without t, which is what arrives at u, s is left out. */
FW_INLINE void return_units(Shape s, const Packed *p, const float *in, const float *t, const float *df, float *da,
                            float *steep, float *dv) {
    for (int64_t h = 0; h < s.units; h += ROWS) {
        vf by_out[ROWS];
        for (int r = 0; r < ROWS; r++) by_out[r] = load(dv + (h + r) * LANES);
        for (int64_t i = 0; i < BLOCK; i += 2 * LANES) {
            vf a[ROWS][2], by_steep[ROWS][2];
            multiply(p->down + h * s.inputs, s.inputs, in + i, a);
            if (t) multiply(p->down + h * s.inputs, s.inputs, t + i, by_steep);
            for (int r = 0; r < ROWS; r++)
                for (int j = 0; j < 2; j++) {
                    const int64_t at = (h + r) * BLOCK + i + j * LANES;
                    const float v = p->out[h + r];
                    const vf given = load(df + i + j * LANES);
                    const Unit unit = softplus(a[r][j], p->sharpness);
                    vf by_unit = given * (v * unit.slope);
                    by_out[r] += given * unit.value;
                    if (t) {
                        store(steep + at, v * unit.slope);
                        by_unit += (v * unit.curve) * by_steep[r][j], by_out[r] += unit.slope * by_steep[r][j];
                    }
                    store(da + at, by_unit);
                }
        }
        for (int r = 0; r < ROWS; r++) store(dv + (h + r) * LANES, by_out[r]);
    }
}

/* t = [dg, J dg] of a block, after dg was laid out in its first rows. The constant gets 0. */
static void push(Shape s, const float *memory, float *t) {
    const float *slopes = memory + s.slopes * BLOCK;
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        const vf x = load(t + i), y = load(t + BLOCK + i), z = load(t + 2 * BLOCK + i);
        for (int64_t k = 0; k < s.features; k++) {
            const float *by = slopes + 3 * k * BLOCK + i;
            store(t + (3 + k) * BLOCK + i, load(by) * x + load(by + BLOCK) * y + load(by + 2 * BLOCK) * z);
        }
    }
    memset(t + (3 + s.features) * BLOCK, 0, (size_t)((s.inputs - 3 - s.features) * BLOCK) * sizeof(float));
}

/* What a block hands back through the network: din into its rows of `given`, and its share of the weights' gradients.
 * `given` starts with dg, as far as there is one. */
static void return_block(Shape s, const Packed *p, int64_t live, const float *memory, const float *df, const float *dg,
                         float *given, float *share) {
    ALIGNED float value[BLOCK] = {0}, t[MOST_INPUTS * BLOCK], da[MOST_HIDDEN * BLOCK], steep[MOST_HIDDEN * BLOCK];
    float *dv = share + tiles_of(s), *last = dv + s.units * LANES;
    for (int64_t i = 0; df && i < live; i++) value[i] = df[i];
    for (int i = 0; i < BLOCK; i += LANES) store(last, load(last) + load(value + i));
    if (dg) {
        memset(t, 0, 3 * BLOCK * sizeof(float));
        for (int64_t i = 0; i < live; i++)
            for (int d = 0; d < 3; d++) t[d * BLOCK + i] = dg[3 * i + d];
        push(s, memory, t);
        memcpy(given, t, 3 * BLOCK * sizeof(float));
        return_units(s, p, memory, t, value, da, steep, dv);
        weigh(s, memory, t, da, steep, share);
    } else {
        return_units(s, p, memory, 0, value, da, steep, dv);
        weigh(s, memory, 0, da, steep, share);
    }
    pull(s, p, da, given + 3 * BLOCK);
}

/* Adds up the chunks' shares, always in the same order. */
static void gather_shares(Shape s, int64_t hidden, const float *shares, float *dw1, float *db1, float *dw2,
                          float *db2) {
    const int64_t inputs = 3 + s.features, size = share_of(s), tiles = tiles_of(s);
    for (int64_t h = 0; h < hidden; h++) {
        for (int64_t k = 0; k <= inputs; k++) {
            const int64_t tile = h / ROWS * (s.inputs / 2) + k / 2, at = tile * LOCAL + h % ROWS * 2 + k % 2;
            double sum = 0;
            for (int64_t c = 0; c < s.chunks; c++) sum += shares[c * size + at];
            *(k < inputs ? dw1 + h * inputs + k : db1 + h) = (float)sum;
        }
        double sum = 0;
        for (int64_t c = 0; c < s.chunks; c++) sum += total(load(shares + c * size + tiles + h * LANES));
        dw2[h] = (float)sum;
    }
    double sum = 0;
    for (int64_t c = 0; c < s.chunks; c++) sum += total(load(shares + c * size + tiles + s.units * LANES));
    *db2 = (float)sum;
}

/* What a backward pass works on besides the memory: dg and din of all blocks, `stride` numbers each. */
typedef struct {
    const float *memory, *given;
    int64_t size, stride; /* of a block, in `memory` and in `given` */
    int sloped;           /* whether there is a dg */
} Returned;

/* Adds what a block gives a level's rows. */
FW_INLINE void spread_block(const Grid *e, int64_t l, const int64_t width, const int dense, int64_t live,
                            const Cells *cells, const float *pulled, const float *given, int sloped, float *dtable) {
    const vf weight = broadcast(e->weights[l]), steep = weight * (0.5f * (float)e->level[l].resolution);
    const float *by_features = given + (6 + l * width) * BLOCK, *u = pulled + (3 + l * width) * BLOCK;
    for (int64_t i = 0; i < live; i += LANES)
        for (int64_t k = 0; k < width; k += 2) {
            const int64_t some = live - i < LANES ? live - i : LANES;
            vf corner[2][CORNERS];
            ALIGNED float pairs[CORNERS / 2][LANES * 4];
            for (int f = 0; f < 2; f++) {
                vf slope[3];
                for (int d = 0; d < 3; d++)
                    slope[d] = sloped ? steep * load(u + (k + f) * BLOCK + i) * load(given + d * BLOCK + i)
                                      : broadcast(0.0f);
                hand_out(cells, i, weight * load(by_features + (k + f) * BLOCK + i), slope, corner[f]);
            }
            for (int c = 0; c < CORNERS; c += 2) {
                const vf lower[2] = {corner[0][c], corner[1][c]}, upper[2] = {corner[0][c + 1], corner[1][c + 1]};
                join_edge(lower, upper, pairs[c / 2]);
            }
            for (int64_t p = 0; p < some; p++)
                for (int c = 0; c < CORNERS; c += 2) {
                    const float *pair = pairs[c / 2] + 4 * p;
                    float *to = dtable + cells->row[c][i + p] * width + k;
                    if (dense && width == 2) {
                        add_four(to, pair);
                    } else {
                        add_two(to, pair);
                        add_two(dtable + cells->row[c + 1][i + p] * width + k, pair + 2);
                    }
                }
        }
}

/* Gradient of a level's rows. */
static void return_level(const Grid *e, Shape s, int64_t l, Returned r, float *dtable) {
    const int64_t w = e->width;
    Cells cells;
    dtable += e->level[l].start * w;
    memset(dtable, 0, (size_t)(e->level[l].rows * w) * sizeof(float));
    if (e->weights[l] == 0) return;
    for (int64_t b = 0; b < s.blocks; b++) {
        const float *memory = r.memory + b * r.size, *given = r.given + b * r.stride;
        const float *pulled = memory + s.pulled * BLOCK;
        const int64_t live = live_of(e->n, b);
        locate_block(memory, e->level + l, &cells);
        if (w != 2)
            spread_block(e, l, w, 0, live, &cells, pulled, given, r.sloped, dtable);
        else if (cells.hashed)
            spread_block(e, l, 2, 0, live, &cells, pulled, given, r.sloped, dtable);
        else
            spread_block(e, l, 2, 1, live, &cells, pulled, given, r.sloped, dtable);
    }
}

/* Adds what a block's features, and slopes if there is a dg, of a level hand back to its points. */
FW_INLINE void return_cells(const Grid *e, int64_t l, const int64_t width, const int dense, const Cells *cells,
                            const float *pulled, const float *given, int sloped, float *sum) {
    const float *table = e->table + e->level[l].start * width;
    const float n = 0.5f * (float)e->level[l].resolution;
    const vf steep = broadcast(e->weights[l] * n), curve = steep * n;
    const float *by_features = given + (6 + l * width) * BLOCK, *u = pulled + (3 + l * width) * BLOCK;
    for (int64_t i = 0; i < BLOCK; i += LANES) {
        vf got[3];
        for (int d = 0; d < 3; d++) got[d] = load(sum + d * BLOCK + i);
        for (int64_t k = 0; k < width; k += 2) {
            Trilinear t[2];
            interpolate(table + k, width, dense, cells, i, 1, t);
            for (int f = 0; f < 2; f++) {
                const vf value = steep * load(by_features + (k + f) * BLOCK + i);
                for (int d = 0; d < 3; d++) got[d] += value * t[f].slope[d];
                if (!sloped) continue;
                const vf by = curve * load(u + (k + f) * BLOCK + i);
                const vf x = by * load(given + i), y = by * load(given + BLOCK + i), z = by * load(given + 2 * BLOCK + i);
                got[0] += y * t[f].xy + z * t[f].xz;
                got[1] += x * t[f].xy + z * t[f].yz;
                got[2] += x * t[f].xz + y * t[f].yz;
            }
        }
        for (int d = 0; d < 3; d++) store(sum + d * BLOCK + i, got[d]);
    }
}

static void return_points(const Grid *e, Shape s, int64_t first, int64_t end, Returned r, float *dpoints) {
    ALIGNED float sums[CHUNK][3 * BLOCK];
    Cells cells;
    const int64_t w = e->width;
    for (int64_t b = first; b < end; b++)
        memcpy(sums[b - first], r.given + b * r.stride + 3 * BLOCK, 3 * BLOCK * sizeof(float));
    for (int64_t l = 0; l < e->levels; l++)
        for (int64_t b = first; e->weights[l] != 0 && b < end; b++) {
            const float *memory = r.memory + b * r.size, *pulled = memory + s.pulled * BLOCK;
            const float *given = r.given + b * r.stride;
            locate_block(memory, e->level + l, &cells);
            if (w != 2)
                return_cells(e, l, w, 0, &cells, pulled, given, r.sloped, sums[b - first]);
            else if (cells.hashed)
                return_cells(e, l, 2, 0, &cells, pulled, given, r.sloped, sums[b - first]);
            else
                return_cells(e, l, 2, 1, &cells, pulled, given, r.sloped, sums[b - first]);
        }
    for (int64_t b = first; b < end; b++)
        for (int64_t i = 0; i < live_of(e->n, b); i++)
            for (int d = 0; d < 3; d++) dpoints[3 * (b * BLOCK + i) + d] = sums[b - first][d * BLOCK + i];
}

/* Numbers of memory that a forward pass keeps for the backward pass; and, if it does not, that `threads` need. */
FW_EXPORT int64_t fw_sdf_memory(int64_t n, int64_t features, int64_t hidden, int sloped, int kept, int threads) {
    const Shape s = sdf_shape_of(n, features, hidden, sloped);
    return (kept ? s.blocks : s.chunk * threads) * s.rows * BLOCK;
}

/* f (n) and, unless NULL, its gradient g (n, 3). Returns how many points are outside [-1, 1]: what was written for
 * those means nothing. */
FW_EXPORT int64_t fw_sdf(int64_t n, const float *points, int64_t levels, int64_t width, const Level *level,
                         const float *weights, const float *table, int64_t hidden, const float *w1, const float *b1,
                         const float *w2, const float *b2, float sharpness, int threads, int kept, float *memory,
                         float *f, float *g) {
    const Grid e = {n, points, levels, width, level, weights, table};
    const Shape s = sdf_shape_of(n, levels * width, hidden, g != 0);
    int64_t found = 0;
#pragma omp parallel num_threads(threads) reduction(+ : found)
    {
        Packed packed;
        sdf_pack(s, (Network){hidden, w1, b1, w2, b2, sharpness}, &packed);
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < s.chunks; c++) {
            const int64_t first = c * s.chunk, end = first + s.chunk < s.blocks ? first + s.chunk : s.blocks;
            const int64_t size = s.rows * BLOCK, place = kept ? first : omp_get_thread_num() * s.chunk;
            float *own = memory + place * size;
            for (int64_t b = first; b < end; b++) found += lay_out(&e, s, b, own + (b - first) * size);
            for (int64_t l = 0; l < levels; l++) encode_level(&e, s, l, g != 0, end - first, own);
            for (int64_t b = first; b < end; b++) {
                const int64_t at = b * BLOCK;
                evaluate_block(s, &packed, live_of(n, b), own + (b - first) * size, f + at, g ? g + 3 * at : 0);
            }
        }
    }
    return found;
}

/* Numbers that a backward pass needs to work with. */
FW_EXPORT int64_t fw_sdf_scratch(int64_t n, int64_t features, int64_t hidden) {
    const Shape s = sdf_shape_of(n, features, hidden, 0);
    return s.blocks * (3 + s.inputs) * BLOCK + s.chunks * share_of(s);
}

/* From `memory` as the forward pass kept it, `sloped` saying whether that was with g. df and dg may be NULL. Gradients
 * of the weights are always written; dtable and dpoints unless NULL. */
FW_EXPORT void fw_sdf_backward(int64_t n, int64_t levels, int64_t width, const Level *level, const float *weights,
                               const float *table, int64_t hidden, const float *w1, const float *b1, const float *w2,
                               const float *b2, float sharpness, int threads, int sloped, const float *memory,
                               const float *df, const float *dg, float *scratch, float *dw1, float *db1, float *dw2,
                               float *db2, float *dtable, float *dpoints) {
    const Grid e = {n, 0, levels, width, level, weights, table};
    const Shape s = sdf_shape_of(n, levels * width, hidden, sloped);
    const int64_t size = s.rows * BLOCK, stride = (3 + s.inputs) * BLOCK;
    const Returned r = {memory, scratch, size, stride, dg != 0};
    float *shares = scratch + s.blocks * stride;
#pragma omp parallel num_threads(threads)
    {
        Packed packed;
        sdf_pack(s, (Network){hidden, w1, b1, w2, b2, sharpness}, &packed);
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < s.chunks; c++) {
            const int64_t first = c * s.chunk, end = first + s.chunk < s.blocks ? first + s.chunk : s.blocks;
            float *share = shares + c * share_of(s);
            memset(share, 0, (size_t)share_of(s) * sizeof(float));
            for (int64_t b = first; b < end; b++)
                return_block(s, &packed, live_of(n, b), memory + b * size, df ? df + b * BLOCK : 0,
                             dg ? dg + 3 * b * BLOCK : 0, scratch + b * stride, share);
        }
        if (dtable) {
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t l = levels - 1; l >= 0; l--) return_level(&e, s, l, r, dtable);
        }
        if (dpoints) {
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t c = 0; c < s.chunks; c++)
                return_points(&e, s, c * s.chunk, (c + 1) * s.chunk < s.blocks ? (c + 1) * s.chunk : s.blocks, r,
                              dpoints);
        }
    }
    gather_shares(s, hidden, shares, dw1, db1, dw2, db2);
}

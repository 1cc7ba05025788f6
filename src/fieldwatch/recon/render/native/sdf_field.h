/* Parts of the kernel of a neural SDF (see sdf_field.c) that a search along rays needs, too. */
#ifndef FIELDWATCH_SDF_FIELD_H
#define FIELDWATCH_SDF_FIELD_H

#define BLOCK 32 /* points at a time */
#include "lattice.h"

#define MOST_HIDDEN 256 /* units; mirrored in sdf_field_native.py, as is the next */
#define MOST_INPUTS 68  /* point, features and the constant, rounded up to ROWS */
#define ROWS 4          /* of a weight matrix that are multiplied together */

/* Sizes in rows of BLOCK numbers, but for `units`. A block's memory: its inputs, which are the point, the features and
 * the constant 1 whose weight is the bias; then, for the gradient, 3 slopes per feature, and u. */
typedef struct {
    int64_t features, inputs, units; /* the last two rounded up to ROWS */
    int64_t slopes, pulled, rows;    /* where slopes and u begin; all rows */
    int64_t blocks, chunk, chunks;   /* chunk: blocks in one */
} Shape;

typedef struct {
    int64_t hidden;
    const float *w1, *b1, *w2, *b2; /* w1: hidden x (3 + features) */
    float sharpness;
} Network;

/* The weights in the order in which they are multiplied. */
typedef struct {
    float down[MOST_HIDDEN * MOST_INPUTS]; /* of ROWS units: input by input */
    float up[MOST_HIDDEN * MOST_INPUTS];   /* of ROWS inputs: unit by unit */
    float out[MOST_HIDDEN];
    float last; /* bias */
    float sharpness;
} Packed;

Shape sdf_shape_of(int64_t n, int64_t features, int64_t hidden, int sloped);

void sdf_pack(Shape s, Network m, Packed *p);

/* f of the grid's points, in one go through the levels. `memory` has room for s.blocks blocks. Returns how many points
 * are outside [-1, 1]. */
int64_t sdf_values(const Grid *e, Shape s, const Packed *p, float *memory, float *f);

#endif

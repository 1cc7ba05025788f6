/* A visible Gaussian in the layout of the tile kernels, sorted by depth. */
#ifndef FIELDWATCH_TILES_H
#define FIELDWATCH_TILES_H

#include <stdint.h>

/* The whitening is scaled so that alpha = 2^(level - (l1 dx + l2 dy)^2 - (l3 dy)^2). 12 words; made by tiles.c. */
typedef struct {
    float x, y, l1, l2, l3, level; /* level: log2 of the opacity */
    float reach_x, reach_y;        /* half the box outside which alpha is under the threshold, px */
    float inverse; /* of the opacity */
    int32_t source; /* its row among the packed Gaussians */
    int32_t start;  /* number of its first pair of Gaussian and tile */
    float tilt;     /* dy of its rightmost point, px */
} Ranked;

#define RANKED_WORDS 12
#define HALF_LOG2E 0.72134752f

#endif

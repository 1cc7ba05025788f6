/* Opacities of ray sections (see compositing.c) for a search that looks for the visible ones. */
#ifndef FIELDWATCH_COMPOSITING_H
#define FIELDWATCH_COMPOSITING_H

#include <stdint.h>

/* Opacity of each of n sections, and what it leaves of the light, from the values at its ends: rounded as in
 * fw_composite_sections. */
void blend_opacities(int64_t n, double s, const float *start, const float *end, double *alpha, double *clear);

#endif

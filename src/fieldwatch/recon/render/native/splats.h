/* Shared by the splat kernels: the camera, in the memory layout of Python, and the constants of the blending. */
#ifndef FIELDWATCH_SPLATS_H
#define FIELDWATCH_SPLATS_H

#include <stdint.h>
#include <string.h>

#define TILE 16
#define THRESHOLD (1.0f / 255.0f) /* a smaller alpha does not contribute */
#define CEILING 0.99f             /* no larger alpha */
#define OPAQUE 1e-4f              /* behind a smaller transmittance nothing contributes */

/* A pinhole camera in OpenCV axes; mirrored by `CameraStruct` in splats/native.py. */
typedef struct {
    double rotation[9];    /* camera_from_world, row by row */
    double translation[3]; /* of camera_from_world */
    double position[3];    /* of the camera, in the world */
    double fx, fy, cx, cy, width, height;
    double near_plane;
    double eps2d;                    /* low-pass dilation: added to the variance on the image, px^2 */
    double left, right, top, bottom; /* the affine map is taken inside these x / z, y / z */
    int32_t antialiased;             /* whether opacity is lowered as the dilation widens the Gaussian */
} Camera;

/* Zeroes the rows of a gradient between two visible Gaussians. */
static inline void clear_rows(float *rows, int64_t from, int64_t to, int64_t width) {
    if (rows && to > from) memset(rows + from * width, 0, (size_t)((to - from) * width) * sizeof(float));
}

#endif

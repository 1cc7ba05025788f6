/* L1 and SSIM (Wang 2004) of two images [height, width, channels], and the gradient of the first image.
 *
 * Gaussian window of 11 x 11 pixels with sigma 1.5, zero padding. One block per tile of 16 x 16 pixels and channel. */
#include "kernel.h"

#define TILE_THREADS 256
#define SIDE 16
#define REACH 5
#define TAPS (2 * REACH + 1)
#define HALO (SIDE + 2 * REACH)
#define C1 (0.01f * 0.01f)
#define C2 (0.03f * 0.03f)

struct Place {
    int x, y, channel;
    bool inside;
    int64_t at;
};

DEVICE Place place_of(int block, int x, int y, int width, int height, int channels) {
    const int columns = (width + SIDE - 1) / SIDE, rows = (height + SIDE - 1) / SIDE, tile = block % (columns * rows);
    Place p;
    p.channel = block / (columns * rows);
    p.x = tile % columns * SIDE + x;
    p.y = tile / columns * SIDE + y;
    p.inside = p.x >= 0 && p.y >= 0 && p.x < width && p.y < height;
    p.at = ((int64_t)p.y * width + p.x) * channels + p.channel;
    return p;
}

/* Blurs `maps` maps of a tile with its surroundings: along rows into `line`, then across, into `out` of each thread. */
template <int maps> DEVICE void blur_along(const float *taps, const float *wide, float *line, int thread) {
    for (int k = thread; k < maps * HALO * SIDE; k += TILE_THREADS) {
        const float *from = wide + k / SIDE * HALO + k % SIDE;
        float sum = 0;
        UNROLL for (int t = 0; t < TAPS; t++) sum += taps[t] * from[t];
        line[k] = sum;
    }
}

DEVICE float blur_across(const float *taps, const float *line, int map, int thread) {
    float sum = 0;
    UNROLL for (int t = 0; t < TAPS; t++)
        sum += taps[t] * line[(map * HALO + thread / SIDE + t) * SIDE + thread % SIDE];
    return sum;
}

/* sums: per block, SSIM, absolute difference and squared difference. slopes: derivatives of the summed SSIM by mean,
 * squares and product, as three images; may be null. */
KERNEL(similarity_forward, TILE_THREADS, int width, int height, int channels, const float *taps, const float *image,
       const float *photo, float *sums, float *slopes) {
    SHARED(float, wide[2 * HALO * HALO]);
    SHARED(float, line[4 * HALO * SIDE]);
    SHARED(float, totals[3 * TILE_THREADS]);
    PHASE {
        for (int k = THREAD; k < HALO * HALO; k += TILE_THREADS) {
            const Place p = place_of(BLOCK, k % HALO - REACH, k / HALO - REACH, width, height, channels);
            wide[k] = p.inside ? image[p.at] : 0;
            wide[HALO * HALO + k] = p.inside ? photo[p.at] : 0;
        }
    }
    PHASE {
        for (int k = THREAD; k < HALO * SIDE; k += TILE_THREADS) {
            const float *a = wide + k / SIDE * HALO + k % SIDE, *b = a + HALO * HALO;
            float x = 0, y = 0, squares = 0, product = 0;
            UNROLL for (int t = 0; t < TAPS; t++) {
                x += taps[t] * a[t];
                y += taps[t] * b[t];
                squares += taps[t] * (a[t] * a[t] + b[t] * b[t]);
                product += taps[t] * (a[t] * b[t]);
            }
            line[k] = x;
            line[HALO * SIDE + k] = y;
            line[2 * HALO * SIDE + k] = squares;
            line[3 * HALO * SIDE + k] = product;
        }
    }
    PHASE {
        const Place p = place_of(BLOCK, THREAD % SIDE, THREAD / SIDE, width, height, channels);
        totals[THREAD] = totals[TILE_THREADS + THREAD] = totals[2 * TILE_THREADS + THREAD] = 0;
        if (!p.inside) continue;
        const float x = blur_across(taps, line, 0, THREAD), y = blur_across(taps, line, 1, THREAD);
        const float squares = blur_across(taps, line, 2, THREAD), product = blur_across(taps, line, 3, THREAD);
        const float xy = x * y, both = x * x + y * y;
        const float l = 2 * xy + C1, lb = both + C1, c = 2 * (product - xy) + C2, cb = squares - both + C2;
        const float scale = 1 / (lb * cb), s = l * c * scale;
        const int middle = (THREAD / SIDE + REACH) * HALO + THREAD % SIDE + REACH;
        totals[THREAD] = s;
        const float gap = wide[middle] - wide[HALO * HALO + middle];
        totals[TILE_THREADS + THREAD] = fabsf(gap);
        totals[2 * TILE_THREADS + THREAD] = gap * gap;
        if (!slopes) continue;
        const int64_t size = (int64_t)width * height * channels;
        slopes[p.at] = 2 * y * (c - l) * scale - 2 * x * s / lb + 2 * x * s / cb;
        slopes[size + p.at] = -s / cb;
        slopes[2 * size + p.at] = 2 * l * scale;
    }
    for (int half = TILE_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            totals[THREAD] += totals[THREAD + half];
            totals[TILE_THREADS + THREAD] += totals[TILE_THREADS + THREAD + half];
            totals[2 * TILE_THREADS + THREAD] += totals[2 * TILE_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD < 3) sums[3 * (int64_t)BLOCK + THREAD] = totals[THREAD * TILE_THREADS];
    }
}

/* By one block, from the sums of `parts` blocks: mean absolute difference, mean SSIM, the loss (1 - weight) L1 + weight
 * (1 - SSIM), and the PSNR in dB. `share` is one through the number of values. */
KERNEL(similarity_means, TILE_THREADS, int parts, float share, float weight, const float *sums, float *results) {
    SHARED(float, totals[3 * TILE_THREADS]);
    PHASE {
        float own[3] = {0, 0, 0};
        for (int64_t k = THREAD; k < parts; k += TILE_THREADS)
            UNROLL for (int j = 0; j < 3; j++) own[j] += sums[3 * k + j];
        UNROLL for (int j = 0; j < 3; j++) totals[j * TILE_THREADS + THREAD] = own[j];
    }
    for (int half = TILE_THREADS / 2; half; half /= 2) PHASE {
            if (THREAD >= half) continue;
            UNROLL for (int j = 0; j < 3; j++)
                totals[j * TILE_THREADS + THREAD] += totals[j * TILE_THREADS + THREAD + half];
        }
    PHASE {
        if (THREAD) continue;
        const float ssim = totals[0] * share, l1 = totals[TILE_THREADS] * share;
        results[0] = l1;
        results[1] = ssim;
        results[2] = (1 - weight) * l1 + weight * (1 - ssim);
        results[3] = -4.342944819032518f * logf(totals[2 * TILE_THREADS] * share); /* 10 / log(10) */
    }
}

/* The gradient by those of the mean absolute difference, of the mean SSIM and of the loss with its weight; each may be
 * null. */
KERNEL(similarity_backward, TILE_THREADS, int width, int height, int channels, const float *taps, const float *image,
       const float *photo, const float *slopes, float share, float weight, const float *by_l1, const float *by_ssim,
       const float *by_loss, float *gradient) {
    SHARED(float, wide[3 * HALO * HALO]);
    SHARED(float, line[3 * HALO * SIDE]);
    PHASE {
        const int64_t size = (int64_t)width * height * channels;
        for (int k = THREAD; k < HALO * HALO; k += TILE_THREADS) {
            const Place p = place_of(BLOCK, k % HALO - REACH, k / HALO - REACH, width, height, channels);
            for (int m = 0; m < 3; m++) wide[m * HALO * HALO + k] = p.inside ? slopes[m * size + p.at] : 0;
        }
    }
    PHASE { blur_along<3>(taps, wide, line, THREAD); }
    PHASE {
        const Place p = place_of(BLOCK, THREAD % SIDE, THREAD / SIDE, width, height, channels);
        if (!p.inside) continue;
        const float x = image[p.at], y = photo[p.at];
        const float slope = blur_across(taps, line, 0, THREAD) + 2 * x * blur_across(taps, line, 1, THREAD) +
                            y * blur_across(taps, line, 2, THREAD);
        const float sign = x > y ? 1.0f : x < y ? -1.0f : x == y ? 0.0f : x - y;
        const float loss = by_loss ? by_loss[0] : 0;
        const float l1 = (by_l1 ? by_l1[0] : 0) + (1 - weight) * loss;
        const float ssim = (by_ssim ? by_ssim[0] : 0) - weight * loss;
        gradient[p.at] = share * (sign * l1 + slope * ssim);
    }
}

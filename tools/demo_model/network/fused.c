/* Whole blocks of the network in one pass over memory: the hyper-connection's read with its backward, and the row
 * gathers of the mixture of experts. Blocks of ROWS tokens stay in the cache; float32 throughout, AVX2 and FMA. */
#include "product.h"
#include <math.h>
#include <string.h>

enum { STREAMS = 4, SIZE = 256, WIDE = STREAMS * SIZE, RANK = 32, LOW = 40, ROWS = 32, PITCH = WIDE + 16, PANEL = 16 };
/* LOW is RANK and the gates, padded to whole vectors. PITCH keeps rows of a block out of each other's cache sets. */

/* [rows, WIDE] -> panels of PANEL columns, each [rows, PANEL]. */
static float *panels(const float *matrix, long rows) {
    float *out = scratch(rows * WIDE);
    for (long n = 0; n < WIDE / PANEL; n++)
        for (long k = 0; k < rows; k++)
            memcpy(out + (n * rows + k) * PANEL, matrix + k * WIDE + n * PANEL, PANEL * sizeof(float));
    return out;
}

/* The norm of a block: rows beyond `rows` are zero. `inverse` is 1 / rms per stream. */
static void normalise(const float *wide, const float *weight, const float *inverse, float *normed, long rows) {
    for (long r = 0; r < ROWS; r++) {
        float *to = normed + r * PITCH;
        if (r >= rows) {
            memset(to, 0, WIDE * sizeof(float));
            continue;
        }
        for (int s = 0; s < STREAMS; s++) {
            float scale = inverse[r * STREAMS + s];
            for (int i = s * SIZE; i < (s + 1) * SIZE; i++) to[i] = wide[r * WIDE + i] * scale * (1.f + weight[i]);
        }
    }
}

/* The gate of every value of a block: sigmoid(up silu(low / STREAMS)); `active` is silu(low / STREAMS). */
static void mix_gates(const float *low, const float *up, float *active, float *mix) {
    for (long r = 0; r < ROWS; r++)
        for (int i = 0; i < RANK; i++) {
            float x = low[r * LOW + i] / STREAMS;
            active[r * RANK + i] = x / (1.f + expf(-x));
        }
    for (long n = 0; n < WIDE / PANEL; n++)
        product_16(ROWS, RANK, active, RANK, 1, up + n * RANK * PANEL, PANEL, mix + n * PANEL, PITCH, 0);
    for (long r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDE; i++) mix[r * PITCH + i] = 1.f / (1.f + expf(-mix[r * PITCH + i]));
}

/* wide [tokens, WIDE], weight [WIDE], joint [joint_rows, WIDE] (down, then the injection gates), up [WIDE, RANK]
 * -> read [tokens, SIZE], low [tokens, LOW], inverse [tokens, STREAMS]. */
void connection_read(const float *wide, const float *weight, const float *joint, const float *up, float *read,
                     float *low, float *inverse, long tokens, long joint_rows, float eps) {
    float *normed = scratch(ROWS * PITCH), *mix = scratch(ROWS * PITCH), *active = scratch(ROWS * RANK);
    float *turned = scratch(RANK * WIDE), *down = scratch(WIDE * LOW), *block = scratch(ROWS * LOW);
    for (long i = 0; i < WIDE; i++) {
        for (long k = 0; k < RANK; k++) turned[k * WIDE + i] = up[i * RANK + k];
        for (long k = 0; k < LOW; k++) down[i * LOW + k] = k < joint_rows ? joint[k * WIDE + i] : 0.f;
    }
    float *up_panels = panels(turned, RANK);
    for (long first = 0; first < tokens; first += ROWS) {
        long rows = tokens - first < ROWS ? tokens - first : ROWS;
        const float *from = wide + first * WIDE;
        for (long g = 0; g < rows * STREAMS; g++) {
            float sum = 0.f;
            for (int i = 0; i < SIZE; i++) sum += from[g * SIZE + i] * from[g * SIZE + i];
            inverse[first * STREAMS + g] = 1.f / sqrtf(sum / SIZE + eps);
        }
        normalise(from, weight, inverse + first * STREAMS, normed, rows);
        product_16(ROWS, WIDE, normed, PITCH, 1, down, LOW, block, LOW, 0);
        product_16(ROWS, WIDE, normed, PITCH, 1, down + 16, LOW, block + 16, LOW, 0);
        product_8(ROWS, WIDE, normed, PITCH, 1, down + 32, LOW, block + 32, LOW, 0);
        memcpy(low + first * LOW, block, rows * LOW * sizeof(float));
        mix_gates(block, up_panels, active, mix);
        for (long r = 0; r < rows; r++) {
            const float *m = mix + r * PITCH, *x = normed + r * PITCH;
            for (int i = 0; i < SIZE; i++)
                read[(first + r) * SIZE + i] = (m[i] * x[i] + m[SIZE + i] * x[SIZE + i] + m[2 * SIZE + i] * x[2 * SIZE + i] +
                                                m[3 * SIZE + i] * x[3 * SIZE + i]) / STREAMS;
        }
    }
    free(normed), free(mix), free(active), free(turned), free(down), free(block), free(up_panels);
}

/* The backward of the norm: normed_grad becomes the gradient of wide, weight_grad grows. */
static void norm_backward(const float *wide, const float *weight, const float *inverse, const float *normed_grad,
                          float *wide_grad, float *weight_grad, long rows) {
    for (long r = 0; r < rows; r++)
        for (int s = 0; s < STREAMS; s++) {
            const float *x = wide + r * WIDE + s * SIZE, *g = normed_grad + r * PITCH + s * SIZE, *w = weight + s * SIZE;
            float *to = wide_grad + r * WIDE + s * SIZE, *total = weight_grad + s * SIZE;
            float scale = inverse[r * STREAMS + s], dot = 0.f;
            for (int i = 0; i < SIZE; i++) {
                float unit = x[i] * scale;
                total[i] += g[i] * unit;
                dot += g[i] * (1.f + w[i]) * unit;
            }
            dot /= SIZE;
            for (int i = 0; i < SIZE; i++) to[i] = scale * (g[i] * (1.f + w[i]) - x[i] * scale * dot);
        }
}

/* read_grad [tokens, SIZE], low_extra [tokens, LOW] (the gradient of the injection gates' inputs, elsewhere zero)
 * -> the gradients of wide, weight, joint and up; the last three must be zero on entry. */
void connection_read_backward(const float *read_grad, const float *low_extra, const float *wide, const float *weight,
                              const float *joint, const float *up, const float *low, const float *inverse,
                              float *wide_grad, float *weight_grad, float *joint_grad, float *up_grad, long tokens,
                              long joint_rows) {
    float *normed = scratch(ROWS * PITCH), *mix = scratch(ROWS * PITCH), *normed_grad = scratch(ROWS * PITCH);
    float *active = scratch(ROWS * RANK), *block = scratch(ROWS * LOW), *low_grad = scratch(ROWS * LOW);
    float *turned = scratch(RANK * WIDE), *joint_total = scratch(LOW * PITCH);
    memset(joint_total, 0, LOW * PITCH * sizeof(float));
    for (long i = 0; i < WIDE; i++)
        for (long k = 0; k < RANK; k++) turned[k * WIDE + i] = up[i * RANK + k];
    float *up_panels = panels(turned, RANK), *joint_panels = panels(joint, joint_rows);
    for (long first = 0; first < tokens; first += ROWS) {
        long rows = tokens - first < ROWS ? tokens - first : ROWS;
        const float *from = wide + first * WIDE, *scales = inverse + first * STREAMS;
        memset(block, 0, ROWS * LOW * sizeof(float));
        memcpy(block, low + first * LOW, rows * LOW * sizeof(float));
        normalise(from, weight, scales, normed, rows);
        mix_gates(block, up_panels, active, mix);
        for (long r = 0; r < ROWS; r++)
            for (int s = 0; s < STREAMS; s++) {
                float *m = mix + r * PITCH + s * SIZE, *g = normed_grad + r * PITCH + s * SIZE;
                const float *x = normed + r * PITCH + s * SIZE, *out = read_grad + (first + r) * SIZE;
                if (r >= rows)
                    memset(m, 0, SIZE * sizeof(float)), memset(g, 0, SIZE * sizeof(float));
                else
                    for (int i = 0; i < SIZE; i++) {
                        float share = out[i] / STREAMS * m[i];
                        g[i] = share;
                        m[i] = share * x[i] * (1.f - m[i]);
                    }
            }
        /* mix now holds the gradient of up's product. */
        for (int n = 0; n < RANK; n += PANEL) {
            product_16(ROWS, WIDE, mix, PITCH, 1, up + n, RANK, low_grad + n, LOW, 0);
            product_16(WIDE, ROWS, mix, 1, PITCH, active + n, RANK, up_grad + n, RANK, 1);
        }
        for (long r = 0; r < ROWS; r++)
            for (int i = 0; i < LOW; i++) {
                float x = block[r * LOW + i] / STREAMS, open = 1.f / (1.f + expf(-x));
                float through = low_grad[r * LOW + i] * open * (1.f + x * (1.f - open)) / STREAMS;
                float direct = r < rows ? low_extra[(first + r) * LOW + i] : 0.f;
                low_grad[r * LOW + i] = i < RANK ? through : direct;
            }
        for (long n = 0; n < WIDE / PANEL; n++) {
            product_16(ROWS, joint_rows, low_grad, LOW, 1, joint_panels + n * joint_rows * PANEL, PANEL,
                       normed_grad + n * PANEL, PITCH, 1);
            product_16(joint_rows, ROWS, low_grad, 1, LOW, normed + n * PANEL, PITCH, joint_total + n * PANEL, PITCH, 1);
        }
        norm_backward(from, weight, scales, normed_grad, wide_grad + first * WIDE, weight_grad, rows);
    }
    for (long k = 0; k < joint_rows; k++) memcpy(joint_grad + k * WIDE, joint_total + k * PITCH, WIDE * sizeof(float));
    free(normed), free(mix), free(normed_grad), free(active), free(block), free(low_grad), free(turned);
    free(joint_total), free(up_panels), free(joint_panels);
}

/* out[r] = rows[order[r] / copies] */
void gather_rows(const float *rows, const long *order, float *out, long count, long width, long copies) {
    for (long r = 0; r < count; r++) memcpy(out + r * width, rows + order[r] / copies * width, width * sizeof(float));
}

/* out[t] = the sum of the `copies` rows rows[order[t * copies + c]] */
void gather_sum(const float *rows, const long *order, float *out, long count, long width, long copies) {
    for (long t = 0; t < count; t++) {
        float *to = out + t * width;
        memcpy(to, rows + order[t * copies] * width, width * sizeof(float));
        for (long c = 1; c < copies; c++) {
            const float *from = rows + order[t * copies + c] * width;
            for (long i = 0; i < width; i++) to[i] += from[i];
        }
    }
}

/* out[t] = sum over c of share[t, c] rows[place[t, c]] */
void gather_weighted(const float *rows, const float *share, const long *place, float *out, long count, long width,
                     long copies) {
    for (long t = 0; t < count; t++) {
        float *to = out + t * width;
        memset(to, 0, width * sizeof(float));
        for (long j = t * copies; j < (t + 1) * copies; j++) {
            const float *from = rows + place[j] * width;
            for (long i = 0; i < width; i++) to[i] += share[j] * from[i];
        }
    }
}

void gather_weighted_backward(const float *grad, const float *rows, const float *share, const long *place,
                              float *rows_grad, float *share_grad, long count, long width, long copies) {
    for (long j = 0; j < count * copies; j++) {
        const float *out = grad + j / copies * width, *from = rows + place[j] * width;
        float *to = rows_grad + place[j] * width, sum = 0.f;
        for (long i = 0; i < width; i++) {
            to[i] = share[j] * out[i];
            sum += from[i] * out[i];
        }
        share_grad[j] = sum;
    }
}

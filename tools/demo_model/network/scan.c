/* The loop over chunks of the delta rule, one head at a time so that its state stays in the cache. */
#include "product.h"
#include <string.h>

enum { SIDE = 64, AREA = SIDE * SIDE };
/* Chunk length, key size and value size are all SIDE. */

static void multiply(const float *a, long a_m, long a_k, const float *b, float *c, int add) {
    for (long n = 0; n < SIDE; n += 16) product_16(SIDE, SIDE, a, a_m, a_k, b + n, SIDE, c + n, SIDE, add);
}

static void transpose(const float *from, float *to) {
    for (long i = 0; i < SIDE; i++)
        for (long j = 0; j < SIDE; j++) to[j * SIDE + i] = from[i * SIDE + j];
}

/* update, erase, query, key, fresh, read [heads, chunks, SIDE, SIDE], kept [heads, chunks], states [chunks, heads, ...] */
void delta_scan(const float *update, const float *erase, const float *query, const float *key, const float *kept,
                float *fresh, float *read, float *states, long heads, long chunks) {
    float *negative = scratch(AREA);
    for (long h = 0; h < heads; h++)
        for (long n = 0; n < chunks; n++) {
            long at = (h * chunks + n) * AREA;
            float *state = states + (n * heads + h) * AREA, *next = state + heads * AREA;
            if (n == 0) memset(state, 0, AREA * sizeof(float));
            for (int i = 0; i < AREA; i++) negative[i] = -state[i];
            memcpy(fresh + at, update + at, AREA * sizeof(float));
            multiply(erase + at, SIDE, 1, negative, fresh + at, 1);
            multiply(query + at, SIDE, 1, state, read + at, 0);
            if (n == chunks - 1) continue;
            for (int i = 0; i < AREA; i++) next[i] = state[i] * kept[h * chunks + n];
            multiply(key + at, 1, SIDE, fresh + at, next, 1);
        }
    free(negative);
}

void delta_scan_backward(const float *fresh_grad, const float *read_grad, const float *fresh, const float *states,
                         const float *erase, const float *query, const float *key, const float *kept,
                         float *update_grad, float *erase_grad, float *query_grad, float *key_grad, float *kept_grad,
                         long heads, long chunks) {
    float *after = scratch(AREA), *turned = scratch(AREA), *negative = scratch(AREA);
    for (long h = 0; h < heads; h++) {
        memset(after, 0, AREA * sizeof(float));
        for (long n = chunks - 1; n >= 0; n--) {
            long at = (h * chunks + n) * AREA;
            const float *state = states + (n * heads + h) * AREA;
            float *total = update_grad + at, sum = 0.f;
            memcpy(total, fresh_grad + at, AREA * sizeof(float));
            multiply(key + at, SIDE, 1, after, total, 1);
            transpose(after, turned);
            multiply(fresh + at, SIDE, 1, turned, key_grad + at, 0);
            transpose(state, turned);
            multiply(read_grad + at, SIDE, 1, turned, query_grad + at, 0);
            for (int i = 0; i < AREA; i++) turned[i] = -turned[i];
            multiply(total, SIDE, 1, turned, erase_grad + at, 0);
            for (int i = 0; i < AREA; i++) {
                sum += state[i] * after[i];
                after[i] *= kept[h * chunks + n];
                negative[i] = -total[i];
            }
            kept_grad[h * chunks + n] = sum;
            multiply(query + at, 1, SIDE, read_grad + at, after, 1);
            multiply(erase + at, 1, SIDE, negative, after, 1);
        }
    }
    free(after), free(turned), free(negative);
}

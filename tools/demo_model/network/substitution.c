/* T = (I + A)^-1 by forward substitution, for a batch of strictly lower triangular C x C matrices. */
#include <string.h>

void unit_lower_inverse(const float *batch_a, float *batch_t, long batch, long size) {
    for (long b = 0; b < batch; b++) {
        const float *a = batch_a + b * size * size;
        float *t = batch_t + b * size * size;
        for (long i = 0; i < size; i++) {
            float *row = t + i * size;
            memset(row, 0, size * sizeof(float));
            row[i] = 1.f;
            for (long j = 0; j < i; j++) {
                float c = a[i * size + j];
                const float *done = t + j * size;
                long width = (j + 8) & ~7L; /* row j is zero right of its diagonal */
                if (width > size) width = size;
                for (long k = 0; k < width; k++) row[k] -= c * done[k];
            }
        }
    }
}

/* One step of Muon for many small matrices: each is read once, orthogonalised in the cache and written once. */
#include "product.h"
#include <math.h>

enum { SIDE = 64, AREA = SIDE * SIDE, LONGEST = 1024 };

/* out = a b, where a, b and out are symmetric [SIDE, SIDE]: half is computed, half is mirrored. */
static void symmetric(const float *a, long a_m, long a_k, const float *b, long k_count, float *out) {
    for (long n = 0; n < SIDE; n += 16) {
        product_16(SIDE - n, k_count, a + n * a_m, a_m, a_k, b + n, SIDE, out + n * SIDE + n, SIDE, 0);
        for (long i = n + 16; i < SIDE; i++)
            for (long j = n; j < n + 16; j++) out[j * SIDE + i] = out[i * SIDE + j];
    }
}

/* gram becomes the matrix by which the original is multiplied, `scale` times; work holds 4 AREA floats. */
static void newton_schulz(float *gram, float *work, const float *abc, float scale) {
    float *square = work, *polynomial = work + AREA, *product = work + 2 * AREA, *spare = work + 3 * AREA;
    for (int step = 0; step < 5; step++) {
        symmetric(gram, SIDE, 1, gram, SIDE, square);
        for (int i = 0; i < AREA; i++) polynomial[i] = abc[1] * gram[i] + abc[2] * square[i];
        for (int i = 0; i < SIDE; i++) polynomial[i * SIDE + i] += abc[0];
        if (step == 0)
            for (int i = 0; i < AREA; i++) product[i] = polynomial[i];
        else {
            symmetric(polynomial, SIDE, 1, product, SIDE, spare);
            float *swapped = product;
            product = spare, spare = swapped;
        }
        if (step < 4) {
            symmetric(polynomial, SIDE, 1, gram, SIDE, spare);
            symmetric(spare, SIDE, 1, polynomial, SIDE, gram);
        }
    }
    for (int i = 0; i < AREA; i++) gram[i] = product[i] * scale;
}

/* momentum, grad, p: `count` matrices [SIDE, length], or [length, SIDE] if tall; length divides by 16, at most LONGEST.
 * momentum = decay momentum + grad; p = keep p - rate orthogonal(grad + decay momentum). abc: the polynomial. */
void muon_step(float *momentum, const float *grad, float *p, const float *abc, long count, long length, long tall,
               float decay, float keep, float rate) {
    long size = SIDE * length;
    float *update = scratch(size), *turned = scratch(size), *gram = scratch(AREA), *work = scratch(4 * AREA);
    for (long e = 0; e < count; e++, momentum += size, grad += size, p += size) {
        float squares = 0.f;
        for (long i = 0; i < size; i++) {
            momentum[i] = decay * momentum[i] + grad[i];
            update[i] = grad[i] + decay * momentum[i];
            squares += update[i] * update[i];
        }
        float inverse = 1.f / (sqrtf(squares) + 1e-7f);
        if (tall)
            symmetric(update, 1, SIDE, update, length, gram);
        else {
            for (long k = 0; k < length; k++)
                for (long i = 0; i < SIDE; i++) turned[k * SIDE + i] = update[i * length + k];
            symmetric(update, length, 1, turned, length, gram);
        }
        for (int i = 0; i < AREA; i++) gram[i] *= inverse * inverse;
        newton_schulz(gram, work, abc, inverse * rate);
        if (tall)
            for (long n = 0; n < SIDE; n += 16)
                product_16(length, SIDE, update, SIDE, 1, gram + n, SIDE, turned + n, SIDE, 0);
        else
            for (long n = 0; n < length; n += 16)
                product_16(SIDE, SIDE, gram, SIDE, 1, update + n, length, turned + n, length, 0);
        for (long i = 0; i < size; i++) p[i] = keep * p[i] - turned[i];
    }
    free(update), free(turned), free(gram), free(work);
}

/* A small matrix product whose right side stays in the cache, for AVX2 and FMA. */
#include <immintrin.h>
#include <stdlib.h>

/* C[m,n] (+)= sum_k A[m,k] B[k,n] for M a multiple of MR and N = 8 NV; A is read one value at a time. */
#define PRODUCT(NAME, MR, NV)                                                                                          \
    static inline void NAME(long m_count, long k_count, const float *a, long a_m, long a_k, const float *b, long b_k,  \
                            float *c, long c_m, int add) {                                                             \
        for (long m = 0; m < m_count; m += MR) {                                                                       \
            __m256 sum[MR][NV];                                                                                        \
            for (int i = 0; i < MR; i++)                                                                               \
                for (int j = 0; j < NV; j++)                                                                           \
                    sum[i][j] = add ? _mm256_loadu_ps(c + (m + i) * c_m + 8 * j) : _mm256_setzero_ps();                \
            const float *from = a + m * a_m;                                                                           \
            for (long k = 0; k < k_count; k++) {                                                                       \
                __m256 row[NV];                                                                                        \
                for (int j = 0; j < NV; j++) row[j] = _mm256_loadu_ps(b + k * b_k + 8 * j);                            \
                for (int i = 0; i < MR; i++) {                                                                         \
                    __m256 value = _mm256_broadcast_ss(from + i * a_m + k * a_k);                                      \
                    for (int j = 0; j < NV; j++) sum[i][j] = _mm256_fmadd_ps(value, row[j], sum[i][j]);                \
                }                                                                                                      \
            }                                                                                                          \
            for (int i = 0; i < MR; i++)                                                                               \
                for (int j = 0; j < NV; j++) _mm256_storeu_ps(c + (m + i) * c_m + 8 * j, sum[i][j]);                   \
        }                                                                                                              \
    }
PRODUCT(product_6_rows, 6, 2)
PRODUCT(product_4_rows, 4, 2)
PRODUCT(product_2_rows, 2, 2)
PRODUCT(product_8, 8, 1)

/* The product with N = 16 for any even M. */
static inline void product_16(long m_count, long k_count, const float *a, long a_m, long a_k, const float *b, long b_k,
                              float *c, long c_m, int add) {
    long six = m_count / 6 * 6, four = (m_count - six) / 4 * 4, done = six + four;
    product_6_rows(six, k_count, a, a_m, a_k, b, b_k, c, c_m, add);
    product_4_rows(four, k_count, a + six * a_m, a_m, a_k, b, b_k, c + six * c_m, c_m, add);
    product_2_rows(m_count - done, k_count, a + done * a_m, a_m, a_k, b, b_k, c + done * c_m, c_m, add);
}


static float *scratch(long floats) { return aligned_alloc(64, (floats * sizeof(float) + 63) & ~63L); }


/* The kernel for processors with AVX2. Bytes are widened to 16 bits and multiplied in pairs into 32 bits (vpmaddwd), which is
 * exact; the byte product vpmaddubsw saturates and is not used. */
#include "kernel.h"

#if defined(PLTZ_X86)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,bmi2")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { TOGETHER = 4 }; /* rows multiplied together: their sums fit the registers */

INLINE __m256i load_halves(const void *p) { /* 4 numbers of 16 bits, four times */
    long long v;
    __builtin_memcpy(&v, p, 8);
    return _mm256_set1_epi64x(v);
}

/* 8 channels from two vectors of partial sums */
INLINE __m256i join(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8); }

INLINE __m256i widen(const int unsigned_bytes, const void *p) {
    const __m128i bytes = _mm_loadu_si128(p);
    return unsigned_bytes ? _mm256_cvtepu8_epi16(bytes) : _mm256_cvtepi8_epi16(bytes);
}

/* R rows times 8 channels in registers: acc[r][c] = sum over k of row[r][k] * channels[k / 4][c][k % 4], where `step` bytes
 * lie between steps of k / 4. A sum is kept as two, of k % 4 in 0, 1 and in 2, 3. R and unsigned_bytes are constants. */
INLINE void micro(const int R, const int unsigned_bytes, const int16_t *rows, size_t stride, const void *channels, size_t step,
                  int quads, int32_t *acc, size_t pitch) {
    const char *at = channels;
    __m256i sums[TOGETHER][2];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int k = 0; k < quads; k++, at += step, rows += 4) {
        const __m256i v = widen(unsigned_bytes, at), w = widen(unsigned_bytes, at + 16);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const __m256i a = load_halves(rows + r * stride);
            sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(v, a));
            sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(w, a));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) _mm256_storeu_si256((__m256i *)(acc + r * pitch), join(sums[r][0], sums[r][1]));
}

INLINE void micro_rows(const int unsigned_bytes, const int16_t *rows, size_t stride, int count, const void *channels, size_t step,
                       int quads, int32_t *acc, size_t pitch) {
    for (; count >= 4; count -= 4, rows += 4 * stride, acc += 4 * pitch) {
        micro(4, unsigned_bytes, rows, stride, channels, step, quads, acc, pitch);
    }
    if (count >= 2) {
        micro(2, unsigned_bytes, rows, stride, channels, step, quads, acc, pitch);
        count -= 2, rows += 2 * stride, acc += 2 * pitch;
    }
    if (count) micro(1, unsigned_bytes, rows, stride, channels, step, quads, acc, pitch);
}

TARGET static void tile(const int8_t *w, const int32_t *sum, int blocks, int quads, const uint8_t *a, int stride, int rows,
                        int32_t *acc) {
    enum { WIDEST = 8192 };
    int16_t wide[TOGETHER * WIDEST];
    const size_t pitch = (size_t)blocks * 16;
    (void)sum;
    for (int r = 0; r < rows; r += TOGETHER) {
        const int count = rows - r < TOGETHER ? rows - r : TOGETHER;
        for (int i = 0; i < count; i++) {
            for (int k = 0; k < stride; k++) wide[i * stride + k] = a[(size_t)(r + i) * stride + k];
        }
        for (int c = 0; c < blocks * 16; c += 8) {
            const int8_t *channels = w + (size_t)(c / 16) * quads * 64 + c % 16 * 4;
            micro_rows(0, wide, (size_t)stride, count, channels, 64, quads, acc + r * pitch + c, pitch);
        }
    }
}

TARGET static void scores(const uint8_t *keys, int n, const int8_t *q, int dp, int queries, int32_t *score, size_t pitch) {
    int16_t wide[QUERIES * HEAD_WIDTH];
    for (int i = 0; i < queries * dp; i++) wide[i] = q[i];
    for (int k = 0; k < n; k += 8) {
        const uint8_t *channels = keys + (size_t)(k / 16) * 16 * dp + k % 16 * 4;
        micro_rows(1, wide, (size_t)dp, queries, channels, 64, dp / 4, score + k, pitch);
    }
}

/* See kernel_plain.c for what the clamp may do. AVX2 has no arithmetic shift of 64 bits: |y| < 2^60, so 2^60 is added before a
 * logical one and 2^36 taken away after it. */
INLINE __m256i scale_four(__m256i dot, __m256i m) {
    const __m256i bias = _mm256_set1_epi64x((1ll << 60) + (1 << 23)), back = _mm256_set1_epi64x(1ll << 36);
    const __m256i most = _mm256_set1_epi64x(1 << 30), least = _mm256_set1_epi64x(-(1 << 30));
    __m256i y = _mm256_srli_epi64(_mm256_add_epi64(_mm256_mul_epi32(dot, m), bias), 24);
    y = _mm256_sub_epi64(y, back);
    y = _mm256_blendv_epi8(y, most, _mm256_cmpgt_epi64(y, most));
    return _mm256_blendv_epi8(y, least, _mm256_cmpgt_epi64(least, y));
}

TARGET static void rescale(int32_t *acc, const int32_t *offset, const int32_t *m, int n) {
    for (int i = 0; i < n; i += 8) {
        const __m256i scale = _mm256_loadu_si256((const __m256i *)(m + i));
        const __m256i dot = _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(acc + i)), _mm256_loadu_si256((const __m256i *)(offset + i)));
        const __m256i even = scale_four(dot, scale);
        const __m256i odd = scale_four(_mm256_srli_epi64(dot, 32), _mm256_srli_epi64(scale, 32));
        _mm256_storeu_si256((__m256i *)(acc + i), _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
    }
}

/* the highest of most and n scores */
TARGET static int32_t maximum(const int32_t *score, int n, int32_t most) {
    for (int k = 0; k < n; k++) most = score[k] > most ? score[k] : most;
    return most;
}

INLINE __m256i weigh_eight(const int32_t *score, __m256i most, __m256i far, __m256i heat, const uint32_t *weights) {
    __m256i e = _mm256_min_epu32(_mm256_sub_epi32(most, _mm256_loadu_si256((const __m256i *)score)), far);
    e = _mm256_srli_epi32(_mm256_mullo_epi32(e, heat), 16); /* far_enough in kernel_plain.c: below 2^32 */
    e = _mm256_min_epu32(e, _mm256_set1_epi32(1023));
    return _mm256_i32gather_epi32((const int *)weights, e, 4);
}

TARGET static uint32_t weigh(const int32_t *score, int n, int32_t high, uint32_t heat, const uint16_t *weight, const uint32_t *weights,
                             uint16_t *out) {
    uint32_t sum = 0;
    (void)weight;
    const __m256i most = _mm256_set1_epi32(high), scale = _mm256_set1_epi32((int32_t)heat);
    const __m256i far = _mm256_set1_epi32(heat ? (int32_t)((1023u * 65536u + heat - 1) / heat) : 0);
    for (int k = 0; k < n; k += 16) { /* score and out have room for a multiple of 64 */
        const __m256i a = weigh_eight(score + k, most, far, scale, weights), b = weigh_eight(score + k + 8, most, far, scale, weights);
        _mm256_storeu_si256((__m256i *)(out + k), _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
    }
    for (int k = 0; k < n; k++) sum += out[k];
    return sum;
}

/* p - 2^15 for p = rs(w * t, 24), so that it fits a signed 16-bit factor; a query after the other. See attend(). */
TARGET static void share(const uint16_t *w, int n, uint32_t t, void *shares, int query) {
    int16_t *to = (int16_t *)shares + query * CHUNK;
    const __m256i a = _mm256_set1_epi16((int16_t)(t >> 9)), b = _mm256_set1_epi16((int16_t)((t & 511) << 7));
    const __m256i half = _mm256_set1_epi16((1 << 14) - 1), sign = _mm256_set1_epi16(-32768);
    for (int k = 0; k < n; k += 16) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(w + k));
        const __m256i c = _mm256_add_epi16(_mm256_mulhi_epu16(v, b), half);
        const __m256i high = _mm256_mulhi_epu16(v, a), low = _mm256_srli_epi16(_mm256_avg_epu16(_mm256_mullo_epi16(v, a), c), 14);
        const __m256i share = _mm256_add_epi16(_mm256_add_epi16(high, high), low);
        _mm256_storeu_si256((__m256i *)(to + k), _mm256_xor_si256(share, sign));
    }
}

/* sum of p v = sum of (p - 2^15) v + 2^15 sum of v; each stays below 2^15 * 2^7 * CHUNK = 2^30. */
TARGET static void mix(const int8_t *values, int n, int dv, const void *shares, int queries, int32_t *mixed) {
    int16_t ones[CHUNK];
    int32_t sums[QUERIES * HEAD_WIDTH], all[HEAD_WIDTH];
    for (int k = 0; k < CHUNK; k++) ones[k] = 1;
    for (int i = 0; i < dv; i += 8) {
        micro_rows(0, ones, CHUNK, 1, values + i * 4, (size_t)dv * 4, n / 4, all + i, (size_t)dv);
        micro_rows(0, shares, CHUNK, queries, values + i * 4, (size_t)dv * 4, n / 4, sums + i, (size_t)dv);
    }
    for (int r = 0; r < queries; r++) {
        for (int i = 0; i < dv; i++) mixed[r * dv + i] += sums[r * dv + i] + all[i] * (1 << 15);
    }
}

#include "kernel_body.h"

static int supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
}

const Kernel pltz_avx2 = {"avx2", supported, 0, 0, multiply, norm, turn, attend, gained, turn_only, gate, 0};
#endif

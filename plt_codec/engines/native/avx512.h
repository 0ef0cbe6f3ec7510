/* The part shared by the kernels with AVX-512: the VNNI products and the arithmetic between products. Define TARGET
 * and SIGNED_KEYS (0 or 1) first. */
#ifndef PLTZ_AVX512_H
#define PLTZ_AVX512_H

#include <immintrin.h>

#include "kernel.h"

#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE int32_t load_quad(const void *p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return v;
}

/* Blocks of 16 channels: their place, the distance from one block and from one step of 4 inputs to the next, the
 * steps. */
typedef struct {
    const void *at;
    size_t block, quad;
    int quads;
    const char *next; /* wanted next, probably: one line of it is fetched in each step */
} Blocks;

/* Lines of the next data that a step of so many rows fetches: 16 rows are to fetch as many as they read. */
#define LINES(rows) ((rows) == 6 ? 1 : (rows) > 1 ? 2 : 4)

/* Multiply R rows and B blocks in registers: acc[r][16 b + c] = sum over k of row[r][k] * block[b][k / 4][c][k % 4].
 * The unsigned side is the rows (activations) or, when swapped, the blocks (keys, made so where they have a sign).
 * `more`: add to the content of acc. R, B, swapped and more are constants. */
INLINE void micro(const int R, const int B, const int swapped, const int more, const void *rows, size_t stride,
                  Blocks blocks, int32_t *acc, size_t pitch) {
    __m512i sum[6][4];
    const char *row = rows, *block = blocks.at;
    const int lines = LINES(R);
    const __m512i sign = _mm512_set1_epi8(swapped && SIGNED_KEYS ? -128 : 0); /* no instruction where it is 0 */
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int b = 0; b < B; b++)
            sum[r][b] = more ? _mm512_loadu_si512(acc + r * pitch + b * 16) : _mm512_setzero_si512();
    }
    for (int k = 0; k < blocks.quads; k++, block += blocks.quad) {
        __m512i w[4];
#pragma GCC unroll 4
        for (int line = 0; line < lines; line++)
            _mm_prefetch(blocks.next + ((size_t)k * lines + line) * 64, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) w[b] = _mm512_xor_si512(_mm512_loadu_si512(block + b * blocks.block), sign);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const __m512i a = _mm512_set1_epi32(load_quad(row + r * stride + k * 4));
#pragma GCC unroll 4
            for (int b = 0; b < B; b++) {
                sum[r][b] = swapped ? _mm512_dpbusd_epi32(sum[r][b], w[b], a) : _mm512_dpbusd_epi32(sum[r][b], a, w[b]);
            }
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int b = 0; b < B; b++) _mm512_storeu_si512(acc + r * pitch + b * 16, sum[r][b]);
    }
}

/* Multiply rows: those past the last six go in fours, twos and ones. Eight go in fours, which fetch as many lines as
 * they read: a step of the decoder has eight rows where a session is decoded alone. */
INLINE void micro_rows(const int B, const int swapped, const int more, const void *rows, size_t stride, int count,
                       Blocks blocks, int32_t *acc, size_t pitch) {
    const char *row = rows;
    const size_t fetched = (size_t)blocks.quads * 64;
    const int eight = count == 8;
    for (; count >= 6 && !eight; count -= 6, row += 6 * stride, acc += 6 * pitch, blocks.next += fetched) {
        micro(6, B, swapped, more, row, stride, blocks, acc, pitch);
    }
    while (count >= 4) {
        micro(4, B, swapped, more, row, stride, blocks, acc, pitch);
        count -= 4, row += 4 * stride, acc += 4 * pitch, blocks.next += fetched * LINES(4);
    }
    if (count >= 2) {
        micro(2, B, swapped, more, row, stride, blocks, acc, pitch);
        count -= 2, row += 2 * stride, acc += 2 * pitch, blocks.next += fetched * LINES(2);
    }
    if (count) micro(1, B, swapped, more, row, stride, blocks, acc, pitch);
}

INLINE void all_blocks(const int swapped, const int more, const void *rows, size_t stride, int count, Blocks blocks,
                       int number, int32_t *acc, size_t pitch) {
    int b = 0;
    for (; b + 4 <= number; b += 4, acc += 64) {
        micro_rows(4, swapped, more, rows, stride, count, blocks, acc, pitch);
        blocks.at = (const char *)blocks.at + 4 * blocks.block;
        blocks.next += 4 * blocks.block;
    }
    for (; b < number; b++, acc += 16) {
        micro_rows(1, swapped, more, rows, stride, count, blocks, acc, pitch);
        blocks.at = (const char *)blocks.at + blocks.block;
        blocks.next += blocks.block;
    }
}

TARGET static void vnni_scores(const uint8_t *keys, int n, const int8_t *q, int dp, int queries, int32_t *score,
                               size_t pitch) {
    for (int k = 0; k < n; k += 64) { /* n is a multiple of it */
        const Blocks blocks = {keys + (size_t)k * dp, (size_t)dp * 16, 64, dp / 4,
                               (const char *)keys + (size_t)(k + 64) * dp};
        micro_rows(4, 1, 0, q, (size_t)dp, queries, blocks, score + k, pitch);
    }
}

/* Multiply the high bytes of a query's weights and values. All but a few in a hundred are 0: a byte is 0 while its
 * key has less than 1/256 of the weight. So only fours of keys that have one are multiplied. B (constant):
 * dimensions / 16. */
INLINE void mix_high(const int B, const int8_t *values, int n, const uint8_t *high, int32_t *mixed) {
    __m512i sum[HEAD_WIDTH / 16];
    uint64_t some = 0; /* one bit per four of the CHUNK keys */
    for (int k = 0; k < n; k += 64) {
        const __m512i bytes = _mm512_loadu_si512(high + k);
        some |= (uint64_t)_mm512_test_epi32_mask(bytes, bytes) << k / 4;
    }
    if (!some) return;
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) sum[b] = _mm512_setzero_si512();
    for (; some; some &= some - 1) {
        const int quad = __builtin_ctzll(some);
        const __m512i a = _mm512_set1_epi32(load_quad(high + quad * 4));
#pragma GCC unroll 4
        for (int b = 0; b < B; b++)
            sum[b] = _mm512_dpbusd_epi32(sum[b], a, _mm512_loadu_si512(values + (quad * B + b) * 64));
    }
#pragma GCC unroll 4
    for (int b = 0; b < B; b++) {
        const __m512i before = _mm512_loadu_si512(mixed + b * 16);
        _mm512_storeu_si512(mixed + b * 16, _mm512_add_epi32(before, _mm512_slli_epi32(sum[b], 8)));
    }
}

/* Multiply both bytes of the weights and the values; a block is 16 dimensions. */
TARGET static void vnni_mix(const int8_t *values, int n, int dv, const void *shares, int queries, int32_t *mixed) {
    const uint8_t *high = shares, *low = high + QUERIES * CHUNK;
    const Blocks blocks = {values, 64, (size_t)dv * 4, n / 4, (const char *)values + (size_t)n * dv};
    all_blocks(0, 1, low, CHUNK, queries, blocks, dv / 16, mixed, (size_t)dv);
    for (int r = 0; r < queries; r++, high += CHUNK, mixed += dv) {
        switch (dv / 16) {
        case 1: mix_high(1, values, n, high, mixed); break;
        case 2: mix_high(2, values, n, high, mixed); break;
        case 3: mix_high(3, values, n, high, mixed); break;
        default: mix_high(4, values, n, high, mixed);
        }
    }
}

/* Scale 16 sums: rs((acc + offset) * m, 24). See kernel_plain.c for the clamp; `odd`: m of the odd channels, in even
 * places. */
INLINE __m512i rescale(const int narrow, __m512i acc, __m512i offset, __m512i m, __m512i odd) {
    const __m512i half = _mm512_set1_epi64(1 << 23), most = _mm512_set1_epi64(1 << 30),
                  least = _mm512_set1_epi64(-(1 << 30));
    const __m512i dot = _mm512_add_epi32(acc, offset);
    __m512i a = _mm512_add_epi64(_mm512_mul_epi32(dot, m), half);
    __m512i b = _mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(dot, 32), odd), half);
    if (narrow) return _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(a, 24), _mm512_slli_epi64(b, 8));
    a = _mm512_max_epi64(_mm512_min_epi64(_mm512_srai_epi64(a, 24), most), least);
    b = _mm512_max_epi64(_mm512_min_epi64(_mm512_srai_epi64(b, 24), most), least);
    return _mm512_mask_blend_epi32(0xaaaa, a, _mm512_slli_epi64(b, 32));
}

INLINE __m512i between(__m512i a, int low, int high) {
    return _mm512_max_epi32(_mm512_min_epi32(a, _mm512_set1_epi32(high)), _mm512_set1_epi32(low));
}

/* Write one output of 16 channels; `at`: its distance from the product's first one. */
INLINE void put(const Output kind, const Product *p, size_t at, __m512i y, __m512i bias) {
    if (kind == TO_QKV) {
        const __m256i halves = _mm512_cvtsepi32_epi16(y);
        _mm256_storeu_si256((__m256i *)(p->qkv + at), _mm256_max_epi16(halves, _mm256_set1_epi16(-32767)));
    } else if (kind == TO_RESIDUAL) {
        y = _mm512_add_epi32(y, _mm512_loadu_si512(p->x + at));
        _mm512_storeu_si512(p->x + at, between(y, -RESIDUAL_MAX, RESIDUAL_MAX));
    } else if (kind == TO_HIDDEN) {
        y = between(y, 0, 255);
        y = _mm512_srli_epi32(_mm512_add_epi32(_mm512_mullo_epi16(y, y), _mm512_set1_epi32(128)), 8); /* below 2^16 */
        _mm_storeu_si128((__m128i *)(p->hidden + at), _mm512_cvtepi32_epi8(y));
    } else {
        _mm512_storeu_si512(p->x + at, _mm512_add_epi32(y, bias));
    }
}

INLINE void finish_as(const int narrow, const Output kind, const Product *given, const int32_t *sums) {
    const Product copy = *given, *p = &copy; /* as far as the compiler sees, no store can change it */
    for (int b = 0; b < p->blocks * 16; b += 16) {
        const int channel = p->block * 16 + b;
        const __m512i offset = _mm512_loadu_si512(p->matrix->offset + channel),
                      m = _mm512_loadu_si512(p->matrix->m + channel);
        const __m512i odd = _mm512_srli_epi64(m, 32), bias = kind == TO_LOGITS ? _mm512_loadu_si512(p->bias + b) : m;
        for (int r = 0; r < p->rows; r++) {
            const __m512i y = rescale(narrow, _mm512_loadu_si512(sums + r * p->blocks * 16 + b), offset, m, odd);
            put(kind, p, r * p->out_stride + b, y, bias);
        }
    }
}

#include "finish.h"

#define OWN_MULTIPLY 1
enum { NEAR = 104 }; /* steps of 4 inputs at a time: their weights for 4 blocks stay in the first cache for all rows */

TARGET static void multiply(const Product *p, Scratch *s) {
    const size_t stride = (size_t)p->matrix->stride, pitch = (size_t)p->blocks * 16;
    const int quads = (int)stride / 4;
    Blocks blocks = {p->matrix->w + p->block * 16 * stride, stride * 16, 64, quads < NEAR ? quads : NEAR,
                     (const char *)p->next};
    all_blocks(0, 0, p->a, stride, p->rows, blocks, p->blocks, s->acc, pitch);
    for (int k = blocks.quads; k < quads; k += NEAR) {
        blocks.at = (const char *)blocks.at + blocks.quads * 64;
        blocks.next += blocks.quads * 256;
        blocks.quads = quads - k < NEAR ? quads - k : NEAR;
        all_blocks(0, 1, p->a + k * 4, stride, p->rows, blocks, p->blocks, s->acc, pitch);
    }
    finish(p, s->acc);
}

INLINE __mmask16 first_of(int n) { return (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1); }

#define OWN_NORM 1
TARGET static uint64_t squares(const int32_t *x, int n) {
    __m512i total = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
        const __m512i v = _mm512_maskz_loadu_epi32(first_of(n - i), x + i), odd = _mm512_srli_epi64(v, 32);
        total = _mm512_add_epi64(total, _mm512_add_epi64(_mm512_mul_epi32(v, v), _mm512_mul_epi32(odd, odd)));
    }
    return (uint64_t)_mm512_reduce_add_epi64(total);
}

/* Compute rs(x t, 40) of 8 numbers: exact, fused or not; see kernel_body.h. */
INLINE __m256i scaled(__m256i x, __m512d scale) {
    return _mm512_cvttpd_epi32(_mm512_fmadd_pd(_mm512_cvtepi32_pd(x), scale, _mm512_set1_pd(4096.5)));
}

/* Compute scale_for of TURNED = 8 sums below 2^53; the root may have been rounded up. */
TARGET static void scales_for(const uint64_t *totals, uint32_t gain, double *t) {
    const __m512d total = _mm512_cvtepi64_pd(_mm512_loadu_si512(totals)), one = _mm512_set1_pd(1);
    __m512d root = _mm512_roundscale_pd(_mm512_sqrt_pd(total), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    root = _mm512_mask_sub_pd(root, _mm512_cmp_pd_mask(_mm512_mul_pd(root, root), total, _CMP_GT_OQ), root, one);
    const __m512d scale = _mm512_div_pd(_mm512_set1_pd((double)((uint64_t)gain << 32)), _mm512_max_pd(root, one));
    _mm512_storeu_pd(t, _mm512_roundscale_pd(scale, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
}

TARGET static void scale_to_bytes(const int32_t *x, int n, double t, uint8_t *out) {
    const __m512d scale = _mm512_set1_pd(t * 0x1p-40);
    for (int i = 0; i < n; i += 16) {
        const __mmask16 some = first_of(n - i);
        const __m512i v = _mm512_maskz_loadu_epi32(some, x + i);
        const __m256i low = scaled(_mm512_castsi512_si256(v), scale),
                      high = scaled(_mm512_extracti64x4_epi64(v, 1), scale);
        const __m512i y = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        const __m512i bytes = _mm512_sub_epi32(between(y, 4096 - 127, 4096 + 127), _mm512_set1_epi32(4096 - 128));
        _mm512_mask_cvtepi32_storeu_epi8(out + i, some, bytes);
    }
}

/* Multiply pairs (a, b) of 16 bits in 32 by (cos, -sin) and (sin, cos). */
TARGET static void rotate(const int16_t *y, const int16_t *cos, const int16_t *sin, int half, int32_t *z) {
    const __m512i round = _mm512_set1_epi32(8192);
    for (int i = 0; i < half; i += 16) {
        const __mmask16 some = first_of(half - i);
        const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, y + i));
        const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, y + half + i));
        const __m512i c = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, cos + i));
        const __m256i s = _mm256_maskz_loadu_epi16(some, sin + i);
        const __m512i minus = _mm512_cvtepu16_epi32(_mm256_sub_epi16(_mm256_setzero_si256(), s));
        const __m512i ab = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
        const __m512i first = _mm512_madd_epi16(ab, _mm512_or_si512(c, _mm512_slli_epi32(minus, 16)));
        const __m512i second =
            _mm512_madd_epi16(ab, _mm512_or_si512(_mm512_cvtepu16_epi32(s), _mm512_slli_epi32(c, 16)));
        _mm512_mask_storeu_epi32(z + i, some, _mm512_srai_epi32(_mm512_add_epi32(first, round), 14));
        _mm512_mask_storeu_epi32(z + half + i, some, _mm512_srai_epi32(_mm512_add_epi32(second, round), 14));
    }
}

/* Return the steps down the table for 32 keys, in 16 bits. `narrow` means 1024 <= heat < 2^16. A difference above
 * 2^16 - 1 is cut to that and still gives step 1023 (65535 * 1024 >> 16 = 1023). The high half of a 16-bit product
 * is the step. */
INLINE __m512i steps_down(const int narrow, const int32_t *score, __m512i most, __m512i far, __m512i heat) {
    __m512i a = _mm512_sub_epi32(most, _mm512_loadu_si512(score));
    __m512i b = _mm512_sub_epi32(most, _mm512_loadu_si512(score + 16));
    if (!narrow) { /* see far_enough in kernel_plain.c: products stay below 2^32 */
        a = _mm512_srli_epi32(_mm512_mullo_epi32(_mm512_min_epu32(a, far), heat), 16);
        b = _mm512_srli_epi32(_mm512_mullo_epi32(_mm512_min_epu32(b, far), heat), 16);
    }
    __m512i e = _mm512_packus_epi32(a, b);
    e = _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), e);
    if (narrow) e = _mm512_mulhi_epu16(e, heat);
    return _mm512_min_epu16(e, _mm512_set1_epi16(1023));
}

/* Return the highest of most and n scores. */
TARGET static int32_t maximum(const int32_t *score, int n, int32_t most) {
    __m512i all = _mm512_set1_epi32(most);
    int k = 0;
    for (; k + 16 <= n; k += 16) all = _mm512_max_epi32(all, _mm512_loadu_si512(score + k));
    if (k < n) all = _mm512_mask_max_epi32(all, (__mmask16)((1u << (n - k)) - 1), all, _mm512_loadu_si512(score + k));
    return _mm512_reduce_max_epi32(all);
}

INLINE uint32_t weigh_as(const int narrow, const int32_t *score, int n, int32_t highest, uint32_t heat,
                         const uint16_t *weight, uint16_t *out) {
    const __m512i first = _mm512_loadu_si512(weight), second = _mm512_loadu_si512(weight + 32);
    const __m512i most = _mm512_set1_epi32(highest), sign = _mm512_set1_epi16(-32768), one = _mm512_set1_epi16(1);
    const __m512i far = _mm512_set1_epi32(heat ? (int32_t)((1023u * 65536u + heat - 1) / heat) : 0);
    const __m512i scale = narrow ? _mm512_set1_epi16((int16_t)heat) : _mm512_set1_epi32((int32_t)heat);
    __m512i sum = _mm512_setzero_si512();
    int k = 0;
    for (; k < n; k += 32) { /* score and out have room for a multiple of 64 */
        const __m512i e = steps_down(narrow, score + k, most, far, scale);
        __m512i w = _mm512_permutex2var_epi16(first, e, second); /* by the low 6 bits */
        w = _mm512_srlv_epi16(w, _mm512_srli_epi16(e, 6));
        if (n - k < 32) w = _mm512_maskz_mov_epi16((__mmask32)((1u << (n - k)) - 1), w);
        _mm512_storeu_si512(out + k, w);
        sum = _mm512_dpwssd_epi32(sum, _mm512_xor_si512(w, sign), one); /* w - 2^15, which is signed */
    }
    return (uint32_t)_mm512_reduce_add_epi32(sum) + ((uint32_t)k << 15);
}

TARGET static uint32_t weigh(const int32_t *score, int n, int32_t most, uint32_t heat, const uint16_t *weight,
                             const uint32_t *weights, uint16_t *out) {
    (void)weights;
    if (heat >= 1024 && heat < 65536) return weigh_as(1, score, n, most, heat, weight, out);
    return weigh_as(0, score, n, most, heat, weight, out);
}

/* Compute p = rs(w * t, 24) as two bytes: the high ones of all queries, then the low ones. See attend(). */
TARGET static void share(const uint16_t *w, int n, uint32_t t, void *shares, int query) {
    uint8_t *high = (uint8_t *)shares + query * CHUNK, *low = high + QUERIES * CHUNK;
    const __m512i a = _mm512_set1_epi16((int16_t)(t >> 9)), b = _mm512_set1_epi16((int16_t)((t & 511) << 7));
    const __m512i half = _mm512_set1_epi16((1 << 14) - 1);
    for (int k = 0; k < n; k += 32) {
        const __m512i v = _mm512_loadu_si512(w + k);
        const __m512i c = _mm512_add_epi16(_mm512_mulhi_epu16(v, b), half);
        const __m512i top = _mm512_mulhi_epu16(v, a), rest = _mm512_avg_epu16(_mm512_mullo_epi16(v, a), c);
        const __m512i p = _mm512_add_epi16(_mm512_add_epi16(top, top), _mm512_srli_epi16(rest, 14));
        _mm256_storeu_si256((__m256i *)(high + k), _mm512_cvtepi16_epi8(_mm512_srli_epi16(p, 8)));
        _mm256_storeu_si256((__m256i *)(low + k), _mm512_cvtepi16_epi8(p));
    }
}

#endif

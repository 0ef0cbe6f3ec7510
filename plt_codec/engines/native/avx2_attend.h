/* A part of kernel_avx2.c: its attention. */

enum { STRIP = 32 }; /* keys whose scores for two queries fit the registers */

INLINE __m256i widen(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }

/* Return the larger of two sums: squares of a query's bytes at k % 4 in 0, 1 and in 2, 3. 16 bytes at a time may
 * reach past the query, which only makes the sum larger. */
TARGET static int32_t larger_half(const int8_t *q, int dp) {
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < dp; i += 16) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(widen(q + i), widen(q + i)));
    __m128i halves = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    halves = _mm_add_epi32(halves, _mm_shuffle_epi32(halves, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(halves, _mm_srli_epi64(halves, 32)));
}

/* Return the largest sum of squares of a strip's keys. */
TARGET static int32_t largest_key(const int8_t *keys, int dp) {
    __m256i most = _mm256_setzero_si256();
    for (int k = 0; k < STRIP; k += 8) {
        const int8_t *at = keys + k / 16 * 16 * dp + k % 16 * 4;
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < dp / 4; i++) {
            /* -128 past the head's width */
            const __m256i size = _mm256_min_epu8(_mm256_abs_epi8(load(at + i * 64)), _mm256_set1_epi8(127));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(size, size), _mm256_set1_epi16(1)));
        }
        most = _mm256_max_epi32(most, sum);
    }
    int32_t all[8], largest = 0;
    store(all, most);
    for (int i = 0; i < 8; i++) largest = all[i] > largest ? all[i] : largest;
    return largest;
}

/* Queries as dense() takes rows: `near`, the rest, and a bit per four dimensions where the rest is not 0. */
typedef struct {
    uint8_t near[QUERIES * HEAD_WIDTH + 32];
    int8_t rest[QUERIES * HEAD_WIDTH + 32];
    uint32_t far[QUERIES];
    int32_t half[QUERIES];
} Queries;

TARGET static void split_queries(const int8_t *q, int dp, int queries, Queries *to) {
    const __m256i middle = _mm256_set1_epi8(64);
    for (int r = 0; r < queries; r++) {
        to->far[r] = 0;
        to->half[r] = larger_half(q + r * dp, dp);
        for (int i = 0; i < dp; i += 32) { /* bytes written past a query are written again for the next */
            const __m256i v = load(q + r * dp + i);
            /* value + 64 in 0..127 */
            const __m256i near = _mm256_max_epi8(_mm256_adds_epi8(v, middle), _mm256_setzero_si256());
            const __m256i rest = _mm256_sub_epi8(_mm256_add_epi8(v, middle), near),
                          none = _mm256_cmpeq_epi32(rest, _mm256_setzero_si256());
            store(to->near + r * dp + i, near);
            store(to->rest + r * dp + i, rest);
            to->far[r] |= (uint32_t)(uint8_t)~_mm256_movemask_ps(_mm256_castsi256_ps(none)) << i / 4;
        }
        to->far[r] &= (1u << dp / 4) - 1;
    }
}

/* Compute -64 times the sums of the keys' halves, at k % 4 in 0, 1 and in 2, 3, modulo 2^16. */
INLINE void start_strip(const int8_t *keys, int dp, __m256i *start) {
#pragma GCC unroll 4
    for (int c = 0; c < STRIP / 8; c++) {
        start[c] = _mm256_setzero_si256();
        for (int i = 0; i < dp; i += 4) {
            const __m256i k = load(keys + c / 2 * 16 * dp + c % 2 * 32 + i * 16);
            start[c] = _mm256_sub_epi16(start[c], _mm256_maddubs_epi16(_mm256_set1_epi8(64), k));
        }
    }
}

/* Multiply R queries and a strip of keys, where each half of a score fits 16 bits: sums may wrap on the way. R is a
 * constant. */
INLINE void score_strip(const int R, const int8_t *keys, int dp, const Queries *q, int query, const __m256i *start,
                        int32_t *score, size_t pitch) {
    __m256i sums[2][STRIP / 8];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < STRIP / 8; c++) sums[r][c] = start[c];
    }
    const uint8_t *near = q->near + query * dp;
    for (int i = 0; i < dp; i += 4) {
#pragma GCC unroll 2
        for (int r = 0; r < R; r++) {
            const __m256i a = load_quad(near + r * dp + i);
#pragma GCC unroll 4
            for (int c = 0; c < STRIP / 8; c++)
                ADD("w", sums[r][c], _mm256_maddubs_epi16(a, load(keys + c / 2 * 16 * dp + c % 2 * 32 + i * 16)));
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
        for (uint32_t far = q->far[query + r]; far; far &= far - 1) {
            const int i = __builtin_ctz(far) * 4;
            const __m256i a = load_quad(q->rest + (query + r) * dp + i), size = _mm256_abs_epi8(a);
#pragma GCC unroll 4
            for (int c = 0; c < STRIP / 8; c++) {
                const __m256i signs = _mm256_sign_epi8(load(keys + c / 2 * 16 * dp + c % 2 * 32 + i * 16), a);
                ADD("w", sums[r][c], _mm256_maddubs_epi16(size, signs));
            }
        }
#pragma GCC unroll 4
        for (int c = 0; c < STRIP / 8; c++)
            store(score + r * pitch + c * 8, _mm256_madd_epi16(sums[r][c], _mm256_set1_epi16(1)));
    }
}

/* Multiply a query and a strip of keys in 32 bits. */
TARGET static void score_wide(const int8_t *keys, int dp, const int8_t *q, int32_t *score) {
    for (int c = 0; c < STRIP / 8; c++) {
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < dp; i += 4) {
            const __m256i a = load_quad(q + i),
                          signs = _mm256_sign_epi8(load(keys + c / 2 * 16 * dp + c % 2 * 32 + i * 16), a);
            sum = _mm256_add_epi32(
                sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(a), signs), _mm256_set1_epi16(1)));
        }
        store(score + c * 8, sum);
    }
}

/* Compute scores. |a . b| <= |a| |b|: a half of a score fits 16 bits where the product of the query's half and the
 * whole key does. */
TARGET static void scores(const uint8_t *keys, int n, const int8_t *q, int dp, int queries, int32_t *score,
                          size_t pitch) {
    Queries split;
    split_queries(q, dp, queries, &split);
    for (int k = 0; k < n; k += STRIP, keys += STRIP * dp, score += STRIP) { /* n is a multiple of it */
        const int8_t *strip = (const int8_t *)keys;
        const int32_t most = 32767 * 32767 / (largest_key(strip, dp) + 1);
        __m256i start[STRIP / 8];
        start_strip(strip, dp, start);
        for (int r = 0; r < queries; r += 2) {
            const int two = r + 1 < queries;
            int32_t *to = score + r * pitch;
            for (int i = r / 2; i < STRIP * dp / 64; i += (queries + 1) / 2) fetch(keys + 4 * STRIP * dp + i * 64);
            if (split.half[r] > most || split.half[r + two] > most) {
                score_wide(strip, dp, q + r * dp, to);
                if (two) score_wide(strip, dp, q + (r + 1) * dp, to + pitch);
            } else if (two) {
                score_strip(2, strip, dp, &split, r, start, to, pitch);
            } else {
                score_strip(1, strip, dp, &split, r, start, to, pitch);
            }
        }
    }
}

/* Return the highest of most and n scores. */
TARGET static int32_t maximum(const int32_t *score, int n, int32_t most) {
    for (int k = 0; k < n; k++) most = score[k] > most ? score[k] : most;
    return most;
}

INLINE __m256i steps_wide(const int32_t *score, __m256i most, __m256i far, __m256i heat) {
    /* far_enough in kernel_plain.c: products stay below 2^32 */
    const __m256i e = _mm256_min_epu32(_mm256_sub_epi32(most, load(score)), far);
    return _mm256_srli_epi32(_mm256_mullo_epi32(e, heat), 16);
}

/* Return the steps down the table for 16 keys, 0 to 3 and 8 to 11 before 4 to 7 and 12 to 15. `narrow` means 1024 <=
 * heat < 2^16. A difference above 2^16 - 1 is cut to that and still gives step 1023 (65535 * 1024 >> 16 = 1023). The
 * high half of a 16-bit product is the step. */
INLINE __m256i steps_down(const int narrow, const int32_t *score, __m256i most, __m256i far, __m256i heat) {
    __m256i e;
    if (narrow)
        e = _mm256_mulhi_epu16(
            _mm256_packus_epi32(_mm256_sub_epi32(most, load(score)), _mm256_sub_epi32(most, load(score + 8))), heat);
    else e = _mm256_packus_epi32(steps_wide(score, most, far, heat), steps_wide(score + 8, most, far, heat));
    return _mm256_min_epu16(e, _mm256_set1_epi16(1023));
}

/* Look up 32 bytes in a table of 64; `a`, `b`: bits 4 and 5 of their places, in the top bits. */
INLINE __m256i look_up(const __m256i *table, __m256i place, __m256i a, __m256i b) {
    const __m256i low =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(table[0], place), _mm256_shuffle_epi8(table[1], place), a);
    const __m256i high =
        _mm256_blendv_epi8(_mm256_shuffle_epi8(table[2], place), _mm256_shuffle_epi8(table[3], place), a);
    return _mm256_blendv_epi8(low, high, b);
}

/* Return w >> s for a factor of 2^(16 - s), which is 0 for s = 0; in the order of the keys. */
INLINE __m256i shifted(__m256i w, __m256i factor) {
    w = _mm256_blendv_epi8(_mm256_mulhi_epu16(w, factor), w, _mm256_cmpeq_epi16(factor, _mm256_setzero_si256()));
    return _mm256_permute4x64_epi64(w, 0xd8);
}

INLINE __m256i twice(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p)); }

INLINE uint32_t weigh_as(const int narrow, const int32_t *score, int n, int32_t high, uint32_t heat,
                         const uint16_t *weight, uint16_t *out) {
    static const uint8_t few[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 64, 32, 16, 8, 4, 2}; /* 2^(16 - s), its bytes */
    static const uint8_t many[16] = {0, 128, 64, 32, 16, 8, 4, 2, 1};
    const __m256i most = _mm256_set1_epi32(high),
                  scale = narrow ? _mm256_set1_epi16((int16_t)heat) : _mm256_set1_epi32((int32_t)heat);
    const __m256i far = _mm256_set1_epi32(heat ? (int32_t)((1023u * 65536u + heat - 1) / heat) : 0);
    const __m256i bits = _mm256_set1_epi16(63), sign = _mm256_set1_epi16(-32768), ones = _mm256_set1_epi16(1);
    const __m256i first = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint8_t bytes[2][64];
    __m256i lows[4], highs[4], sum = _mm256_setzero_si256();
    for (int i = 0; i < 64; i++) bytes[0][i] = (uint8_t)weight[i], bytes[1][i] = (uint8_t)(weight[i] >> 8);
    for (int i = 0; i < 4; i++) lows[i] = twice(bytes[0] + i * 16), highs[i] = twice(bytes[1] + i * 16);
    int k = 0;
    for (; k < n; k += 32) { /* score and out have room for a multiple of 64 */
        const __m256i e = steps_down(narrow, score + k, most, far, scale),
                      f = steps_down(narrow, score + k + 16, most, far, scale);
        const __m256i place = _mm256_packus_epi16(_mm256_and_si256(e, bits), _mm256_and_si256(f, bits));
        const __m256i s = _mm256_packus_epi16(_mm256_srli_epi16(e, 6), _mm256_srli_epi16(f, 6));
        const __m256i a = _mm256_slli_epi16(place, 3), b = _mm256_slli_epi16(place, 2);
        const __m256i low = look_up(lows, place, a, b), top = look_up(highs, place, a, b);
        const __m256i few_s = _mm256_shuffle_epi8(twice(few), s), many_s = _mm256_shuffle_epi8(twice(many), s);
        __m256i v = shifted(_mm256_unpacklo_epi8(low, top), _mm256_unpacklo_epi8(few_s, many_s));
        __m256i w = shifted(_mm256_unpackhi_epi8(low, top), _mm256_unpackhi_epi8(few_s, many_s));
        if (n - k < 32) {
            v = _mm256_and_si256(v, _mm256_cmpgt_epi16(_mm256_set1_epi16((int16_t)(n - k)), first));
            w = _mm256_and_si256(w, _mm256_cmpgt_epi16(_mm256_set1_epi16((int16_t)(n - k - 16)), first));
        }
        store(out + k, v);
        store(out + k + 16, w);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_xor_si256(v, sign), ones)); /* w - 2^15, which is signed */
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_xor_si256(w, sign), ones));
    }
    uint32_t sums[8], all = (uint32_t)k << 15;
    store(sums, sum);
    for (int i = 0; i < 8; i++) all += sums[i];
    return all;
}

TARGET static uint32_t weigh(const int32_t *score, int n, int32_t high, uint32_t heat, const uint16_t *weight,
                             const uint32_t *weights, uint16_t *out) {
    (void)weights;
    if (heat >= 1024 && heat < 65536) return weigh_as(1, score, n, high, heat, weight, out);
    return weigh_as(0, score, n, high, heat, weight, out);
}

/* Compute p = rs(w * t, 24), see attend(), in digits for add_row(). */
INLINE void share_sixteen(const uint16_t *w, __m256i a, __m256i b, __m256i *first, __m256i *second) {
    const __m256i half = _mm256_set1_epi16((1 << 14) - 1), low_bits = _mm256_set1_epi16(63),
                  top_bits = _mm256_set1_epi16(192), v = load(w);
    const __m256i c = _mm256_add_epi16(_mm256_mulhi_epu16(v, b), half);
    const __m256i high = _mm256_mulhi_epu16(v, a),
                  low = _mm256_srli_epi16(_mm256_avg_epu16(_mm256_mullo_epi16(v, a), c), 14);
    const __m256i p = _mm256_add_epi16(_mm256_add_epi16(high, high), low), q = _mm256_srli_epi16(p, 6);
    *first = _mm256_or_si256(_mm256_and_si256(p, low_bits), _mm256_and_si256(q, top_bits));
    *second = _mm256_or_si256(_mm256_and_si256(q, low_bits), _mm256_and_si256(_mm256_srli_epi16(p, 8), top_bits));
}

/* Write the first bytes of all queries, then the second ones. */
TARGET static void share(const uint16_t *w, int n, uint32_t t, void *shares, int query) {
    uint8_t *first = (uint8_t *)shares + query * CHUNK, *second = first + QUERIES * CHUNK;
    const __m256i a = _mm256_set1_epi16((int16_t)(t >> 9)), b = _mm256_set1_epi16((int16_t)((t & 511) << 7));
    for (int k = 0; k < n; k += 32) {
        __m256i v[2], u[2];
        share_sixteen(w + k, a, b, &v[0], &u[0]);
        share_sixteen(w + k + 16, a, b, &v[1], &u[1]);
        store(first + k, _mm256_permute4x64_epi64(_mm256_packus_epi16(v[0], v[1]), 0xd8));
        store(second + k, _mm256_permute4x64_epi64(_mm256_packus_epi16(u[0], u[1]), 0xd8));
    }
}

TARGET static void mix(const int8_t *values, int n, int dv, const void *shares, int queries, int32_t *mixed) {
    const Blocks blocks = {values, 64, (size_t)dv * 4};
    const uint8_t *first = shares;
    for (int r = 0; r < queries; r++, first += CHUNK, mixed += dv) {
        for (int i = r; i < n * dv / 64; i += queries) fetch(values + n * dv + i * 64);
        add_sparse(dv / 16, first, first + QUERIES * CHUNK, n, blocks, mixed);
    }
}

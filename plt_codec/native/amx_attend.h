/* Attention in 16 bits, for heads of 64 dimensions: the same integers as attend() in kernel_body.h in half the time.
 *
 * Three passes over the keys, for up to 32 queries at once: scores, weights, shares times values. A difference of two scores
 * is needed below 2^16 only, so a score is kept as its low 16 bits, once it is known that none of a query's differences is
 * larger (the lowest score is taken along for that). Where one is, or a heat is larger than 16 bits, nothing is done.
 *
 * The numbers of 32 keys lie in a vector as 0 16 1 17 2 18 ...: two vectors of 32 bits become one by a shift and a blend. Bytes
 * come back in the order of the keys, by one permutation of 64, just before the product with the values.
 *
 * Keys and values of a few long sessions do not fit the second cache. The passes that compute most ask for what comes next,
 * the second for the values, the third for the keys of the next share: a line at a time, which hides most of the wait
 * (64 keys of 32 queries, 4096 keys of 84 heads: 1.28 us without, 0.76 us with, 0.52 us where all is near).
 */
enum { STRIP = 64 }; /* keys whose scores stay in the first cache */

#define EVERY_SECOND 0xaaaaaaaau

/* score[query][key], a query every STRIP */
TARGET static void strip_scores(const uint8_t *keys, int n, const int8_t *q, int two, int32_t *score) {
    LOAD(4, q, 64);
    if (two) LOAD(5, q + 1024, 64);
    for (int k = 0; k < n; k += 32, keys += 2048, score += 32) {
        _tile_zero(0);
        LOAD(6, keys, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_zero(1);
        LOAD(7, keys + 1024, 64);
        _tile_dpbsud(1, 4, 7);
        if (two) {
            _tile_zero(2);
            _tile_dpbsud(2, 5, 6);
            _tile_zero(3);
            _tile_dpbsud(3, 5, 7);
            STORE(2, score + 16 * STRIP, STRIP * 4);
            STORE(3, score + 16 * STRIP + 16, STRIP * 4);
        }
        STORE(0, score, STRIP * 4);
        STORE(1, score + 16, STRIP * 4);
    }
}

/* Low halves of n scores, of which `seen` count for the bounds. */
INLINE void keep(const int32_t *score, int n, int seen, uint16_t *low, __m512i *most, __m512i *least) {
    __m512i high = *most, bottom = *least;
    for (int k = 0; k < n; k += 32) {
        const __m512i a = _mm512_loadu_si512(score + k), b = _mm512_loadu_si512(score + k + 16);
        if (k + 32 <= seen) {
            high = _mm512_max_epi32(_mm512_max_epi32(high, a), b);
            bottom = _mm512_min_epi32(_mm512_min_epi32(bottom, a), b);
        } else {
            const __mmask16 sees_a = first_of(seen - k), sees_b = first_of(seen - k - 16);
            high = _mm512_mask_max_epi32(high, sees_a, high, a);
            high = _mm512_mask_max_epi32(high, sees_b, high, b);
            bottom = _mm512_mask_min_epi32(bottom, sees_a, bottom, a);
            bottom = _mm512_mask_min_epi32(bottom, sees_b, bottom, b);
        }
        _mm512_storeu_si512(low + k, _mm512_mask_blend_epi16(EVERY_SECOND, a, _mm512_slli_epi32(b, 16)));
    }
    *most = high;
    *least = bottom;
}

/* Which of the 32 numbers of a vector belong to the first n keys. */
INLINE __mmask32 first_keys(int n) {
    const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i key = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
    return _mm512_cmplt_epi16_mask(key, _mm512_set1_epi16((short)n));
}

/* Scores -> weights in their place, zeros from n on; their sum. See weigh_as: past step 1023, too, a weight is 0. */
INLINE uint32_t weigh_low(uint16_t *low, int n, int padded, int32_t highest, uint32_t heat, const uint16_t *weight, const int8_t *soon) {
    const __m512i first = _mm512_loadu_si512(weight), second = _mm512_loadu_si512(weight + 32);
    const __m512i most = _mm512_set1_epi16((short)highest), scale = _mm512_set1_epi16((short)heat);
    const __m512i sign = _mm512_set1_epi16(-32768), one = _mm512_set1_epi16(1);
    __m512i sum = _mm512_setzero_si512();
    int k = 0;
    for (; k < n; k += 32, soon += 64) {
        _mm_prefetch((const char *)soon, _MM_HINT_T1);
        const __m512i e = _mm512_mulhi_epu16(_mm512_sub_epi16(most, _mm512_loadu_si512(low + k)), scale);
        __m512i w = _mm512_srlv_epi16(_mm512_permutex2var_epi16(first, e, second), _mm512_srli_epi16(e, 6));
        if (k + 32 > n) w = _mm512_maskz_mov_epi16(first_keys(n - k), w);
        _mm512_storeu_si512(low + k, w);
        sum = _mm512_dpwssd_epi32(sum, _mm512_xor_si512(w, sign), one); /* w - 2^15, which is signed */
    }
    for (int rest = k; rest < padded; rest += 32) _mm512_storeu_si512(low + rest, _mm512_setzero_si512());
    return (uint32_t)_mm512_reduce_add_epi32(sum) + ((uint32_t)k << 15);
}

/* Where the bytes of 64 keys are: see share_low. */
static const uint8_t PLACES[64] = {
    0, 4, 8,  12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62,
    1, 5, 9,  13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63,
};

INLINE __m512i shares_of(__m512i w, __m512i a, __m512i b) {
    const __m512i half = _mm512_set1_epi16((1 << 14) - 1);
    const __m512i c = _mm512_add_epi16(_mm512_mulhi_epu16(w, b), half);
    const __m512i top = _mm512_mulhi_epu16(w, a), rest = _mm512_avg_epu16(_mm512_mullo_epi16(w, a), c);
    return _mm512_add_epi16(_mm512_add_epi16(top, top), _mm512_srli_epi16(rest, 14));
}

/* As share(), in the order of the keys again. Byte 2 w of a pair of vectors x, y is of x, 2 w + 1 of y. */
INLINE void share_low(const uint16_t *w, int n, uint32_t t, uint8_t *high, uint8_t *low, const uint8_t *soon) {
    const __m512i a = _mm512_set1_epi16((short)(t >> 9)), b = _mm512_set1_epi16((short)((t & 511) << 7));
    const __m512i order = _mm512_loadu_si512(PLACES);
    const __mmask64 odd = UINT64_C(0xaaaaaaaaaaaaaaaa);
    for (int k = 0; k < n; k += 64, soon += 128) {
        _mm_prefetch((const char *)soon, _MM_HINT_T1);
        _mm_prefetch((const char *)soon + 64, _MM_HINT_T1);
        const __m512i x = shares_of(_mm512_loadu_si512(w + k), a, b), y = shares_of(_mm512_loadu_si512(w + k + 32), a, b);
        const __m512i tops = _mm512_mask_blend_epi8(odd, _mm512_srli_epi16(x, 8), y);
        const __m512i bottoms = _mm512_mask_blend_epi8(odd, x, _mm512_slli_epi16(y, 8));
        _mm512_storeu_si512(high + k, _mm512_permutexvar_epi8(order, tops));
        _mm512_storeu_si512(low + k, _mm512_permutexvar_epi8(order, bottoms));
    }
}

/* Sums of shares times values so far, in tiles: [16 queries][dimensions / 16][high, low]. */
TARGET static void mix_low(const int8_t *values, int n, const uint8_t *shares, int queries, int more, int32_t *sums) {
    for (int r = 0; r < queries; r += 16, shares += 16 * CHUNK) {
        const uint8_t *low = shares + QUERIES * CHUNK;
        for (int i = 0; i < 4; i += 2, sums += 4 * 256) {
            if (more) {
                LOAD(0, sums, 64);
                LOAD(1, sums + 256, 64);
                LOAD(2, sums + 512, 64);
                LOAD(3, sums + 768, 64);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int k = 0; k < n; k += 64) {
                const int8_t *v = values + (size_t)k * 64 + i * 64;
                LOAD(4, shares + k, CHUNK);
                LOAD(6, v, 256);
                _tile_dpbusd(0, 4, 6);
                LOAD(5, low + k, CHUNK);
                _tile_dpbusd(1, 5, 6);
                LOAD(7, v + 64, 256);
                _tile_dpbusd(2, 4, 7);
                _tile_dpbusd(3, 5, 7);
            }
            STORE(0, sums, 64);
            STORE(1, sums + 256, 64);
            STORE(2, sums + 512, 64);
            STORE(3, sums + 768, 64);
        }
    }
}

/* Sums of one query -> d bytes, rs(sum, 15) + 128. */
INLINE void put_low(const int32_t *sums, int d, uint8_t *out) {
    for (int i = 0; i < d; i += 16, sums += 512) {
        __m512i o = _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(sums), 8), _mm512_loadu_si512(sums + 256));
        o = _mm512_srai_epi32(_mm512_add_epi32(o, _mm512_set1_epi32(1 << 14)), 15);
        o = _mm512_max_epi32(_mm512_min_epi32(o, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
        _mm512_mask_cvtepi32_storeu_epi8(out + i, first_of(d - i), _mm512_add_epi32(o, _mm512_set1_epi32(128)));
    }
}

/* Attention as in attend(); 0: nothing done, this one needs more bits. */
TARGET static int attend_low(const Attention *a, Scratch *s) {
    const int queries = a->queries, two = queries > 16;
    __m512i high[QUERIES], bottom[QUERIES];
    uint32_t t[QUERIES];
    int most = 0;
    for (int r = 0; r < queries; r++) {
        most = a->limit[r] > most ? a->limit[r] : most;
        high[r] = _mm512_set1_epi32(INT32_MIN);
        bottom[r] = _mm512_set1_epi32(INT32_MAX);
    }
    const int padded = (most + KEY_PAD - 1) / KEY_PAD * KEY_PAD;
    for (int begin = 0; begin < padded; begin += STRIP) {
        const int n = padded - begin < STRIP ? padded - begin : STRIP;
        strip_scores(a->keys + (size_t)begin * 64, n, a->q, two, s->acc);
        for (int r = 0; r < queries; r++) {
            keep(s->acc + r * STRIP, n, a->limit[r] - begin, s->weight + r * s->pitch + begin, &high[r], &bottom[r]);
        }
    }
    for (int r = 0; r < queries; r++) {
        uint16_t *row = s->weight + r * s->pitch;
        const int32_t highest = _mm512_reduce_max_epi32(high[r]), lowest = _mm512_reduce_min_epi32(bottom[r]);
        if (highest - lowest > 65535 || a->heat[r] > 65535) return 0;
        const uint32_t sum = weigh_low(row, a->limit[r], padded, highest, a->heat[r], a->weight, a->values + (size_t)r * padded * 2);
        t[r] = share_scale(sum);
    }
    for (int begin = 0; begin < padded; begin += CHUNK) {
        const int n = padded - begin < CHUNK ? padded - begin : CHUNK;
        uint8_t *shares = (uint8_t *)s->shares;
        for (int r = 0; r < queries; r++) {
            const uint8_t *soon = a->next + (size_t)begin * 64 + r * 2 * n;
            share_low(s->weight + r * s->pitch + begin, n, t[r], shares + r * CHUNK, shares + (QUERIES + r) * CHUNK, soon);
        }
        mix_low(a->values + (size_t)begin * 64, n, shares, queries, begin > 0, s->mixed);
    }
    for (int r = 0; r < queries; r++) put_low(s->mixed + r / 16 * 2048 + r % 16 * 16, a->d, a->out[r]);
    return 1;
}

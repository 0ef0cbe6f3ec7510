/* Attention in 16 bits, for heads of 64 dimensions: the same integers as attend() in kernel_body.h in half the time.
 *
 * There are three passes over the keys, for up to 32 queries at once: scores, weights, shares times values. Keys have
 * a sign here, so that scores are q . k itself. Scores are packed to 16 bits, which saturates. Nothing is done where
 * that may change a weight (too_low), or where a heat is larger than 16 bits. A difference of two scores fits 16 bits
 * without sign.
 *
 * Packing leaves the numbers of 32 keys as 0 1 2 3 16 17 18 19 4 ...: KEY_OF. One permutation of 64 brings the bytes
 * back to the order of the keys, just before the product with the values.
 *
 * Keys and values of a few long sessions do not fit the second cache. So the passes that compute most prefetch: the
 * second the values, the third the keys of the next share. They fetch one line at a time, which hides most of the wait
 * (64 keys of 32 queries, 4096 keys of 84 heads: 1.28 us without, 0.76 us with, 0.52 us where all is near).
 */
enum {
    STRIP = 64, /* keys whose scores stay in the first cache */
    SPAN = 384, /* keys whose shares stay there, for 16 queries: within Scratch.shares */
};

/* The key of 32 that each number of a vector belongs to, and the place of the bytes of 64 keys (see part_bytes). */
static const uint16_t KEY_OF[32] = {0, 1, 2,  3,  16, 17, 18, 19, 4,  5,  6,  7,  20, 21, 22, 23,
                                    8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
static const uint8_t PLACES[64] = {
    0,  2,  4,  6,  16, 18, 20, 22, 32, 34, 36, 38, 48, 50, 52, 54, 8,  10, 12, 14, 24, 26,
    28, 30, 40, 42, 44, 46, 56, 58, 60, 62, 1,  3,  5,  7,  17, 19, 21, 23, 33, 35, 37, 39,
    49, 51, 53, 55, 9,  11, 13, 15, 25, 27, 29, 31, 41, 43, 45, 47, 57, 59, 61, 63,
};

/* Return a mask of the 32 numbers of a vector that belong to the first n keys. */
INLINE __mmask32 first_keys(int n) {
    return _mm512_cmplt_epi16_mask(_mm512_loadu_si512(KEY_OF), _mm512_set1_epi16((short)(n < 32 ? n : 32)));
}

/* Compute score[query][key] of the queries in tiles 4 and 5, one query per STRIP. */
TARGET static void strip_scores(const int8_t *keys, int two, int32_t *score) {
    for (int k = 0; k < STRIP; k += 32, keys += 2048, score += 32) {
        _tile_zero(0);
        LOAD(6, keys, 64);
        _tile_dpbssd(0, 4, 6);
        _tile_zero(1);
        LOAD(7, keys + 1024, 64);
        _tile_dpbssd(1, 4, 7);
        STORE(0, score, STRIP * 4);
        STORE(1, score + 16, STRIP * 4);
        if (!two) continue;
        _tile_zero(2);
        _tile_dpbssd(2, 5, 6);
        _tile_zero(3);
        _tile_dpbssd(3, 5, 7);
        STORE(2, score + 16 * STRIP, STRIP * 4);
        STORE(3, score + 16 * STRIP + 16, STRIP * 4);
    }
}

/* Keep 64 scores in 16 bits, of which `seen` count for the highest. */
INLINE __m512i keep(const int32_t *score, int seen, int16_t *low, __m512i most) {
    const __m512i x = _mm512_packs_epi32(_mm512_load_si512(score), _mm512_load_si512(score + 16));
    const __m512i y = _mm512_packs_epi32(_mm512_load_si512(score + 32), _mm512_load_si512(score + 48));
    _mm512_storeu_si512(low, x);
    _mm512_storeu_si512(low + 32, y);
    if (seen >= 64) return _mm512_max_epi16(_mm512_max_epi16(most, x), y);
    most = _mm512_mask_max_epi16(most, first_keys(seen), most, x);
    return _mm512_mask_max_epi16(most, first_keys(seen - 32), most, y);
}

INLINE int highest16(__m512i v) {
    v = _mm512_max_epi16(v, _mm512_ror_epi32(v, 16));
    return (int16_t)_mm512_reduce_max_epi32(_mm512_srai_epi32(v, 16));
}

/* Return whether a score that saturated at the lower end might still weigh something. It cannot if no score
 * saturated, or if the last step of the table is reached from the highest score before that end. */
INLINE int too_low(const int16_t *low, int n, int highest, uint32_t heat) {
    if ((uint32_t)(highest - INT16_MIN) * heat >> 16 >= KEY_STEPS - 1) return 0;
    __mmask32 found = 0;
    const __m512i least = _mm512_set1_epi16(INT16_MIN);
    for (int k = 0; k < n; k += 32)
        found |= _mm512_mask_cmpeq_epi16_mask(first_keys(n - k), _mm512_loadu_si512(low + k), least);
    return found != 0;
}

/* Turn scores into weights in place, zeros from n on, and return their sum. See weigh_as: past step 1023, too, a
 * weight is 0. */
INLINE uint32_t weigh_low(uint16_t *low, int n, int padded, int32_t highest, uint32_t heat, const uint16_t *weight,
                          const int8_t *soon) {
    const __m512i first = _mm512_loadu_si512(weight), second = _mm512_loadu_si512(weight + 32);
    const __m512i most = _mm512_set1_epi16((short)highest), scale = _mm512_set1_epi16((short)heat);
    const __m512i sign = _mm512_set1_epi16(-32768), one = _mm512_set1_epi16(1);
    __m512i sum = _mm512_setzero_si512(), other = sum;
    int k = 0;
    for (; k < n; k += 64, soon += 128) {
        _mm_prefetch((const char *)soon, _MM_HINT_T1);
        _mm_prefetch((const char *)soon + 64, _MM_HINT_T1);
        const __m512i e = _mm512_mulhi_epu16(_mm512_sub_epi16(most, _mm512_loadu_si512(low + k)), scale);
        const __m512i f = _mm512_mulhi_epu16(_mm512_sub_epi16(most, _mm512_loadu_si512(low + k + 32)), scale);
        __m512i w = _mm512_srlv_epi16(_mm512_permutex2var_epi16(first, e, second), _mm512_srli_epi16(e, 6));
        __m512i v = _mm512_srlv_epi16(_mm512_permutex2var_epi16(first, f, second), _mm512_srli_epi16(f, 6));
        if (k + 64 > n) {
            w = _mm512_maskz_mov_epi16(first_keys(n - k), w);
            v = _mm512_maskz_mov_epi16(first_keys(n - k - 32), v);
        }
        _mm512_storeu_si512(low + k, w);
        _mm512_storeu_si512(low + k + 32, v);
        sum = _mm512_dpwssd_epi32(sum, _mm512_xor_si512(w, sign), one); /* w - 2^15, which is signed */
        other = _mm512_dpwssd_epi32(other, _mm512_xor_si512(v, sign), one);
    }
    for (int rest = k; rest < padded; rest += 32) _mm512_storeu_si512(low + rest, _mm512_setzero_si512());
    return (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(sum, other)) + ((uint32_t)k << 15);
}

/* Return p = rs(w t, 24) of 32 keys for t < 2^24. With t = 2^8 a + b, b < 2^8, p = (w a + (w b >> 8) + 2^15) >> 16.
 * There w b >> 8 = (w (2^8 b)) >> 16 is below 2^15. So p is the high half of w a, and 1 more where the low half
 * passes 2^15 - (w b >> 8). */
INLINE __m512i shares_of(__m512i w, __m512i a, __m512i b) {
    const __m512i rest = _mm512_sub_epi16(_mm512_set1_epi16(0x7fff), _mm512_mulhi_epu16(w, b)),
                  top = _mm512_mulhi_epu16(w, a);
    const __mmask32 more = _mm512_cmpgt_epu16_mask(_mm512_mullo_epi16(w, a), rest);
    return _mm512_mask_sub_epi16(top, more, top, _mm512_set1_epi16(-1));
}

/* Return the shares for t >= 2^24, where one key has most of the weight: as attend() says. */
INLINE __m512i large_shares_of(__m512i w, __m512i a, __m512i b) {
    const __m512i half = _mm512_set1_epi16((1 << 14) - 1);
    const __m512i c = _mm512_add_epi16(_mm512_mulhi_epu16(w, b), half);
    const __m512i top = _mm512_mulhi_epu16(w, a), rest = _mm512_avg_epu16(_mm512_mullo_epi16(w, a), c);
    return _mm512_add_epi16(_mm512_add_epi16(top, top), _mm512_srli_epi16(rest, 14));
}

/* Split 64 shares into high and low bytes, in the order of the keys again. */
INLINE void part_bytes(__m512i x, __m512i y, uint8_t *high, uint8_t *low) {
    const __mmask64 odd = UINT64_C(0xaaaaaaaaaaaaaaaa);
    const __m512i order = _mm512_loadu_si512(PLACES);
    const __m512i tops = _mm512_mask_alignr_epi8(y, ~odd, x, x, 1), bottoms = _mm512_mask_alignr_epi8(x, odd, y, y, 15);
    _mm512_storeu_si512(high, _mm512_permutexvar_epi8(order, tops));
    _mm512_storeu_si512(low, _mm512_permutexvar_epi8(order, bottoms));
}

/* Compute the shares of a query in n keys, as bytes: the low ones 16 queries behind the high ones. */
INLINE void share_low(const uint16_t *w, int n, uint32_t t, uint8_t *high, const uint8_t *soon) {
    uint8_t *low = high + 16 * SPAN;
    const int large = t >> 24 != 0;
    const __m512i a = _mm512_set1_epi16((short)(large ? t >> 9 : t >> 8)),
                  b = _mm512_set1_epi16((short)(large ? t << 7 : t << 8));
    for (int k = 0; k < n; k += 64, soon += 128) {
        _mm_prefetch((const char *)soon, _MM_HINT_T1);
        _mm_prefetch((const char *)soon + 64, _MM_HINT_T1);
        const __m512i v = _mm512_loadu_si512(w + k), u = _mm512_loadu_si512(w + k + 32);
        if (large) part_bytes(large_shares_of(v, a, b), large_shares_of(u, a, b), high + k, low + k);
        else part_bytes(shares_of(v, a, b), shares_of(u, a, b), high + k, low + k);
    }
}

/* Add the shares of 16 queries times values to the sums so far, in tiles: [dimensions / 16][high, low]. */
TARGET static void mix_low(const int8_t *values, int n, const uint8_t *shares, int more, int32_t *sums) {
    const uint8_t *low = shares + 16 * SPAN;
    for (int i = 0; i < 64; i += 32, sums += 4 * 256) {
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
            const int8_t *v = values + (size_t)k * 64 + i * 4;
            LOAD(4, shares + k, SPAN);
            LOAD(6, v, 256);
            _tile_dpbusd(0, 4, 6);
            LOAD(5, low + k, SPAN);
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

/* Turn the sums of one query into d bytes, rs(sum, 15) + 128. */
INLINE void put_low(const int32_t *sums, int d, uint8_t *out) {
    for (int i = 0; i < d; i += 16, sums += 512) {
        __m512i o = _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(sums), 8), _mm512_loadu_si512(sums + 256));
        o = _mm512_srai_epi32(_mm512_add_epi32(o, _mm512_set1_epi32(1 << 14)), 15);
        o = _mm512_max_epi32(_mm512_min_epi32(o, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
        _mm512_mask_cvtepi32_storeu_epi8(out + i, first_of(d - i), _mm512_add_epi32(o, _mm512_set1_epi32(128)));
    }
}

/* Compute the scores of all keys in 16 bits; return 0 if some do not fit. */
TARGET static int all_scores(const Attention *a, Scratch *s, int padded, int32_t *highest) {
    const int queries = a->queries, two = queries > 16;
    int16_t *low = (int16_t *)s->weight;
    __m512i high[QUERIES];
    for (int r = 0; r < queries; r++) high[r] = _mm512_set1_epi16(INT16_MIN);
    LOAD(4, a->q, 64);
    if (two) LOAD(5, a->q + 1024, 64);
    for (int begin = 0; begin < padded; begin += STRIP) {
        strip_scores((const int8_t *)a->keys + (size_t)begin * 64, two, s->acc);
        for (int r = 0; r < queries; r++)
            high[r] = keep(s->acc + r * STRIP, a->limit[r] - begin, low + r * s->pitch + begin, high[r]);
    }
    for (int r = 0; r < queries; r++) {
        highest[r] = highest16(high[r]);
        if (highest[r] == INT16_MAX || a->heat[r] > 65535 ||
            too_low(low + r * s->pitch, a->limit[r], highest[r], a->heat[r]))
            return 0;
    }
    return 1;
}

/* Attend as attend() does; return 0, with nothing done, if this one needs more bits. */
TARGET static int attend_low(const Attention *a, Scratch *s) {
    const int queries = a->queries;
    int32_t highest[QUERIES];
    uint32_t t[QUERIES];
    int most = 0;
    for (int r = 0; r < queries; r++) most = a->limit[r] > most ? a->limit[r] : most;
    const int padded = (most + KEY_PAD - 1) / KEY_PAD * KEY_PAD;
    if (!all_scores(a, s, padded, highest)) return 0;
    for (int r = 0; r < queries; r++) {
        uint16_t *row = s->weight + r * s->pitch;
        t[r] = share_scale(
            weigh_low(row, a->limit[r], padded, highest[r], a->heat[r], a->weight, a->values + (size_t)r * padded * 2));
    }
    for (int begin = 0; begin < padded; begin += SPAN) {
        const int n = padded - begin < SPAN ? padded - begin : SPAN;
        for (int first = 0; first < queries; first += 16) { /* 16 queries at a time: less to keep near */
            uint8_t *shares = (uint8_t *)s->shares;
            for (int r = first; r < queries && r < first + 16; r++, shares += SPAN) {
                share_low(s->weight + r * s->pitch + begin, n, t[r], shares, a->next + (size_t)begin * 64 + r * 2 * n);
            }
            mix_low(a->values + (size_t)begin * 64, n, (uint8_t *)s->shares, begin > 0, s->mixed + first * 128);
        }
    }
    for (int r = 0; r < queries; r++) put_low(s->mixed + r / 16 * 2048 + r % 16 * 16, a->d, a->out[r]);
    return 1;
}

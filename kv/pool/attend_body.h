/* The work of attend.c for one instruction set. Included once for each, with these defined: SUFFIX of all names, TARGET
 * (function attributes), BYTES of a vector. Rows are padded with zeros to a multiple of 16 floats. */
#define LANES (BYTES / (int)sizeof(float))
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float NAME(V) __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef int32_t NAME(I) __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef uint8_t NAME(U) __attribute__((vector_size(BYTES / 4), aligned(1), may_alias));
typedef int8_t NAME(S) __attribute__((vector_size(BYTES / 4), aligned(1), may_alias));

/* Return the centroids of nibbles. */
INLINE NAME(V) NAME(centroids)(NAME(I) nibble)
{
#if BYTES == 64
    return (NAME(V))_mm512_permutexvar_ps((__m512i)nibble, _mm512_loadu_ps(BOOK));
#elif BYTES == 32 /* magnitudes by three bits, then the sign */
    const __m256 size = _mm256_permutevar8x32_ps(_mm256_loadu_ps(BOOK), (__m256i)nibble);
    const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32((__m256i)nibble, 3), 31);
    return (NAME(V))_mm256_xor_ps(size, (__m256)sign);
#else
    NAME(V) found;
    for (int i = 0; i < LANES; i++)
        found[i] = BOOK[nibble[i]];
    return found;
#endif
}

/* Unpack half a row: of the key or of the value. Elements of q4 come even ones first, then odd ones. */
INLINE void NAME(unpack)(const Job *j, float *to, const uint8_t *from, float by)
{
    long i = 0;
    if (j->kind == Q4) {
        const long half = j->dim / 2;
        for (; i + LANES <= half; i += LANES) {
            const NAME(I) two = __builtin_convertvector(*(const NAME(U) *)(from + i), NAME(I));
            *(NAME(V) *)(to + i) = NAME(centroids)(two & 15) * by;
            *(NAME(V) *)(to + half + i) = NAME(centroids)(two >> 4) * by;
        }
        for (; i < half; i++)
            to[i] = BOOK[from[i] & 15] * by, to[half + i] = BOOK[from[i] >> 4] * by;
    } else if (j->kind == Q8) {
        for (; i + LANES <= j->dim; i += LANES)
            *(NAME(V) *)(to + i) = __builtin_convertvector(*(const NAME(S) *)(from + i), NAME(V)) * by;
        for (; i < j->dim; i++)
            to[i] = (float)(int8_t)from[i] * by;
    } else {
        for (; i < j->dim; i++)
            to[i] = element(from, i, j->type);
    }
}

INLINE float NAME(dot)(const float *a, const float *b, long wide)
{
    NAME(V) sum = {0}, other = {0};
    long i = 0;
    for (; i + 2 * LANES <= wide; i += 2 * LANES) {
        sum += *(const NAME(V) *)(a + i) * *(const NAME(V) *)(b + i);
        other += *(const NAME(V) *)(a + i + LANES) * *(const NAME(V) *)(b + i + LANES);
    }
    if (i < wide) /* a multiple of 16 */
        sum += *(const NAME(V) *)(a + i) * *(const NAME(V) *)(b + i);
    sum += other;
    float found = 0;
    for (int n = 0; n < LANES; n++)
        found += sum[n];
    return found;
}

/* Set TILE numbers to their exponential; they are at most 0, and -inf gives 0. */
INLINE void NAME(exponentials)(float *x)
{
    for (long i = 0; i < TILE; i += LANES) {
        const NAME(V) given = *(NAME(V) *)(x + i) * 1.44269504f, lowest = (NAME(V)){0} - 127.0f;
        const NAME(I) normal = given > lowest;
        const NAME(V) v = (NAME(V))(((NAME(I))given & normal) | ((NAME(I))lowest & ~normal));
        const NAME(I) whole = __builtin_convertvector(v - 0.5f, NAME(I)); /* towards 0: the nearest, v being below 0 */
        const NAME(V) f = v - __builtin_convertvector(whole, NAME(V));
        NAME(V) p = f * 1.5353362e-4f + 1.3398874e-3f;
        p = p * f + 9.6184373e-3f;
        p = p * f + 5.5503324e-2f;
        p = p * f + 2.4022648e-1f;
        p = p * f + 6.9314718e-1f;
        p = p * f + 1.0f;
        const NAME(I) bits = (whole + 127) << 23;
        *(NAME(V) *)(x + i) = p * (NAME(V))bits; /* 0 of the lowest */
    }
}

/* Add to sum the rows of the tile, each by its weight. */
INLINE void NAME(add_rows)(float *sum, const float *tile, const float *weight, long rows, long wide)
{
    long i = 0;
    for (; i + 4 * LANES <= wide; i += 4 * LANES) {
        NAME(V) some[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            some[n] = *(const NAME(V) *)(sum + i + n * LANES);
        for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++)
                some[n] += weight[r] * *(const NAME(V) *)(tile + r * wide + i + n * LANES);
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++)
            *(NAME(V) *)(sum + i + n * LANES) = some[n];
    }
    for (; i < wide; i += LANES)
        for (long r = 0; r < rows; r++)
            *(NAME(V) *)(sum + i) += weight[r] * *(const NAME(V) *)(tile + r * wide + i);
}

/* The orthonormal Walsh-Hadamard transform of n elements, a power of two, from the order of q4 tiles or into it. */
INLINE void NAME(hadamard)(float *x, long n)
{
    for (long size = 1; size < n; size *= 2)
        for (long at = 0; at < n; at += 2 * size)
            for (long i = at; i < at + size; i++) {
                const float left = x[i], right = x[i + size];
                x[i] = left + right, x[i + size] = left - right;
            }
    const float root = 1.0f / sqrtf((float)n);
    for (long i = 0; i < n; i++)
        x[i] *= root;
}

INLINE void NAME(split)(float *to, const float *from, long n)
{
    for (long i = 0; i < n / 2; i++)
        to[i] = from[2 * i], to[n / 2 + i] = from[2 * i + 1];
}

INLINE void NAME(merge)(float *to, const float *from, long n)
{
    for (long i = 0; i < n / 2; i++)
        to[2 * i] = from[i], to[2 * i + 1] = from[n / 2 + i];
}

/* Turn scores into weights, in the unit of the largest score so far, and what was summed before to that unit. */
INLINE void NAME(weigh)(const Job *j, Scratch *s, long g, long wide)
{
    float *score = s->score + g * TILE, most = s->most[g];
    for (long i = 0; i < TILE; i++)
        most = score[i] > most ? score[i] : most;
    if (most == -INFINITY) { /* nothing to see yet */
        memset(score, 0, TILE * sizeof *score);
        return;
    }
    const float by = s->most[g] == -INFINITY ? 0.0f : expf(s->most[g] - most);
    if (by != 1.0f) {
        for (long i = 0; i < wide; i++)
            s->sum[g * wide + i] *= by, s->plain[g * wide + i] *= by;
        s->total[g] *= by, s->weight[g] *= by;
    }
    s->most[g] = most;
    for (long i = 0; i < TILE; i++)
        score[i] -= most;
    NAME(exponentials)(score);
    for (long i = 0; i < TILE; i++)
        s->total[g] += score[i];
    (void)j;
}

/* Add the pages of tokens `from` onwards, `count` of them. */
INLINE void NAME(add_pages)(const Job *j, Scratch *s, long n, long head, long from, long count)
{
    const long wide = wide_of(j->dim), half = wide_of(j->half), tile = from / TILE;
    const long part = j->kind == RAW ? SIZE[j->type] * j->dim : j->kind == Q8 ? j->dim : j->dim / 2;
    const int32_t *table = j->table + n * j->table_row;
    long place[TILE];
    for (long i = 0; i < count; i++) {
        const long at = from + i;
        place[i] = (table[at / j->block] * j->block + at % j->block) * j->heads + head;
        NAME(unpack)(j, s->tile + i * wide, j->pages + place[i] * 2 * part, j->scale ? of_half(j->scale[2 * place[i]]) : 1);
    }
    for (long g = 0; g < j->group; g++) {
        float *score = s->score + g * TILE, *a = s->cos, *b = s->cos + TILE;
        const float *q = (j->kind == Q4 ? s->turned : s->q) + g * wide;
        for (long i = 0; i < TILE; i++)
            score[i] = i < count && from + i >= j->sinks ? NAME(dot)(q, s->tile + i * wide, wide) + s->constant[g]
                                                        : -INFINITY;
        for (long begin = 0; j->centre && begin < half; begin += TILE) { /* the centre, TILE angles at a time */
            const long end = half - begin < TILE ? half : begin + TILE;
            for (long i = begin; i < end; i++) {
                const float cos = j->tile_cos[tile * half + i], sin = j->tile_sin[tile * half + i];
                a[i - begin] = s->a[g * half + i] * cos + s->b[g * half + i] * sin;
                b[i - begin] = s->b[g * half + i] * cos - s->a[g * half + i] * sin;
            }
            for (long i = 0; i < count; i++)
                score[i] += NAME(dot)(a, j->cos + i * half + begin, end - begin) +
                            NAME(dot)(b, j->sin + i * half + begin, end - begin);
        }
        NAME(weigh)(j, s, g, wide);
        for (long i = 0; i < count; i++)
            s->weight[g] += score[i];
    }
    for (long i = 0; i < count; i++)
        NAME(unpack)(j, s->tile + i * wide, j->pages + place[i] * 2 * part + part,
                     j->scale ? of_half(j->scale[2 * place[i] + 1]) : 1);
    for (long g = 0; g < j->group; g++)
        NAME(add_rows)((j->kind == Q4 ? s->sum : s->plain) + g * wide, s->tile, s->score + g * TILE, count, wide);
}

/* Add exact tokens of columns `from` onwards. */
INLINE void NAME(add_exact)(const Job *j, Scratch *s, long n, long head, long from, long count)
{
    const long wide = wide_of(j->dim), row = ((n * j->heads + head) * j->cap + from) * j->dim;
    const uint8_t *real = j->real + n * j->cap + from;
    for (long i = 0; i < count; i++)
        for (long d = 0; real[i] && d < j->dim; d++)
            s->tile[i * wide + d] = element(j->keys, row + i * j->dim + d, j->type);
    for (long g = 0; g < j->group; g++) {
        float *score = s->score + g * TILE;
        for (long i = 0; i < TILE; i++)
            score[i] = i < count && real[i] ? NAME(dot)(s->q + g * wide, s->tile + i * wide, wide) : -INFINITY;
        NAME(weigh)(j, s, g, wide);
    }
    for (long i = 0; i < count; i++)
        for (long d = 0; d < j->dim; d++)
            s->tile[i * wide + d] = real[i] ? element(j->values, row + i * j->dim + d, j->type) : 0;
    for (long g = 0; g < j->group; g++)
        NAME(add_rows)(s->plain + g * wide, s->tile, s->score + g * TILE, count, wide);
}

TARGET static void NAME(attend)(const Job *j, Scratch *s, long task)
{
    const long n = task / j->heads, head = task % j->heads, dim = j->dim, wide = wide_of(dim), half = wide_of(j->half);
    const float *centre = j->centre ? j->centre + head * dim : NULL;
    memset(s->sum, 0, sizeof(float) * (size_t)(j->group * wide));
    memset(s->plain, 0, sizeof(float) * (size_t)(j->group * wide));
    for (long g = 0; g < j->group; g++) {
        float *q = s->q + g * wide, *turned = s->turned + g * wide;
        memcpy(q, j->q + (task * j->group + g) * dim, sizeof(float) * (size_t)dim);
        s->most[g] = -INFINITY, s->total[g] = s->weight[g] = s->constant[g] = 0;
        if (centre) {
            for (long i = 0; i < j->half; i++) {
                const float left = q[i], right = q[i + j->half], low = centre[i], high = centre[i + j->half];
                s->a[g * half + i] = left * low + right * high;
                s->b[g * half + i] = right * low - left * high;
            }
            for (long i = 2 * j->half; i < dim; i++)
                s->constant[g] += q[i] * centre[i];
        }
        if (j->kind == Q4) {
            memcpy(s->tile, q, sizeof(float) * (size_t)dim);
            NAME(hadamard)(s->tile, dim);
            NAME(split)(turned, s->tile, dim);
        }
    }
    const long tokens = j->packed[n];
    memset(s->tile, 0, sizeof(float) * (size_t)(TILE * wide));
    for (long at = 0; at < tokens; at += TILE)
        NAME(add_pages)(j, s, n, head, at, tokens - at < TILE ? tokens - at : TILE);
    for (long at = 0; at < j->columns; at += TILE)
        NAME(add_exact)(j, s, n, head, at, j->columns - at < TILE ? j->columns - at : TILE);
    for (long g = 0; g < j->group; g++) {
        float *out = j->out + (task * j->group + g) * dim;
        const float by = s->total[g] > 0 ? 1.0f / s->total[g] : 0.0f;
        if (j->kind == Q4) {
            NAME(merge)(s->tile, s->sum + g * wide, dim);
            NAME(hadamard)(s->tile, dim);
        }
        for (long i = 0; i < dim; i++)
            out[i] = by * (s->plain[g * wide + i] + (j->kind == Q4 ? s->tile[i] : 0.0f) +
                           (centre ? s->weight[g] * centre[j->heads * dim + i] : 0.0f));
    }
}
#undef LANES
#undef INLINE

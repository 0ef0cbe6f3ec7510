/* The work of layers.c for one instruction set. Included once for each, with these defined: SUFFIX of all names, TARGET
 * (function attributes), BYTES of a vector, ROWS that a tile of a product has. */
#define LANES (BYTES / (int)sizeof(float))
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef float NAME(V) __attribute__((vector_size(BYTES), aligned(4), may_alias));

/* Add to `rows` rows of c, two vectors wide, the product of a and b. rows is a constant. */
INLINE void NAME(tile)(const int rows, float *c, long ldc, const float *a, long lda, const float *b, long ldb,
                       long depth)
{
    NAME(V) sum[ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        sum[r][0] = *(const NAME(V) *)(c + r * ldc);
        sum[r][1] = *(const NAME(V) *)(c + r * ldc + LANES);
    }
    for (long k = 0; k < depth; k++, b += ldb) {
        const NAME(V) left = *(const NAME(V) *)b, right = *(const NAME(V) *)(b + LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            sum[r][0] += a[r * lda + k] * left;
            sum[r][1] += a[r * lda + k] * right;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        *(NAME(V) *)(c + r * ldc) = sum[r][0];
        *(NAME(V) *)(c + r * ldc + LANES) = sum[r][1];
    }
}

/* c (rows, columns) += a (rows, depth) b (depth, columns). ld: elements from row to row. */
TARGET static void NAME(product)(float *c, long ldc, const float *a, long lda, const float *b, long ldb, long rows,
                                 long depth, long columns)
{
    long j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES) {
        long i = 0;
        for (; i + ROWS <= rows; i += ROWS)
            NAME(tile)(ROWS, c + i * ldc + j, ldc, a + i * lda, lda, b + j, ldb, depth);
        for (; i < rows; i++)
            NAME(tile)(1, c + i * ldc + j, ldc, a + i * lda, lda, b + j, ldb, depth);
    }
    for (long i = 0; i < rows && j < columns; i++)
        for (long k = 0; k < depth; k++)
            for (long n = j; n < columns; n++)
                c[i * ldc + n] += a[i * lda + k] * b[k * ldb + n];
}

/* c (columns,) += the sum of value[k] times row at[k] of b. */
TARGET static void NAME(gather)(float *c, const float *value, const int32_t *at, long count, const float *b,
                                long columns)
{
    enum { WIDE = 8 }; /* vectors */
    long j = 0;
    for (; j + WIDE * LANES <= columns; j += WIDE * LANES) {
        NAME(V) sum[WIDE];
#pragma GCC unroll 8
        for (int n = 0; n < WIDE; n++)
            sum[n] = *(const NAME(V) *)(c + j + n * LANES);
        for (long k = 0; k < count; k++) {
            const float *row = b + (long)at[k] * columns + j;
#pragma GCC unroll 8
            for (int n = 0; n < WIDE; n++)
                sum[n] += value[k] * *(const NAME(V) *)(row + n * LANES);
        }
#pragma GCC unroll 8
        for (int n = 0; n < WIDE; n++)
            *(NAME(V) *)(c + j + n * LANES) = sum[n];
    }
    for (long k = 0; k < count && j < columns; k++)
        for (long n = j; n < columns; n++)
            c[n] += value[k] * b[(long)at[k] * columns + n];
}

/* Set each of `rows` rows of c to the same numbers. */
TARGET static void NAME(fill)(float *c, const float *row, long rows, long columns)
{
    for (long i = 0; i < rows; i++)
        memcpy(c + i * columns, row, sizeof(float) * (size_t)columns);
}

/* c += x b for the inputs x of a layer: the embedding, then the rows of the layers below, the lower one first. */
TARGET static void NAME(inputs)(const Job *j, const Scratch *s, long layer, long first, long rows, float *c,
                                const float *b, long columns)
{
    NAME(product)(c, columns, j->embedded + first * j->hidden, j->hidden, b, columns, rows, j->hidden, columns);
    b += j->hidden * columns;
    for (long below = layer < BELOW ? layer : BELOW; below > 0; below--, b += j->width * columns)
        NAME(product)(c, columns, s->row[(layer - below) % (BELOW + 1)], j->width, b, columns, rows, j->width, columns);
}

/* Set the row of a layer from its integers. z: A applied to the inputs, where the predictor has a rank. */
TARGET static void NAME(row)(const Job *j, Scratch *s, long layer, long first, long rows)
{
    const Layer *l = j->layer + layer;
    float *row = s->row[layer % (BELOW + 1)];
    NAME(fill)(row, l->shift, rows, j->width);
    if (l->rank)
        NAME(product)(row, j->width, s->z, l->rank, l->join, j->width, rows, l->rank, j->width);
    else
        NAME(inputs)(j, s, layer, first, rows, row, l->join, j->width);
    long counted = 0;
    for (long t = 0; t < rows; t++) {
        const int16_t *q = j->q + ((first + t) * j->layers + layer) * j->width;
        const float step = j->step[first + t];
        float *value = s->value + t * j->width;
        int32_t *at = s->at + t * j->width, count = 0;
        for (long i = 0; i < j->width; i++) {
            value[count] = (float)q[i] * step;
            at[count] = (int32_t)i;
            count += q[i] != 0;
        }
        s->count[t] = count;
        counted += count;
    }
    if (5 * counted <= 3 * rows * j->width) { /* measured: from three fifths on the whole product is faster */
        for (long t = 0; t < rows; t++)
            NAME(gather)(row + t * j->width, s->value + t * j->width, s->at + t * j->width, s->count[t], l->decode,
                         j->width);
        return;
    }
    for (long t = 0; t < rows; t++) {
        const int16_t *q = j->q + ((first + t) * j->layers + layer) * j->width;
        const float step = j->step[first + t];
        for (long i = 0; i < j->width; i++)
            s->scaled[t * j->width + i] = (float)q[i] * step;
    }
    NAME(product)(row, j->width, s->scaled, j->width, l->decode, j->width, rows, j->width, j->width);
}

/* z = x A, where the predictor has a rank. */
TARGET static void NAME(reduce)(const Job *j, Scratch *s, long layer, long first, long rows)
{
    const Layer *l = j->layer + layer;
    if (l->rank) {
        memset(s->z, 0, sizeof(float) * (size_t)(rows * l->rank));
        NAME(inputs)(j, s, layer, first, rows, s->z, l->reduce, l->rank);
    }
}

/* Turn the first 2 half elements of a key: left and right are half apart. sin: negative to turn back. */
INLINE void NAME(turn)(float *restrict to, const float *restrict from, const float *restrict cos,
                       const float *restrict sin, const float sign, long half, long dim)
{
    for (long i = 0; i < half; i++) {
        to[i] = from[i] * cos[i] - from[half + i] * sign * sin[i];
        to[half + i] = from[half + i] * cos[i] + from[i] * sign * sin[i];
    }
    for (long i = 2 * half; i < dim; i++)
        to[i] = from[i];
}

/* Copy numbers to an output of another type. Returns the largest of their bits without the sign, as 32 bits. */
INLINE uint32_t NAME(put)(void *to, const float *from, long count, int size)
{
    uint32_t largest = 0;
    if (size == FLOAT32) {
        uint32_t *restrict out = to;
        for (long i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, from + i, sizeof bits);
            out[i] = bits;
            bits &= 0x7FFFFFFF;
            largest = bits > largest ? bits : largest;
        }
        return largest;
    }
    uint16_t *restrict out = to;
    for (long i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        const uint32_t sign = bits & 0x80000000, size_of = bits & 0x7FFFFFFF;
        const uint32_t near = size_of < 0x7F800000 ? size_of + 0x7FFF + (size_of >> 16 & 1) : 0x7F800000;
        out[i] = (uint16_t)((near | sign) >> 16);
        largest = near > largest ? near : largest;
    }
    return largest;
}

/* Write the row of a layer as keys at their positions, and values. Returns whether all numbers are finite. */
TARGET static int NAME(write)(const Job *j, const Scratch *s, long layer, long first, long rows)
{
    uint32_t largest = 0;
    const float *row = s->row[layer % (BELOW + 1)];
    for (long h = 0; h < 2 * j->heads; h++) {
        char *out = (char *)j->kv + ((layer * 2 * j->heads + h) * j->tokens + first) * j->dim * j->size;
        for (long t = 0; t < rows; t++, out += j->dim * j->size) {
            const float *from = row + t * j->width + h * j->dim;
            float *turned = s->scaled;
            const long at = (first + t) * j->half;
            if (h < j->heads)
                NAME(turn)(turned, from, j->cos + at, j->sin + at, 1.0f, j->half, j->dim);
            const uint32_t found = NAME(put)(out, h < j->heads ? turned : from, j->dim, j->size);
            largest = found > largest ? found : largest;
        }
    }
    return largest < 0x7F800000;
}

TARGET static int NAME(restore)(const Job *j, Scratch *s, long first, long rows)
{
    for (long layer = 0; layer < j->layers; layer++) {
        NAME(reduce)(j, s, layer, first, rows);
        NAME(row)(j, s, layer, first, rows);
        if (!NAME(write)(j, s, layer, first, rows))
            return NOT_FINITE;
    }
    return SOUND;
}

/* Set the wanted row of a layer: keys turned back, then values. Returns whether all numbers are finite. */
TARGET static int NAME(read)(const Job *j, const Scratch *s, long layer, long first, long rows)
{
    uint32_t largest = 0;
    for (long h = 0; h < 2 * j->heads; h++) {
        const float *from = (const float *)j->kv + ((layer * 2 * j->heads + h) * j->tokens + first) * j->dim;
        for (long t = 0; t < rows; t++, from += j->dim) {
            float *to = s->wanted + t * j->width + h * j->dim;
            const long at = (first + t) * j->half;
            NAME(turn)(to, from, j->cos + at, j->sin + at, -1.0f, h < j->heads ? j->half : 0, j->dim);
            for (long i = 0; i < j->dim; i++) {
                uint32_t bits;
                memcpy(&bits, to + i, sizeof bits);
                bits &= 0x7FFFFFFF;
                largest = bits > largest ? bits : largest;
            }
        }
    }
    return largest < 0x7F800000;
}

TARGET static int NAME(quantise)(const Job *j, Scratch *s, long first, long rows)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves no digits behind the point */
    const long width = j->width;
    for (long layer = 0; layer < j->layers; layer++) {
        const Layer *l = j->layer + layer;
        if (!NAME(read)(j, s, layer, first, rows))
            return NOT_FINITE;
        NAME(reduce)(j, s, layer, first, rows);
        NAME(fill)(s->guess, l->constant, rows, width);
        if (l->rank)
            NAME(product)(s->guess, width, s->z, l->rank, l->spread, width, rows, l->rank, width);
        else
            NAME(inputs)(j, s, layer, first, rows, s->guess, l->spread, width);
        memset(s->scaled, 0, sizeof(float) * (size_t)(rows * width));
        NAME(product)(s->scaled, width, s->wanted, width, l->encode, width, rows, width, width);
        int near = 1;
        for (long t = 0; t < rows; t++) {
            int16_t *q = j->q + ((first + t) * j->layers + layer) * width;
            const float step = j->step[first + t];
            for (long i = 0; i < width; i++) {
                const float exact = (s->scaled[t * width + i] - s->guess[t * width + i]) / step;
                const int fits = (exact > -32767.5f) & (exact < 32767.5f); /* 0 for NaN */
                near &= fits;
                q[i] = (int16_t)(int32_t)((fits ? exact : 0.0f) + round - round);
            }
        }
        if (!near)
            return TOO_FAR;
        NAME(row)(j, s, layer, first, rows);
    }
    return SOUND;
}
#undef LANES
#undef INLINE

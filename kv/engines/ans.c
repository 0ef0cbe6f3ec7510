/* Entropy coding of quantised residuals: interleaved rANS with static tables. Spec: FORMAT.md, "Streams".
 *
 *     encode(symbols, classes, ...) -> (words of each group, states), fills counts and sums
 *     decode(words, states, offsets, ...) fills symbols, classes and sums
 *
 * A group is LANES tokens side by side, one rANS state each, over one run of 16-bit words. Every lane takes one step
 * at a time, so that a vector unit or a warp can decode a group in lockstep. The table of a step depends on integers
 * that were decoded before it, so all machines choose the same one.
 *
 * A section is SECTION layers. The words of all groups for one section lie side by side, so that a reader that decodes
 * layer by layer needs a beginning of the file only. States go on from section to section.
 *
 * Invariant: between steps every state is in [2^16, 2^32). A lane begins to encode at 2^16, so it must end there.
 * Every word is read behind a test of the end, so no input reads or writes out of bounds. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define WITH_AVX512 1
#endif

enum { LANES = 32, PRECISION = 12, SLOTS = 1 << PRECISION, SYMBOLS = 32, HALF = 15, ESCAPE = 31 };
enum { BLOCK = 32, TABLES = 29, BASE = 24, TOP = 28, CLASS_BITS = 4, CLASS_LEVELS = 4, COARSEST = 12 };
enum { SECTION = 4, STREAM_ELEMENTS = 8192 }; /* layers whose words lie together */
enum { MOST_LOW = 10, MEAN_UNIT = 16, PRIOR = 8 * MEAN_UNIT, MOST_SHIFT = 10 };
#define LOWEST ((uint32_t)1 << 16)

typedef struct {
    const uint16_t *freq; /* TABLES x SYMBOLS, each row sums to SLOTS */
    const uint16_t *mean; /* TABLES: mean of min(|q|, HALF) in 1/16 */
    const int16_t *level; /* layers x width: 8 log2 of a component's mean size */
    int layers, width, point;
    long tokens, per_lane;
} Model;

typedef struct {
    int32_t seen[LANES], expected[LANES];           /* of this layer */
    int32_t above_seen[LANES], above_expected[LANES]; /* half of those of the layer before */
    int32_t shift[LANES], first[LANES];             /* of the block; step level of the token */
} Context;

/* Return about 4 log2 of a positive integer, rounded down: the same on every machine. */
static inline int32_t quarter_log(uint32_t v)
{
    int msb = 31 - __builtin_clz(v);
    uint32_t rest = msb >= 2 ? v >> (msb - 2) : v << (2 - msb);
    return 4 * msb + (int32_t)(rest & 3);
}

static void begin_layer(Context *c, int n)
{
    for (int i = 0; i < n; i++) {
        c->above_seen[i] = c->seen[i] >> 1;
        c->above_expected[i] = c->expected[i] >> 1;
        c->seen[i] = c->expected[i] = 0;
    }
}

/* A stream knows nothing of the layers before its first. */
static void forget_above(Context *c, int n)
{
    for (int i = 0; i < n; i++)
        c->above_seen[i] = c->above_expected[i] = 0;
}

static void begin_block(Context *c, int n)
{
    for (int i = 0; i < n; i++) {
        int32_t s = quarter_log((uint32_t)(c->seen[i] + c->above_seen[i] + PRIOR));
        int32_t e = quarter_log((uint32_t)(c->expected[i] + c->above_expected[i] + PRIOR));
        int32_t d = s - e;
        c->shift[i] = d > MOST_SHIFT ? MOST_SHIFT : d < -MOST_SHIFT ? -MOST_SHIFT : d;
    }
}

/* Return the table of a step; set the number of low bits that are coded as they are. */
static inline int table_of(const Context *c, int lane, int32_t level, int *low, int *plain)
{
    int32_t t = ((level - c->first[lane]) >> 1) + BASE;
    *plain = t < 0 ? 0 : t > TOP ? TOP : t; /* without what was seen: of the expectation */
    t += c->shift[lane];
    *low = 0;
    if (t > TOP) {
        int k = (t - TOP + 3) >> 2;
        if (k > MOST_LOW)
            k = MOST_LOW;
        t -= 4 * k;
        *low = k;
        if (t > TOP)
            t = TOP;
    }
    return t < 0 ? 0 : t;
}

static inline void count(Context *c, const Model *m, int lane, int low, int plain, int32_t q)
{
    if (low)
        return;
    int32_t size = q < 0 ? -q : q;
    c->seen[lane] += MEAN_UNIT * (size > HALF ? HALF : size);
    c->expected[lane] += m->mean[plain];
}

static inline void begin_token(Context *c, int lane, int kind, int point)
{
    c->first[lane] = point + COARSEST - CLASS_LEVELS * kind;
    c->seen[lane] = c->expected[lane] = 0;
}

/* ---- encoding, from the last step to the first */

typedef struct {
    uint16_t *at, *begin; /* words are written downwards */
    uint32_t state[LANES];
} Out;

static inline void put_word(Out *o, int lane)
{
    *--o->at = (uint16_t)o->state[lane];
    o->state[lane] >>= 16;
}

static inline void put_bits(Out *o, int lane, uint32_t value, int bits)
{
    if ((uint64_t)o->state[lane] >= (uint64_t)1 << (32 - bits))
        put_word(o, lane);
    o->state[lane] = o->state[lane] << bits | value;
}

static inline void put_symbol(Out *o, int lane, uint32_t f, uint32_t first)
{
    if ((uint64_t)o->state[lane] >= (uint64_t)f << 20)
        put_word(o, lane);
    uint32_t x = o->state[lane];
    o->state[lane] = (x / f << PRECISION) + x % f + first;
}

/* Set the two sums of a token: the class and all integers added up, and all values that this sum had after each. */
static void sum_token(uint32_t *sums, uint8_t kind, const int16_t *q, long count)
{
    uint32_t a = kind, b = 0;
    for (long i = 0; i < count; i++) {
        a += (uint32_t)(int32_t)q[i];
        b += a;
    }
    sums[0] = a;
    sums[1] = b;
}

/* Sections of a stream, and streams. The last stream takes the sections that are too few for another. */
static long sections_each(const Model *m)
{
    const long elements = (long)SECTION * m->width;
    return (STREAM_ELEMENTS + elements - 1) / elements;
}

static long sections_of(const Model *m) { return m->per_lane > 1 ? 1 : ((long)m->layers + SECTION - 1) / SECTION; }

static long streams_of(const Model *m)
{
    const long streams = sections_of(m) / sections_each(m);
    return streams > 1 ? streams : 1;
}

/* Return the stream that begins with a step, or 0 where none but the first may. */
static long begins_stream(const Model *m, long step)
{
    const long span = sections_each(m) * SECTION * m->width;
    return step % span == 0 && step / span < streams_of(m) ? step / span : 0;
}

/* Encode a group. counts: words of each of its sections. states: of each stream, `stride` apart. */
static void encode_group(const Model *m, long group, const int16_t *symbols, const uint8_t *kinds, Out *o,
                         uint8_t *plan, const uint16_t *first, int64_t *counts, uint32_t *sums, uint32_t *states,
                         long stride)
{
    const long steps = (long)m->layers * m->width, base = group * LANES * m->per_lane;
    const long span = (long)SECTION * m->width, sections = sections_of(m);
    const uint16_t *mark = o->at;
    for (int i = 0; i < LANES; i++)
        o->state[i] = LOWEST;
    for (long row = m->per_lane - 1; row >= 0; row--) {
        long start = base + row * LANES;
        int n = start >= m->tokens ? 0 : m->tokens - start < LANES ? (int)(m->tokens - start) : LANES;
        if (!n)
            continue;
        Context c;
        for (int i = 0; i < n; i++) {
            begin_token(&c, i, kinds[start + i], m->point);
            sum_token(sums + 2 * (start + i), kinds[start + i], symbols + (start + i) * steps, steps);
        }
        for (int layer = 0; layer < m->layers; layer++) {
            begin_layer(&c, n);
            if (begins_stream(m, (long)layer * m->width))
                forget_above(&c, n);
            for (int j = 0; j < m->width; j++) {
                if (j % BLOCK == 0)
                    begin_block(&c, n);
                long step = (long)layer * m->width + j;
                for (int i = 0; i < n; i++) {
                    int low, plain, t = table_of(&c, i, m->level[step], &low, &plain);
                    count(&c, m, i, low, plain, symbols[(start + i) * steps + step]);
                    plan[2 * (step * LANES + i)] = (uint8_t)t;
                    plan[2 * (step * LANES + i) + 1] = (uint8_t)low;
                }
            }
        }
        for (long step = steps - 1; step >= 0; step--) {
            const uint8_t *here = plan + 2 * step * LANES;
            const int16_t *q = symbols + start * steps + step;
            for (int i = n - 1; i >= 0; i--) {
                int high = q[i * steps] >> here[2 * i + 1];
                if (high < -HALF || high > HALF || !m->freq[here[2 * i] * SYMBOLS + high + HALF])
                    put_bits(o, i, (uint16_t)high, 16);
            }
            for (int i = n - 1; i >= 0; i--)
                if (here[2 * i + 1])
                    put_bits(o, i, (uint32_t)q[i * steps] & ((1u << here[2 * i + 1]) - 1), here[2 * i + 1]);
            for (int i = n - 1; i >= 0; i--) {
                int high = q[i * steps] >> here[2 * i + 1], row_of = here[2 * i] * SYMBOLS;
                int s = high < -HALF || high > HALF || !m->freq[row_of + high + HALF] ? ESCAPE : high + HALF;
                put_symbol(o, i, m->freq[row_of + s], first[row_of + s]);
            }
            if (sections > 1 && step && step % span == 0) {
                counts[step / span] = mark - o->at;
                mark = o->at;
                const long stream = begins_stream(m, step);
                for (int i = 0; stream && i < LANES; i++) {
                    states[stream * stride + i] = o->state[i];
                    o->state[i] = LOWEST;
                }
            }
        }
        for (int i = n - 1; i >= 0; i--)
            put_bits(o, i, kinds[start + i], CLASS_BITS);
    }
    counts[0] = mark - o->at;
    memcpy(states, o->state, sizeof o->state);
}

/* ---- decoding */

typedef struct {
    const uint16_t *at, *end;
    uint32_t state[LANES];
    int bad;
} In;

static inline void refill(In *in, int lane)
{
    if (in->state[lane] < LOWEST) {
        uint32_t word = 0;
        if (in->at < in->end)
            word = *in->at++;
        else
            in->bad = 1;
        in->state[lane] = in->state[lane] << 16 | word;
    }
}

static inline uint32_t get_bits(In *in, int lane, int bits)
{
    uint32_t value = in->state[lane] & (((uint32_t)1 << bits) - 1);
    in->state[lane] >>= bits;
    refill(in, lane);
    return value;
}

/* Low bits and escapes of a step, after the symbols of all lanes. */
static void finish_step(In *in, int n, const uint8_t *low, int32_t *q, uint64_t lows, uint64_t escapes)
{
    (void)n;
    uint32_t rest[LANES];
    for (uint64_t left = lows; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        rest[i] = get_bits(in, i, low[i]);
    }
    for (uint64_t left = escapes; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        q[i] = (int16_t)get_bits(in, i, 16);
    }
    for (uint64_t left = lows; left; left &= left - 1) {
        int i = __builtin_ctzll(left);
        int64_t whole = (int64_t)q[i] * ((int64_t)1 << low[i]) + rest[i];
        if (whole < INT16_MIN || whole > INT16_MAX) {
            in->bad = 1;
            whole = 0;
        }
        q[i] = (int32_t)whole;
    }
}

static void step_plain(const Model *m, Context *c, In *in, int n, int32_t level, const uint32_t *slots, int32_t *q)
{
    uint8_t low[LANES], plain_of[LANES];
    uint64_t lows = 0, escapes = 0;
    for (int i = 0; i < n; i++) {
        int k, plain, t = table_of(c, i, level, &k, &plain);
        uint32_t slot = in->state[i] & (SLOTS - 1), entry = slots[t * SLOTS + slot];
        in->state[i] = (entry >> 12 & 0x1FFF) * (in->state[i] >> PRECISION) + (entry & 0xFFF);
        refill(in, i);
        int s = (int)(entry >> 25);
        q[i] = s - HALF;
        low[i] = (uint8_t)k;
        plain_of[i] = (uint8_t)plain;
        lows |= (uint64_t)(k > 0) << i;
        escapes |= (uint64_t)(s == ESCAPE) << i;
    }
    if (lows | escapes)
        finish_step(in, n, low, q, lows, escapes);
    for (int i = 0; i < n; i++)
        count(c, m, i, low[i], plain_of[i], q[i]);
}

#ifdef WITH_AVX512
/* The same step for a full group, 16 lanes per register. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2"))) static void
step_avx512(const Model *m, Context *c, In *in, int32_t level, const uint32_t *slots, const int32_t *mean, int32_t *q)
{
    (void)m;
    uint8_t low[LANES];
    uint64_t lows = 0, escapes = 0;
    const __m512i zero = _mm512_setzero_si512(), top = _mm512_set1_epi32(TOP);
    __m512i plain_of[2], k_of[2];
    if (in->end - in->at < LANES) { /* too near the end to load whole vectors */
        step_plain(m, c, in, LANES, level, slots, q);
        return;
    }
    for (int h = 0; h < 2; h++) {
        const int o = 16 * h;
        __m512i t = _mm512_add_epi32(
            _mm512_srai_epi32(_mm512_sub_epi32(_mm512_set1_epi32(level), _mm512_loadu_si512(c->first + o)), 1),
            _mm512_set1_epi32(BASE));
        plain_of[h] = _mm512_min_epi32(_mm512_max_epi32(t, zero), top);
        t = _mm512_add_epi32(t, _mm512_loadu_si512(c->shift + o));
        __m512i k = _mm512_srai_epi32(_mm512_add_epi32(_mm512_sub_epi32(t, top), _mm512_set1_epi32(3)), 2);
        k = _mm512_min_epi32(_mm512_max_epi32(k, zero), _mm512_set1_epi32(MOST_LOW));
        t = _mm512_sub_epi32(t, _mm512_slli_epi32(k, 2));
        t = _mm512_min_epi32(_mm512_max_epi32(t, zero), top);
        __m512i x = _mm512_loadu_si512(in->state + o);
        __m512i at = _mm512_add_epi32(_mm512_slli_epi32(t, PRECISION),
                                      _mm512_and_si512(x, _mm512_set1_epi32(SLOTS - 1)));
        __m512i entry = _mm512_i32gather_epi32(at, slots, 4);
        __m512i f = _mm512_and_si512(_mm512_srli_epi32(entry, 12), _mm512_set1_epi32(0x1FFF));
        x = _mm512_add_epi32(_mm512_mullo_epi32(f, _mm512_srli_epi32(x, PRECISION)),
                             _mm512_and_si512(entry, _mm512_set1_epi32(0xFFF)));
        __mmask16 small = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32((int)LOWEST));
        if (small) {
            __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)in->at));
            __m512i spread = _mm512_maskz_expand_epi32(small, words);
            x = _mm512_mask_or_epi32(x, small, _mm512_slli_epi32(x, 16), spread);
            in->at += __builtin_popcount(small);
        }
        _mm512_storeu_si512(in->state + o, x);
        __m512i s = _mm512_srli_epi32(entry, 25);
        _mm512_storeu_si512(q + o, _mm512_sub_epi32(s, _mm512_set1_epi32(HALF)));
        escapes |= (uint64_t)_mm512_cmpeq_epi32_mask(s, _mm512_set1_epi32(ESCAPE)) << o;
        lows |= (uint64_t)_mm512_cmpgt_epi32_mask(k, zero) << o;
        _mm_storeu_si128((__m128i *)(low + o), _mm512_cvtepi32_epi8(k));
        k_of[h] = k;
    }
    if (lows | escapes)
        finish_step(in, LANES, low, q, lows, escapes);
    for (int h = 0; h < 2; h++) {
        const int o = 16 * h;
        __mmask16 counted = _mm512_cmpeq_epi32_mask(k_of[h], zero);
        __m512i size = _mm512_min_epi32(_mm512_abs_epi32(_mm512_loadu_si512(q + o)), _mm512_set1_epi32(HALF));
        __m512i seen = _mm512_loadu_si512(c->seen + o), expected = _mm512_loadu_si512(c->expected + o);
        _mm512_storeu_si512(c->seen + o, _mm512_mask_add_epi32(seen, counted, seen, _mm512_slli_epi32(size, 4)));
        __m512i usual = _mm512_permutex2var_epi32(_mm512_loadu_si512(mean), plain_of[h], _mm512_loadu_si512(mean + 16));
        _mm512_storeu_si512(c->expected + o, _mm512_mask_add_epi32(expected, counted, expected, usual));
    }
}
#endif

static int has_avx512(void)
{
#ifdef WITH_AVX512
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi2");
#else
    return 0;
#endif
}

/* Go on with the words of a section. Those of the one before must be used up. */
static void begin_section(In *in, const uint16_t *words, const int64_t *ends)
{
    in->bad |= in->at != in->end;
    in->at = words + ends[0];
    in->end = words + ends[1];
}

/* Go on with the states of another stream. Those of the one before must have ended. */
static void begin_stream(In *in, const uint32_t *states, int n)
{
    for (int i = 0; i < n; i++)
        in->bad |= in->state[i] != LOWEST;
    memcpy(in->state, states, sizeof in->state);
    for (int i = 0; i < LANES; i++)
        in->bad |= in->state[i] < LOWEST;
}

/* Decode a group. ends: where the words of section s begin and end is at ends[s * groups], beginning with the first. */
static int decode_group(const Model *m, long group, In *in, const uint16_t *words, const int64_t *ends, long groups,
                        const uint32_t *slots, const int32_t *mean, int wide, int16_t *symbols, uint8_t *kinds,
                        uint32_t *sums, const uint32_t *states)
{
    const long steps = (long)m->layers * m->width, base = group * LANES * m->per_lane;
    const long sections = sections_of(m);
    enum { RUN = 32 };
    int32_t q[LANES];
    int16_t run[LANES][RUN];
    for (long row = 0; row < m->per_lane && !in->bad; row++) {
        long start = base + row * LANES;
        int n = start >= m->tokens ? 0 : m->tokens - start < LANES ? (int)(m->tokens - start) : LANES;
        Context c;
        memset(&c, 0, sizeof c);
        for (int i = 0; i < n; i++) {
            kinds[start + i] = (uint8_t)get_bits(in, i, CLASS_BITS);
            begin_token(&c, i, kinds[start + i], m->point);
        }
        for (int layer = 0; layer < m->layers && n && !in->bad; layer++) {
            if (layer && layer % SECTION == 0 && sections > 1)
                begin_section(in, words, ends + layer / SECTION * groups);
            const long stream = begins_stream(m, (long)layer * m->width);
            if (stream)
                begin_stream(in, states + stream * groups * LANES, n);
            begin_layer(&c, n);
            if (stream)
                forget_above(&c, n);
            for (int j = 0; j < m->width; j += BLOCK) {
                int stop = m->width - j < BLOCK ? m->width - j : BLOCK;
                long step = (long)layer * m->width + j;
                begin_block(&c, n);
                for (int s = 0; s < stop; s++) {
#ifdef WITH_AVX512
                    if (wide && n == LANES)
                        step_avx512(m, &c, in, m->level[step + s], slots, mean, q);
                    else
#endif
                        step_plain(m, &c, in, n, m->level[step + s], slots, q);
                    for (int i = 0; i < n; i++)
                        run[i][s] = (int16_t)q[i];
                }
                for (int i = 0; i < n; i++)
                    memcpy(symbols + (start + i) * steps + step, run[i], sizeof(int16_t) * (size_t)stop);
            }
        }
        for (int i = 0; i < n && !in->bad; i++)
            sum_token(sums + 2 * (start + i), kinds[start + i], symbols + (start + i) * steps, steps);
    }
    (void)wide;
    (void)mean;
    for (int i = 0; i < LANES; i++)
        in->bad |= base + i < m->tokens && in->state[i] != LOWEST;
    return in->bad || in->at != in->end;
}

/* ---- Python */

static int check_model(const Model *m, const Py_buffer *freq, const Py_buffer *mean, const Py_buffer *level)
{
    int sound = m->layers > 0 && m->width > 0 && m->tokens >= 0 && m->per_lane > 0 && m->layers <= 4096 &&
                m->width <= 1 << 20 && m->tokens <= 1 << 26 && m->per_lane <= 1 << 16 && m->point >= -1024 &&
                m->point <= 1024;
    sound = sound && freq->len == 2 * TABLES * SYMBOLS && mean->len == 2 * TABLES;
    sound = sound && level->len == 2 * (Py_ssize_t)m->layers * m->width;
    for (int t = 0; sound && t < TABLES; t++) {
        uint32_t sum = 0;
        for (int s = 0; s < SYMBOLS; s++)
            sum += ((const uint16_t *)freq->buf)[t * SYMBOLS + s];
        sound = sum == SLOTS && ((const uint16_t *)freq->buf)[t * SYMBOLS + ESCAPE] > 0 &&
                ((const uint16_t *)mean->buf)[t] <= MEAN_UNIT * HALF;
    }
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "tables, levels or sizes do not fit each other");
    return sound;
}

static PyObject *py_encode(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer symbols, kinds, freq, mean, level, counts, sums;
    Model m;
    long from, to;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*iiillw*w*ll", &symbols, &kinds, &freq, &mean, &level, &m.layers, &m.width,
                          &m.point, &m.tokens, &m.per_lane, &counts, &sums, &from, &to))
        return NULL;
    m.freq = freq.buf, m.mean = mean.buf, m.level = level.buf;
    PyObject *result = NULL, *words = NULL;
    const long steps = (long)m.layers * m.width, span = LANES * m.per_lane;
    long groups = 0;
    uint16_t *room = NULL;
    uint8_t *plan = NULL;
    if (!check_model(&m, &freq, &mean, &level))
        goto done;
    const long sections = sections_of(&m), all = (m.tokens + span - 1) / span;
    if (symbols.len != 2 * (Py_ssize_t)m.tokens * steps || kinds.len != m.tokens || sums.len != 8 * m.tokens ||
        counts.len != 8 * (Py_ssize_t)all * sections) {
        PyErr_SetString(PyExc_ValueError, "symbols, classes, counts or sums of another shape");
        goto done;
    }
    for (long i = 0; i < m.tokens; i++)
        if (((const uint8_t *)kinds.buf)[i] >= 1 << CLASS_BITS) {
            PyErr_SetString(PyExc_ValueError, "a class beyond the last");
            goto done;
        }
    if (from < 0 || to < from || to > all) {
        PyErr_SetString(PyExc_ValueError, "groups beyond the last");
        goto done;
    }
    groups = to - from;
    const size_t most = (size_t)(3 * steps + 1) * (size_t)span;
    room = malloc(2 * most + 2);
    plan = malloc((size_t)steps * 2 * LANES);
    words = PyList_New(groups);
    const long streams = streams_of(&m);
    PyObject *states = PyBytes_FromStringAndSize(NULL, 4 * LANES * groups * streams);
    if (!room || !plan || !words || !states) {
        Py_XDECREF(states);
        PyErr_NoMemory();
        goto done;
    }
    uint16_t first[TABLES * SYMBOLS];
    for (int t = 0; t < TABLES; t++) {
        uint16_t sum = 0;
        for (int s = 0; s < SYMBOLS; s++) {
            first[t * SYMBOLS + s] = sum;
            sum = (uint16_t)(sum + m.freq[t * SYMBOLS + s]);
        }
    }
    for (long g = 0; g < groups; g++) {
        Out o;
        o.begin = room;
        o.at = room + most;
        Py_BEGIN_ALLOW_THREADS;
        encode_group(&m, from + g, symbols.buf, kinds.buf, &o, plan, first,
                     (int64_t *)counts.buf + (from + g) * sections, sums.buf,
                     (uint32_t *)PyBytes_AS_STRING(states) + g * LANES, groups * LANES);
        Py_END_ALLOW_THREADS;
        PyObject *part = PyBytes_FromStringAndSize((char *)o.at, (char *)(room + most) - (char *)o.at);
        if (!part) {
            Py_DECREF(states);
            goto done;
        }
        PyList_SET_ITEM(words, g, part);
    }
    result = Py_BuildValue("(ON)", words, states);
done:
    free(room);
    free(plan);
    Py_XDECREF(words);
    PyBuffer_Release(&symbols);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&freq);
    PyBuffer_Release(&mean);
    PyBuffer_Release(&level);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&sums);
    return result;
}

static PyObject *py_decode(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer words, states, offsets, freq, mean, level, symbols, kinds, sums;
    Model m;
    long from, to;
    int wide;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*iiillw*w*w*llp", &words, &states, &offsets, &freq, &mean, &level,
                          &m.layers, &m.width, &m.point, &m.tokens, &m.per_lane, &symbols, &kinds, &sums, &from, &to,
                          &wide))
        return NULL;
    m.freq = freq.buf, m.mean = mean.buf, m.level = level.buf;
    uint32_t *slots = NULL;
    int bad = 0, ran = 0;
    if (!check_model(&m, &freq, &mean, &level))
        goto done;
    const long span = LANES * m.per_lane, groups = (m.tokens + span - 1) / span;
    const long steps = (long)m.layers * m.width;
    const int64_t *at = offsets.buf;
    const long pieces = groups * sections_of(&m);
    int sound = states.len == 4 * LANES * groups * streams_of(&m) && offsets.len == 8 * (pieces + 1) &&
                kinds.len == m.tokens && symbols.len == 2 * (Py_ssize_t)m.tokens * steps &&
                sums.len == 8 * m.tokens && 0 <= from && from <= to && to <= groups;
    for (long g = 0; sound && g < pieces; g++)
        sound = at[g] >= 0 && at[g] <= at[g + 1] && at[g + 1] <= words.len / 2;
    if (!sound) {
        PyErr_SetString(PyExc_ValueError, "states, offsets or room of another shape");
        goto done;
    }
    slots = malloc(sizeof(uint32_t) * TABLES * SLOTS);
    if (!slots) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    int32_t means[32] = {0};
    for (int t = 0; t < TABLES; t++) {
        uint32_t slot = 0;
        means[t] = m.mean[t];
        for (uint32_t s = 0; s < SYMBOLS; s++)
            for (uint32_t i = 0; i < m.freq[t * SYMBOLS + s]; i++, slot++)
                slots[t * SLOTS + slot] = s << 25 | (uint32_t)m.freq[t * SYMBOLS + s] << 12 | i;
    }
    wide = wide && has_avx512();
    for (long g = from; g < to && !bad; g++) {
        In in;
        in.at = (const uint16_t *)words.buf + at[g];
        in.end = (const uint16_t *)words.buf + at[g + 1];
        in.bad = 0;
        memcpy(in.state, (const uint32_t *)states.buf + LANES * g, sizeof in.state);
        for (int i = 0; i < LANES; i++)
            in.bad |= in.state[i] < LOWEST;
        bad = decode_group(&m, g, &in, words.buf, at + g, groups, slots, means, wide, symbols.buf, kinds.buf, sums.buf,
                           (const uint32_t *)states.buf + LANES * g);
    }
    Py_END_ALLOW_THREADS;
    ran = 1;
done:
    free(slots);
    PyBuffer_Release(&words);
    PyBuffer_Release(&states);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&freq);
    PyBuffer_Release(&mean);
    PyBuffer_Release(&level);
    PyBuffer_Release(&symbols);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&sums);
    return ran ? PyBool_FromLong(!bad) : NULL;
}

static PyMethodDef METHODS[] = {
    {"encode", py_encode, METH_VARARGS, "Return the words of each group and all states."},
    {"decode", py_decode, METH_VARARGS, "Fill symbols and classes; return whether the streams were sound."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_ans", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__ans(void);
PyMODINIT_FUNC PyInit__ans(void) { return PyModule_Create(&MODULE); }

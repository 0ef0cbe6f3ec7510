/* PPMd variant H, with the range coder of 7-zip, in an arena of the caller. Spec: FORMAT.md, "PPMd bytes".
 *
 *     trained(arena, order, primer) -> model                      bytes: what stands in the arena after the primer
 *     encode(arena, model, [(past, text)]) -> streams             None where one would be as long as its text
 *     decode(arena, model, [(past, stream, count)]) -> texts      ValueError says what is wrong
 *
 * A context is the last bytes, and has a state per symbol that followed: its frequency, and its successor, the context
 * one symbol longer, or the place in the text where it would begin to be read. A symbol is looked for in the longest
 * context, and after an escape in the next shorter one, without those that were not it. `step` codes one; which of the
 * three it is (encode, decode, train), the mode says, so that all keep the same model. What is trained keeps the range
 * that coding it leaves, since the text goes on in that. After Dmitry Shkarin's PPMd, which is in the public domain, as
 * 7-zip's method PPMD has it.
 *
 * The arena holds the model, the text and the units, and all references are offsets in it: a copy of it goes on.
 *
 *     | Model | text -> | ... | units of contexts and states -> | ... |
 *
 * Each of many texts stands after the same model: what one changed of it, in lines of bytes, is put back for the next.
 *
 * Every byte that is read, written or allocated is behind a test, so no input leaves the arena or the buffers. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { MIN_ORDER = 2, MAX_ORDER = 64, MAX_FREQ = 124, UNIT = 12, CLASSES = 38, MOST_UNITS = 128 };
enum { LINE_BITS = 6 }; /* of the bytes of a line */
enum { INT_BITS = 7, PERIOD_BITS = 7, BIN_BITS = INT_BITS + PERIOD_BITS, SEES = 25 };
enum { TOP = 1 << 24, SPARE = 4 }; /* the least range; zeros that may be read behind a stream */
enum { TEXT = 8 };                 /* the part of an arena that is for text, as 7-zip has it */
typedef enum { ENCODE, DECODE, TRAIN } Mode;

typedef struct {
    uint8_t symbol, freq;
    uint16_t low, high; /* of the successor */
} State;

typedef struct {
    uint16_t count; /* of states */
    union {
        struct {
            uint16_t sum, low, high; /* of frequencies with that of the escape; of the reference of the states */
        } many;
        State one;
    };
    uint32_t suffix; /* 0: none */
} Context;

typedef struct {
    uint16_t sum;
    uint8_t shift, count;
} See;

/* Lines of units that changed since the model was kept: whether each did, which did, how many, and how many there are. */
typedef struct {
    uint8_t *map;
    uint32_t *list, listed, lines;
} Changes;

typedef struct {
    Changes *changes; /* NULL: they are not noted */
    uint32_t size, units, text, top; /* of the arena; where units begin; ends of text and of units */
    uint32_t range;                  /* of the coder behind all that was coded */
    uint32_t free[CLASSES];          /* lists of blocks, by their size */
    uint32_t longest, context, found;
    int32_t order, fall, run, least_run;
    uint32_t success, escape, high; /* whether the last symbol was likely; 8 where the one before it is no ASCII */
    See see[SEES][16], none;
    uint16_t binary[128][64];
} Model;

typedef struct {
    uint32_t range, number; /* number: of an encoder its low end, of a decoder what is left above it */
    uint8_t *out;
    const uint8_t *in;
    size_t at, end; /* of either buffer */
    const char *wrong;
    uint32_t mark, masked[256]; /* the symbols that are masked have the mark */
} Coder;

static const char NO_MEMORY[] = "the model is larger than its memory", CUT[] = "the stream ends before the text",
                  UNLIKE[] = "no coder puts out such a stream", LONGER[] = "the stream goes on behind the text";
static const uint8_t ESCAPES[16] = {25, 14, 9, 7, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2};
static const uint16_t BINARY[8] = {0x3cdd, 0x1f3f, 0x59bf, 0x48f3, 0x64a1, 0x5abc, 0x6632, 0x6051};

static inline void *at(Model *m, uint32_t ref) { return (uint8_t *)m + ref; }
static inline uint32_t ref(Model *m, const void *p) { return (uint32_t)((const uint8_t *)p - (uint8_t *)m); }
static inline Context *context(Model *m, uint32_t where) { return at(m, where); }
static inline uint32_t successor(const State *s) { return s->low | (uint32_t)s->high << 16; }
static inline State *states(Model *m, const Context *c) { return at(m, c->many.low | (uint32_t)c->many.high << 16); }
static inline unsigned high(uint8_t symbol) { return symbol < 0x40 ? 0 : 8; }

/* Note that bytes of units are about to change. */
static inline void touch(Model *m, const void *p, uint32_t size)
{
    Changes *c = m->changes;
    if (!c)
        return;
    uint32_t line = (ref(m, p) - m->units) >> LINE_BITS;
    for (const uint32_t last = (ref(m, p) - m->units + size - 1) >> LINE_BITS; line <= last; line++)
        if (line < c->lines && !c->map[line]) {
            c->map[line] = 1;
            c->list[c->listed++] = line;
        }
}

static inline void lead(State *s, uint32_t to)
{
    s->low = (uint16_t)to;
    s->high = (uint16_t)(to >> 16);
}

static inline void give(Context *c, uint32_t to)
{
    c->many.low = (uint16_t)to;
    c->many.high = (uint16_t)(to >> 16);
}

static inline State *state_of(Model *m, Context *c, uint8_t symbol)
{
    if (c->count == 1)
        return &c->one;
    State *s = states(m, c);
    while (s->symbol != symbol)
        s++;
    return s;
}

/* ---- memory: blocks of whole units, as large as one of the classes, by list */

/* Return the class of the smallest blocks that have so many units: 1 to 4, then by 2 to 12, by 3 to 24, by 4 to 128. */
static inline unsigned class_of(unsigned units)
{
    return units <= 4 ? units - 1 : units <= 12 ? 4 + (units - 5) / 2 : units <= 24 ? 8 + (units - 13) / 3 : 12 + (units - 25) / 4;
}

static inline unsigned units_of(unsigned class)
{
    return class < 4 ? class + 1 : class < 8 ? 2 * class - 2 : class < 12 ? 3 * class - 9 : 4 * class - 20;
}

/* Return a block of a class; NULL where there is none left. */
static void *allocate(Model *m, unsigned class)
{
    const uint32_t block = m->free[class], bytes = UNIT * units_of(class);
    if (block) {
        memcpy(&m->free[class], at(m, block), sizeof block);
        touch(m, at(m, block), bytes);
        return at(m, block);
    }
    if (m->size - m->top < bytes)
        return NULL;
    m->top += bytes;
    return at(m, m->top - bytes);
}

static void release(Model *m, void *block, unsigned class)
{
    touch(m, block, sizeof m->free[class]);
    memcpy(block, &m->free[class], sizeof m->free[class]);
    m->free[class] = ref(m, block);
}

/* Free what a block of a class has beyond one of a smaller class. */
static void cut(Model *m, void *block, unsigned class, unsigned smaller)
{
    unsigned kept = units_of(smaller), left = units_of(class) - kept;
    while (left) {
        unsigned part = class_of(left);
        part -= units_of(part) > left;
        release(m, (uint8_t *)block + UNIT * kept, part);
        kept += units_of(part);
        left -= units_of(part);
    }
}

/* ---- the model */

static void begin(Model *m, uint32_t size, int order)
{
    memset(m, 0, sizeof *m);
    m->size = size;
    m->range = UINT32_MAX;
    m->text = sizeof *m;
    m->units = m->top = (uint32_t)((sizeof *m + size / TEXT) & ~(size_t)7);
    m->order = m->fall = order;
    m->run = m->least_run = -(order < 12 ? order : 12) - 1;
    Context *root = allocate(m, 0);
    State *s = allocate(m, class_of(MOST_UNITS));
    *root = (Context){.count = 256, .many = {.sum = 257}};
    give(root, ref(m, s));
    m->longest = m->context = ref(m, root);
    m->found = ref(m, s);
    for (int i = 0; i < 256; i++)
        s[i] = (State){(uint8_t)i, 1, 0, 0};
    for (int i = 0; i < 128; i++)
        for (int k = 0; k < 64; k++)
            m->binary[i][k] = (uint16_t)((1 << BIN_BITS) - BINARY[k % 8] / (i + 2));
    for (int i = 0; i < SEES; i++)
        for (int k = 0; k < 16; k++)
            m->see[i][k] = (See){(uint16_t)((5 * i + 10) << (PERIOD_BITS - 4)), PERIOD_BITS - 4, 4};
    m->none = (See){0, PERIOD_BITS, 64};
}

static inline void swap(State *s)
{
    const State other = s[0];
    s[0] = s[-1];
    s[-1] = other;
}

/* Halve the frequencies of the context, and sort its states by them. */
static void rescale(Model *m)
{
    Context *c = context(m, m->context);
    State *first = states(m, c), *s = at(m, m->found);
    const State found = *s;
    touch(m, c, sizeof *c);
    touch(m, first, c->count * sizeof *s);
    for (; s != first; s--)
        s[0] = s[-1];
    *s = found;
    const int adder = m->fall != 0;
    int escape = c->many.sum - s->freq, sum;
    s->freq = (uint8_t)((s->freq + 4 + adder) >> 1);
    sum = s->freq;
    for (unsigned left = c->count - 1u; left; left--) {
        escape -= (++s)->freq;
        s->freq = (uint8_t)((s->freq + adder) >> 1);
        sum += s->freq;
        if (s->freq > s[-1].freq) {
            const State moved = *s;
            State *to = s;
            do
                to[0] = to[-1];
            while (--to != first && moved.freq > to[-1].freq);
            *to = moved;
        }
    }
    if (!s->freq) {
        const unsigned before = (c->count + 1u) >> 1;
        for (; !s->freq; s--, escape++)
            c->count--;
        if (c->count == 1) {
            State last = *first;
            do {
                last.freq = (uint8_t)(last.freq - (last.freq >> 1));
                escape >>= 1;
            } while (escape > 1);
            release(m, first, class_of(before));
            c->one = last;
            m->found = ref(m, &c->one);
            return;
        }
        cut(m, first, class_of(before), class_of((c->count + 1u) >> 1));
    }
    c->many.sum = (uint16_t)(sum + escape - (escape >> 1));
    m->found = ref(m, states(m, c));
}

/* Return the context of the found state's successor, which the text alone has so far, or NULL: no memory is left.
 *
 * All states of the shorter contexts that lead to that place of the text get contexts, too. `known`: the found state
 * gets its own from the caller. */
static Context *create(Model *m, int known)
{
    State *found = at(m, m->found), *leads[MAX_ORDER];
    Context *c = context(m, m->context);
    const uint32_t branch = successor(found);
    unsigned many = 0;
    if (!known)
        leads[many++] = found;
    while (c->suffix) {
        c = context(m, c->suffix);
        State *s = state_of(m, c, found->symbol);
        if (successor(s) != branch) {
            c = context(m, successor(s));
            if (!many)
                return c;
            break;
        }
        leads[many++] = s;
    }
    State next = {*(uint8_t *)at(m, branch), 0, 0, 0};
    const State *likely = state_of(m, c, next.symbol);
    lead(&next, branch + 1);
    next.freq = likely->freq;
    if (c->count > 1) {
        const unsigned cf = likely->freq - 1u, rest = c->many.sum - c->count - cf;
        next.freq = (uint8_t)(1 + (2 * cf <= rest ? 5 * cf > rest : (2 * cf + 3 * rest - 1) / (2 * rest)));
    }
    do {
        Context *longer = allocate(m, 0);
        if (!longer)
            return NULL;
        *longer = (Context){.count = 1, .one = next, .suffix = ref(m, c)};
        touch(m, leads[--many], sizeof(State));
        lead(leads[many], ref(m, longer));
        c = longer;
    } while (many);
    return c;
}

/* Add the found symbol to a context that it was not in. Return 0: no memory is left. */
static int add(Model *m, Context *c, const State *found, uint32_t to, unsigned count, unsigned rest)
{
    const unsigned many = c->count;
    touch(m, c, sizeof *c);
    if (many == 1) {
        State *s = allocate(m, 0);
        if (!s)
            return 0;
        *s = c->one;
        s->freq = (uint8_t)(s->freq < MAX_FREQ / 4 - 1 ? 2 * s->freq : MAX_FREQ - 4);
        give(c, ref(m, s));
        c->many.sum = (uint16_t)(s->freq + m->escape + (count > 3));
    } else {
        const unsigned units = many >> 1, class = class_of(units);
        if (!(many & 1) && class != class_of(units + 1)) {
            State *s = states(m, c), *larger = allocate(m, class + 1);
            if (!larger)
                return 0;
            memcpy(larger, s, many * sizeof *s);
            release(m, s, class);
            give(c, ref(m, larger));
        }
        c->many.sum = (uint16_t)(c->many.sum + (2 * many < count) + 2 * ((4 * many <= count) & (c->many.sum <= 8 * many)));
    }
    unsigned freq = 2 * found->freq * (c->many.sum + 6u);
    const unsigned all = rest + c->many.sum;
    if (freq < 6 * all) {
        freq = 1 + (freq > all) + (freq >= 4 * all);
        c->many.sum = (uint16_t)(c->many.sum + 3);
    } else {
        freq = 4 + (freq >= 9 * all) + (freq >= 12 * all) + (freq >= 15 * all);
        c->many.sum = (uint16_t)(c->many.sum + freq);
    }
    State *s = states(m, c) + many;
    touch(m, s, sizeof *s);
    *s = (State){found->symbol, (uint8_t)freq, 0, 0};
    lead(s, to);
    c->count = (uint16_t)(many + 1);
    return 1;
}

/* Learn the found state in all contexts, and go on to the next one. Return 0: no memory is left. */
static int learn(Model *m)
{
    State *found = at(m, m->found);
    Context *c = context(m, m->context);
    uint32_t next = successor(found);
    if (found->freq < MAX_FREQ / 4 && c->suffix) {
        Context *shorter = context(m, c->suffix);
        State *s = state_of(m, shorter, found->symbol);
        touch(m, shorter, sizeof *shorter);
        touch(m, s - (shorter->count > 1 && s != states(m, shorter)), 2 * sizeof *s);
        if (shorter->count == 1)
            s->freq = (uint8_t)(s->freq + (s->freq < 32));
        else {
            if (s != states(m, shorter) && s->freq >= s[-1].freq)
                swap(s--);
            if (s->freq < MAX_FREQ - 9) {
                s->freq = (uint8_t)(s->freq + 2);
                shorter->many.sum = (uint16_t)(shorter->many.sum + 2);
            }
        }
    }
    touch(m, found, sizeof *found);
    if (!m->fall) {
        if (!(c = create(m, 1)))
            return 0;
        lead(found, m->longest = m->context = ref(m, c));
        return 1;
    }
    if (m->text + 1 == m->units) /* a reference to the end of the text would be one to a unit */
        return 0;
    *(uint8_t *)at(m, m->text++) = found->symbol;
    uint32_t to = m->text;
    if (next) {
        if (next < m->units) {
            Context *made = create(m, 0);
            if (!made)
                return 0;
            next = ref(m, made);
        }
        if (!--m->fall) {
            to = next;
            m->text -= m->longest != m->context;
        }
    } else {
        lead(found, to);
        next = m->context;
    }
    const unsigned count = c->count, rest = c->many.sum - count - (found->freq - 1u);
    for (Context *longer = context(m, m->longest); longer != c; longer = context(m, longer->suffix))
        if (!add(m, longer, found, to, count, rest))
            return 0;
    m->longest = m->context = next;
    return 1;
}

/* Go on behind the found state. Return 0: no memory is left. */
static inline int go(Model *m)
{
    const uint32_t next = successor(at(m, m->found));
    if (m->fall || next < m->units)
        return learn(m);
    m->longest = m->context = next;
    return 1;
}

/* ---- the range coder */

/* Begin to decode, in the range of the model. Return 0: it is not in that. */
static inline int begin_decoder(Coder *c, const Model *m)
{
    for (; c->at < SPARE; c->at++)
        c->number = c->number << 8 | (c->at < c->end ? c->in[c->at] : 0);
    c->wrong = c->number < m->range ? NULL : UNLIKE;
    return !c->wrong;
}

/* Carry one into the bytes that were put out. */
static void carry(Coder *c)
{
    for (size_t i = c->at; i-- && !++c->out[i];)
        ;
}

/* Take a part of the range. Return 0: a buffer is at its end. */
static inline int take(Coder *c, uint32_t from, uint32_t width, Mode mode)
{
    if (mode == DECODE)
        c->number -= from;
    else if (mode == ENCODE) {
        c->number += from;
        if (c->number < from)
            carry(c);
    }
    c->range = width;
    while (c->range < TOP) {
        c->range <<= 8;
        if (mode == TRAIN)
            continue;
        if (c->at >= c->end + (mode == DECODE ? SPARE : 0))
            return 0;
        if (mode == DECODE)
            c->number = c->number << 8 | (c->at < c->end ? c->in[c->at] : 0);
        else {
            c->out[c->at] = (uint8_t)(c->number >> 24);
            c->number <<= 8;
        }
        c->at++;
    }
    return 1;
}

/* End the stream with the one byte, or none for a 0, by which it is in the range. Return 0: no room is left. */
static int finish(Coder *c)
{
    if (c->number > UINT32_MAX - (TOP - 1))
        carry(c);
    const uint8_t last = (uint8_t)((c->number + (TOP - 1)) >> 24);
    if (last && c->at == c->end)
        return 0;
    if (last)
        c->out[c->at++] = last;
    return 1;
}

/* Return what is wrong with the end of a stream that was decoded: it is the one that `finish` makes, or none. */
static const char *ended(const Coder *c)
{
    const size_t put = c->at - SPARE; /* bytes of the encoder before its last one */
    return c->end > put + 1 || (c->end > put && !c->in[put]) ? LONGER : c->number < TOP ? NULL : UNLIKE;
}

/* ---- symbols */

/* Return the frequency of a state, 0 where its symbol is masked: without a branch, which nothing could predict. */
static inline uint32_t open_freq(const Coder *c, const State *s)
{
    return s->freq & -(uint32_t)(c->masked[s->symbol] != c->mark);
}

/* Code one symbol, which only a decoder is not given. Return 0 with what is wrong. */
static inline __attribute__((always_inline)) int step(Model *m, Coder *coder, uint8_t *symbol, const Mode mode)
{
    Context *c = context(m, m->context);
    State *s;
    unsigned masked = c->count;
    if (++coder->mark == 0) {
        memset(coder->masked, 0, sizeof coder->masked);
        coder->mark = 1;
    }
    if (masked == 1) {
        s = &c->one;
        const unsigned before = high(((State *)at(m, m->found))->symbol), shorter = context(m, c->suffix)->count;
        const unsigned few = shorter == 1 ? 0 : shorter == 2 ? 2 : shorter <= 11 ? 4 : 6;
        m->high = before;
        uint16_t *p = &m->binary[s->freq - 1][m->success + few + before + 2 * high(s->symbol) + (m->run >> 26 & 0x20)];
        const uint32_t part = (coder->range >> BIN_BITS) * *p;
        const unsigned mean = (*p + (1u << (PERIOD_BITS - 2))) >> PERIOD_BITS;
        if (mode == DECODE ? coder->number < part : s->symbol == *symbol) {
            *p = (uint16_t)(*p + (1 << INT_BITS) - mean);
            if (!take(coder, 0, part, mode))
                return coder->wrong = CUT, 0;
            m->found = ref(m, s);
            touch(m, s, sizeof *s);
            s->freq = (uint8_t)(s->freq + (s->freq < 128));
            m->success = 1;
            m->run++;
            *symbol = s->symbol;
            return go(m) || (coder->wrong = NO_MEMORY, 0);
        }
        *p = (uint16_t)(*p - mean);
        if (!take(coder, part, coder->range - part, mode))
            return coder->wrong = CUT, 0;
        m->escape = ESCAPES[*p >> 10];
        m->success = 0;
        coder->masked[s->symbol] = coder->mark;
    } else {
        State *first = states(m, c), *end = first + masked;
        const uint32_t total = c->many.sum, unit = coder->range / total;
        const uint32_t number = mode == DECODE ? coder->number / unit : 0;
        uint32_t low = 0;
        if (mode == DECODE && number >= total)
            return coder->wrong = UNLIKE, 0;
        for (s = first; s != end && (mode == DECODE ? number >= low + s->freq : s->symbol != *symbol); s++)
            low += s->freq;
        if (s != end) {
            if (!take(coder, low * unit, s->freq * unit, mode))
                return coder->wrong = CUT, 0;
            m->success = s == first && 2u * s->freq > total;
            m->run += (int32_t)m->success;
            touch(m, c, sizeof *c);
            touch(m, s - (s != first), 2 * sizeof *s);
            c->many.sum = (uint16_t)(total + 4);
            s->freq = (uint8_t)(s->freq + 4);
            *symbol = s->symbol;
            if (s != first && s->freq > s[-1].freq)
                swap(s--);
            m->found = ref(m, s);
            if (s->freq > MAX_FREQ)
                rescale(m);
            return go(m) || (coder->wrong = NO_MEMORY, 0);
        }
        if (low >= total)
            return coder->wrong = UNLIKE, 0;
        if (!take(coder, low * unit, (total - low) * unit, mode))
            return coder->wrong = CUT, 0;
        m->success = 0;
        m->high = high(((State *)at(m, m->found))->symbol);
        for (s = first; s != end; s++)
            coder->masked[s->symbol] = coder->mark;
    }
    for (;;) {
        do {
            if (!c->suffix)
                return coder->wrong = UNLIKE, 0;
            m->fall++;
            c = context(m, c->suffix);
        } while (c->count == masked);
        m->context = ref(m, c);
        State *first = states(m, c), *end = first + c->count;
        const unsigned open = c->count - masked;
        See *see = &m->none;
        uint32_t escape = 1, sum = 0, low = 0;
        if (c->count != 256) {
            unsigned row = open - 1, left = 1;
            if (row > 2) /* 3, 4 and so on for 1, 2 and so on counts each */
                for (row = 3, left = 1, escape = open - 1 - 3; escape >= left; row++)
                    escape -= left++;
            see = &m->see[row][(open < context(m, c->suffix)->count - (unsigned)c->count) +
                               2 * (c->many.sum < 11u * c->count) + 4 * (masked > open) + m->high];
            const uint32_t mean = see->sum >> see->shift;
            see->sum = (uint16_t)(see->sum - mean);
            escape = mean + !mean;
        }
        for (s = first; s != end; s++)
            sum += open_freq(coder, s);
        const uint32_t unit = coder->range / (sum + escape);
        const uint32_t number = mode == DECODE ? coder->number / unit : 0;
        if (mode == DECODE && number >= sum + escape)
            return coder->wrong = UNLIKE, 0;
        for (s = first; s != end && (mode == DECODE ? number >= low + open_freq(coder, s) : s->symbol != *symbol); s++)
            low += open_freq(coder, s);
        if (s != end) {
            if (!take(coder, low * unit, s->freq * unit, mode))
                return coder->wrong = CUT, 0;
            if (see->shift < PERIOD_BITS && !--see->count) {
                see->sum = (uint16_t)(see->sum << 1);
                see->count = (uint8_t)(3 << see->shift++);
            }
            *symbol = s->symbol;
            m->found = ref(m, s);
            touch(m, c, sizeof *c);
            touch(m, s, sizeof *s);
            c->many.sum = (uint16_t)(c->many.sum + 4);
            s->freq = (uint8_t)(s->freq + 4);
            if (s->freq > MAX_FREQ)
                rescale(m);
            m->run = m->least_run;
            return learn(m) || (coder->wrong = NO_MEMORY, 0);
        }
        if (!take(coder, sum * unit, escape * unit, mode))
            return coder->wrong = CUT, 0;
        see->sum = (uint16_t)(see->sum + sum + escape);
        masked = c->count;
        for (s = first; s != end; s++)
            coder->masked[s->symbol] = coder->mark;
    }
}

/* ---- texts */

/* Put a model that was kept into an arena of so many bytes. Return 0: it does not fit, or is none.
 *
 * `changes`: of the model that is there, which is this one but for them; NULL: it is another. */
static int restore(Model *m, size_t size, const Py_buffer *kept, Changes *changes)
{
    const uint8_t *data = kept->buf;
    if ((size_t)kept->len < sizeof *m || size > UINT32_MAX)
        return 0;
    memcpy(m, data, sizeof *m);
    const size_t text = m->text - sizeof *m, units = m->top - m->units;
    if (m->top > size || sizeof *m + text + units != (size_t)kept->len)
        return 0;
    m->size = (uint32_t)size;
    m->changes = changes;
    const uint8_t *from = data + sizeof *m + text;
    if (!changes) {
        memcpy(m + 1, data + sizeof *m, text);
        memcpy(at(m, m->units), from, units);
        return 1;
    }
    while (changes->listed) {
        const size_t line = changes->list[--changes->listed], begin = line << LINE_BITS, left = units - begin;
        memcpy((uint8_t *)at(m, m->units) + begin, from + begin, left >> LINE_BITS ? 1 << LINE_BITS : left);
        changes->map[line] = 0;
    }
    return 1;
}

/* Code so many bytes. Return 0 with what is wrong. */
static inline __attribute__((always_inline)) int code(Model *m, Coder *c, uint8_t *text, size_t size, const Mode mode)
{
    for (size_t i = 0; i < size; i++)
        if (!step(m, c, text + i, mode))
            return 0;
    return 1;
}

/* Learn a text, whose coding the range shows alone. Return 0 with what is wrong. */
static int train(Model *m, Coder *c, const Py_buffer *text)
{
    c->range = m->range;
    const int fine = code(m, c, text->buf, (size_t)text->len, TRAIN);
    m->range = c->range;
    return fine;
}

/* Return whether an arena can be one. Set an error if not. */
static int is_arena(const Py_buffer *arena)
{
    if ((size_t)arena->len > 2 * sizeof(Model) && arena->len <= UINT32_MAX &&
        (uintptr_t)arena->buf % 8 == 0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "no memory that a model can have");
    return 0;
}

static PyObject *py_trained(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer arena, text;
    int order;
    if (!PyArg_ParseTuple(args, "w*iy*", &arena, &order, &text))
        return NULL;
    PyObject *found = NULL;
    Model *m = arena.buf;
    Coder coder = {0};
    if (order < MIN_ORDER || order > MAX_ORDER)
        PyErr_SetString(PyExc_ValueError, "an order that no model has");
    else if (is_arena(&arena)) {
        int fine;
        Py_BEGIN_ALLOW_THREADS;
        begin(m, (uint32_t)arena.len, order);
        fine = train(m, &coder, &text);
        Py_END_ALLOW_THREADS;
        if (!fine)
            PyErr_SetString(PyExc_ValueError, coder.wrong);
        else if ((found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(m->text + m->top - m->units)))) {
            char *to = PyBytes_AS_STRING(found);
            memcpy(to, m, m->text);
            memcpy(to + m->text, at(m, m->units), m->top - m->units);
        }
    }
    PyBuffer_Release(&arena);
    PyBuffer_Release(&text);
    return found;
}

typedef struct {
    Py_buffer past, data;
    size_t size;
    PyObject *made;
    const char *wrong; /* of an encoder: it makes none */
} Job;

/* Code a text after its past. The arena has the model. */
static void do_job(Model *m, Job *job, Mode mode)
{
    uint8_t *made = (uint8_t *)PyBytes_AS_STRING(job->made), *data = job->data.buf;
    Coder c = {.out = made, .in = data, .end = (size_t)job->data.len - (mode == ENCODE && job->size)};
    if (!train(m, &c, &job->past))
        job->wrong = c.wrong;
    else if (mode == DECODE)
        job->wrong = begin_decoder(&c, m) && code(m, &c, made, job->size, DECODE) ? ended(&c) : c.wrong;
    else if (!code(m, &c, data, job->size, ENCODE) || !finish(&c))
        job->wrong = NO_MEMORY;
    job->size = c.at;
}

/* Take a row of arguments. Return 0 with an error. */
static int take_job(Job *job, PyObject *row, Mode mode)
{
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(row, mode == DECODE ? "y*y*n" : "y*y*", &job->past, &job->data, &count))
        return 0;
    job->size = (size_t)(mode == DECODE ? count : job->data.len);
    return (job->made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)job->size)) != NULL;
}

/* Return what a job made. NULL with an error. */
static PyObject *result(Job *job, Mode mode)
{
    if (job->wrong && mode == DECODE)
        return PyErr_SetString(PyExc_ValueError, job->wrong), NULL;
    if (job->wrong)
        return Py_NewRef(Py_None);
    if (mode == ENCODE)
        _PyBytes_Resize(&job->made, (Py_ssize_t)job->size);
    return Py_XNewRef(job->made);
}

/* Code rows one after the other, each after the model that was kept. */
static PyObject *code_many(PyObject *args, Mode mode)
{
    Py_buffer arena, kept;
    PyObject *rows, *found = NULL;
    if (!PyArg_ParseTuple(args, "w*y*O!", &arena, &kept, &PyList_Type, &rows))
        return NULL;
    const size_t count = (size_t)PyList_GET_SIZE(rows), lines = ((size_t)kept.len >> LINE_BITS) + 1;
    Job *jobs = PyMem_Calloc(count + 1, sizeof *jobs);
    Changes changes = {.map = PyMem_Calloc(lines, 1), .list = PyMem_Malloc(lines * sizeof(uint32_t))};
    int fine = jobs && changes.map && changes.list;
    if (!fine)
        PyErr_NoMemory();
    fine = fine && is_arena(&arena);
    for (size_t i = 0; fine && i < count; i++)
        fine = take_job(jobs + i, PyList_GET_ITEM(rows, (Py_ssize_t)i), mode);
    Model *m = arena.buf;
    if (fine) {
        int there = 0;
        Py_BEGIN_ALLOW_THREADS;
        for (size_t i = 0; i < count; i++) {
            Changes *noted = there ? &changes : NULL;
            there = restore(m, (size_t)arena.len, &kept, noted);
            m->changes = there && count > 1 ? &changes : NULL;
            changes.lines = there ? (m->top - m->units + (1 << LINE_BITS) - 1) >> LINE_BITS : 0;
            if (!there)
                jobs[i].wrong = NO_MEMORY;
            else
                do_job(m, jobs + i, mode);
        }
        Py_END_ALLOW_THREADS;
        found = PyList_New((Py_ssize_t)count);
    }
    for (size_t i = 0; found && i < count; i++) {
        PyObject *made = result(jobs + i, mode);
        if (made)
            PyList_SET_ITEM(found, (Py_ssize_t)i, made);
        else
            Py_CLEAR(found);
    }
    for (size_t i = 0; jobs && i < count; i++) {
        Py_XDECREF(jobs[i].made);
        PyBuffer_Release(&jobs[i].past);
        PyBuffer_Release(&jobs[i].data);
    }
    PyMem_Free(jobs);
    PyMem_Free(changes.map);
    PyMem_Free(changes.list);
    PyBuffer_Release(&arena);
    PyBuffer_Release(&kept);
    return found;
}

static PyObject *py_encode(PyObject *self, PyObject *args) { return (void)self, code_many(args, ENCODE); }
static PyObject *py_decode(PyObject *self, PyObject *args) { return (void)self, code_many(args, DECODE); }

static PyMethodDef METHODS[] = {
    {"trained", py_trained, METH_VARARGS, "trained(arena, order, text): a model that has seen a text."},
    {"encode", py_encode, METH_VARARGS, "encode(arena, model, [(past, text)]): streams; None: as long as its text."},
    {"decode", py_decode, METH_VARARGS, "decode(arena, model, [(past, stream, count)]): texts."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_ppmd", "PPMd variant H.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__ppmd(void)
{
    return PyModule_Create(&MODULE);
}

/* The numeric contract (NUMERICS.md), the layout and the range coder, compiled: tokens to bytes and back without Python.
 *
 * Encoding and decoding are one loop. An iteration collects rows (positions) of the sessions under way, runs them through
 * the layers together, and codes their tokens. A decoder gives one step of each session at a time, an encoder, which knows
 * its tokens, as many steps of a block as fit: a row sees a prefix of its session's keys, so both run the same code.
 * Memory is bounded by the rows of an iteration and by the sessions under way, not by what is waiting.
 *
 * A context is a session of its own that codes nothing: as many steps at once as fit. The sessions after it wait for its keys
 * and values, take a copy and go on behind it, so it runs once whatever their number.
 *
 * Nothing here trusts a stream: symbols come out of a search within the alphabet, and every index follows from counts that
 * were fixed when the batch was opened.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"
#include "pool.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { INTERFACE = 4 }; /* of the exported functions: raised together with native.INTERFACE, so that a stale build is seen */

EXPORT int pltz_interface(void) { return INTERFACE; }

enum {
    ROWS = 512,                /* rows of an iteration */
    HEAD_ROWS = 8,             /* rows whose classes are multiplied together */
    SPARES = 64,               /* caches kept for the next sessions */
    FEW = 4,                   /* rows of an elementwise work item */
    DEFAULT_STEPS = 512,       /* layout.MAX_STEPS */
    DEFAULT_LANES = 16,        /* layout.FULL_LANES */
    NO_MEMORY = -1, DAMAGED = -2, SPENT = -3,
};
static const double SLACK = 128; /* bits: coder.SLACK */
static const size_t CACHE_LIMIT = (size_t)1 << 29; /* bytes of keys and values of sessions under way */

/* ---------------------------------------------------------------- memory */

static void *grab(size_t bytes) {
    void *p = 0;
    const size_t huge = (size_t)1 << 21;
    const size_t align = bytes >= huge ? huge : 64;
    if (bytes > (size_t)1 << 40 || posix_memalign(&p, align, (bytes + 64 + align - 1) / align * align)) return 0;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align == huge) madvise(p, bytes, MADV_HUGEPAGE); /* fewer misses on the way through the weights */
#endif
    memset(p, 0, bytes + 64);
    return p;
}

/* ---------------------------------------------------------------- model */

typedef struct {
    Matrix qkv, out, gate, up, down;
    const int32_t *heat, *norm_in, *norm_mid; /* gate and norms: contract 2 */
} Layer;

typedef struct {
    int vocab, d, layers, heads, kv_heads, head_dim, hidden, block, memory, gated;
    uint32_t norm_gain, head_gain;
    int classes, group, dp, dv, width; /* width: residuals a row, rounded up */
    const Kernel *kernel;
    Layer *layer;
    Matrix class, member;
    const int8_t *embed_w, *shift_w;
    const int32_t *embed_m, *shift_m, *phase;
    const int16_t *cos, *sin, *act;
    const int32_t *norm_out;
    int32_t *class_b, *member_b, *zeros;
    uint16_t key_weight[64];
    uint32_t key_weights[KEY_STEPS], symbol_weights[SYMBOL_STEPS];
} Model;

static int round_up(int n, int to) { return (n + to - 1) / to * to; }

static int pack(Matrix *out, const int8_t *w, const int32_t *m, int n, int k, int centre) {
    out->n = n;
    out->narrow = 1;
    out->k = k;
    out->blocks = round_up(n, 16) / 16;
    out->stride = round_up(k, 64);
    out->w = grab((size_t)out->blocks * 16 * out->stride);
    out->offset = grab((size_t)out->blocks * 16 * sizeof(int32_t));
    out->m = grab((size_t)out->blocks * 16 * sizeof(int32_t));
    out->sum = grab((size_t)out->blocks * 16 * sizeof(int32_t));
    if (!out->w || !out->offset || !out->m || !out->sum) return NO_MEMORY;
    for (int c = 0; c < n; c++) {
        int8_t *to = out->w + (size_t)(c / 16) * 16 * out->stride + (c % 16) * 4;
        int32_t sum = 0;
        int64_t size = 0;
        for (int i = 0; i < k; i++) {
            to[(i / 4) * 64 + i % 4] = w[(size_t)c * k + i];
            sum += w[(size_t)c * k + i];
            size += abs(w[(size_t)c * k + i]);
        }
        if (size * 255 * m[c] >> 24 >= 1 << 30) out->narrow = 0; /* inputs lie in -127..127 or 0..254; below 2^60 */
        out->sum[c] = sum;
        out->offset[c] = -centre * sum;
        out->m[c] = m[c];
    }
    return 0;
}

static void unpack(Matrix *m) {
    free(m->w);
    free(m->offset);
    free(m->sum);
    free(m->m);
}

EXPORT void pltz_model_free(Model *m) {
    if (!m) return;
    for (int i = 0; m->layer && i < m->layers; i++) {
        unpack(&m->layer[i].qkv);
        unpack(&m->layer[i].out);
        unpack(&m->layer[i].gate);
        unpack(&m->layer[i].up);
        unpack(&m->layer[i].down);
    }
    unpack(&m->class);
    unpack(&m->member);
    free(m->layer);
    free(m->class_b);
    free(m->member_b);
    free(m->zeros);
    free(m);
}

static const Kernel *const KERNELS[] = { /* best first */
#if defined(PLTZ_X86)
    &pltz_amx, &pltz_vnni, &pltz_avx2,
#endif
#if defined(PLTZ_ARM)
    &pltz_neon,
#endif
    &pltz_plain,
};
enum { KERNEL_COUNT = sizeof KERNELS / sizeof KERNELS[0] };

/* Name of the n-th kernel this machine can run, best first; NULL after the last. */
EXPORT const char *pltz_kernel(int n) {
    for (int i = 0; i < KERNEL_COUNT; i++) {
        if (KERNELS[i]->supported() && n-- == 0) return KERNELS[i]->name;
    }
    return 0;
}

static const Kernel *find_kernel(const char *name) {
    for (int i = 0; i < KERNEL_COUNT; i++) {
        if (!strcmp(KERNELS[i]->name, name)) return KERNELS[i]->supported() ? KERNELS[i] : 0;
    }
    return 0;
}

static int32_t *copy_ints(const int32_t *from, int n) {
    int32_t *to = grab((size_t)round_up(n, 16) * sizeof(int32_t));
    if (to) memcpy(to, from, (size_t)n * sizeof(int32_t));
    return to;
}

static void fill_tables(Model *m, const int32_t *exp) {
    for (int i = 0; i < 64; i++) m->key_weight[i] = (uint16_t)((exp[i] + 16) >> 5);
    for (int e = 0; e < KEY_STEPS; e++) m->key_weights[e] = m->key_weight[e & 63] >> (e >> 6);
    for (int e = 0; e < SYMBOL_STEPS; e++) m->symbol_weights[e] = (uint32_t)exp[e & 63] >> (e >> 6);
}

/* What contract 2 has more of: the norm before the head and the gate's function, then gate and two norms a layer. */
static int read_gated(Model *m, const void *const *tensors) {
    m->norm_out = tensors[0];
    m->act = tensors[1];
    m->zeros = grab((size_t)round_up(m->hidden, 16) * sizeof(int32_t));
    int bad = !m->zeros;
    for (int i = 0; !bad && i < m->layers; i++) {
        const void *const *t = tensors + 2 + 4 * i;
        Layer *l = &m->layer[i];
        bad = pack(&l->gate, t[0], t[1], m->hidden, m->d, 128);
        l->norm_in = t[2];
        l->norm_mid = t[3];
    }
    return bad;
}

/* shape: the 12 numbers of weights.Shape, in its order. tensors: the 13 of the whole model, then 9 a layer, in the order
 * read here, and for contract 2 behind them 2 of the model and 4 a layer; they were checked by weights.Weights and stay alive as long as the model. NULL: no memory or no such kernel. */
EXPORT Model *pltz_model_new(const int32_t *shape, const void *const *tensors, const char *kernel) {
    Model *m = calloc(1, sizeof *m);
    if (!m) return 0;
    m->vocab = shape[0];
    m->d = shape[1];
    m->layers = shape[2];
    m->heads = shape[3];
    m->kv_heads = shape[4];
    m->head_dim = shape[5];
    m->hidden = shape[6];
    m->block = shape[7];
    m->memory = shape[8];
    m->norm_gain = (uint32_t)shape[9];
    m->head_gain = (uint32_t)shape[10];
    m->gated = shape[11];
    m->classes = m->vocab / CLASS;
    m->group = m->heads / m->kv_heads;
    m->dp = round_up(m->head_dim, 4);
    m->dv = round_up(m->head_dim, 16);
    m->width = round_up(m->d, 16);
    m->kernel = find_kernel(kernel);
    m->layer = calloc((size_t)m->layers, sizeof(Layer));
    m->embed_w = tensors[0];
    m->embed_m = tensors[1];
    m->shift_w = tensors[5];
    m->shift_m = tensors[6];
    m->cos = tensors[10];
    m->sin = tensors[11];
    m->phase = tensors[12];
    m->class_b = copy_ints(tensors[4], m->classes);
    m->member_b = copy_ints(tensors[8], m->vocab);
    int bad = !m->kernel || !m->layer || !m->class_b || !m->member_b;
    bad = bad || pack(&m->class, tensors[2], tensors[3], m->classes, m->d, 128);
    bad = bad || pack(&m->member, tensors[0], tensors[7], m->vocab, m->d, 128);
    const int inner = m->heads * m->head_dim, qkv = (m->heads + 2 * m->kv_heads) * m->head_dim;
    for (int i = 0; !bad && i < m->layers; i++) {
        const void *const *t = tensors + 13 + 9 * i;
        Layer *l = &m->layer[i];
        bad = pack(&l->qkv, t[0], t[1], qkv, m->d, 128) || pack(&l->out, t[2], t[3], m->d, inner, 128) ||
              pack(&l->up, t[4], t[5], m->hidden, m->d, 128) || pack(&l->down, t[6], t[7], m->d, m->hidden, m->gated ? 128 : 0);
        l->heat = t[8];
    }
    if (m->gated) bad = bad || read_gated(m, tensors + 13 + 9 * m->layers);
    if (bad) {
        pltz_model_free(m);
        return 0;
    }
    fill_tables(m, tensors[9]);
    return m;
}

/* ---------------------------------------------------------------- range coder (coder.py) */

typedef struct {
    uint64_t lower, range, point; /* point: decoder only */
    uint8_t *out;                 /* encoder: whole words so far */
    size_t size, room;
    const uint8_t *data;          /* decoder; zeros follow the last byte */
    size_t length, place;
} Coder;

static int coder_put(Coder *c, uint32_t cumulative, uint32_t frequency) {
    const uint64_t scale = c->range >> 24, add = scale * cumulative;
    c->lower += add;
    if (c->lower < add) { /* carry; the first word cannot overflow, the code stays below 1 */
        for (size_t i = c->size; i-- > 0 && ++c->out[i] == 0;) {}
    }
    c->range = scale * frequency;
    if (c->range >> 32) return 0;
    if (c->size + 4 > c->room) {
        const size_t room = c->room ? c->room * 2 : 256;
        uint8_t *out = realloc(c->out, room);
        if (!out) return NO_MEMORY;
        c->out = out;
        c->room = room;
    }
    for (int i = 0; i < 4; i++) c->out[c->size++] = (uint8_t)(c->lower >> (56 - 8 * i));
    c->lower <<= 32;
    c->range <<= 32;
    return 0;
}

/* The shortest bytes that decode to what was put, zeros appended: the first cut at which the next multiple, `value`, stays
 * below lower + range. Only the last byte before the state can be cut too (`total` - 9 bytes), as in RangeEncoder.finish. */
static int coder_finish(Coder *c) {
    const size_t total = c->size + 8;
    uint8_t *all = malloc(total);
    if (!all) return NO_MEMORY;
    memcpy(all, c->out ? c->out : all, c->size);
    for (int i = 0; i < 8; i++) all[c->size + i] = (uint8_t)(c->lower >> (56 - 8 * i));
    size_t size = total - (c->size ? 9 : 8);
    for (; size <= total; size++) {
        const int cut = (int)(8 * (total - size)); /* bits, <= 72 */
        uint64_t up; /* value - lower, when it is below 2^64 */
        if (cut == 72) {
            const uint8_t before = all[c->size - 1];
            if (before == 0 && c->lower == 0) {
                up = 0;
            } else if (before == 0xff && c->lower != 0) {
                up = 0 - c->lower;
            } else {
                continue;
            }
        } else if (cut == 64) {
            up = 0 - c->lower; /* 0 when lower is 0 */
        } else if (cut) {
            up = (0 - c->lower) & ((UINT64_C(1) << cut) - 1);
        } else {
            up = 0;
        }
        if (up >= c->range) continue;
        for (size_t i = size; up && i-- > 0 && ++all[i] == 0;) {} /* round up; stays below 1 */
        break;
    }
    free(c->out);
    c->out = all;
    c->size = size;
    return 0;
}

static uint32_t coder_word(Coder *c) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) {
        word = word << 8 | (c->place < c->length ? c->data[c->place] : 0);
        c->place++;
    }
    return word;
}

/* Where in 0 .. 2^24 - 1 the stream points, or DAMAGED. */
static int32_t coder_peek(const Coder *c) {
    const uint64_t at = (c->point - c->lower) / (c->range >> 24);
    return at >> 24 ? DAMAGED : (int32_t)at;
}

static void coder_take(Coder *c, uint32_t cumulative, uint32_t frequency) {
    const uint64_t scale = c->range >> 24;
    c->lower += scale * cumulative;
    c->range = scale * frequency;
    if (c->range >> 32) return;
    c->lower <<= 32;
    c->range <<= 32;
    c->point = c->point << 32 | coder_word(c);
}

/* ---------------------------------------------------------------- sessions */

typedef struct {
    int64_t *tokens;      /* (total), the context's in front; written when decoding */
    int64_t total;
    int first;            /* tokens of the context: they are not coded */
    int context;          /* number of the session whose keys come first, or -1 */
    int waits;            /* until they are copied */
    int fills, ready;     /* this is a context; it is done */
    int users;            /* of a context: sessions that still wait for it */
    int lanes, steps;     /* explicit layout, or 0, 0 */
    Coder coder;
    double bits;          /* ideal length so far */
    int64_t start;        /* the block under way: first token, tokens, grid */
    int size, L, C, full;
    int lane_start[LANES];
    int step;             /* next one */
    int old;              /* keys remembered from the block before */
    int room;             /* keys the cache holds */
    uint8_t *cache;
    size_t cache_bytes;
} Session;

static int default_lanes(int64_t tokens, int block) {
    if (tokens >= block) return DEFAULT_LANES;
    int lanes = 1;
    while (tokens > (int64_t)lanes * DEFAULT_STEPS) lanes *= 2;
    return lanes;
}

/* Sets the block that starts at `start` (layout.Block). */
static void set_block(const Model *m, Session *s, int64_t start) {
    const int64_t full = s->lanes ? (int64_t)s->lanes * s->steps : m->block;
    const int64_t left = s->total - start;
    s->start = start;
    s->size = (int)(left < full ? left : full);
    s->L = s->lanes ? s->lanes : default_lanes(s->size, m->block);
    if (s->L > s->size) s->L = s->size;
    s->C = (s->size + s->L - 1) / s->L;
    s->full = s->size - s->L * (s->C - 1);
    for (int k = 0; k < s->L; k++) s->lane_start[k] = k * s->C - (k > s->full ? k - s->full : 0);
    s->step = 0;
}

/* Step from which on lane k is remembered by the next block. */
static int first_kept(const Model *m, const Session *s, int k) {
    const int at = s->size - m->memory - s->lane_start[k];
    return at < 0 ? 0 : at > s->C ? s->C : at;
}

static int count_kept(const Model *m, const Session *s) {
    int n = 0;
    for (int k = 0; k < s->L; k++) n += s->C - first_kept(m, s, k);
    return n;
}

/* Keys the session ever holds: context and first block, or a full one's memory and the larger of a full and the last block. */
static int key_room(const Model *m, const Session *given) {
    Session s = *given;
    set_block(m, &s, s.first);
    const int grid = s.C * s.L;
    int room = s.first + grid;
    if (s.first + s.size < s.total) {
        const int kept = count_kept(m, &s);
        const int64_t full = s.size, last = s.first + (s.total - s.first - 1) / full * full;
        set_block(m, &s, last);
        const int later = kept + (s.C * s.L > grid ? s.C * s.L : grid);
        room = later > room ? later : room;
    }
    return round_up(room, KEY_PAD);
}

static size_t cache_size(const Model *m, int room) {
    return (size_t)m->layers * m->kv_heads * room * (m->dp + m->dv);
}

static uint8_t *keys_of(const Model *m, const Session *s, int layer, int head) {
    return s->cache + ((size_t)layer * m->kv_heads + head) * s->room * (m->dp + m->dv);
}

static int8_t *values_of(const Model *m, const Session *s, int layer, int head) {
    return (int8_t *)keys_of(m, s, layer, head) + (size_t)s->room * m->dp;
}

static uint8_t *key_at(const Model *m, uint8_t *keys, int slot) {
    return keys + (size_t)(slot / 16) * 16 * m->dp + (slot % 16) * 4;
}

static int8_t *value_at(const Model *m, int8_t *values, int slot) {
    return values + (size_t)(slot / 4) * 4 * m->dv + slot % 4;
}

/* Keeps what the next block may see, in step-major order, at the front. Slots only move down, so in place. */
static void remember(const Model *m, Session *s) {
    for (int layer = 0; layer < m->layers; layer++) {
        for (int head = 0; head < m->kv_heads; head++) {
            uint8_t *keys = keys_of(m, s, layer, head);
            int8_t *values = values_of(m, s, layer, head);
            int to = 0;
            for (int step = 0; step < s->C; step++) {
                for (int k = 0; k < s->L; k++) {
                    if (step < first_kept(m, s, k)) continue;
                    const int from = s->old + step * s->L + k;
                    uint8_t *kt = key_at(m, keys, to), *kf = key_at(m, keys, from);
                    int8_t *vt = value_at(m, values, to), *vf = value_at(m, values, from);
                    for (int i = 0; i < m->dp / 4; i++) memmove(kt + i * 64, kf + i * 64, 4);
                    for (int i = 0; i < m->dv; i++) vt[i * 4] = vf[i * 4];
                    to++;
                }
            }
        }
    }
    s->old = count_kept(m, s);
}

/* ---------------------------------------------------------------- batch */

typedef struct { /* rows of one session in an iteration, step-major */
    Session *session;
    int row, rows, step;
} Piece;

typedef struct { /* queries of one key head that attend together */
    int piece, head, first, queries;
} Share;

typedef struct {
    uint32_t cumulative, frequency;
} Interval;

typedef struct { /* memory of a session that ended */
    uint8_t *at;
    size_t bytes;
} Spare;

/* What time is counted for; native.STAGES names them in this order. */
enum { IN_LAYERS, IN_ATTENTION, IN_HEAD, IN_FREQUENCIES, IN_CODER, IN_REST, STAGES };

typedef struct Batch {
    const Model *m;
    int decoding, count, threads;
    Session *sessions;
    Session **active;
    int actives, next; /* sessions under way; the next one to start */
    int failed;        /* session that is SPENT */
    size_t cache_bytes;
    Spare spare[SPARES];
    int spares;
    int64_t spent[STAGES], mark; /* ns; since when the next stage counts */
    /* the iteration */
    int layer, level, rows, pieces, shares, tiles;
    Piece piece[ROWS];
    Share *share;
    Product product;           /* under way */
    int32_t token[ROWS], class[ROWS]; /* class: -1 where nothing is predicted */
    int64_t at[ROWS];
    int row_piece[ROWS];
    int32_t *x, *z, *logits;   /* (ROWS, width); (ROWS, symbols) */
    int32_t *gates, *linear;   /* (ROWS, hidden rounded up): contract 2 */
    const int32_t *gains;      /* of the norm under way */
    uint8_t *a, *o, *h;
    int16_t *y, *cos, *sin;    /* (ROWS, qkv); (ROWS, head_dim / 2) */
    int8_t *q;                 /* (kv_heads, ROWS * group, dp) */
    uint32_t *sums;            /* decoder: (ROWS, symbols + 1) sums of the weights */
    uint32_t ratio[ROWS];
    Interval interval[2][ROWS]; /* encoder: class, member */
    int symbols, qkv_stride;
    Scratch *scratch;
    Pool pool;
} Batch;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Counts the time since the last lap for a stage. */
static void lap(Batch *b, int stage) {
    const int64_t then = b->mark;
    b->mark = now();
    b->spent[stage] += b->mark - then;
}

static int32_t clamp_residual(int64_t a) {
    return (int32_t)(a > RESIDUAL_MAX ? RESIDUAL_MAX : a < -RESIDUAL_MAX ? -RESIDUAL_MAX : a);
}

static int last_row(const Batch *b, int item, int size) {
    const int end = (item + 1) * size;
    return end < b->rows ? end : b->rows;
}

/* The norm of a residual, with these gains in contract 2. */
static void norm_row(Batch *b, const int32_t *x, const int32_t *gains, int row) {
    const Model *m = b->m;
    uint8_t *a = b->a + (size_t)row * m->class.stride;
    if (m->gated) m->kernel->gained(x, m->d, m->norm_gain, gains, a);
    else m->kernel->norm(x, m->d, m->norm_gain, a);
}

/* Embedding and rotary angles. p * phase is needed modulo 2^20 only. */
static void stage_enter(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) {
        const int8_t *w = m->embed_w + (size_t)b->token[r] * m->d;
        const int64_t scale = m->embed_m[b->token[r]];
        int32_t *x = b->x + (size_t)r * m->width;
        for (int i = 0; i < m->d; i++) x[i] = clamp_residual((w[i] * scale + (1 << 15)) >> 16);
        for (int i = 0; i < m->head_dim / 2; i++) {
            const uint32_t j = (uint32_t)b->at[r] * (uint32_t)m->phase[i] >> 10 & 1023;
            b->cos[r * (m->head_dim / 2) + i] = m->cos[j];
            b->sin[r * (m->head_dim / 2) + i] = m->sin[j];
        }
    }
}

static void stage_norm(void *context, int item, int thread) {
    Batch *b = context;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) norm_row(b, b->x + (size_t)r * b->m->width, b->gains, r);
}

static void stage_multiply(void *context, int item, int thread) {
    Batch *b = context;
    Product p = b->product;
    const int row = item % b->tiles * TILE, block = item / b->tiles * GROUP;
    p.block = block;
    p.blocks = p.matrix->blocks - block < GROUP ? p.matrix->blocks - block : GROUP;
    p.rows = b->rows - row < TILE ? b->rows - row : TILE;
    p.a += (size_t)row * p.matrix->stride;
    const size_t out = row * p.out_stride + block * 16;
    if (p.kind == TO_QKV) p.qkv += out;
    if (p.kind == TO_RESIDUAL) p.x += out;
    if (p.kind == TO_HIDDEN) p.hidden += out;
    if (p.kind == TO_LOGITS) p.x += out; /* the bias is 0 for all channels */
    const int later = (item + b->pool.threads) / b->tiles * GROUP; /* of this thread, likely */
    p.next = p.matrix->w + (size_t)(later < p.matrix->blocks ? later : block) * 16 * p.matrix->stride;
    b->m->kernel->multiply(&p, &b->scratch[thread]);
}

static void multiply_all(Batch *b, Product p) {
    b->product = p;
    pool_for(&b->pool, stage_multiply, b, b->tiles * ((p.matrix->blocks + GROUP - 1) / GROUP));
}

static void turn(const Model *m, const int16_t *y, const int16_t *cos, const int16_t *sin, uint8_t *out) {
    if (m->gated) m->kernel->turn_only(y, cos, sin, m->head_dim, out);
    else m->kernel->turn(y, cos, sin, m->head_dim, m->head_gain, out);
}

/* Queries, keys and values of some rows: turned, normed, put where attention finds them. */
static void stage_heads(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const int d = m->head_dim, half = d / 2;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) {
        const Piece *piece = &b->piece[b->row_piece[r]];
        const Session *s = piece->session;
        const int slot = s->old + piece->step * s->L + (r - piece->row);
        const int16_t *y = b->y + (size_t)r * b->qkv_stride, *cos = b->cos + r * half, *sin = b->sin + r * half;
        uint8_t turned[HEAD_WIDTH] = {0}; /* up to dp: queries are 0 there */
        for (int h = 0; h < m->heads; h++, y += d) {
            int8_t *q = b->q + ((size_t)(h / m->group) * ROWS * m->group + (size_t)r * m->group + h % m->group) * m->dp;
            turn(m, y, cos, sin, turned);
            for (int i = 0; i < d; i++) q[i] = (int8_t)(turned[i] - 128);
        }
        for (int h = 0; h < m->kv_heads; h++, y += d) {
            uint8_t *key = key_at(m, keys_of(m, s, b->layer, h), slot);
            turn(m, y, cos, sin, turned);
            for (int i = 0; i < m->dp / 4; i++) memcpy(key + i * 64, turned + i * 4, 4);
        }
        for (int h = 0; h < m->kv_heads; h++, y += d) {
            int8_t *value = value_at(m, values_of(m, s, b->layer, h), slot);
            for (int i = 0; i < d; i++) value[i * 4] = (int8_t)(y[i] > 127 ? 127 : y[i] < -127 ? -127 : y[i]);
        }
    }
}

static void stage_attend(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const Share *share = &b->share[item];
    const Piece *piece = &b->piece[share->piece];
    const Session *s = piece->session;
    const size_t first = (size_t)piece->row * m->group + share->first;
    Attention a = {
        .keys = keys_of(m, s, b->layer, share->head),
        .values = values_of(m, s, b->layer, share->head),
        .q = b->q + ((size_t)share->head * ROWS * m->group + first) * m->dp,
        .queries = share->queries, .d = m->head_dim, .dp = m->dp, .dv = m->dv,
        .weight = m->key_weight, .weights = m->key_weights,
    };
    for (int n = 0; n < share->queries; n++) {
        const int row = (share->first + n) / m->group, head = share->head * m->group + (share->first + n) % m->group;
        a.limit[n] = s->old + (piece->step + row / s->L + 1) * s->L;
        a.heat[n] = (uint32_t)m->layer[b->layer].heat[head];
        a.out[n] = b->o + (size_t)(piece->row + row) * m->layer[0].out.stride + head * m->head_dim;
    }
    const Share *next = item + b->pool.threads < b->shares ? share + b->pool.threads : share; /* of this thread, likely */
    a.next = keys_of(m, b->piece[next->piece].session, b->layer, next->head);
    m->kernel->attend(&a, &b->scratch[thread]);
}

/* NUMERICS.md, "frequencies": sums[i] = C_i for i <= n; returns R. */
static uint32_t frequencies(const Model *m, const int32_t *logits, int n, uint32_t *sums) {
    int32_t most = logits[0];
    uint32_t sum = 0;
    for (int i = 1; i < n; i++) most = logits[i] > most ? logits[i] : most;
    for (int i = 0; i < n; i++) {
        const uint32_t e = (uint32_t)most - (uint32_t)logits[i]; /* below 2^32 */
        sums[i] = sum;
        sum += m->symbol_weights[e < SYMBOL_STEPS - 1 ? e : SYMBOL_STEPS - 1];
    }
    sums[n] = sum;
    return (uint32_t)((((UINT64_C(1) << 24) - (uint32_t)n) << 20) / sum);
}

static uint32_t cumulative(const uint32_t *sums, uint32_t ratio, int n, int i) {
    return i == n ? 1u << 24 : (uint32_t)i + (uint32_t)((uint64_t)sums[i] * ratio >> 20);
}

static Interval interval(const uint32_t *sums, uint32_t ratio, int n, int i) {
    const uint32_t from = cumulative(sums, ratio, n, i);
    return (Interval){from, cumulative(sums, ratio, n, i + 1) - from};
}

static uint32_t *sums_of(Batch *b, int row) { return b->sums + (size_t)row * (b->symbols + 16); }

/* Logits of the classes of some rows. */
static void stage_class(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const int first = item * HEAD_ROWS, end = last_row(b, item, HEAD_ROWS);
    int32_t *logits = b->logits + (size_t)first * b->symbols;
    int most = -1;
    for (int r = first; r < end; r++) most = b->class[r] > most ? b->class[r] : most;
    if (most < 0) return; /* rows of a context */
    for (int r = first; r < end; r++) norm_row(b, b->x + (size_t)r * m->width, m->norm_out, r);
    for (int block = 0; block < m->class.blocks; block += 8) {
        const Product p = {
            .matrix = &m->class, .block = block, .blocks = m->class.blocks - block < 8 ? m->class.blocks - block : 8,
            .a = b->a + (size_t)first * m->class.stride, .rows = end - first, .kind = TO_LOGITS, .x = logits + block * 16,
            .bias = m->class_b + block * 16, .out_stride = (size_t)b->symbols, .next = m->class.w,
        };
        m->kernel->multiply(&p, &b->scratch[thread]);
    }
}

/* Frequencies of the classes (b->level 0) or members (1) of some rows. An encoder knows what a row predicts, b->token by now. */
static void stage_frequencies(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const int n = b->level ? CLASS : m->classes;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) {
        if (b->class[r] < 0) continue;
        b->ratio[r] = frequencies(m, b->logits + (size_t)r * b->symbols, n, sums_of(b, r));
        if (b->decoding) continue;
        b->interval[b->level][r] = interval(sums_of(b, r), b->ratio[r], n, b->level ? b->token[r] % CLASS : b->class[r]);
    }
}

/* Logits of the members of one row, its class known. */
static void stage_member(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const int c = b->class[item];
    if (c < 0) return;
    const int32_t *x = b->x + (size_t)item * m->width;
    int32_t *z = b->z + (size_t)item * m->width, *logits = b->logits + (size_t)item * b->symbols;
    const int64_t scale = m->shift_m[c];
    for (int i = 0; i < m->d; i++) {
        z[i] = clamp_residual(x[i] + ((m->shift_w[(size_t)c * m->d + i] * scale + (1 << 15)) >> 16));
    }
    norm_row(b, z, m->norm_out, item);
    const Product p = {
        .matrix = &m->member, .block = c * 8, .blocks = 8, .a = b->a + (size_t)item * m->member.stride, .rows = 1,
        .kind = TO_LOGITS, .x = logits, .bias = m->member_b + c * CLASS, .out_stride = (size_t)b->symbols,
        .next = m->member.w,
    };
    m->kernel->multiply(&p, &b->scratch[thread]);
}

/* Frequencies of the next symbol of every row: its class (level 0) or, that known, its member (1). */
static void predict(Batch *b, int level) {
    b->level = level;
    if (level) pool_for(&b->pool, stage_member, b, b->rows);
    else pool_for(&b->pool, stage_class, b, (b->rows + HEAD_ROWS - 1) / HEAD_ROWS);
    lap(b, IN_HEAD);
    pool_for(&b->pool, stage_frequencies, b, (b->rows + FEW - 1) / FEW);
    lap(b, IN_FREQUENCIES);
}

static void stage_gate(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const size_t from = (size_t)m->layer[0].gate.blocks * 16, to = (size_t)m->layer[0].down.stride;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) {
        m->kernel->gate(b->gates + r * from, b->linear + r * from, m->hidden, m->act, b->h + r * to);
    }
}

static void norm_all(Batch *b, const int32_t *gains) {
    b->gains = gains;
    pool_for(&b->pool, stage_norm, b, (b->rows + FEW - 1) / FEW);
}

/* The hidden layer's activations of all rows, b->a to b->h. */
static void hidden_all(Batch *b, const Layer *l) {
    if (!b->m->gated) {
        multiply_all(b, (Product){.matrix = &l->up, .a = b->a, .kind = TO_HIDDEN, .hidden = b->h, .out_stride = (size_t)l->down.stride});
        return;
    }
    const size_t stride = (size_t)l->gate.blocks * 16;
    multiply_all(b, (Product){.matrix = &l->gate, .a = b->a, .kind = TO_LOGITS, .x = b->gates, .bias = b->m->zeros, .out_stride = stride});
    multiply_all(b, (Product){.matrix = &l->up, .a = b->a, .kind = TO_LOGITS, .x = b->linear, .bias = b->m->zeros, .out_stride = stride});
    pool_for(&b->pool, stage_gate, b, (b->rows + FEW - 1) / FEW);
}

/* All layers for the rows of the iteration: their residuals end up in b->x, their keys and values in the caches. */
static void forward(Batch *b) {
    const Model *m = b->m;
    const int few = (b->rows + FEW - 1) / FEW;
    b->tiles = (b->rows + TILE - 1) / TILE;
    pool_for(&b->pool, stage_enter, b, few);
    for (b->layer = 0; b->layer < m->layers; b->layer++) {
        const Layer *l = &m->layer[b->layer];
        const size_t width = (size_t)m->width;
        norm_all(b, l->norm_in);
        multiply_all(b, (Product){.matrix = &l->qkv, .a = b->a, .kind = TO_QKV, .qkv = b->y, .out_stride = (size_t)b->qkv_stride});
        pool_for(&b->pool, stage_heads, b, few);
        lap(b, IN_LAYERS);
        pool_for(&b->pool, stage_attend, b, b->shares);
        lap(b, IN_ATTENTION);
        multiply_all(b, (Product){.matrix = &l->out, .a = b->o, .kind = TO_RESIDUAL, .x = b->x, .out_stride = width});
        norm_all(b, l->norm_mid);
        hidden_all(b, l);
        multiply_all(b, (Product){.matrix = &l->down, .a = b->h, .kind = TO_RESIDUAL, .x = b->x, .out_stride = width});
    }
    lap(b, IN_LAYERS);
}

/* ---------------------------------------------------------------- iterations */

/* Memory for the keys and values of a session: what one that ended left, if that is large enough (long sessions go first, so
 * it mostly is), since fresh pages cost some 2 % of the time. What was in it is never read as a key: a
 * query sees what was written after. */
static void take_cache(Batch *b, Session *s) {
    for (int i = 0; i < b->spares; i++) {
        if (b->spare[i].bytes < s->cache_bytes) continue;
        s->cache = b->spare[i].at;
        s->cache_bytes = b->spare[i].bytes;
        b->spare[i] = b->spare[--b->spares];
        return;
    }
    while (b->spares) free(b->spare[--b->spares].at);
    s->cache = grab(s->cache_bytes);
}

static int start_session(Batch *b) {
    Session *s = &b->sessions[b->next];
    take_cache(b, s);
    if (!s->cache) return NO_MEMORY;
    b->cache_bytes += s->cache_bytes;
    b->active[b->actives++] = s;
    b->next++;
    return 0;
}

static void end_session(Batch *b, Session *s) {
    if (b->spares < SPARES) b->spare[b->spares++] = (Spare){s->cache, s->cache_bytes};
    else free(s->cache);
    s->cache = 0;
    b->cache_bytes -= s->cache_bytes;
}

/* Copies the keys and values of its context to the front of a session's own; 0 while the context is under way. */
static int take_context(Batch *b, Session *s) {
    const Model *m = b->m;
    Session *c = &b->sessions[s->context];
    if (!c->ready) return 0;
    for (int layer = 0; layer < m->layers; layer++) {
        for (int head = 0; head < m->kv_heads; head++) {
            memcpy(keys_of(m, s, layer, head), keys_of(m, c, layer, head), (size_t)round_up(s->first, 16) * m->dp);
            memcpy(values_of(m, s, layer, head), values_of(m, c, layer, head), (size_t)round_up(s->first, 4) * m->dv);
        }
    }
    s->old = s->first;
    s->waits = 0;
    if (--c->users == 0) end_session(b, c);
    return 1;
}

/* Appends the next rows of a session, as many whole steps as fit; 0 if none does. */
static int collect(Batch *b, Session *s) {
    if (s->waits && !take_context(b, s)) return 0;
    int steps = (ROWS - b->rows) / s->L;
    const int most = b->decoding && !s->fills ? 1 : s->C - s->step;
    if (steps > most) steps = most;
    if (!steps) return 0;
    Piece *piece = &b->piece[b->pieces];
    *piece = (Piece){s, b->rows, steps * s->L, s->step};
    for (int step = s->step; step < s->step + steps; step++) {
        for (int k = 0; k < s->L; k++, b->rows++) {
            const int64_t at = s->start + s->lane_start[k] + step;
            const int first = step == 0 && k != 0;
            const int ends = step == s->C - 1 && k >= s->full;
            b->token[b->rows] = first || at == 0 ? 0 : (int32_t)s->tokens[at - 1];
            b->class[b->rows] = ends || s->fills ? -1 : b->decoding ? 0 : (int32_t)(s->tokens[at] / CLASS);
            b->at[b->rows] = at;
            b->row_piece[b->rows] = b->pieces;
        }
    }
    b->pieces++;
    return 1;
}

/* Cuts attention into work items: as many queries of a key head together as a kernel takes, since they share the way of keys
 * and values through the caches, but fewer where threads would stay without work. */
static void cut_shares(Batch *b) {
    const Model *m = b->m;
    const int whole = b->rows * m->group / QUERIES * m->kv_heads;
    const int most = b->threads > 1 && whole < 4 * b->threads ? QUERIES / 2 : QUERIES;
    b->shares = 0;
    for (int n = 0; n < b->pieces; n++) {
        const int queries = b->piece[n].rows * m->group;
        for (int head = 0; head < m->kv_heads; head++) {
            for (int first = 0; first < queries; first += most) {
                b->share[b->shares++] = (Share){n, head, first, queries - first < most ? queries - first : most};
            }
        }
    }
}

static int collect_all(Batch *b) {
    b->rows = b->pieces = 0;
    for (int n = 0; n < b->actives; n++) collect(b, b->active[n]);
    while (b->next < b->count) {
        Session *s = &b->sessions[b->next];
        if (!s->total) {
            b->next++;
            continue;
        }
        if (b->actives && (b->rows + s->L > ROWS || b->cache_bytes + s->cache_bytes > CACHE_LIMIT)) break;
        if (start_session(b)) return NO_MEMORY;
        collect(b, s);
    }
    cut_shares(b);
    return 0;
}

/* Symbol at a place of 0 .. 2^24 - 1. */
static int find(const uint32_t *sums, uint32_t ratio, int n, uint32_t place) {
    int low = 0, high = n; /* cumulative(low) <= place < cumulative(high) */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (cumulative(sums, ratio, n, middle) <= place) low = middle;
        else high = middle;
    }
    return low;
}

static int decode_symbol(Batch *b, Session *s, int row, int n) {
    const int32_t place = coder_peek(&s->coder);
    if (place < 0) return DAMAGED;
    const uint32_t *sums = sums_of(b, row);
    const int symbol = find(sums, b->ratio[row], n, (uint32_t)place);
    const Interval i = interval(sums, b->ratio[row], n, symbol);
    coder_take(&s->coder, i.cumulative, i.frequency);
    s->bits += 24 - log2(i.frequency);
    return symbol;
}

static int decode_rows(Batch *b) {
    const Model *m = b->m;
    for (int level = 0; level < 2; level++) {
        predict(b, level);
        for (int n = 0; n < b->pieces; n++) {
            const Piece *p = &b->piece[n];
            for (int r = p->row; r < p->row + p->rows && b->class[r] >= 0; r++) {
                const int symbol = decode_symbol(b, p->session, r, level ? CLASS : m->classes);
                if (symbol < 0) return symbol;
                if (level) p->session->tokens[b->at[r]] = b->class[r] * CLASS + symbol;
                else b->class[r] = symbol;
            }
            if (level && p->session->bits > 8.0 * (double)p->session->coder.length + SLACK) {
                b->failed = (int)(p->session - b->sessions);
                return SPENT; /* symbols worth more bits than the frame has: it claims too many tokens */
            }
        }
        lap(b, IN_CODER);
    }
    return 0;
}

static int encode_rows(Batch *b) {
    for (int r = 0; r < b->rows; r++) {
        if (b->class[r] >= 0) b->token[r] = (int32_t)b->piece[b->row_piece[r]].session->tokens[b->at[r]];
    }
    predict(b, 0);
    predict(b, 1);
    for (int n = 0; n < b->pieces; n++) {
        const Piece *p = &b->piece[n];
        Session *s = p->session;
        for (int row = p->row; row < p->row + p->rows; row += s->L) {
            for (int level = 0; level < 2; level++) {
                for (int r = row; r < row + s->L && b->class[r] >= 0; r++) {
                    const Interval i = b->interval[level][r];
                    if (coder_put(&s->coder, i.cumulative, i.frequency)) return NO_MEMORY;
                    s->bits += 24 - log2(i.frequency);
                }
            }
        }
    }
    lap(b, IN_CODER);
    return 0;
}

/* Moves the sessions on past the rows just coded; returns their tokens or an error. */
static int64_t advance(Batch *b) {
    int64_t tokens = 0;
    for (int r = 0; r < b->rows; r++) tokens += b->class[r] >= 0;
    for (int n = 0; n < b->pieces; n++) {
        Session *s = b->piece[n].session;
        s->step += b->piece[n].rows / s->L;
        if (s->step < s->C) continue;
        if (s->start + s->size < s->total) {
            remember(b->m, s);
            set_block(b->m, s, s->start + s->size);
        } else if (s->fills) {
            s->ready = 1;
        } else {
            end_session(b, s);
            if (!b->decoding && coder_finish(&s->coder)) return NO_MEMORY;
        }
    }
    int left = 0;
    for (int n = 0; n < b->actives; n++) {
        if (b->active[n]->cache && !b->active[n]->ready) b->active[left++] = b->active[n];
    }
    b->actives = left;
    return tokens;
}

static void pool_thread(void *context, int on) {
    const Kernel *k = ((const Batch *)context)->m->kernel;
    if (on && k->begin) k->begin();
    if (!on && k->end) k->end();
}

/* Codes until about `budget` tokens are done or nothing is left. Returns the tokens done, 0 at the end, or an error, after
 * which the batch can only be closed. */
EXPORT int64_t pltz_run(Batch *b, int64_t budget) {
    int64_t done = 0, got = 0;
    pool_start(&b->pool, b->threads, pool_thread, b);
    b->mark = now();
    while (done < budget) {
        if ((got = collect_all(b)) < 0 || !b->rows) break;
        lap(b, IN_REST);
        forward(b);
        if ((got = b->decoding ? decode_rows(b) : encode_rows(b)) < 0) break;
        if ((got = advance(b)) < 0) break;
        done += got;
        lap(b, IN_REST);
    }
    pool_stop(&b->pool);
    return got < 0 ? got : done;
}

EXPORT void pltz_close(Batch *b) {
    if (!b) return;
    for (int i = 0; b->sessions && i < b->count; i++) {
        free(b->sessions[i].cache);
        free(b->sessions[i].coder.out);
    }
    while (b->spares) free(b->spare[--b->spares].at);
    for (int i = 0; b->scratch && i < b->threads; i++) {
        free(b->scratch[i].score);
        free(b->scratch[i].weight);
    }
    void *const all[] = {b->sessions, b->active, b->share, b->x, b->z, b->logits, b->gates, b->linear, b->a, b->o, b->h,
                         b->y, b->cos, b->sin, b->q, b->sums, b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    free(b);
}

static int make_room(Batch *b, int keys) {
    const Model *m = b->m;
    const size_t rows = ROWS + ROW_PAD, half = (size_t)m->head_dim / 2;
    b->symbols = round_up(m->classes > CLASS ? m->classes : CLASS, 16);
    b->qkv_stride = m->layer[0].qkv.blocks * 16;
    b->share = grab(((size_t)ROWS * m->group / (QUERIES / 2) + ROWS) * m->kv_heads * sizeof(Share));
    b->x = grab(rows * m->width * sizeof(int32_t));
    b->z = grab(rows * m->width * sizeof(int32_t));
    b->logits = grab(rows * b->symbols * sizeof(int32_t));
    b->sums = grab(rows * (b->symbols + 16) * sizeof(uint32_t));
    b->a = grab(rows * m->class.stride);
    b->o = grab(rows * m->layer[0].out.stride);
    b->h = grab(rows * m->layer[0].down.stride);
    b->gates = grab(m->gated ? rows * m->layer[0].gate.blocks * 16 * sizeof(int32_t) : 0);
    b->linear = grab(m->gated ? rows * m->layer[0].gate.blocks * 16 * sizeof(int32_t) : 0);
    b->y = grab(rows * b->qkv_stride * sizeof(int16_t));
    b->cos = grab(rows * half * sizeof(int16_t));
    b->sin = grab(rows * half * sizeof(int16_t));
    b->q = grab((rows * m->group + QUERIES) * m->kv_heads * m->dp);
    b->scratch = grab((size_t)b->threads * sizeof(Scratch));
    if (!b->share || !b->x || !b->z || !b->logits || !b->sums || !b->a || !b->o || !b->h || !b->y || !b->cos || !b->sin ||
        !b->q || !b->scratch || !b->gates || !b->linear) {
        return NO_MEMORY;
    }
    for (int i = 0; i < b->threads; i++) {
        b->scratch[i].pitch = (size_t)keys + 32; /* not a multiple of 4096 bytes */
        b->scratch[i].score = grab(QUERIES * b->scratch[i].pitch * sizeof(int32_t));
        b->scratch[i].weight = grab(QUERIES * b->scratch[i].pitch * sizeof(uint16_t));
        if (!b->scratch[i].score || !b->scratch[i].weight) return NO_MEMORY;
    }
    return 0;
}

/* One session of the batch, as native.py lays it out. `tokens` is read when encoding, written when decoding. */
typedef struct {
    int64_t *tokens;
    int64_t total;
    const uint8_t *data; /* decoding: the frame */
    int64_t length;
    int32_t lanes, steps; /* 0, 0: the default layout */
    int32_t first;        /* tokens of the context at the front of `tokens`, at most the memory: known, not coded */
    int32_t context;      /* the request before this one that holds them alone (first = total = steps, one lane), or -1 */
} Request;

/* Opens a batch of `count` sessions; NULL: no memory. What the requests point at stays alive until pltz_close. */
EXPORT Batch *pltz_open(const Model *m, const Request *requests, int count, int decoding, int threads) {
    Batch *b = grab(sizeof *b);
    if (!b) return 0;
    int most = KEY_PAD;
    b->m = m;
    b->decoding = decoding;
    b->count = count;
    b->threads = threads < 1 ? 1 : threads > POOL_MAX ? POOL_MAX : threads;
    b->sessions = grab((size_t)count * sizeof(Session));
    b->active = grab((size_t)count * sizeof(Session *));
    for (int i = 0; b->sessions && i < count; i++) {
        const Request *r = &requests[i];
        Session *s = &b->sessions[i];
        *s = (Session){.tokens = r->tokens, .total = r->total, .lanes = r->lanes, .steps = r->steps};
        s->fills = s->total && r->first == s->total;
        s->first = s->fills ? 0 : r->first;
        s->context = s->fills ? -1 : r->context;
        s->waits = s->context >= 0;
        if (s->waits) b->sessions[s->context].users++;
        s->coder = (Coder){.range = UINT64_MAX, .data = r->data, .length = (size_t)r->length};
        if (!s->total) continue;
        if (decoding) {
            s->coder.point = (uint64_t)coder_word(&s->coder) << 32;
            s->coder.point |= coder_word(&s->coder);
        }
        s->room = key_room(m, s);
        s->cache_bytes = cache_size(m, s->room);
        most = s->room > most ? s->room : most;
        set_block(m, s, s->first);
    }
    if (!b->sessions || !b->active || make_room(b, most)) {
        pltz_close(b);
        return 0;
    }
    return b;
}

/* Where the time went so far: ns of STAGES. */
EXPORT void pltz_spent(const Batch *b, int64_t *out) { memcpy(out, b->spent, sizeof b->spent); }

/* Which session an error SPENT is about. */
EXPORT int pltz_failed(const Batch *b) { return b->failed; }

/* A finished encoder's frame: its bytes stay with the batch; `bits` is the model's ideal length. */
EXPORT const uint8_t *pltz_frame(const Batch *b, int i, int64_t *length, double *bits) {
    const Session *s = &b->sessions[i];
    *length = (int64_t)s->coder.size;
    *bits = s->bits;
    return s->coder.out;
}

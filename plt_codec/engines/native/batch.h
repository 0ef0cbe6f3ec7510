/* A batch of sessions and its current iteration: its rows, their sessions, and the values computed for them. */
#ifndef PLTZ_BATCH_H
#define PLTZ_BATCH_H

#include "pool.h"
#include "session.h"

enum {
    ROWS = 512,  /* rows of an iteration */
    SPARES = 64, /* caches kept for the next sessions */
    FEW = 4,     /* rows of an elementwise work item */
};

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

/* Take memory for a session that begins; return 0 or NO_MEMORY. A session that ended gives it back. */
int batch_begin(Batch *b, Session *s);
void batch_end(Batch *b, Session *s);

static inline int32_t clamp_residual(int64_t a) {
    return (int32_t)(a > RESIDUAL_MAX ? RESIDUAL_MAX : a < -RESIDUAL_MAX ? -RESIDUAL_MAX : a);
}

static inline int last_row(const Batch *b, int item, int size) {
    const int end = (item + 1) * size;
    return end < b->rows ? end : b->rows;
}

/* Compute the norm of a residual, with these gains in contract 2. */
static inline void norm_row(Batch *b, const int32_t *x, const int32_t *gains, int row) {
    const Model *m = b->m;
    uint8_t *a = b->a + (size_t)row * m->class.stride;
    if (m->gated) m->kernel->gained(x, m->d, m->norm_gain, gains, a);
    else m->kernel->norm(x, m->d, m->norm_gain, a);
}

/* Run all layers for the rows of the iteration: residuals end up in b->x, keys and values in the caches. */
void layers_run(Batch *b);

/* Compute the frequencies of the next symbol of every row: its class (level 0) or, once that is known, its member
 * (1). */
void head_predict(Batch *b, int level);

/* Return the symbol, of n, of a row at a place of 0 .. 2^24 - 1. */
int head_find(const Batch *b, int row, int n, uint32_t place);

/* Return a symbol's share of 0 .. 2^24. */
Interval head_interval(const Batch *b, int row, int n, int symbol);

#endif

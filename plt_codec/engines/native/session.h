/* A session under way: its tokens and coder, its current block (lanes.py), and its cache of keys and values.
 *
 * A cache holds, for each layer and key head, room for a number of keys and as many values, in the layouts of
 * kernel.h.
 */
#ifndef PLTZ_SESSION_H
#define PLTZ_SESSION_H

#include "coder.h"
#include "model.h"

typedef struct {
    int64_t *tokens;      /* (total), the context's in front; written when decoding */
    int64_t total;
    int first;            /* tokens of the context: they are not coded */
    int context;          /* number of the session whose keys come first, or -1 */
    int waits;            /* until they are copied */
    int fills, ready;     /* this is a context; it is done */
    int users;            /* of a context: sessions that still wait for it */
    int lanes, steps;     /* layout */
    Coder coder;
    double bits;          /* encoder: ideal length so far */
    int64_t start;        /* the block under way: first token, tokens, grid */
    int size, L, C, full;
    int lane_start[LANES];
    int step;             /* next one */
    int old;              /* keys remembered from the block before */
    int room;             /* keys the cache holds */
    uint8_t *cache;
    size_t cache_bytes;
} Session;

/* Set the block that starts at `start` (lanes.TokenBlock). */
void session_block(Session *s, int64_t start);

/* Return the most keys the session ever holds: context and first block, or a full one's memory and the larger of a
 * full and the last block. */
int session_room(const Model *m, const Session *s);

/* Keep the part that the next block may see, in step-major order, at the front. */
void session_remember(const Model *m, Session *s);

static inline size_t cache_size(const Model *m, int room) {
    return (size_t)m->layers * m->kv_heads * room * (m->dp + m->dv);
}

static inline uint8_t *keys_of(const Model *m, const Session *s, int layer, int head) {
    return s->cache + ((size_t)layer * m->kv_heads + head) * s->room * (m->dp + m->dv);
}

static inline int8_t *values_of(const Model *m, const Session *s, int layer, int head) {
    return (int8_t *)keys_of(m, s, layer, head) + (size_t)s->room * m->dp;
}

static inline uint8_t *key_at(const Model *m, uint8_t *keys, int slot) {
    return keys + (size_t)(slot / 16) * 16 * m->dp + (slot % 16) * 4;
}

static inline int8_t *value_at(const Model *m, int8_t *values, int slot) {
    return values + (size_t)(slot / 4) * 4 * m->dv + slot % 4;
}

#endif

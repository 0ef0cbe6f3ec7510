/* Opening and closing a batch, and its memory: see batch.h. */
#include "batch.h"

#include <stdlib.h>

#include "engine.h"
#include "memory.h"

/* Take memory for the keys and values of a session: that of an ended one if it is large enough. It mostly is, since
 * long sessions go first. Fresh pages cost some 2 % of the time. Its old content is never read as a key: a query
 * sees only later writes. */
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

int batch_begin(Batch *b, Session *s) {
    take_cache(b, s);
    if (!s->cache) return NO_MEMORY;
    b->cache_bytes += s->cache_bytes;
    return 0;
}

void batch_end(Batch *b, Session *s) {
    if (b->spares < SPARES) b->spare[b->spares++] = (Spare){s->cache, s->cache_bytes};
    else free(s->cache);
    s->cache = 0;
    b->cache_bytes -= s->cache_bytes;
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
    if (!b->share || !b->x || !b->z || !b->logits || !b->sums || !b->a || !b->o || !b->h || !b->y || !b->cos ||
        !b->sin || !b->q || !b->scratch || !b->gates || !b->linear) {
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

/* One session of the batch, as coder.py lays it out. `tokens` is read when encoding, written when decoding. */
typedef struct {
    int64_t *tokens;
    int64_t total;
    const uint8_t *data; /* decoding: the frame */
    int64_t length;
    int32_t lanes, steps;
    int32_t first;        /* tokens of the context at the front of `tokens`, at most the memory: known, not coded */
    int32_t context;      /* the earlier request that holds them alone (first = total = steps, one lane), or -1 */
} Request;

/* Open a batch of `count` sessions; NULL: no memory. The memory that the requests point at stays alive until
 * pltz_close. */
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
        s->room = session_room(m, s);
        s->cache_bytes = cache_size(m, s->room);
        most = s->room > most ? s->room : most;
        session_block(s, s->first);
    }
    if (!b->sessions || !b->active || make_room(b, most)) {
        pltz_close(b);
        return 0;
    }
    return b;
}

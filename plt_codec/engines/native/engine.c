/* The numeric contract (NUMERICS.md), the layout and the range coder, compiled: tokens to bytes and back without
 * Python.
 *
 * Encoding and decoding are one loop. An iteration collects rows (positions) of the active sessions, runs them through
 * the layers together, and codes their tokens. A decoder gives one step of each session at a time. An encoder knows
 * its tokens, so it gives as many steps of a block as fit. A row sees a prefix of its session's keys, so both run the
 * same code. Memory is bounded by the rows of an iteration and by the active sessions, not by the waiting ones.
 *
 * A context is a session of its own that codes nothing: as many steps at once as fit. The sessions after it wait for
 * its keys and values, take a copy and go on behind it. So it runs once whatever their number.
 *
 * Nothing here trusts a stream. Symbols come out of a search within the alphabet, and every index follows from counts
 * that were fixed when the batch was opened.
 */
#include "engine.h"

#include <math.h>
#include <string.h>

#include "batch.h"
#include "memory.h"

/* version of the exported functions: raised together with native.INTERFACE, so that a stale build is noticed */
enum { INTERFACE = 4 };

EXPORT int pltz_interface(void) { return INTERFACE; }

static const size_t CACHE_LIMIT = (size_t)1 << 29; /* bytes of keys and values of active sessions */

/* Copy the keys and values of a session's context to the front of its own; return 0 while the context is not done. */
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
    if (--c->users == 0) batch_end(b, c);
    return 1;
}

/* Append the next rows of a session, as many whole steps as fit; return 0 if none does. */
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

/* Cut attention into work items. One item takes as many queries of a key head together as a kernel can, since they
 * share the transfer of keys and values through the caches. It takes fewer where threads would be left without work. */
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

static int start_session(Batch *b, Session *s) {
    if (batch_begin(b, s)) return NO_MEMORY;
    b->active[b->actives++] = s;
    b->next++;
    return 0;
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
        if (start_session(b, s)) return NO_MEMORY;
        collect(b, s);
    }
    cut_shares(b);
    return 0;
}

static int decode_symbol(Batch *b, Session *s, int row, int n) {
    const int32_t place = coder_peek(&s->coder);
    if (place < 0) return DAMAGED;
    const int symbol = head_find(b, row, n, (uint32_t)place);
    const Interval i = head_interval(b, row, n, symbol);
    coder_take(&s->coder, i.cumulative, i.frequency);
    return symbol;
}

static int decode_rows(Batch *b) {
    const Model *m = b->m;
    for (int level = 0; level < 2; level++) {
        head_predict(b, level);
        for (int n = 0; n < b->pieces; n++) {
            const Piece *p = &b->piece[n];
            for (int r = p->row; r < p->row + p->rows && b->class[r] >= 0; r++) {
                const int symbol = decode_symbol(b, p->session, r, level ? CLASS : m->classes);
                if (symbol < 0) return symbol;
                if (level) p->session->tokens[b->at[r]] = b->class[r] * CLASS + symbol;
                else b->class[r] = symbol;
            }
            if (level && coder_is_spent(&p->session->coder)) {
                b->failed = (int)(p->session - b->sessions);
                return SPENT; /* more words than the frame has: it claims too many tokens */
            }
        }
    }
    return 0;
}

static int encode_rows(Batch *b) {
    for (int r = 0; r < b->rows; r++) {
        if (b->class[r] >= 0) b->token[r] = (int32_t)b->piece[b->row_piece[r]].session->tokens[b->at[r]];
    }
    head_predict(b, 0);
    head_predict(b, 1);
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
    return 0;
}

/* Move the sessions on past the rows just coded; return their tokens or an error. */
static int64_t advance(Batch *b) {
    int64_t tokens = 0;
    for (int r = 0; r < b->rows; r++) tokens += b->class[r] >= 0;
    for (int n = 0; n < b->pieces; n++) {
        Session *s = b->piece[n].session;
        s->step += b->piece[n].rows / s->L;
        if (s->step < s->C) continue;
        if (s->start + s->size < s->total) {
            session_remember(b->m, s);
            session_block(s, s->start + s->size);
        } else if (s->fills) {
            s->ready = 1;
        } else {
            batch_end(b, s);
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

/* Code until about `budget` tokens are done or nothing is left. Return the tokens done, 0 at the end, or an error.
 * After an error the batch can only be closed. */
EXPORT int64_t pltz_run(Batch *b, int64_t budget) {
    int64_t done = 0, got = 0;
    pool_start(&b->pool, b->threads, pool_thread, b);
    while (done < budget) {
        if ((got = collect_all(b)) < 0 || !b->rows) break;
        layers_run(b);
        if ((got = b->decoding ? decode_rows(b) : encode_rows(b)) < 0) break;
        if ((got = advance(b)) < 0) break;
        done += got;
    }
    pool_stop(&b->pool);
    return got < 0 ? got : done;
}

/* Return the session that an error SPENT is about. */
EXPORT int pltz_failed(const Batch *b) { return b->failed; }

/* Return a finished encoder's frame: its bytes stay with the batch; `bits` is the model's ideal length. */
EXPORT const uint8_t *pltz_frame(const Batch *b, int i, int64_t *length, double *bits) {
    const Session *s = &b->sessions[i];
    *length = (int64_t)s->coder.size;
    *bits = s->bits;
    return s->coder.out;
}

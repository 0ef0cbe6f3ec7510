/* The layers: embedding, products, heads, attention and hidden layer of the rows of an iteration, in stages of work
 * items. */
#include <string.h>

#include "batch.h"

/* Compute embedding and rotary angles. p * phase is needed modulo 2^20 only. */
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
    const int later = (item + b->pool.threads) / b->tiles * GROUP; /* probably of this thread */
    p.next = p.matrix->w + (size_t)(later < p.matrix->blocks ? later : block) * 16 * p.matrix->stride;
    b->m->kernel->multiply(&p, &b->scratch[thread]);
}

static void multiply_all(Batch *b, Product p) {
    b->product = p;
    pool_for(&b->pool, stage_multiply, b, b->tiles * ((p.matrix->blocks + GROUP - 1) / GROUP));
}

/* Write a query: value + 128 (d, padded to dp) -> value (dp), 0 in the padding. */
static void put_query(const uint8_t *restrict turned, int d, int dp, int8_t *restrict q) {
    for (int i = 0; i < d; i++) q[i] = (int8_t)(turned[i] - 128);
    for (int i = d; i < dp; i++) q[i] = 0;
}

/* Write a key. Past the head's width any byte may stand: queries are 0 there. */
static void put_key(const uint8_t *restrict turned, int dp, int with_sign, uint8_t *restrict key) {
    const uint32_t flip = with_sign ? 0x80808080u : 0;
    for (int i = 0; i < dp / 4; i++) {
        uint32_t four;
        memcpy(&four, turned + i * 4, 4);
        four ^= flip;
        memcpy(key + i * 64, &four, 4);
    }
}

static void put_value(const int16_t *restrict y, int d, int8_t *restrict value) {
    for (int i = 0; i < d; i++) value[i * 4] = (int8_t)(y[i] > 127 ? 127 : y[i] < -127 ? -127 : y[i]);
}

/* Turn and norm queries and keys of a row, y (heads + key heads, head_dim). */
static void put_turned(Batch *b, const Session *s, int row, int slot, const int16_t *y) {
    const Model *m = b->m;
    const int d = m->head_dim, heads = m->heads + m->kv_heads;
    const int16_t *cos = b->cos + row * (d / 2), *sin = b->sin + row * (d / 2);
    uint8_t turned[TURNED * HEAD_WIDTH + 4] = {0};
    for (int first = 0; first < heads; first += TURNED) {
        const int n = heads - first < TURNED ? heads - first : TURNED;
        if (m->gated) m->kernel->turn_only(y + first * d, n, cos, sin, d, turned);
        else m->kernel->turn(y + first * d, n, cos, sin, d, m->head_gain, turned);
        for (int i = 0; i < n; i++) {
            const int h = first + i, place = (h / m->group * ROWS + row) * m->group + h % m->group;
            if (h < m->heads) put_query(turned + i * d, d, m->dp, b->q + (size_t)place * m->dp);
            else
                put_key(turned + i * d, m->dp, m->kernel->signed_keys,
                        key_at(m, keys_of(m, s, b->layer, h - m->heads), slot));
        }
    }
}

/* Put queries, keys and values of some rows, turned and normed, where attention finds them. */
static void stage_heads(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) {
        const Piece *piece = &b->piece[b->row_piece[r]];
        const Session *s = piece->session;
        const int slot = s->old + piece->step * s->L + (r - piece->row);
        const int16_t *y = b->y + (size_t)r * b->qkv_stride, *v = y + (m->heads + m->kv_heads) * m->head_dim;
        put_turned(b, s, r, slot, y);
        for (int h = 0; h < m->kv_heads; h++, v += m->head_dim)
            put_value(v, m->head_dim, value_at(m, values_of(m, s, b->layer, h), slot));
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
    /* probably of this thread */
    const Share *next = item + b->pool.threads < b->shares ? share + b->pool.threads : share;
    a.next = keys_of(m, b->piece[next->piece].session, b->layer, next->head);
    m->kernel->attend(&a, &b->scratch[thread]);
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

/* Compute the hidden layer's activations of all rows, b->a to b->h. */
static void hidden_all(Batch *b, const Layer *l) {
    if (!b->m->gated) {
        multiply_all(
            b,
            (Product){
                .matrix = &l->up, .a = b->a, .kind = TO_HIDDEN, .hidden = b->h, .out_stride = (size_t)l->down.stride});
        return;
    }
    const size_t stride = (size_t)l->gate.blocks * 16;
    multiply_all(b, (Product){.matrix = &l->gate,
                              .a = b->a,
                              .kind = TO_LOGITS,
                              .x = b->gates,
                              .bias = b->m->zeros,
                              .out_stride = stride});
    multiply_all(
        b,
        (Product){
            .matrix = &l->up, .a = b->a, .kind = TO_LOGITS, .x = b->linear, .bias = b->m->zeros, .out_stride = stride});
    pool_for(&b->pool, stage_gate, b, (b->rows + FEW - 1) / FEW);
}

void layers_run(Batch *b) {
    const Model *m = b->m;
    const int few = (b->rows + FEW - 1) / FEW;
    b->tiles = (b->rows + TILE - 1) / TILE;
    pool_for(&b->pool, stage_enter, b, few);
    for (b->layer = 0; b->layer < m->layers; b->layer++) {
        const Layer *l = &m->layer[b->layer];
        const size_t width = (size_t)m->width;
        norm_all(b, l->norm_in);
        multiply_all(
            b,
            (Product){.matrix = &l->qkv, .a = b->a, .kind = TO_QKV, .qkv = b->y, .out_stride = (size_t)b->qkv_stride});
        pool_for(&b->pool, stage_heads, b, few);
        pool_for(&b->pool, stage_attend, b, b->shares);
        multiply_all(b, (Product){.matrix = &l->out, .a = b->o, .kind = TO_RESIDUAL, .x = b->x, .out_stride = width});
        norm_all(b, l->norm_mid);
        hidden_all(b, l);
        multiply_all(b, (Product){.matrix = &l->down, .a = b->h, .kind = TO_RESIDUAL, .x = b->x, .out_stride = width});
    }
}

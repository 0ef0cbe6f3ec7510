/* The head: logits of the rows of an iteration, the frequencies that follow (NUMERICS.md), and symbols in them. */
#include "batch.h"

enum { HEAD_ROWS = 8 }; /* rows whose classes are multiplied together */

/* Compute NUMERICS.md, "frequencies": sums[i] = C_i for i <= n; return R. */
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

static uint32_t *sums_of(const Batch *b, int row) { return b->sums + (size_t)row * (b->symbols + 16); }

Interval head_interval(const Batch *b, int row, int n, int symbol) {
    const uint32_t *sums = sums_of(b, row), ratio = b->ratio[row];
    const uint32_t from = cumulative(sums, ratio, n, symbol);
    return (Interval){from, cumulative(sums, ratio, n, symbol + 1) - from};
}

/* Compute the logits of the classes of some rows. */
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
            .matrix = &m->class,
            .block = block,
            .blocks = m->class.blocks - block < 8 ? m->class.blocks - block : 8,
            .a = b->a + (size_t)first * m->class.stride,
            .rows = end - first,
            .kind = TO_LOGITS,
            .x = logits + block * 16,
            .bias = m->class_b + block * 16,
            .out_stride = (size_t)b->symbols,
            .next = m->class.w,
        };
        m->kernel->multiply(&p, &b->scratch[thread]);
    }
}

/* Compute frequencies of the classes (b->level 0) or members (1) of some rows. An encoder knows the token of a row,
 * b->token, by now. */
static void stage_frequencies(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const int n = b->level ? CLASS : m->classes;
    (void)thread;
    for (int r = item * FEW; r < last_row(b, item, FEW); r++) {
        if (b->class[r] < 0) continue;
        b->ratio[r] = frequencies(m, b->logits + (size_t)r * b->symbols, n, sums_of(b, r));
        if (b->decoding) continue;
        b->interval[b->level][r] = head_interval(b, r, n, b->level ? b->token[r] % CLASS : b->class[r]);
    }
}

/* Compute the logits of the members of one row, its class known. */
static void stage_member(void *context, int item, int thread) {
    Batch *b = context;
    const Model *m = b->m;
    const int c = b->class[item];
    if (c < 0) return;
    const int32_t *x = b->x + (size_t)item * m->width;
    int32_t *z = b->z + (size_t)item * m->width, *logits = b->logits + (size_t)item * b->symbols;
    const int64_t scale = m->shift_m[c];
    /* probably of this thread */
    const int after = item + b->pool.threads < b->rows ? b->class[item + b->pool.threads] : -1;
    for (int i = 0; i < m->d; i++) {
        z[i] = clamp_residual(x[i] + ((m->shift_w[(size_t)c * m->d + i] * scale + (1 << 15)) >> 16));
    }
    norm_row(b, z, m->norm_out, item);
    const Product p = {
        .matrix = &m->member, .block = c * 8, .blocks = 8, .a = b->a + (size_t)item * m->member.stride, .rows = 1,
        .kind = TO_LOGITS, .x = logits, .bias = m->member_b + c * CLASS, .out_stride = (size_t)b->symbols,
        .next = m->member.w + (size_t)(after < 0 ? c : after) * CLASS * m->member.stride,
    };
    m->kernel->multiply(&p, &b->scratch[thread]);
}

void head_predict(Batch *b, int level) {
    b->level = level;
    if (level) pool_for(&b->pool, stage_member, b, b->rows);
    else pool_for(&b->pool, stage_class, b, (b->rows + HEAD_ROWS - 1) / HEAD_ROWS);
    pool_for(&b->pool, stage_frequencies, b, (b->rows + FEW - 1) / FEW);
}

int head_find(const Batch *b, int row, int n, uint32_t place) {
    const uint32_t *sums = sums_of(b, row), ratio = b->ratio[row];
    int low = 0, high = n; /* cumulative(low) <= place < cumulative(high) */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (cumulative(sums, ratio, n, middle) <= place) low = middle;
        else high = middle;
    }
    return low;
}

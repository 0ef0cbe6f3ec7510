/* Many sessions together: one kernel a stage over the rows of all sessions, launched again and again by the host.
 *
 * An iteration (collect .. finish) takes the next rows of each slot: one step of its block when decoding, as many whole
 * steps as fit when encoding. Slots take a new session when theirs has ended, so the host only repeats the same
 * launches until nothing is left. Grids are fixed; CTAs beyond the rows of an iteration end at once.
 */
#include "common.cuh"

DEV int warp_of() { return (int)threadIdx.x >> 5; }
DEV int thread_of() { return (int)threadIdx.x & 31; }

/* ---------------------------------------------------------------- iterations */

enum { EACH = 4 }; /* slots a thread of collect() looks after, at most */

/* The sum of v over the threads of a CTA before this one; all: over all of them. sums: one for each warp, shared. */
DEV int sum_before(int v, int &all, int32_t *sums) {
    const int thread = thread_of(), warp = warp_of();
    int upto = v;
    for (int n = 1; n < 32; n <<= 1) {
        const int other = __shfl_up_sync(FULL, upto, n);
        if (thread >= n) upto += other;
    }
    __syncthreads();
    if (thread == 31) sums[warp] = upto;
    __syncthreads();
    int before = upto - v;
    all = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w < warp) before += sums[w];
        all += sums[w];
    }
    return before;
}

/* Which list of collect() a slot with rows is in: attend_few() takes those with at most FEW queries per key head whose
 * scores fit, in two lists by the places that they need; attend() takes the others. */
enum { FEW = 8 }; /* rows.py */
DEV int score_stride(int keys) { return (keys + 31) / 32 * 32 + 4; } /* places of a query: rows begin 4 banks apart */
DEV int list_of(const Session &s, int rows, int step, int32_t few, int32_t more) {
    const int queries = rows * GROUP, places = queries * score_stride(s.old + (step + 1) * s.L);
    return queries > FEW || rows > s.L || places > max(few, more) ? MANY : places <= few ? FEWEST : FEWER;
}

/* One CTA, a thread EACH slots (at most 4096 in all): moves sessions on, refills, deals out rows, and lists slots.
 * few, more: places for scores in both launches of attend_few(); 0: there is none. turns (LAYERS, 2): from 0 again. */
KERNEL(1024) collect(State *state, Session *sessions, int32_t *slots, Piece *pieces, int32_t *lists, int32_t *turns,
                     int32_t few, int32_t more) {
    int32_t *sums = (int32_t *)shared(), *counts = sums + 32; /* 32, LISTS + 1 */
    const int tid = (int)threadIdx.x, all = state->slots, each = (all + (int)blockDim.x - 1) / (int)blockDim.x,
              first = tid * each, mine = max(0, min(each, all - first));
    for (int i = tid; i < 2 * LAYERS; i += (int)blockDim.x) turns[i] = 0;
    if (tid <= LISTS) counts[tid] = 0;
    int held[EACH], done = 0, empty = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        held[e] = -1;
        if (e >= mine) continue;
        held[e] = slots[first + e];
        if (held[e] >= 0) {
            Session &s = sessions[held[e]];
            const int rows = pieces[first + e].rows;
            if (rows) s.step += rows / s.L;
            if (s.step >= s.C || s.error) {
                if (!s.error && s.start + s.size < s.total) {
                    s.old = count_kept(s); /* which remember() has moved to the front */
                    s.apart = 0;
                    set_block(s, s.start + s.size);
                } else {
                    s.done = 1;
                    held[e] = -1;
                    done++;
                }
            }
        }
        empty += held[e] < 0;
    }
    /* the n-th empty slot takes the n-th waiting session */
    int ended, next = state->next;
    int wanted = next + (sum_before(empty | done << 16, ended, sums) & 0xffff), busy = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (e >= mine) continue;
        if (held[e] < 0) {
            if (wanted < state->count) {
                held[e] = wanted;
                Session &s = sessions[wanted];
                set_block(s, s.first);
                s.old = s.first; /* which recall() brings, but for those that are read in place */
                s.apart = state->in_place && s.context >= 0 ? s.first / 32 * 32 : 0;
            }
            wanted++;
        }
        slots[first + e] = held[e];
        busy += held[e] >= 0;
    }
    /* rows: wishes (an encoder's slots share the room), their sums before each slot, then what fits */
    int occupied = 1;
    if (!state->decoding) sum_before(busy, occupied, sums);
    int wishes[EACH], wished = 0, total;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        wishes[e] = 0;
        if (held[e] < 0) continue;
        const Session &s = sessions[held[e]];
        wishes[e] =
            state->decoding ? s.L : min(s.C - s.step, max(1, state->rows_max / occupied / s.L)) * s.L;
        wished += wishes[e];
    }
    int from = sum_before(wished, total, sums), lists_of[EACH], listed[3] = {0, 0, 0};
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        lists_of[e] = -1;
        if (e >= mine) continue;
        const int room = state->rows_max - from;
        int rows = 0, step = 0;
        if (held[e] >= 0) {
            const Session &s = sessions[held[e]];
            step = s.step;
            rows = room <= 0 ? 0 : min(wishes[e], room / s.L * s.L);
            if (rows) {
                lists_of[e] = list_of(s, rows, step, few, more);
                if (s.context >= 0 && step == 0 && s.start == s.first)
                    lists[BEGIN * all + atomicAdd(&counts[BEGIN], 1)] = first + e;
                const bool ends = state->decoding == BY_BLOCK || step + rows / s.L >= s.C;
                if (ends && s.start + s.size < s.total)
                    lists[END * all + atomicAdd(&counts[END], 1)] = first + e;
                atomicMax(&counts[LISTS], from + rows); /* a slot cut short ends the rows */
            }
        }
        pieces[first + e] = Piece{held[e], min(from, state->rows_max), rows, step};
        from += wishes[e];
#pragma unroll
        for (int n = 0; n < 3; n++) listed[n] += lists_of[e] == FEWEST + n;
    }
    /* the lists of attention, in the order of slots: neighbours may stand behind the same context */
    int at[3], both, many;
    at[0] = sum_before(listed[0] | listed[1] << 16, both, sums);
    at[1] = at[0] >> 16;
    at[0] &= 0xffff;
    at[2] = sum_before(listed[2], many, sums);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
#pragma unroll
        for (int n = 0; n < 3; n++) {
            if (lists_of[e] == FEWEST + n) lists[(FEWEST + n) * all + at[n]++] = first + e;
        }
    }
    if (tid) return;
    state->rows = counts[LISTS];
    state->next = min(state->count, next + (ended & 0xffff));
    state->left -= ended >> 16;
    state->listed[BEGIN] = counts[BEGIN];
    state->listed[END] = counts[END];
    state->listed[FEWEST] = both & 0xffff;
    state->listed[FEWER] = both >> 16;
    state->listed[MANY] = many;
}

/* A warp a row: what the row is, its embedding and that normed. Rows of slots cut short lie beyond state->rows. */
KERNEL(256)
enter(State *state, Session *sessions, const Piece *pieces, Row *rows, const int32_t *tokens, const int8_t *embed_w,
      const int32_t *embed_m, const int32_t *gains, int32_t *x, int8_t *a) {
    const int r = (int)blockIdx.x * 8 + warp_of(), thread = thread_of();
    if (r >= state->rows) return;
    int low = 0, high = state->slots; /* the last slot that begins at or before r and has rows */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (pieces[middle].row <= r) low = middle;
        else high = middle;
    }
    while (low > 0 && !pieces[low].rows) low--;
    const Piece p = pieces[low];
    const Session &s = sessions[p.session];
    const int k = (r - p.row) % s.L, step = p.step + (r - p.row) / s.L;
    const int64_t at = s.start + lane_start(s, k) + step;
    const bool predicts = step < s.C - 1 || k < s.full;
    const int token = (step == 0 && k != 0) || at == 0 ? 0 : tokens[s.token_at + at - 1];
    if (thread == 0) {
        const int target = predicts && !state->decoding ? tokens[s.token_at + at] : 0;
        rows[r] =
            Row{low, (int32_t)at, token, predicts ? target >> 7 : -1, s.old - s.apart + step * s.L + k, target,
                      p.session, k};
    }
    const int8_t *w = embed_w + (int64_t)(token >> 3) * 8 * DP + (token & 7) * 64;
    const int32_t m = embed_m[token];
    int32_t *to = x + (int64_t)r * DP;
    for (int i = 0; i < DP / 64; i++) {
        const int c = i * 64 + thread * 2;
        to[c] = entry(w[i * 512 + thread * 2], m);
        to[c + 1] = entry(w[i * 512 + thread * 2 + 1], m);
    }
    __syncwarp();
    norm_row(to, a + (int64_t)r * DP, thread, gains);
}

KERNEL(256) norms(const State *state, const int32_t *x, const int32_t *gains, int8_t *a) {
    const int r = (int)blockIdx.x * 8 + warp_of();
    if (r < state->rows) norm_row(x + (int64_t)r * DP, a + (int64_t)r * DP, thread_of(), gains);
}

/* ---------------------------------------------------------------- products */

enum { TO_QKV, TO_RESIDUAL, TO_HIDDEN, TO_GATED, TO_LOGITS };
enum {
    BM = 128,
    BN = 128, /* fixed: a thread copies two pieces of inputs and two of weights a chunk */
    PRODUCT_SHARED = (BM + BN) * 64 * 6
}; /* range_coder.py: 96 KB */

/* 128 rows times 128 channels a CTA, 64 x 32 a warp. Channels come in multiples of 64: in the last CTA half may be
 * missing. a (rows, K), w tiles, out (rows, stride). TO_GATED: tiles of gate and up take turns, out is (rows, stride /
 * 2). table: biases of logits; the gate's function. */
template <int KIND, int K, bool UNSIGNED = false> DEV void product(const State *state, const int8_t *a, const int8_t *w,
                                                                   const int32_t *m, const int32_t *table, void *out,
                                                                   int stride) {
    const int row0 = (int)blockIdx.y * BM, tile0 = (int)blockIdx.x * (BN / 8), all = state->rows;
    if (row0 >= all) return;
    uint8_t *mem = shared();
    const int tid = (int)threadIdx.x, thread = thread_of(), wm = warp_of() & 1, wn = warp_of() >> 1;
    const int second = (tile0 + 8) * 8 < stride ? 8 : 0; /* from where the second half of the weights comes */
    enum { /* a stage holds some chunks; all stages fill the shared memory */
           CHUNKS = K / 64,
           PART = CHUNKS % 3 == 0 ? 3
           : CHUNKS % 2 == 0      ? 2
                                  : 1,
           STAGES = 6 / PART,
           STEPS = CHUNKS / PART,
           CHUNK = (BM + BN) * 64,
    };
    const int8_t *a_from = a + (int64_t)(row0 + tid / 4) * K + tid % 4 * 16,
                 *w_from = w + (int64_t)(tile0 + tid / 32) * CHUNKS * 512 + tid % 32 * 16;
    auto load = [&](int step) {
#pragma unroll
        for (int part = 0; part < PART; part++) {
            const int chunk = step * PART + part;
            uint8_t *to = mem + (step % STAGES * PART + part) * CHUNK + tid * 16; /* 64 rows at a time */
            copy16(to, a_from + chunk * 64);
            copy16(to + 4096, a_from + 64 * K + chunk * 64);
            copy16(to + 8192, w_from + chunk * 512);
            copy16(to + 12288, w_from + (int64_t)second * CHUNKS * 512 + chunk * 512);
        }
    };
    int32_t c[4][4][4];
#pragma unroll
    for (int i = 0; i < 64; i++) c[i / 16][i / 4 % 4][i % 4] = 0;
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < STEPS) load(s);
        copies_commit();
    }
    for (int step = 0; step < STEPS; step++) {
        if (STEPS <= STAGES && step == 0 && STAGES - 1 < STEPS) load(STAGES - 1);
        if (STEPS <= STAGES) {
            copies_commit();
            copies_wait<STAGES - 1>();
            __syncthreads();
        } else {
            copies_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < STEPS) load(step + STAGES - 1);
            copies_commit();
        }
#pragma unroll
        for (int part = 0; part < PART; part++) {
            const uint8_t *at = mem + (step % STAGES * PART + part) * CHUNK, *bt = at + BM * 64;
            uint4 f[4][2];
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int h = 0; h < 2; h++)
                    f[i][h] = *(const uint4 *)(at + (wm * 64 + i * 16 + h * 8) * 64 + thread * 16);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint4 b = *(const uint4 *)(bt + (wn * 4 + j) * 512 + thread * 16);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (UNSIGNED) {
                        mma_u8(c[i][j], f[i][0].x, f[i][1].x, f[i][0].y, f[i][1].y, b.x, b.y);
                        mma_u8(c[i][j], f[i][0].z, f[i][1].z, f[i][0].w, f[i][1].w, b.z, b.w);
                    } else {
                        mma_s8(c[i][j], f[i][0].x, f[i][1].x, f[i][0].y, f[i][1].y, b.x, b.y);
                        mma_s8(c[i][j], f[i][0].z, f[i][1].z, f[i][0].w, f[i][1].w, b.z, b.w);
                    }
                }
            }
        }
    }
    if ((tile0 + wn * 4) * 8 >= stride) return;
    if (KIND == TO_GATED) {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const int n = (tile0 + wn * 4 + j) * 8 + (thread & 3) * 2,
                      place = (tile0 + wn * 4 + j) * 4 + (thread & 3) * 2;
            const int2 of_gate = *(const int2 *)(m + n), of_up = *(const int2 *)(m + n + 8);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int r = row0 + wm * 64 + (i >> 1) * 16 + (i & 1) * 8 + (thread >> 2);
                if (r >= all) continue;
                const int32_t *gate = &c[i >> 1][j][(i & 1) * 2], *up = &c[i >> 1][j + 1][(i & 1) * 2];
                const int32_t h0 = hidden(scaled(gate[0], of_gate.x), scaled(up[0], of_up.x), table);
                const int32_t h1 = hidden(scaled(gate[1], of_gate.y), scaled(up[1], of_up.y), table);
                *(uint16_t *)((uint8_t *)out + (int64_t)r * (stride / 2) + place) =
                    (uint16_t)((uint32_t)h0 & 255 | ((uint32_t)h1 & 255) << 8);
            }
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int n = (tile0 + wn * 4 + j) * 8 + (thread & 3) * 2;
        const int32_t m0 = m[n], m1 = m[n + 1];
        int2 before[8]; /* residuals, all under way at once */
        if (KIND == TO_RESIDUAL) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int r = row0 + wm * 64 + (i >> 1) * 16 + (i & 1) * 8 + (thread >> 2);
                before[i] = r < all ? *(const int2 *)((const int32_t *)out + (int64_t)r * stride + n) : make_int2(0, 0);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int r = row0 + wm * 64 + (i >> 1) * 16 + (i & 1) * 8 + (thread >> 2);
            if (r >= all) continue;
            const int32_t y0 = scaled(c[i >> 1][j][(i & 1) * 2], m0), y1 = scaled(c[i >> 1][j][(i & 1) * 2 + 1], m1);
            const int64_t place = (int64_t)r * stride + n;
            if (KIND == TO_QKV) {
                *(uint32_t *)((int16_t *)out + place) =
                    ((uint32_t)clamp_to(y0, 32767) & 0xffff) | (uint32_t)clamp_to(y1, 32767) << 16;
            } else if (KIND == TO_RESIDUAL) {
                const int2 x = before[i];
                *(int2 *)((int32_t *)out + place) =
                    make_int2(clamp_to(x.x + y0, RESIDUAL_MAX), clamp_to(x.y + y1, RESIDUAL_MAX));
            } else if (KIND == TO_HIDDEN) {
                const uint32_t u0 = (uint32_t)min(max(y0, 0), 255), u1 = (uint32_t)min(max(y1, 0), 255);
                *(uint16_t *)((uint8_t *)out + place) = (uint16_t)((u0 * u0 + 128) >> 8 | (u1 * u1 + 128) >> 8 << 8);
            } else {
                *(int2 *)((int32_t *)out + place) = make_int2(y0 + table[n], y1 + table[n + 1]);
            }
        }
    }
}
KERNEL2(256) to_qkv(const State *state, const int8_t *a, const int8_t *w, const int32_t *m, int16_t *y) {
    product<TO_QKV, DP>(state, a, w, m, 0, y, QP);
}
KERNEL2(256) to_out(const State *state, const int8_t *o, const int8_t *w, const int32_t *m, int32_t *x) {
    product<TO_RESIDUAL, OP>(state, o, w, m, 0, x, DP);
}
KERNEL2(256)
to_up(const State *state, const int8_t *a, const int8_t *w, const int32_t *m, const int32_t *act, uint8_t *h) {
    product<GATED ? TO_GATED : TO_HIDDEN, DP>(state, a, w, m, act, h, GATED ? 2 * FP : FP);
}
KERNEL2(256) to_down(const State *state, const int8_t *h, const int8_t *w, const int32_t *m, int32_t *x) {
    product<TO_RESIDUAL, FP, !GATED>(state, h, w, m, 0, x, DP);
}
KERNEL2(256)
to_class(const State *state, const int8_t *a, const int8_t *w, const int32_t *m, const int32_t *bias, int32_t *logits) {
    product<TO_LOGITS, DP>(state, a, w, m, bias, logits, CP);
}

/* ---------------------------------------------------------------- attention */

/* A warp a row: queries to q (rows, HEADS, 64), keys and values to the cache. */
KERNEL(256)
heads(const State *state, const Row *rows, const int16_t *y, const int32_t *phase, const int16_t *cosine,
      const int16_t *sine, int32_t layer, int8_t *q, const Cache *caches, int8_t *memory) {
    const int r = (int)blockIdx.x * 8 + warp_of(), thread = thread_of();
    if (r >= state->rows) return;
    const Row row = rows[r];
    const Cache cache = caches[row.slot];
    const int16_t *from = y + (int64_t)r * QP;
    turn_heads(from, row.at, phase, cosine, sine, thread, [&](int h) {
        return h < HEADS ? q + ((int64_t)r * HEADS + h) * HW
                         : keys_of(cache, memory, layer, h - HEADS) + (int64_t)row.key * HW;
    });
#pragma unroll
    for (int h = 0; h < KV; h++) {
        int8_t *v = keys_of(cache, memory, layer, h) + cache.room * HW;
        for (int i = thread; i < HD; i += 32)
            v[value_place(row.key, i)] = (int8_t)clamp_to(from[(HEADS + KV + h) * HD + i], 127);
    }
}

enum {
    QUERIES = 64, /* of a CTA */
    MIXED = 72
}; /* numbers a row: neighbouring rows begin 8 banks apart */

/* Where the keys of a slot and head are: whole groups of 32 of a context where that is remembered, the others in the
 * cache of the slot. Values stand behind the keys of each. */
struct Spread {
    const int8_t *context, *own;
    int64_t context_values, own_values;
    int apart; /* groups of the context */
    DEV Spread(const Session &s, const Cache &cache, int8_t *memory, const Cache *contexts, int8_t *known, int layer,
               int head)
        : own(keys_of(cache, memory, layer, head)), own_values(cache.room * HW), apart(s.apart / 32) {
        context = own;
        context_values = 0;
        if (apart) {
            const Cache there = contexts[s.context];
            context = keys_of(there, known, layer, head);
            context_values = there.room * HW;
        }
        own -= (int64_t)apart * 2048;
    }
    DEV Keys keys(int group, int thread) const { return load_keys(group < apart ? context : own, group, thread); }
    DEV Keys values(int group, int thread) const {
        return group < apart ? load_keys(context + context_values, group, thread)
                             : load_keys(own + own_values, group, thread);
    }
};

/* A CTA QUERIES queries of one key head and one slot; a warp 16 of them and its share of the keys. Three times over the
 * keys: highest score, sum of weights, shares times values; between them the warps meet in shared memory. CTAs of the
 * same keys follow each other, so that L2 holds those: of all slots together it could not. */
KERNEL3(256)
attend(const State *state, const int32_t *lists, const Session *sessions, const Piece *pieces, const int8_t *q,
       const Cache *caches, int8_t *memory, const Cache *contexts, int8_t *known, int32_t layer, const int32_t *heat,
       const int32_t *exp, int8_t *o) {
    const int head = (int)blockIdx.y, thread = thread_of(), g = thread >> 2, t = thread & 3;
    if ((int)blockIdx.z >= state->listed[MANY]) return;
    int32_t *lowest = (int32_t *)shared(); /* QUERIES: of -score */
    uint32_t *sum = (uint32_t *)(lowest + QUERIES); /* QUERIES */
    int32_t *mixed = (int32_t *)(sum + QUERIES); /* QUERIES x MIXED */
    uint32_t *table = (uint32_t *)(mixed + QUERIES * MIXED); /* WEIGHTS */
    const uint8_t *weights = (const uint8_t *)table;
    fill_weights(table, exp, (int)threadIdx.x, 256);
    for (int n = (int)blockIdx.z; n < state->listed[MANY]; n += (int)gridDim.z) {
        const int slot = lists[MANY * state->slots + n];
        const Piece piece = pieces[slot];
        const int queries = piece.rows * GROUP, L = sessions[piece.session].L, old = sessions[piece.session].old;
        const Spread from(sessions[piece.session], caches[slot], memory, contexts, known, layer, head);
        for (int chunk = (int)blockIdx.x; chunk * QUERIES < queries; chunk += (int)gridDim.x) {
            const int size = min((int)QUERIES, queries - chunk * QUERIES), tiles = size > 32 ? 4 : size > 16 ? 2 : 1;
            const int tile = warp_of() % tiles, share = warp_of() / tiles, shares = 8 / tiles;
            for (int i = (int)threadIdx.x; i < tiles * 16; i += 256) {
                lowest[i] = 0x7fffffff;
                sum[i] = 0;
            }
            for (int i = (int)threadIdx.x; i < tiles * 16 * MIXED; i += 256) mixed[i] = 0;
            Queries f;
            uint4 part[2];
    #pragma unroll
            for (int h = 0; h < 2; h++) { /* rows past the last repeat it */
                const int query = min(chunk * QUERIES + tile * 16 + h * 8 + g, queries - 1), r = query / GROUP,
                          qh = head * GROUP + query % GROUP;
                part[h] = *(const uint4 *)(q + ((int64_t)(piece.row + r) * HEADS + qh) * HW + t * 16);
                f.limit[h] = old + (piece.step + r / L + 1) * L;
                f.heat[h] = (uint32_t)heat[qh];
            }
            f.a = part[0];
            f.b = part[1];
            finish_queries(f);
            int groups = (max(f.limit[0], f.limit[1]) + 31) / 32;
            for (int i = 4; i < 32; i <<= 1) groups = max(groups, __shfl_xor_sync(FULL, groups, i));
            __syncthreads();
            int32_t c[4][4], low[2] = {0x7fffffff, 0x7fffffff};
            Keys k = from.keys(min(share, groups - 1), thread);
    #pragma unroll 2
            for (int kg = share; kg < groups; kg += shares) {
                const Keys now = k;
                k = from.keys(min(kg + shares, groups - 1), thread);
                scores(f, now, 0, 0, c);
                top(f, kg, thread, c, low);
            }
    #pragma unroll
            for (int h = 0; h < 2; h++) {
                for (int i = 1; i < 4; i <<= 1) low[h] = min(low[h], __shfl_xor_sync(FULL, low[h], i));
                if (t == 0) atomicMin(&lowest[tile * 16 + h * 8 + g], low[h]);
            }
            __syncthreads();
            f.most[0] = -lowest[tile * 16 + g];
            f.most[1] = -lowest[tile * 16 + 8 + g];
            uint32_t total[2] = {0, 0};
            k = from.keys(min(share, groups - 1), thread);
    #pragma unroll 2
            for (int kg = share; kg < groups; kg += shares) {
                const Keys now = k;
                k = from.keys(min(kg + shares, groups - 1), thread);
                weigh(f, now, kg, thread, weights, c, (uint32_t)thread * 4);
                add_weights(c, total);
            }
    #pragma unroll
            for (int h = 0; h < 2; h++) {
                for (int i = 1; i < 4; i <<= 1) total[h] += __shfl_xor_sync(FULL, total[h], i);
                if (t == 0) atomicAdd(&sum[tile * 16 + h * 8 + g], total[h]);
            }
            __syncthreads();
            int32_t out[8][4];
    #pragma unroll
            for (int i = 0; i < 32; i++) out[i / 4][i % 4] = 0;
    #pragma unroll
            for (int h = 0; h < 2; h++) f.t[h] = key_scale(sum[tile * 16 + h * 8 + g]);
            for (int kg = share; kg < groups; kg += shares) {
                weigh(f, from.keys(kg, thread), kg, thread, weights, c, (uint32_t)thread * 4);
                add_values(f, from.values(kg, thread), c, out);
            }
    #pragma unroll
            for (int i = 0; i < 32; i++) {
                const int row = tile * 16 + (i >> 1 & 1) * 8 + g, dim = (i >> 2) * 8 + t * 2 + (i & 1);
                atomicAdd(&mixed[row * MIXED + dim], out[i / 4][i % 4]);
            }
            __syncthreads();
            for (int i = (int)threadIdx.x; i < size * HD; i += 256) {
                const int local = i / HD, dim = i % HD, query = chunk * QUERIES + local;
                o[(int64_t)(piece.row + query / GROUP) * OP + (head * GROUP + query % GROUP) * HD + dim] =
                    (int8_t)clamp_to((mixed[local * MIXED + dim] + (1 << 14)) >> 15, 127);
            }
            __syncthreads();
        }
    }
}

/* The same where a slot has a step of at most FEW queries per key head: all warps of a CTA share the keys, each of
 * which is read once. Scores stay in shared memory and become weights there, then shares. The tile of a product has 16
 * rows: 8 of the low bytes of shares, 8 of their high ones. Keys stand in groups of 32, in the order in which a thread
 * has them: thread t keys 2 t, + 1, then 8, 16 and 24 more. A CTA takes one slot and head after another from list
 * `which`, in its order, so that those behind the same context are under way together and L2 holds it. */
KERNEL3(256)
attend_few(const State *state, const int32_t *lists, int32_t *turns, const Session *sessions, const Piece *pieces,
           const int8_t *q, const Cache *caches, int8_t *memory, const Cache *contexts, int8_t *known, int32_t layer,
           const int32_t *heat, const int32_t *exp, int8_t *o, int32_t which) {
    const int tid = (int)threadIdx.x, thread = thread_of(), warp = warp_of(), g = thread >> 2, t = thread & 3;
    const int items = state->listed[which] * KV;
    if ((int)blockIdx.x >= items) return;
    int32_t *most = (int32_t *)shared(); /* FEW */
    uint32_t *sum = (uint32_t *)(most + FEW); /* FEW */
    int32_t *coming = (int32_t *)(sum + FEW); /* 4: what the CTA takes next */
    int32_t *mixed = coming + 4; /* FEW x MIXED */
    uint32_t *table = (uint32_t *)(mixed + FEW * MIXED); /* WEIGHTS */
    uint32_t *scores = table + WEIGHTS; /* queries x stride */
    fill_weights(table, exp, tid, 256);
    for (int item = (int)blockIdx.x; item < items; item = coming[0]) {
        const int slot = lists[which * state->slots + item / KV], head = item % KV;
        const Piece piece = pieces[slot];
        const Session &s = sessions[piece.session];
        const int queries = piece.rows * GROUP, all = s.old + (piece.step + 1) * s.L, groups = (all + 31) / 32,
                  stride = score_stride(all);
        const Spread from(s, caches[slot], memory, contexts, known, layer, head);
        auto place = [&](int i) { return ((int64_t)(piece.row + i / GROUP) * HEADS + head * GROUP + i % GROUP) * HW; };
        Keys k = from.keys(min(warp, groups - 1), thread);
        const uint4 f = g < queries ? *(const uint4 *)(q + place(g) + t * 16) : make_uint4(0, 0, 0, 0);
        int after = 0;
        if (tid == 0) after = (int)gridDim.x + atomicAdd(&turns[layer * 2 + which - FEWEST], 1);
        if (tid < FEW) {
            most[tid] = (int32_t)0x80000000;
            sum[tid] = 0;
        }
        for (int i = tid; i < FEW * MIXED; i += 256) mixed[i] = 0;
        __syncthreads();
        /* scores, and the highest */
        int32_t high = (int32_t)0x80000000;
        for (int kg = warp; kg < groups; kg += 8) {
            const Keys now = k;
            k = from.keys(min(kg + 8, groups - 1), thread);
            int32_t c[4][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0;
                mma_s8(c[j], f.x, 0, f.y, 0, now.f[j].x, now.f[j].y);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) mma_s8(c[j], f.z, 0, f.w, 0, now.f[j].z, now.f[j].w);
            if (g >= queries) continue;
            uint4 *to = (uint4 *)(scores + g * stride + kg * 32 + t * 8);
            to[0] = make_uint4((uint32_t)c[0][0], (uint32_t)c[0][1], (uint32_t)c[1][0], (uint32_t)c[1][1]);
            to[1] = make_uint4((uint32_t)c[2][0], (uint32_t)c[2][1], (uint32_t)c[3][0], (uint32_t)c[3][1]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (kg * 32 + i / 2 * 8 + t * 2 + (i & 1) < all) high = max(high, c[i / 2][i & 1]);
            }
        }
        for (int i = 1; i < 4; i <<= 1) high = max(high, __shfl_xor_sync(FULL, high, i));
        if (t == 0 && g < queries) atomicMax(&most[g], high);
        k = from.values(min(warp, groups - 1), thread); /* under way while weights are worked out */
        __syncthreads();
        /* weights, and their sum: 128 keys of one query a warp */
        const int parts = (groups + 3) / 4;
        for (int n = warp; n < parts * queries; n += 8) {
            const int i = n / parts, quad = n % parts * 32 + thread;
            const uint32_t one = (uint32_t)heat[head * GROUP + i % GROUP], far = far_enough(one),
                           top = (uint32_t)most[i];
            uint32_t total = 0;
            if (quad < groups * 8) {
                uint4 *at = (uint4 *)(scores + i * stride + quad * 4);
                const int key = quad / 8 * 32 + (quad & 1) * 16 + (quad & 7) / 2 * 2;
                uint4 v = *at;
                v.x = key < all ? key_weight(top - v.x, far, one, (const uint8_t *)table, (uint32_t)thread * 4) : 0;
                v.y = key + 1 < all ? key_weight(top - v.y, far, one, (const uint8_t *)table, (uint32_t)thread * 4) : 0;
                v.z = key + 8 < all ? key_weight(top - v.z, far, one, (const uint8_t *)table, (uint32_t)thread * 4) : 0;
                v.w = key + 9 < all ? key_weight(top - v.w, far, one, (const uint8_t *)table, (uint32_t)thread * 4) : 0;
                *at = v;
                total = v.x + v.y + v.z + v.w;
            }
            total = __reduce_add_sync(FULL, total);
            if (thread == 0) atomicAdd(&sum[i], total);
        }
        __syncthreads();
        /* shares: a word of low bytes and one of high bytes in place of four weights */
        const uint32_t scales = key_scale(sum[min(thread, (int)FEW - 1)]); /* of query `thread` */
        for (int n = warp; n < parts * queries; n += 8) {
            const int i = n / parts, quad = n % parts * 32 + thread;
            const uint32_t scale = __shfl_sync(FULL, scales, i);
            if (quad >= groups * 8) continue;
            uint4 *at = (uint4 *)(scores + i * stride + quad * 4);
            const uint4 v = *at;
            const uint32_t a = key_share(v.x, scale), b = key_share(v.y, scale), c = key_share(v.z, scale),
                           d = key_share(v.w, scale); /* in the upper halves */
            const uint32_t ab = __byte_perm(a, b, 0x7632), cd = __byte_perm(c, d, 0x7632);
            *(uint2 *)at = make_uint2(__byte_perm(ab, cd, 0x6420), __byte_perm(ab, cd, 0x7531));
        }
        __syncthreads();
        int32_t out[8][4];
#pragma unroll
        for (int i = 0; i < 32; i++) out[i / 4][i % 4] = 0;
        for (int kg = warp; kg < groups; kg += 8) {
            const Keys v = k;
            k = from.values(min(kg + 8, groups - 1), thread);
            uint2 near = make_uint2(0, 0), next = make_uint2(0, 0);
            if (g < queries) {
                const uint32_t *at = scores + g * stride + kg * 32 + t * 8;
                near = *(const uint2 *)at;
                next = *(const uint2 *)(at + 4);
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                mma_u8(out[n], near.x, near.y, next.x, next.y, n & 1 ? v.f[n / 2].z : v.f[n / 2].x,
                       n & 1 ? v.f[n / 2].w : v.f[n / 2].y);
            }
        }
        if (g < queries) {
#pragma unroll
            for (int i = 0; i < 16; i++)
                atomicAdd(&mixed[g * MIXED + i / 2 * 8 + t * 2 + (i & 1)],
                          out[i / 2][i & 1] + (out[i / 2][2 + (i & 1)] << 8));
        }
        if (tid == 0) coming[0] = after;
        __syncthreads();
        for (int i = tid; i < queries * HD; i += 256) {
            const int query = i / HD, dim = i % HD;
            o[(int64_t)(piece.row + query / GROUP) * OP + (head * GROUP + query % GROUP) * HD + dim] =
                (int8_t)clamp_to((mixed[query * MIXED + dim] + (1 << 14)) >> 15, 127);
        }
        __syncthreads();
    }
}

/* Where a session with a context begins: that context's keys and values, computed before, to the front; those that are
 * read in place stay there. */
KERNEL(256)
recall(const State *state, const int32_t *lists, const Session *sessions, const Piece *pieces, const Cache *caches,
       int8_t *memory, const Cache *contexts, const int8_t *known) {
    for (int n = (int)blockIdx.x; n < state->listed[BEGIN]; n += (int)gridDim.x) {
        const int slot = lists[BEGIN * state->slots + n], head = (int)blockIdx.y;
        const Session &s = sessions[pieces[slot].session];
        const Cache to = caches[slot], from = contexts[s.context];
        /* whole groups of keys: rooms are multiples of 64 */
        const int64_t groups = s.apart ? (s.first - s.apart + 31) / 32 : (s.first + 63) / 64 * 2;
#pragma unroll
        for (int values = 0; values < 2; values++) {
            const uint4 *a = (const uint4 *)(known + from.at + (int64_t)head * from.room * (2 * HW) +
                                             values * from.room * HW + (int64_t)s.apart * HW);
            uint4 *b = (uint4 *)(memory + to.at + (int64_t)head * to.room * (2 * HW) + values * to.room * HW);
            for (int64_t i = threadIdx.x; i < groups * 2048 / 16; i += 256) b[i] = a[i];
        }
    }
}

/* Where a block ends and another follows: what that one may see, to the front. Keys only move down, a step at a time. */
KERNEL(256)
remember(const State *state, const int32_t *lists, const Session *sessions, const Piece *pieces, const Cache *caches,
         int8_t *memory) {
    for (int n = (int)blockIdx.x; n < state->listed[END]; n += (int)gridDim.x) {
        const int slot = lists[END * state->slots + n];
        const Session &s = sessions[pieces[slot].session];
        const Cache cache = caches[slot];
        int8_t *keys = keys_of(cache, memory, (int)blockIdx.y / KV, (int)blockIdx.y % KV),
               *values = keys + cache.room * HW;
        for (int step = 0, to = 0; step < s.C; step++) {
            const int first = first_kept_lane(s, step), own = s.L - first, from = s.old - s.apart + step * s.L + first;
            int8_t k[LANES_MAX * HW / 256], v[LANES_MAX * HW / 256];
#pragma unroll
            for (int i = 0; i < LANES_MAX * HW / 256; i++) {
                const int at = i * 256 + (int)threadIdx.x;
                if (at >= own * HW) continue;
                k[i] = keys[(int64_t)from * HW + at];
                v[i] = values[value_place(from + at / HW, at % HW)];
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < LANES_MAX * HW / 256; i++) {
                const int at = i * 256 + (int)threadIdx.x;
                if (at >= own * HW) continue;
                keys[(int64_t)to * HW + at] = k[i];
                values[value_place(to + at / HW, at % HW)] = v[i];
            }
            __syncthreads();
            to += own;
        }
    }
}

/* ---------------------------------------------------------------- symbols */

struct Interval {
    uint32_t cumulative, frequency;
};

/* A warp a row: frequencies of the classes. */
KERNEL(256)
classes(const State *state, const Row *rows, const int32_t *logits, const int32_t *exp, uint32_t *sums,
        Interval *intervals) {
    const int r = (int)blockIdx.x * 8 + warp_of(), thread = thread_of();
    if (r >= state->rows) return;
    int32_t l[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) l[i] = thread * PER + i < CLASSES ? logits[(int64_t)r * CP + thread * PER + i] : 0;
    uint32_t *to = sums + (int64_t)r * SUMS;
    cumulate<PER>(l, CLASSES, exp, to, thread);
    if (state->decoding || rows[r].cls < 0) return;
    __syncwarp();
    const int c = rows[r].cls;
    if (thread == 0) intervals[(int64_t)r * 2] = Interval{to[c], to[c + 1] - to[c]};
}

/* Logits of the 128 members of a class, 4 warps: z (DP, shared), its norm a (DP, shared) -> l (128, shared). gains:
 * norm_row(). */
DEV void member_logits(const int32_t *x, int c, const int8_t *shift_w, const int32_t *shift_m, const int8_t *embed_w,
                       const int32_t *member_m, const int32_t *member_b, const int32_t *gains, int32_t *z, int8_t *a,
                       int32_t *l, int warp, int thread) {
    if (warp == 0) {
        const int32_t m = shift_m[c];
        for (int i = thread; i < DP; i += 32)
            z[i] = i < D ? clamp_to(x[i] + shift(shift_w[(int64_t)c * D + i], m), RESIDUAL_MAX) : 0;
        __syncwarp();
        norm_row(z, a, thread, gains);
    }
    __syncthreads();
    const int8_t *w = embed_w + ((int64_t)c * 16 + warp * 4) * 8 * DP + thread * 16;
    int32_t dot[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < DP / 64; i++) {
        const uint4 v = *(const uint4 *)(a + i * 64 + (thread & 3) * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint4 f = *(const uint4 *)(w + j * 8 * DP + i * 512);
            dot[j] = dot4(v.x, f.x, dot4(v.y, f.y, dot4(v.z, f.z, dot4(v.w, f.w, dot[j]))));
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        dot[j] += __shfl_xor_sync(FULL, dot[j], 1);
        dot[j] += __shfl_xor_sync(FULL, dot[j], 2);
        const int member = warp * 32 + j * 8 + (thread >> 2), token = c * 128 + member;
        if ((thread & 3) == 0) l[member] = scaled(dot[j], member_m[token]) + member_b[token];
    }
}

/* A CTA a row: frequencies of the members, its class known. */
KERNEL(128)
members(const State *state, const Row *rows, const int32_t *x, const int8_t *shift_w, const int32_t *shift_m,
        const int8_t *embed_w, const int32_t *member_m, const int32_t *member_b, const int32_t *gains,
        const int32_t *exp, uint32_t *sums, Interval *intervals) {
    const int r = (int)blockIdx.x, thread = thread_of();
    if (r >= state->rows) return;
    const int c = rows[r].cls;
    if (c < 0) return;
    int32_t *z = (int32_t *)shared(), *l = z + DP;
    int8_t *a = (int8_t *)(l + 128);
    member_logits(x + (int64_t)r * DP, c, shift_w, shift_m, embed_w, member_m, member_b, gains, z, a, l, warp_of(),
                  thread);
    __syncthreads();
    if (warp_of()) return;
    const int32_t mine[4] = {l[thread * 4], l[thread * 4 + 1], l[thread * 4 + 2], l[thread * 4 + 3]};
    uint32_t *to = sums + (int64_t)r * SUMS;
    cumulate<4>(mine, 128, exp, to, thread);
    if (state->decoding) return;
    __syncwarp();
    const int i = rows[r].target & 127;
    if (thread == 0) intervals[(int64_t)r * 2 + 1] = Interval{to[i], to[i + 1] - to[i]};
}

/* A warp a slot: the symbols of one step out of its stream, classes (level 0) or members (level 1). */
KERNEL(128)
decode(State *state, Session *sessions, const Piece *pieces, Row *rows, const uint32_t *sums, const uint32_t *words,
       int32_t level, int32_t *tokens) {
    const int slot = (int)blockIdx.x * 4 + warp_of(), thread = thread_of();
    if (slot >= state->slots || !pieces[slot].rows) return;
    const Piece piece = pieces[slot];
    Session &s = sessions[piece.session];
    Coder c = {s.lower, s.range, s.point, s.place, s.words, words + s.word_at, s.error};
    const int active = active_lanes(s, piece.step);
    for (int k = 0; k < active; k++) {
        const int symbol = decode_symbol(c, sums + (int64_t)(piece.row + k) * SUMS, level ? 128 : CLASSES, thread);
        if (thread == (k & 31)) {
            Row &row = rows[piece.row + k];
            if (level) tokens[s.token_at + row.at] = row.cls * 128 + symbol;
            else row.cls = symbol;
        }
    }
    if (thread) return;
    s.lower = c.lower;
    s.range = c.range;
    s.point = c.point;
    s.place = c.place;
    if (!c.error && level && s.place > s.most) c.error = SPENT;
    if (c.error && !s.error) {
        s.error = c.error;
        if (atomicCAS(&state->error, 0, c.error) == 0) state->failed = piece.session;
    }
    if (level) atomicAdd((unsigned long long *)&state->tokens, (unsigned long long)active);
}

/* A warp a slot: the intervals of its rows into its stream, in the order of FORMAT.md. */
KERNEL(128)
encode(State *state, Session *sessions, const Piece *pieces, const Row *rows, const Interval *intervals,
       uint32_t *words) {
    const int slot = (int)blockIdx.x * 4 + warp_of(), thread = thread_of();
    if (slot >= state->slots || !pieces[slot].rows) return;
    const Piece piece = pieces[slot];
    Session &s = sessions[piece.session];
    uint32_t *out = words + s.word_at;
    uint64_t lower = s.lower, range = s.range;
    int64_t place = s.place;
    double bits = 0;
    int coded = 0;
    for (int first = 0; first < 2 * piece.rows; first += 32) {
        const int n = first + thread, step = n / (2 * s.L), level = n / s.L & 1, r = piece.row + step * s.L + n % s.L;
        Interval mine = {0, 0};
        if (n < 2 * piece.rows && rows[r].cls >= 0) {
            mine = intervals[(int64_t)r * 2 + level];
            bits += bits_of(mine.frequency);
            coded += level;
        }
        for (int i = 0; i < 32; i++) {
            const uint32_t cumulative = __shfl_sync(FULL, mine.cumulative, i),
                           frequency = __shfl_sync(FULL, mine.frequency, i);
            if (!frequency) continue;
            const uint64_t scale = range >> 24, add = scale * cumulative;
            lower += add;
            if (lower < add && thread == 0) { /* carry; the first word cannot overflow, the code stays below 1 */
                for (int64_t w = place - 1; w >= 0 && ++out[w] == 0; w--) {}
            }
            range = scale * frequency;
            if (range >> 32) continue;
            if (thread == 0 && place < s.words) out[place] = (uint32_t)(lower >> 32);
            place++;
            lower <<= 32;
            range <<= 32;
        }
    }
    for (int i = 16; i; i >>= 1) {
        bits += __shfl_xor_sync(FULL, bits, i);
        coded += __shfl_xor_sync(FULL, coded, i);
    }
    if (thread) return;
    s.lower = lower;
    s.range = range;
    s.place = place;
    s.bits += bits;
    atomicAdd((unsigned long long *)&state->tokens, (unsigned long long)coded);
}

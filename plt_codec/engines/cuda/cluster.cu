/* Few sessions: one kernel decodes a whole block, a cluster of 16 CTAs a session.
 *
 * The CTAs of a cluster share a step's work and meet at cluster barriers; what one of them has computed it writes into
 * the shared memory of all (residuals, activations, queries), so that each stage begins with everything at hand. Every
 * CTA decodes the symbols itself, with the same result: nothing waits for a word from elsewhere. Weights are loaded
 * from L2 into registers while a barrier is pending.
 *
 * A stage of a layer ends at a barrier:  queries, keys, values | highest scores | sums | shares times values |
 * attention output | residual | hidden | residual. Keys are dealt out to the CTAs 32 at a time. At most 16 lanes.
 */
#include "cluster.cuh"
#if !P_GATED && (defined(PLTZ_EMULATE) || __CUDA_ARCH__ >= 900)

DEV void norm_rows(const Place &p) {
    norm_row((const int32_t *)(p.m + AT_X) + p.warp * DP, (int8_t *)(p.m + AT_A) + p.warp * A_PITCH, p.thread);
    __syncthreads();
    forget(p);
}

/* Adds up the splits of a product in ACC. */
template <class S> DEV void gather(const Place &p, const S &share, const uint8_t *a, int stride) {
    int32_t *acc = (int32_t *)(p.m + AT_ACC);
    if (share.has(0)) {
        int32_t c[4];
        share.multiply(0, a, stride, p.thread, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            atomicAdd(
                &acc[((p.thread >> 2) + (i >> 1) * 8) * ACC_PITCH + share.tile * 8 + (p.thread & 3) * 2 + (i & 1)],
                c[i]);
        }
    }
    __syncthreads();
}

/* A product that ends in the residual: this CTA's channels of all rows, to all CTAs. */
template <class S>
DEV void add_residual(const Place &p, const S &share, const uint8_t *a, int stride, const int32_t *m) {
    enum { N = S::NT * 8 };
    static_assert(S::NT < WARPS && N <= 64, "a CTA's channels fit ACC");
    gather(p, share, a, stride);
    int32_t *acc = (int32_t *)(p.m + AT_ACC), *x = (int32_t *)(p.m + AT_X), *stage = (int32_t *)(p.m + AT_STAGE);
    const int width = least(N, DP - share.first * 8);
    for (int i = p.tid; i < LANES * N; i += THREADS) {
        const int r = i / N, n = i % N, channel = share.first * 8 + n;
        if (n >= width) continue;
        stage[i] = clamp_to(x[r * DP + channel] + scaled(acc[r * ACC_PITCH + n], m[n]), RESIDUAL_MAX);
        acc[r * ACC_PITCH + n] = 0;
    }
    __syncthreads();
    if (width <= 0) return;
    const Sender to = sender(p, x + share.first * 8);
    for (int i = p.thread; i < LANES * N / 4; i += 32) {
        const int r = i / (N / 4), n = i % (N / 4) * 4;
        if (n < width) to.put16((r * DP + n) * 4, *(const uint4 *)(stage + r * N + n));
    }
}

/* Keys and values of a step into the cache, by the CTA that reads them. */
DEV void keep_keys(const Place &p, int layer, int8_t *memory, const Cache &cache, int lanes, int key) {
    for (int i = p.warp; i < 2 * KV * lanes; i += WARPS) {
        const int h = i / lanes, lane = i % lanes, slot = key + lane;
        if (slot / 32 % CTAS != p.rank) continue;
        const uint8_t *from = p.m + AT_Q + ((HEADS + h) * LANES + lane) * HW;
        int8_t *to = keys_of(cache, memory, layer, h % KV);
        if (h < KV) {
            *(uint16_t *)(to + (int64_t)slot * HW + p.thread * 2) = *(const uint16_t *)(from + p.thread * 2);
        } else {
            to += cache.room * HW;
            for (int n = p.thread; n < HD; n += 32) to[value_place(slot, n)] = (int8_t)from[n];
        }
    }
    __syncthreads();
}

/* Queries, keys and values of this CTA's heads, to all CTAs. */
DEV void make_heads(const Place &p, const Model &model, int layer, ShareQkv &share) {
    int32_t *acc = (int32_t *)(p.m + AT_ACC);
    for (int h = p.rank; h < HEADS + 2 * KV; h += CTAS) {
        if (h != p.rank) share.load(model.qkv_w[layer] + (int64_t)h * HD * DP, 0, p.warp, p.thread);
        gather(p, share, p.m + AT_A, A_PITCH);
        const int32_t *m =
            h == p.rank ? (const int32_t *)(p.m + AT_SCALE) + layer * SCALES : model.qkv_m[layer] + h * HD;
        int16_t y[2] = {0, 0}; /* values `thread` and `thread` + HD / 2 of row `warp` */
        uint8_t *stage = p.m + AT_STAGE + p.warp * HW;
        if (p.thread < HD / 2) {
            int32_t *row = acc + p.warp * ACC_PITCH;
            y[0] = (int16_t)clamp_to(scaled(row[p.thread], m[p.thread]), 32767);
            y[1] = (int16_t)clamp_to(scaled(row[p.thread + HD / 2], m[p.thread + HD / 2]), 32767);
            row[p.thread] = row[p.thread + HD / 2] = 0;
        }
        if (h < HEADS + KV) {
            int32_t a = 0, b = 0;
            if (p.thread < HD / 2) {
                const int16_t *turn = (const int16_t *)(p.m + AT_TURN) + (p.warp * 32 + p.thread) * 2;
                const int32_t c = turn[0], s = turn[1];
                a = (y[0] * c - y[1] * s + (1 << 13)) >> 14;
                b = (y[0] * s + y[1] * c + (1 << 13)) >> 14;
            }
            const double scale = norm_scale(joined(sum_warp((uint64_t)((int64_t)a * a + (int64_t)b * b))), HEAD_GAIN);
            if (HD < HW) {
                stage[p.thread] = stage[p.thread + 32] = 0;
                __syncwarp();
            }
            if (p.thread < HD / 2) {
                stage[p.thread] = (uint8_t)norm_one(a, scale);
                stage[p.thread + HD / 2] = (uint8_t)norm_one(b, scale);
            }
            __syncwarp();
        } else if (p.thread < HD / 2) {
            stage[p.thread] = (uint8_t)clamp_to(y[0], 127);
            stage[p.thread + HD / 2] = (uint8_t)clamp_to(y[1], 127);
        }
        __syncthreads();
        const Sender to = sender(p, p.m + AT_Q + h * LANES * HW);
        for (int i = p.thread; i < LANES * HW / 16; i += 32)
            to.put16(i * 16, *(const uint4 *)(p.m + AT_STAGE + i * 16));
        __syncthreads();
    }
}

/* Sends this CTA's numbers of all queries to all CTAs. */
DEV void spread_rows(const Place &p, int at) {
    const int32_t *own = (const int32_t *)(p.m + at) + CTAS * ROWS_ALL;
    __syncthreads();
    const Sender to = sender(p, (int32_t *)(p.m + at) + p.rank * ROWS_ALL);
    for (int i = p.thread * 4; i < ROWS_ALL; i += 128) to.put16(i * 4, *(const uint4 *)(own + i));
}

/* What a warp carries through the attention of a layer: one tile of queries, some groups of 32 keys, the first ones
 * held. */
#ifndef P_HELD
#define P_HELD 2
#endif
enum {
    HELD = P_HELD,
    EARLY = 2
}; /* groups whose scores stay in registers; whose keys are loaded before the queries come */
struct Reader {
    bool works; /* warps left over rest */
    int tile, first, stride, groups, head, per_head, queries, keys_all;
    const int8_t *keys, *values;
    DEV int group(int i) const { return first + i * stride; }
    DEV bool has(int i) const { return works && group(i) < groups; }
};
DEV Reader make_reader(const Place &p, int layer, int8_t *memory, const Cache &cache, int lanes, int keys_all) {
    Reader r;
    r.queries = lanes * GROUP;
    r.per_head = (r.queries + 15) / 16;
    const int tiles = r.per_head * KV, spread = WARPS / tiles;
    r.tile = p.warp % tiles;
    r.works = p.warp < tiles * spread;
    r.first = p.rank + p.warp / tiles * CTAS;
    r.stride = CTAS * spread;
    r.groups = (keys_all + 31) / 32;
    r.keys_all = keys_all;
    r.head = r.tile / r.per_head;
    r.keys = keys_of(cache, memory, layer, r.head);
    r.values = r.keys + cache.room * HW;
    return r;
}
/* Attention of all queries over the keys of the cluster. Begins while queries and keys are under way (what lies before
 * keys_old is there), ends with the output sent. */
DEV void attend_cluster(const Place &p, int layer, int8_t *memory, const Cache &cache, int lanes, int keys_old,
                        int keys_all) {
    int32_t *mosts = (int32_t *)(p.m + AT_MOST), *part = (int32_t *)(p.m + AT_PART),
            *parts_in = (int32_t *)(p.m + AT_PARTS);
    uint32_t *sums = (uint32_t *)(p.m + AT_SUM);
    const uint8_t *weights = p.m + AT_WEIGHTS + p.thread * 4;
    const int g = p.thread >> 2, t = p.thread & 3;
    const Reader a = make_reader(p, layer, memory, cache, lanes, keys_all);
    const int mine = a.tile * 16 + g; /* and mine + 8: rows of this thread */
    Queries f;
    int32_t c[HELD][4]
             [4]; /* all set, also where there is no group: else registers would be kept for what they held before */
#pragma unroll
    for (int i = 0; i < HELD * 16; i++) c[i / 16][i / 4 % 4][i % 4] = 0;
    {
        Keys k[EARLY];
#pragma unroll
        for (int i = 0; i < EARLY * 4; i++) k[i / 4].f[i % 4] = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < EARLY; i++) {
            if (a.has(i) && a.group(i) * 32 + 32 <= keys_old) k[i] = load_keys(a.keys, a.group(i), p.thread);
        }
        for (int i = p.tid; i < ROWS_ALL; i += THREADS) {
            mosts[CTAS * ROWS_ALL + i] = 0x7fffffff; /* of -score */
            sums[CTAS * ROWS_ALL + i] = 0;
        }
        for (int i = p.tid; i < ROWS_ALL * PART / 4; i += THREADS) ((uint4 *)part)[i] = make_uint4(0, 0, 0, 0);
        wait(p, (HEADS + 2 * KV) * LANES * HW);
        keep_keys(p, layer, memory, cache, lanes, keys_old);
        uint4 rows[2];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* rows past the last repeat it */
            const int n = min(a.tile % a.per_head * 16 + h * 8 + g, a.queries - 1), r = n / GROUP,
                      qh = a.head * GROUP + n % GROUP;
            rows[h] = *(const uint4 *)(p.m + AT_Q + (qh * LANES + r) * HW + t * 16);
            f.limit[h] = keys_all;
            f.heat[h] = ((const uint32_t *)(p.m + AT_HEAT))[layer * HEADS + qh];
        }
        f.a = rows[0];
        f.b = rows[1];
        finish_queries(f);
        int32_t low[2] = {0x7fffffff, 0x7fffffff};
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (!a.has(i)) continue;
            const bool early = i < EARLY && a.group(i) * 32 + 32 <= keys_old;
            scores(f, early ? k[i < EARLY ? i : 0] : load_keys(a.keys, a.group(i), p.thread), 0, 0, c[i]);
            top(f, a.group(i), p.thread, c[i], low);
        }
        for (int i = HELD; a.has(i); i++) {
            int32_t more[4][4];
            scores(f, load_keys(a.keys, a.group(i), p.thread), 0, 0, more);
            top(f, a.group(i), p.thread, more, low);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            for (int i = 1; i < 4; i <<= 1) low[h] = min(low[h], __shfl_xor_sync(FULL, low[h], i));
            if (t == 0 && a.works) atomicMin(&mosts[CTAS * ROWS_ALL + mine + h * 8], low[h]);
        }
    }
    forget(p);
    spread_rows(p, AT_MOST);
    wait(p, CTAS * ROWS_ALL * 4);
    for (int i = p.tid; i < ROWS_ALL; i += THREADS) {
        int32_t low = 0x7fffffff;
#pragma unroll
        for (int rank = 0; rank < CTAS; rank++) low = min(low, mosts[rank * ROWS_ALL + i]);
        mosts[(CTAS + 1) * ROWS_ALL + i] = -low;
    }
    __syncthreads();
    uint32_t w[HELD][4][2]; /* two weights of 16 bits: [held][j][row] */
#pragma unroll
    for (int i = 0; i < HELD * 8; i++) w[i / 8][i / 2 % 4][i % 2] = 0;
    {
        uint32_t total[2] = {0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) f.most[h] = mosts[(CTAS + 1) * ROWS_ALL + mine + h * 8];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (!a.has(i)) continue;
#pragma unroll
            for (int j = 0; j < 16; j++) c[i][j >> 2][j & 3] += f.most[j >> 1 & 1];
            weigh(f, a.group(i), p.thread, weights, c[i]);
            add_weights(c[i], total);
#pragma unroll
            for (int j = 0; j < 8; j++)
                w[i][j >> 1][j & 1] = (uint32_t)(c[i][j >> 1][(j & 1) * 2] | c[i][j >> 1][(j & 1) * 2 + 1] << 16);
        }
        for (int i = HELD; a.has(i); i++) {
            int32_t more[4][4];
            weigh(f, load_keys(a.keys, a.group(i), p.thread), a.group(i), p.thread, weights, more);
            add_weights(more, total);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            for (int i = 1; i < 4; i <<= 1) total[h] += __shfl_xor_sync(FULL, total[h], i);
            if (t == 0 && a.works) atomicAdd(&sums[CTAS * ROWS_ALL + mine + h * 8], total[h]);
        }
    }
    forget(p);
    spread_rows(p, AT_SUM);
    wait(p, CTAS * ROWS_ALL * 4);
    for (int i = p.tid; i < ROWS_ALL; i += THREADS) {
        uint32_t total = 0;
#pragma unroll
        for (int rank = 0; rank < CTAS; rank++) total += sums[rank * ROWS_ALL + i];
        sums[(CTAS + 1) * ROWS_ALL + i] = key_scale(total);
    }
    __syncthreads();
    if (a.has(0)) {
#pragma unroll
        for (int h = 0; h < 2; h++) f.t[h] = sums[(CTAS + 1) * ROWS_ALL + mine + h * 8];
#pragma unroll 1
        for (int first = 0; first < 4; first += 2) { /* half of the dims at a time, for want of registers */
            int32_t lo[4][4], hi[4][4];
#pragma unroll
            for (int i = 0; i < 16; i++) lo[i / 4][i % 4] = hi[i / 4][i % 4] = 0;
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                if (!a.has(i)) continue;
                int32_t one[4][4];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    one[j >> 1][(j & 1) * 2] = (int32_t)(w[i][j >> 1][j & 1] & 0xffff);
                    one[j >> 1][(j & 1) * 2 + 1] = (int32_t)(w[i][j >> 1][j & 1] >> 16);
                }
                mix<4>(f, a.values, a.group(i), p.thread, first, one, lo, hi);
            }
#pragma unroll 1
            for (int i = HELD; a.has(i); i++) {
                int32_t more[4][4];
                weigh(f, load_keys(a.keys, a.group(i), p.thread), a.group(i), p.thread, weights, more);
                mix<4>(f, a.values, a.group(i), p.thread, first, more, lo, hi);
            }
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int row = mine + (i >> 1 & 1) * 8, dim = first * 16 + (i >> 2) * 8 + t * 2 + (i & 1);
                const int32_t sum = lo[i / 4][i % 4] + (hi[i / 4][i % 4] << 8);
                if (sum) atomicAdd(&part[row * PART + dim], sum);
            }
        }
    }
    __syncthreads();
    const Sender to = sender(p, parts_in + p.rank * OWN * HW); /* row n goes to the CTA n / OWN */
    for (int i = p.thread * 4; i < OWN * HW; i += 128)
        to.put16(i * 4, *(const uint4 *)(part + (p.warp * OWN + i / HW) * PART + i % HW));
    wait(p, CTAS * OWN * HW * 4);
    uint8_t *stage = p.m + AT_STAGE;
    for (int i = p.tid; i < OWN * HW; i += THREADS) {
        int32_t total = 1 << 14;
#pragma unroll
        for (int rank = 0; rank < CTAS; rank++) total += parts_in[rank * OWN * HW + i];
        stage[i] = (uint8_t)clamp_to(total >> 15, 127);
    }
    __syncthreads();
    const Sender output = sender(p, p.m + AT_O);
    for (int i = p.thread; i < OWN * (HD / 8); i += 32) {
        const int local = i / (HD / 8), dim = i % (HD / 8) * 8, row = p.rank * OWN + local;
        const int tile = row / 16, head = tile / a.per_head, n = tile % a.per_head * 16 + row % 16;
        if (tile >= a.per_head * KV || n >= a.queries) continue;
        output.put8((n / GROUP) * O_PITCH + (head * GROUP + n % GROUP) * HD + dim,
                    *(const uint2 *)(stage + local * HW + dim));
    }
}

/* Frequencies of the members of one lane's class, by the whole CTA; to all CTAs. */
DEV void make_members(const Place &p, const Model &model, int k, int c) {
    const int32_t *x = (const int32_t *)(p.m + AT_X) + k * DP;
    int32_t *z = (int32_t *)(p.m + AT_PART); /* free at this time */
    uint32_t *sums = (uint32_t *)(p.m + AT_STAGE);
    member_sums(model, c, p.warp, p.thread, [&](int i) { return x[i]; }, 0, z, (int8_t *)(p.m + AT_A), z + DP,
                (const int32_t *)(p.m + AT_EXP), sums);
    const Sender to = sender(p, (uint32_t *)(p.m + AT_CUM) + (LANES + k) * SUMS);
    for (int i = p.thread * 4; i < 132; i += 128) to.put16(i * 4, *(const uint4 *)(sums + i));
}

KERNEL(512)
decode_block(State *state, Session *sessions, const int32_t *slots, Piece *pieces, const Cache *caches, int8_t *memory,
             const GRID_CONSTANT Model model, const uint32_t *words, int32_t *tokens) {
    const int slot = (int)blockIdx.x / CTAS;
    const int held = slots[slot];
    if (held < 0) return; /* the whole cluster */
    Place p = {cluster_rank(),
               (int)threadIdx.x >> 5,
               (int)threadIdx.x & 31,
               (int)threadIdx.x,
               shared(),
               (uint64_t *)(shared() + AT_MEETING),
               0};
    const Session s = sessions[held];
    const Cache cache = caches[slot];
    Coder *kept = (Coder *)(p.m + AT_CODER);
    int32_t *input = (int32_t *)(p.m + AT_STEP), *found = input + LANES, *at = found + LANES, *error = at + LANES;
    int32_t *x = (int32_t *)(p.m + AT_X);
    for (int i = p.tid; i < AT_CUM / 4; i += THREADS) ((uint32_t *)p.m)[i] = 0;
    if (p.tid == 0) *kept = Coder{s.lower, s.range, s.point, s.place, s.words, words + s.word_at, 0};
    for (int i = p.tid; i < 64; i += THREADS) ((int32_t *)(p.m + AT_EXP))[i] = model.exp[i];
    for (int i = p.tid; i < CP; i += THREADS) {
        ((int32_t *)(p.m + AT_CLASS))[i] = model.class_m[i];
        ((int32_t *)(p.m + AT_CLASS))[CP + i] = model.class_b[i];
    }
    for (int i = p.tid; i < LAYERS * HEADS; i += THREADS)
        ((int32_t *)(p.m + AT_HEAT))[i] = model.heat[i / HEADS][i % HEADS];
    for (int i = p.tid; i < LAYERS * SCALES; i += THREADS) {
        const int layer = i / SCALES, n = i % SCALES;
        int32_t v = 0;
        if (n < SCALE_OUT) {
            if (n < HD && p.rank < HEADS + 2 * KV) v = model.qkv_m[layer][p.rank * HD + n];
        } else if (n < SCALE_UP) {
            const int channel = p.rank * ShareOut::NT * 8 + n - SCALE_OUT;
            if (channel < DP) v = model.out_m[layer][channel];
        } else if (n < SCALE_DOWN) {
            const int channel = p.rank * ShareUp::NT * 8 + n - SCALE_UP;
            if (channel < FP) v = model.up_m[layer][channel];
        } else {
            const int channel = p.rank * ShareDown::NT * 8 + n - SCALE_DOWN;
            if (channel < DP) v = model.down_m[layer][channel];
        }
        ((int32_t *)(p.m + AT_SCALE))[i] = v;
    }
    if (p.tid == 0) meeting_open(p.meeting);
    fill_weights((uint32_t *)(p.m + AT_WEIGHTS), model.exp, p.tid, THREADS);
    for (int i = p.tid; i < LANES; i += THREADS) {
        input[i] = i == 0 && s.start ? tokens[s.token_at + s.start - 1] : 0;
        at[i] = i < s.L ? (int32_t)(s.start + lane_start(s, i)) : 0;
        error[i] = 0;
    }
    ShareQkv qkv;
    ShareOut out;
    ShareUp upper;
    ShareDown down;
    ShareClass head;
    __syncthreads();
    cluster_arrive(); /* all have cleared their memory before anyone writes to it */
    cluster_wait();
    int step = 0;
    for (; step < s.C; step++) {
        if (p.rank < HEADS + 2 * KV) qkv.load(model.qkv_w[0] + (int64_t)p.rank * HD * DP, 0, p.warp, p.thread);
        if (p.thread < HD / 2) {
            const uint32_t j = (uint32_t)at[p.warp] * (uint32_t)model.phase[p.thread] >> 10 & 1023;
            int16_t *turn = (int16_t *)(p.m + AT_TURN) + (p.warp * 32 + p.thread) * 2;
            turn[0] = model.cosine[j];
            turn[1] = model.sine[j];
        }
        if (p.warp < s.L) {
            const int token = input[p.warp];
            const int8_t *w = model.embed_w + (int64_t)(token >> 3) * 8 * DP + (token & 7) * 64;
            const int32_t m = model.embed_m[token];
            for (int i = 0; i < DP / 64; i++) {
                const int c = i * 64 + p.thread * 2;
                const uint16_t two = *(const uint16_t *)(w + i * 512 + p.thread * 2);
                x[p.warp * DP + c] = entry((int8_t)(two & 255), m);
                x[p.warp * DP + c + 1] = entry((int8_t)(two >> 8), m);
            }
        }
        __syncwarp();
        const int key = s.old + step * s.L;
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; layer++) {
            forget(p);
            const int32_t *scale = (const int32_t *)(p.m + AT_SCALE) + layer * SCALES;
            norm_rows(p);
            make_heads(p, model, layer, qkv);
            attend_cluster(p, layer, memory, cache, s.L, key, key + s.L);
            out.load(model.out_w[layer], p.rank, p.warp, p.thread);
            wait(p, s.L * HEADS * HD);
            add_residual(p, out, p.m + AT_O, O_PITCH, scale + SCALE_OUT);
            upper.load(model.up_w[layer], p.rank, p.warp, p.thread);
            wait(p, LANES * DP * 4);
            norm_rows(p);
#pragma unroll
            for (int i = 0; i < ShareUp::TW; i++) {
                if (!upper.has(i)) continue;
                int32_t c[4];
                upper.multiply(i, p.m + AT_A, A_PITCH, p.thread, c);
                const int local = upper.tile + i * WARPS, n = local * 8 + (p.thread & 3) * 2;
                uint8_t *stage = p.m + AT_STAGE + local * 8; /* (16, NT * 8) */
                const int32_t m0 = scale[SCALE_UP + n], m1 = scale[SCALE_UP + n + 1];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t u0 = (uint32_t)min(max(scaled(c[2 * h], m0), 0), 255),
                                   u1 = (uint32_t)min(max(scaled(c[2 * h + 1], m1), 0), 255);
                    *(uint16_t *)(stage + ((p.thread >> 2) + h * 8) * (ShareUp::NT * 8) + (p.thread & 3) * 2) =
                        (uint16_t)((u0 * u0 + 128) >> 8 | (u1 * u1 + 128) >> 8 << 8);
                }
            }
            __syncthreads();
            const Sender hidden = sender(p, p.m + AT_H + upper.first * 8);
            for (int i = p.thread; i < LANES * ShareUp::NT / 2; i += 32) {
                const int r = i / (ShareUp::NT / 2), n = i % (ShareUp::NT / 2);
                if (upper.first + 2 * n < FP / 8)
                    hidden.put16(r * H_PITCH + n * 16, *(const uint4 *)(p.m + AT_STAGE + i * 16));
            }
            down.load(model.down_w[layer], p.rank, p.warp, p.thread);
            wait(p, LANES * FP);
            add_residual(p, down, p.m + AT_H, H_PITCH, scale + SCALE_DOWN);
            if (layer + 1 < LAYERS) {
                if (p.rank < HEADS + 2 * KV)
                    qkv.load(model.qkv_w[layer + 1] + (int64_t)p.rank * HD * DP, 0, p.warp, p.thread);
            } else {
                head.load(model.class_w, 0, p.warp, p.thread);
            }
            wait(p, LANES * DP * 4);
        }
        norm_rows(p);
        int32_t *logits = (int32_t *)(p.m + AT_LOGITS);
        uint32_t *cum = (uint32_t *)(p.m + AT_CUM);
        for (int i = p.tid; i < LANES * CP; i += THREADS) logits[i] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ShareClass::TW; i++) {
            if (!head.has(i)) continue;
            int32_t c[4];
            head.multiply(i, p.m + AT_A, A_PITCH, p.thread, c);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                atomicAdd(&logits[((p.thread >> 2) + (n >> 1) * 8) * CP + (head.tile + i * WARPS) * 8 +
                                  (p.thread & 3) * 2 + (n & 1)],
                          c[n]);
            }
        }
        __syncthreads();
        const int active = active_lanes(s, step);
        if (p.warp < active) {
            const int32_t *class_m = (const int32_t *)(p.m + AT_CLASS);
            int32_t l[PER];
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const int n = p.thread * PER + i;
                l[i] = n < CLASSES ? scaled(logits[p.warp * CP + n], class_m[n]) + class_m[CP + n] : 0;
            }
            cumulate<PER>(l, CLASSES, (const int32_t *)(p.m + AT_EXP), cum + p.warp * SUMS, p.thread);
        }
        __syncthreads();
        if (p.warp == 0) {
            Coder coder = *kept;
            for (int k = 0; k < active; k++) {
                const int symbol = decode_symbol(coder, cum + k * SUMS, CLASSES, p.thread);
                if (p.thread == k) found[k] = symbol;
            }
            __syncwarp(); /* all have read what thread 0 now writes */
            if (p.thread == 0) *kept = coder;
        }
        __syncthreads();
        for (int k = p.rank; k < active; k += CTAS) make_members(p, model, k, found[k]);
        wait(p, active * 132 * 4);
        if (p.warp == 0) {
            Coder coder = *kept;
            for (int k = 0; k < active; k++) {
                const int symbol = decode_symbol(coder, cum + (LANES + k) * SUMS, 128, p.thread);
                if (p.thread == k) {
                    input[k] = found[k] * 128 + symbol;
                    if (p.rank == 0) tokens[s.token_at + at[k]] = input[k];
                    at[k]++;
                }
            }
            __syncwarp();
            if (!coder.error && coder.place > s.most) coder.error = SPENT;
            if (p.thread == 0) {
                *kept = coder;
                *error = coder.error;
            }
        }
        __syncthreads();
        if (*error) break;
    }
    cluster_arrive(); /* nobody leaves while others write to its memory */
    cluster_wait();
    if (p.rank == 0 && p.tid == 0) end_block(state, sessions[held], held, pieces[slot], *kept);
}
#endif

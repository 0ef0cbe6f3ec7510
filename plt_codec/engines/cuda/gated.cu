/* One session of contract 2: one kernel decodes a whole block on the whole GPU.
 *
 * Clusters of 16 CTAs, as many as run side by side. The channels of a product are dealt out to all CTAs, 8 at a time;
 * its inputs are split among the warps of a CTA. All CTAs read from L2 what the others computed. They meet twice per
 * layer (|). Elsewhere (~) each number bears a mark, and a reader looks again until it is the mark of this stage:
 *
 *     ~ norm, queries, keys, values ~ attention | its output ~ norm, hidden | residual
 *
 * Nobody overwrites what another one may still read. The residual is written after each meeting and read before the
 * next. Queries, keys and values are written once the norm has come, which needs the residual that follows a meeting,
 * and read before the meeting after attention.
 *
 * The CTAs of a cluster share out the norms of the lanes and send each other the rows. Attention of a key head is the
 * work of one cluster, or of two that share the lanes. A CTA has every sixteenth group of 32 keys. The CTAs of a
 * cluster meet for highest scores, for sums, and for shares times values. Weights and keys are copied to shared memory
 * while norms and attention run.
 */
#include "common.cuh"
#if P_GATED && (defined(PLTZ_EMULATE) || __CUDA_ARCH__ >= 900)

namespace gated {
enum {
    CTAS = 16,
    THREADS = 512,
    WARPS = 16,
    MOST_CTAS = 128,
    LANES = 32,
    ROW_TILES = LANES / 16,
    ROWS = 96,         /* queries of a key head, most: pack.py, GATED_LANES and GATED_QUERIES */
    KEPT = 10, /* groups of 32 keys, and their values, that a CTA has at hand */
    TILES = 4, /* tiles of 8 channels at once */
    AHEAD = 20 << 10,
    AHEAD_DOWN = 12 << 10, /* bytes of weights that are asked for ahead; of the residual's product */
    PITCH = DP % 128 ? DP : DP + 64, /* of normed rows: neighbours do not meet in the banks */
    MIXED_PITCH = 72,
};
struct Wire { /* what the CTAs tell each other, in device memory */
    uint32_t here[MOST_CTAS]; /* how often each CTA has come to a meeting */
    int32_t stop, spare[127];
    int32_t feed[LANES], cls[LANES];
    uint32_t x[LANES * DP], y[LANES * QP]; /* marked: of 9 bits above 23, of 16 above 16 */
    int8_t o[LANES * OP];
    uint8_t h[LANES * FP];
    int32_t logits[LANES * CP];
    uint32_t sums[LANES * SUMS];
};
struct Shared {
    uint64_t meeting[4]; /* of a CTA and the weights that it asked for */
    uint64_t norms[4]; /* of a CTA and the normed rows that its cluster sends */
    /* products */
    int8_t a[LANES * PITCH];
    int8_t normed[ROW_TILES * DP]; /* the rows of this CTA, before they go to all of the cluster */
    int32_t part[WARPS * LANES * 8]; /* of the tiles at once and the splits of their inputs */
    /* attention: what the CTAs of the cluster sent; nothing else is here, so that no CTA need know what another one is
     * at */
    int32_t lows[CTAS * ROWS];
    uint32_t totals[CTAS * ROWS];
    int32_t mixes[CTAS * (ROWS / CTAS) * HW]; /* of every sixteenth query */
    union {
        struct {
            int8_t q[ROWS * HW];
            int32_t mixed[ROWS * MIXED_PITCH];
        };
        uint32_t sums[LANES * SUMS]; /* first CTA */
    };
    int8_t ahead[AHEAD + AHEAD_DOWN]; /* weights of the next products */
    int8_t keys[KEPT * 2048], values[KEPT * 2048]; /* of a head, as they were before the step */
    uint32_t table[WEIGHTS];
    int32_t low[ROWS];
    uint32_t sum[ROWS];
    int32_t exp[64], phase[32];
    int16_t cosine[1024], sine[1024];
    int32_t act[2 * GATE_MAX + 2];
    int32_t heat[(LAYERS * HEADS + 3) / 4 * 4];
    int32_t z[DP], l[128];
    int8_t member[DP];
};

struct Place {
    Shared *m;
    Wire *wire;
    int tid, thread, warp, cta, ctas, lanes;
    uint32_t round, asked, used; /* meetings; how often weights were asked for, and waited for */
    uint32_t norms, written; /* how often norms were waited for; stages of this kernel that wrote the residual */

    /* All CTAs of the GPU meet. No weights are asked for meanwhile: the fence would wait for them. */
    DEV void meet() {
        __syncthreads();
        round++;
        if (tid == 0) post(&wire->here[cta], round);
        if (warp == 0) {
            bool all = false;
            while (!all) { /* all loads under way at once */
                uint32_t here[MOST_CTAS / 32];
#pragma unroll
                for (int i = 0; i < MOST_CTAS / 32; i++)
                    here[i] = i * 32 + thread < ctas ? wire_load(&wire->here[i * 32 + thread]) : round;
                all = true;
#pragma unroll
                for (int i = 0; i < MOST_CTAS / 32; i++) all = all && (int32_t)(here[i] - round) >= 0;
                all = all || !breathe();
            }
            look_again();
        }
        __syncthreads();
    }
};

/* A product of lanes (rows) with tiles of 8 channels; U tiles are a unit that ends together (2: gate and linear half).
 * Unit u is of CTA u % ctas, which takes AT_ONCE of its own at a time and splits their inputs among its warps. */
template <int K, int U, int AT = 0, int SIZE = AHEAD> struct Product {
    enum {
        CHUNKS = K / 64,
        AT_ONCE = TILES / U,
        BYTES = CHUNKS * 512 /* of a tile */,
        ROOM = SIZE / BYTES /* tiles */
    };
    const int8_t *w;
    const int32_t *m;
    int all; /* units */

    struct Part { /* of a warp: which tile of the n at once, which of the splits of its inputs */
        int n, splits, tile, split;
    };
    DEV Part part(const Place &p, int unit, int warp) const {
        int n = 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) n += unit + i * p.ctas < all ? U : 0;
        const int split = n == 1 ? warp : n == 2 ? warp >> 1 : n == 3 ? warp * 11 >> 5 : warp >> 2;
        return Part{n, min(n == 1 ? 16 : n == 2 ? 8 : n == 3 ? 5 : 4, (int)CHUNKS), warp - split * n, split};
    }
    DEV int tile(const Place &p, int unit, int n) const {
        return (unit + n / U * p.ctas) * U + n % U;
    } /* n-th from a unit of the CTA on */
    /* Copies the weights of the first round to shared memory, as far as there is room. One thread asks, by copies that
     * take no turn among the loads of the multiprocessor. Every ask() is followed by a run(), in the same order. */
    DEV void ask(Place &p) const {
        if (p.tid == 32) {
            const int n = min(part(p, p.cta, 0).n, (int)ROOM);
            meeting_expect(p.m->meeting, p.asked, (uint32_t)n * BYTES);
            for (int i = 0; i < n; i++)
                bulk_copy(p.m->ahead + AT + i * BYTES, w + (int64_t)tile(p, p.cta, i) * BYTES, BYTES, p.m->meeting,
                          p.asked);
        }
        p.asked++;
    }
    /* end(row, channel of the unit's first tile, sums, multipliers, x): of U tiles each; x (rows, stride) is what the
     * sums are added to, or 0. */
    template <class End>
    DEV void run(Place &p, const int8_t *a, int a_stride, const uint32_t *x, int stride, End end) const {
        const int g = p.thread >> 2, t = p.thread & 3, row_tiles = (p.lanes + 15) / 16, row = p.tid / 8,
                  channel = p.tid % 8;
        meeting_wait(p.m->meeting, p.used++);
        for (int unit = p.cta; unit < all; unit += AT_ONCE * p.ctas) {
            const Part mine = part(p, unit, p.warp);
            int32_t scales[TILES];
            uint32_t before[TILES];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                const int at = tile(p, unit, i) * 8 + channel;
                const bool there = i < mine.n && row < p.lanes;
                scales[i] = there ? m[at] : 0;
                before[i] = there && x ? x[row * stride + at] : 0;
            }
            if (mine.split < mine.splits) {
                int32_t c[ROW_TILES][4];
#pragma unroll
                for (int i = 0; i < ROW_TILES * 4; i++) c[i / 4][i % 4] = 0;
                const int8_t *from = w + (int64_t)tile(p, unit, mine.tile) * CHUNKS * 512 + p.thread * 16;
                const bool ahead = unit == p.cta && mine.tile < ROOM;
                const int8_t *held = p.m->ahead + AT + (ahead ? mine.tile : 0) * BYTES + p.thread * 16;
#pragma unroll 2
                for (int chunk = mine.split; chunk < CHUNKS; chunk += mine.splits) {
                    const uint4 b = ahead ? *(const uint4 *)(held + chunk * 512) : *(const uint4 *)(from + chunk * 512);
#pragma unroll
                    for (int r = 0; r < ROW_TILES; r++) {
                        if (r >= row_tiles) break;
                        const int8_t *rows = a + (r * 16 + g) * a_stride + chunk * 64 + t * 16;
                        const uint4 f = *(const uint4 *)rows, e = *(const uint4 *)(rows + 8 * a_stride);
                        mma_s8(c[r], f.x, e.x, f.y, e.y, b.x, b.y);
                        mma_s8(c[r], f.z, e.z, f.w, e.w, b.z, b.w);
                    }
                }
                int32_t *to = p.m->part + (mine.tile * mine.splits + mine.split) * LANES * 8;
#pragma unroll
                for (int i = 0; i < ROW_TILES * 4; i++) {
                    if (i / 4 < row_tiles)
                        to[(i / 4 * 16 + g + (i >> 1 & 1) * 8) * 8 + t * 2 + (i & 1)] = c[i / 4][i % 4];
                }
            }
            __syncthreads();
            if (row < p.lanes) {
#pragma unroll
                for (int i = 0; i < TILES; i += U) {
                    if (i >= mine.n) break;
                    int32_t sums[U];
#pragma unroll
                    for (int u = 0; u < U; u++) {
                        sums[u] = 0;
#pragma unroll 4
                        for (int s = 0; s < mine.splits; s++)
                            sums[u] += p.m->part[((i + u) * mine.splits + s) * LANES * 8 + p.tid];
                    }
                    end(row, (unit + i / U * p.ctas) * 8 + channel, sums, scales + i, before + i);
                }
            }
            if (unit + AT_ONCE * p.ctas < all) __syncthreads();
        }
    }
};
using Qkv = Product<DP, 1>;
using Out = Product<OP, 1>;
using Up = Product<DP, 2>;
using Down = Product<FP, 1, AHEAD, AHEAD_DOWN>;
using Class = Product<DP, 1>;

/* A number of the residual and the mark of the stage that wrote it. */
DEV uint32_t marked(int32_t v, uint32_t stage) { return (uint32_t)v & 0x7fffff | stage << 23; }
DEV int32_t unmarked(uint32_t w) { return (int32_t)(w << 9) >> 9; }

/* Normed rows where a product reads them: norm_row() of common.cuh. Each CTA of a cluster works out every sixteenth and
 * sends it to all. A warp that does looks until all of its row is there. */
DEV void norm_rows(Place &p, const int32_t *gains) {
    const int row = cluster_rank() + p.warp * CTAS;
    if (p.tid == THREADS - 1) meeting_expect(p.m->norms, p.norms, (uint32_t)(p.lanes * DP));
    if (p.warp < ROW_TILES && row < p.lanes) {
        const uint32_t *from = p.wire->x + row * DP + p.thread * 2;
        int2 gain[DP / 64];
        uint2 v[DP / 64];
        bool there = false;
#pragma unroll
        for (int i = 0; i < DP / 64; i++) gain[i] = *(const int2 *)(gains + i * 64 + p.thread * 2);
        while (!there) {
#pragma unroll
            for (int i = 0; i < DP / 64; i++) v[i] = wire_load2(from + i * 64);
            uint32_t other = 0;
#pragma unroll
            for (int i = 0; i < DP / 64; i++) other |= (v[i].x ^ p.written << 23) | (v[i].y ^ p.written << 23);
            there = other < 1u << 23 || !breathe();
        }
        __syncwarp();
        uint64_t total = 0;
#pragma unroll
        for (int i = 0; i < DP / 64; i++) {
            const int32_t a = unmarked(v[i].x), b = unmarked(v[i].y);
            total += (uint64_t)((int64_t)a * a) + (uint64_t)((int64_t)b * b);
        }
        const double scale = gained_scale(sum_warp(total));
        int8_t *to = p.m->normed + p.warp * DP;
#pragma unroll
        for (int i = 0; i < DP / 64; i++) {
            const uint32_t a = (uint32_t)gained_one(unmarked(v[i].x), scale, gain[i].x),
                           b = (uint32_t)gained_one(unmarked(v[i].y), scale, gain[i].y);
            *(uint16_t *)(to + i * 64 + p.thread * 2) = (uint16_t)(a & 255 | (b & 255) << 8);
        }
    }
    __syncthreads();
    const auto meeting = peer(p.m->norms + (p.norms & 1), p.warp); /* a warp a CTA that it sends to */
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        if (cluster_rank() + n * CTAS >= p.lanes) break;
        const auto to = peer(p.m->a + (cluster_rank() + n * CTAS) * PITCH, p.warp);
        for (int i = p.thread * 16; i < DP; i += 512)
            send16(to + i, *(const uint4 *)(p.m->normed + n * DP + i), meeting);
    }
    meeting_wait(p.m->norms, p.norms++);
}

/* A warp: HD values of one head, a thread's two in `pair`, turned by their position, brought to 8 bits. */
DEV uint2 pair_of(const Place &p, const uint32_t *y) {
    return make_uint2(wire_load(y + p.thread), wire_load(y + p.thread + HD / 2));
}
DEV void turn_one(const Place &p, uint2 pair, int32_t at, int8_t *out) {
    if (p.thread >= HD / 2) return;
    const uint32_t j = (uint32_t)at * (uint32_t)p.m->phase[p.thread] >> 10 & 1023;
    const int32_t c = p.m->cosine[j], s = p.m->sine[j], a = (int16_t)pair.x, b = (int16_t)pair.y;
    out[p.thread] = (int8_t)clamp_to((((a * c - b * s + (1 << 13)) >> 14) + 64) >> 7, 127);
    out[p.thread + HD / 2] = (int8_t)clamp_to((((a * s + b * c + (1 << 13)) >> 14) + 64) >> 7, 127);
}

/* The whole groups of keys and values of a head that this CTA had before the step, on their way to shared memory. */
DEV void ask_keys(const Place &p, const Session &s, int step, int layer, int h, const Cache &cache, int8_t *memory) {
    const int8_t *keys = keys_of(cache, memory, layer, h), *values = keys + cache.room * HW;
    const int whole = (s.old + step * s.L) / 32;
    for (int i = p.warp; i < KEPT * 4; i += WARPS) { /* quarters of a group */
        const int kg = cluster_rank() + i / 4 * CTAS, at = i % 4 * 512 + p.thread * 16;
        if (kg >= whole) break;
        copy16(p.m->keys + i / 4 * 2048 + at, keys + (int64_t)kg * 2048 + at);
        copy16(p.m->values + i / 4 * 2048 + at, values + (int64_t)kg * 2048 + at);
    }
    copies_commit();
}

/* Of a layer's queries, keys and values, in the upper half of a word. It differs from that of the layer before, and
 * from 0, which begin_marks() writes. */
DEV uint32_t mark_of(int step, int layer) { return (uint32_t)(step * LAYERS + layer) << 16 | 1u << 31; }
DEV void begin_marks(const Place &p) {
    for (int i = p.cta * THREADS + p.tid; i < LANES * QP; i += p.ctas * THREADS) wire_store(p.wire->y + i, 0);
}

/* Attention of one key head for the lanes from first_lane on, by a cluster. Each CTA has every sixteenth group of 32
 * keys. A warp has 16 queries and a share of the groups; it keeps the scores of its first groups in registers, then
 * their weights. The stages are called in the order in which they stand here; between them the CTAs of the cluster
 * meet. */
struct Attention {
    enum { HELD = 1, QUERIES_EACH = ROWS / WARPS, KEYS_EACH = LANES / WARPS };
    Place &p;
    const Session &s;
    const int step, layer, h, first_lane, lanes, queries, rank, g, t;
    const int first, all, groups, busy; /* keys before the step and after it; groups of them; CTAs that have some */
    int8_t *const keys, *const values;
    const int at_hand; /* groups below it that are this CTA's are in shared memory */
    const uint32_t mark; /* of the queries, keys and values of this layer */
    const int tiles, tile, share; /* of 16 queries */
    const int from, by; /* groups of this warp */
    const bool active;
    Queries f;
    int32_t held[HELD][4][4];

    DEV Attention(Place &p, const Session &s, int step, int layer, int h, int first_lane, int lanes, const Cache &cache,
                  int8_t *memory)
        : p(p), s(s), step(step), layer(layer), h(h), first_lane(first_lane), lanes(lanes), queries(lanes * GROUP),
          rank(cluster_rank()), g(p.thread >> 2), t(p.thread & 3), first(s.old + step * s.L), all(first + s.L),
          groups((all + 31) / 32), busy(min(groups, (int)CTAS)), keys(keys_of(cache, memory, layer, h)),
          values(keys + cache.room * HW), at_hand(min(first / 32, rank + KEPT * CTAS)),
          mark(mark_of(step, layer)), tiles((queries + 15) / 16),
          tile(p.warp % tiles), share(p.warp / tiles), from(rank + CTAS * share), by(CTAS * (WARPS / tiles)),
          active(share < WARPS / tiles) {}

    DEV int row_of(int i) const { return tile * 16 + i * 8 + g; }
    DEV Keys keys_at(int kg) const {
        return kg < at_hand ? load_keys(p.m->keys, kg / CTAS, p.thread) : load_keys(keys, kg, p.thread);
    }
    DEV Keys values_at(int kg) const {
        return kg < at_hand ? load_keys(p.m->values, kg / CTAS, p.thread) : load_keys(values, kg, p.thread);
    }
    /* The key of a lane, where this CTA keeps it. Where two clusters share the lanes, both write the same bytes. */
    DEV bool fresh(int lane) const { return lane < s.L && (first + lane) / 32 % CTAS == rank; }
    DEV int position(int lane) const { return (int32_t)s.start + lane_start(s, lane) + step; }

    /* Queries of the lanes, and keys and values of the step, out of the product. */
    DEV void turn() {
        uint2 query_pairs[QUERIES_EACH], key_pairs[KEYS_EACH], value_pairs[KEYS_EACH];
        bool there = p.thread >= HD / 2;
        while (!there) { /* all loads under way at once */
            uint32_t other = 0;
            auto pair = [&](int row, int head) {
                const uint2 two = pair_of(p, p.wire->y + row * QP + head * HD);
                other |= (two.x ^ mark) | (two.y ^ mark);
                return two;
            };
#pragma unroll
            for (int n = 0; n < QUERIES_EACH; n++) {
                const int i = p.warp + n * WARPS;
                if (i < queries) query_pairs[n] = pair(first_lane + i / GROUP, h * GROUP + i % GROUP);
            }
#pragma unroll
            for (int n = 0; n < KEYS_EACH; n++) {
                const int lane = p.warp + n * WARPS;
                if (!fresh(lane)) continue;
                key_pairs[n] = pair(lane, HEADS + h);
                value_pairs[n] = pair(lane, HEADS + KV + h);
            }
            there = other < 1u << 16 || !breathe();
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < QUERIES_EACH; n++) {
            const int i = p.warp + n * WARPS;
            if (i < queries) turn_one(p, query_pairs[n], position(first_lane + i / GROUP), p.m->q + i * HW);
        }
#pragma unroll
        for (int n = 0; n < KEYS_EACH; n++) {
            const int lane = p.warp + n * WARPS, key = first + lane;
            if (!fresh(lane)) continue;
            turn_one(p, key_pairs[n], position(lane), keys + (int64_t)key * HW);
            if (p.thread >= HD / 2) continue;
            values[value_place(key, p.thread)] = (int8_t)clamp_to((int16_t)value_pairs[n].x, 127);
            values[value_place(key, p.thread + HD / 2)] = (int8_t)clamp_to((int16_t)value_pairs[n].y, 127);
        }
        for (int i = p.tid; i < queries; i += THREADS) {
            p.m->low[i] = 0x7fffffff;
            p.m->sum[i] = 0;
        }
        for (int i = p.tid; i < queries * MIXED_PITCH; i += THREADS) p.m->mixed[i] = 0;
        copies_wait<0>();
        __syncthreads();
    }

    /* Scores, negated, and the lowest of each query: in this CTA, then in the cluster. */
    DEV void score() {
        uint4 part[2];
#pragma unroll
        for (int i = 0; i < 2; i++) { /* rows past the last repeat it */
            const int query = min(row_of(i), queries - 1);
            part[i] = *(const uint4 *)(p.m->q + query * HW + t * 16);
            f.limit[i] = all;
            f.heat[i] = (uint32_t)p.m->heat[layer * HEADS + h * GROUP + query % GROUP];
        }
        f.a = part[0];
        f.b = part[1];
        finish_queries(f);
        if (active && from < groups) {
            int32_t least[2] = {0x7fffffff, 0x7fffffff};
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                const int kg = from + n * by;
                if (kg >= groups) break;
                scores(f, keys_at(kg), 0, 0, held[n]);
                top(f, kg, p.thread, held[n], least);
            }
#pragma unroll 1
            for (int kg = from + HELD * by; kg < groups; kg += by) {
                int32_t c[4][4];
                scores(f, keys_at(kg), 0, 0, c);
                top(f, kg, p.thread, c, least);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                for (int n = 1; n < 4; n <<= 1) least[i] = min(least[i], __shfl_xor_sync(FULL, least[i], n));
                if (t == 0 && row_of(i) < queries) atomicMin(&p.m->low[row_of(i)], least[i]);
            }
        }
        __syncthreads();
        for (int i = p.tid; i < queries * CTAS; i += THREADS) {
            if (rank < busy) put4(peer(p.m->lows + rank * ROWS + i / CTAS, i % CTAS), (uint32_t)p.m->low[i / CTAS]);
        }
        cluster_arrive();
        cluster_wait();
        for (int i = p.tid; i < queries; i += THREADS) {
            int32_t least = 0x7fffffff;
#pragma unroll 4
            for (int n = 0; n < busy; n++) least = min(least, p.m->lows[n * ROWS + i]);
            p.m->low[i] = least;
        }
        __syncthreads();
    }

    /* Weights of the keys, and the sum of each query: in this CTA, then in the cluster. */
    DEV void weigh_keys() {
        const uint8_t *table = (const uint8_t *)p.m->table;
        if (active && from < groups) {
#pragma unroll
            for (int i = 0; i < 2; i++) f.most[i] = -p.m->low[min(row_of(i), queries - 1)];
            uint32_t total[2] = {0, 0};
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                const int kg = from + n * by;
                if (kg >= groups) break;
#pragma unroll
                for (int i = 0; i < 16; i++) held[n][i / 4][i % 4] += f.most[i >> 1 & 1];
                weigh(f, kg, p.thread, table, held[n], (uint32_t)p.thread * 4);
                add_weights(held[n], total);
            }
#pragma unroll 1
            for (int kg = from + HELD * by; kg < groups; kg += by) {
                int32_t c[4][4];
                weigh(f, keys_at(kg), kg, p.thread, table, c, (uint32_t)p.thread * 4);
                add_weights(c, total);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                for (int n = 1; n < 4; n <<= 1) total[i] += __shfl_xor_sync(FULL, total[i], n);
                if (t == 0 && row_of(i) < queries) atomicAdd(&p.m->sum[row_of(i)], total[i]);
            }
        }
        __syncthreads();
        for (int i = p.tid; i < queries * CTAS; i += THREADS) {
            if (rank < busy) put4(peer(p.m->totals + rank * ROWS + i / CTAS, i % CTAS), p.m->sum[i / CTAS]);
        }
        cluster_arrive();
        cluster_wait();
        for (int i = p.tid; i < queries; i += THREADS) {
            uint32_t total = 0;
#pragma unroll 4
            for (int n = 0; n < busy; n++) total += p.m->totals[n * ROWS + i];
            p.m->sum[i] = total;
        }
        __syncthreads();
    }

    /* Shares times values: in this CTA, then the sums over the cluster, each query's by the CTA query % CTAS. */
    DEV void mix_values() {
        if (active && from < groups) {
            int32_t out[8][4];
#pragma unroll
            for (int i = 0; i < 32; i++) out[i / 4][i % 4] = 0;
#pragma unroll
            for (int i = 0; i < 2; i++) f.t[i] = key_scale(p.m->sum[min(row_of(i), queries - 1)]);
#pragma unroll
            for (int n = 0; n < HELD; n++) {
                const int kg = from + n * by;
                if (kg >= groups) break;
                add_values(f, values_at(kg), held[n], out);
            }
#pragma unroll 1
            for (int kg = from + HELD * by; kg < groups; kg += by) {
                int32_t c[4][4];
                weigh(f, keys_at(kg), kg, p.thread, (const uint8_t *)p.m->table, c, (uint32_t)p.thread * 4);
                add_values(f, values_at(kg), c, out);
            }
#pragma unroll
            for (int i = 0; i < 32; i++) {
                const int row = row_of(i >> 1 & 1), dim = (i >> 2) * 8 + t * 2 + (i & 1);
                if (row < queries) atomicAdd(&p.m->mixed[row * MIXED_PITCH + dim], out[i / 4][i % 4]);
            }
        }
        __syncthreads();
        for (int i = p.tid; i < queries * (HW / 4); i += THREADS) {
            const int query = i / (HW / 4), dim = i % (HW / 4) * 4;
            int32_t *to = p.m->mixes + (rank * (ROWS / CTAS) + query / CTAS) * HW + dim;
            if (rank < busy) put16(peer(to, query % CTAS), *(const uint4 *)(p.m->mixed + query * MIXED_PITCH + dim));
        }
        cluster_arrive();
        cluster_wait();
        for (int i = p.tid; i < (queries - rank + CTAS - 1) / CTAS * HD; i += THREADS) {
            const int n = i / HD, query = rank + n * CTAS, dim = i % HD;
            int32_t total = 0;
#pragma unroll 4
            for (int cta = 0; cta < busy; cta++) total += p.m->mixes[(cta * (ROWS / CTAS) + n) * HW + dim];
            p.wire->o[(first_lane + query / GROUP) * OP + (h * GROUP + query % GROUP) * HD + dim] =
                (int8_t)clamp_to((total + (1 << 14)) >> 15, 127);
        }
    }
};

/* Attention of a step and a layer: a cluster per key head, or two where there are enough and more than 16 lanes. Unit u
 * of the work is that of key head u % KV. */
DEV int attention_parts(const Place &p) { return p.lanes > 16 && p.ctas / CTAS >= 2 * KV ? 2 : 1; }
DEV void attend(Place &p, const Session &s, int step, int layer, const Cache &cache, int8_t *memory) {
    const int clusters = p.ctas / CTAS, cluster = p.cta / CTAS, parts = attention_parts(p);
    for (int unit = cluster; unit < KV * parts; unit += clusters) {
        const int first_lane = unit / KV * 16, lanes = parts == 1 ? p.lanes : unit < KV ? 16 : p.lanes - 16;
        if (unit != cluster) ask_keys(p, s, step, layer, unit % KV, cache, memory); /* else they were asked for */
        Attention attention(p, s, step, layer, unit % KV, first_lane, lanes, cache, memory);
        attention.turn();
        attention.score();
        attention.weigh_keys();
        attention.mix_values();
    }
}

/* First CTA, first warp: the range decoder, and the class of lane `thread`. */
struct Symbols {
    Coder coder; /* lower is 0: only its distance to the point counts */
    int32_t cls;
};
/* First CTA: the symbols of a step, level 0 classes and 1 members. Their cumulative frequencies are in sums. */
template <int LEVEL>
DEV void decode_symbols(const Place &p, const Session &s, int step, int active, Symbols &d, int32_t *tokens) {
    if (p.warp) return;
    const uint32_t following = d.coder.place + p.thread < d.coder.words ? d.coder.data[d.coder.place + p.thread] : 0;
    int used = 0;
    const int32_t symbol = next_symbols<LEVEL ? 4 : PER>(d.coder, p.m->sums, LEVEL ? 128 : CLASSES, active, following,
                                                         used, p.thread);
    d.coder.place += used;
    if (LEVEL) {
        if (!d.coder.error && d.coder.place > s.most) d.coder.error = SPENT;
        if (p.thread == 0) p.wire->stop = d.coder.error;
        if (p.thread >= active) return;
        const int32_t token = d.cls * 128 + symbol;
        p.wire->feed[p.thread] = token;
        tokens[s.token_at + s.start + lane_start(s, p.thread) + step] = token;
    } else {
        d.cls = symbol;
        if (p.thread < active) p.wire->cls[p.thread] = symbol;
    }
}

/* Cumulative frequencies of a row's members, its class known: by one CTA. */
DEV void members_of(const Place &p, const Model &model, int row) {
    const uint32_t *x = p.wire->x + row * DP;
    member_sums(model, p.wire->cls[row], p.warp, p.thread, [&](int i) { return unmarked(x[i]); }, model.norm_out,
                p.m->z, p.m->member, p.m->l, p.m->exp, p.wire->sums + row * SUMS);
}
} // namespace gated

KERNEL(512)
decode_gated(State *state, Session *sessions, const int32_t *slots, Piece *pieces, const Cache *caches, int8_t *memory,
             const GRID_CONSTANT Model model, const uint32_t *words, int32_t *tokens, gated::Wire *wire) {
    using namespace gated;
    static_assert(sizeof(Shared) <= P_GATED_SHARED && sizeof(Wire) <= P_GATED_WIRE, "pack.py: gated_plan");
    const int held = slots[0];
    if (held < 0) return; /* all */
    const Session s = sessions[held];
    const Cache cache = caches[0];
    const uint32_t epoch = (uint32_t)state->epoch;
    Place p = {(Shared *)shared(),
               wire,
               (int)threadIdx.x,
               (int)threadIdx.x & 31,
               (int)threadIdx.x >> 5,
               (int)blockIdx.x,
               (int)gridDim.x,
               s.L,
               epoch,
               0,
               0,
               0,
               0};
    if (p.tid == 0) meeting_open(p.m->meeting);
    if (p.tid == 0) meeting_open(p.m->norms);
    begin_marks(p);
    for (int i = p.tid; i < ROWS * HW; i += THREADS) p.m->q[i] = 0; /* beyond HD it stays so */
    for (int i = p.tid; i < 64; i += THREADS) p.m->exp[i] = model.exp[i];
    for (int i = p.tid; i < HD / 2; i += THREADS) p.m->phase[i] = model.phase[i];
    for (int i = p.tid; i < 1024; i += THREADS) {
        p.m->cosine[i] = model.cosine[i];
        p.m->sine[i] = model.sine[i];
    }
    for (int i = p.tid; i < 2 * GATE_MAX + 1; i += THREADS) p.m->act[i] = model.act[i];
    for (int i = p.tid; i < LAYERS * HEADS; i += THREADS) p.m->heat[i] = model.heat[i / HEADS][i % HEADS];
    fill_weights(p.m->table, model.exp, p.tid, THREADS);
    Symbols symbols = {{0, s.range, s.point - s.lower, s.place, s.words, words + s.word_at, 0}, 0};
    auto qkv = [&](int layer) { return Qkv{model.qkv_w[layer], model.qkv_m[layer], QP / 8}; };
    auto out = [&](int layer) { return Out{model.out_w[layer], model.out_m[layer], DP / 8}; };
    auto up = [&](int layer) { return Up{model.up_w[layer], model.up_m[layer], FP / 8}; };
    auto down = [&](int layer) { return Down{model.down_w[layer], model.down_m[layer], DP / 8}; };
    const Class classes = {model.class_w, model.class_m, CP / 8};
    auto add = [&](int row, int channel, const int32_t *sums, const int32_t *m, const uint32_t *x) {
        const int32_t v = clamp_to(unmarked(x[0]) + scaled(sums[0], m[0]), RESIDUAL_MAX);
        wire_store(wire->x + row * DP + channel, marked(v, p.written));
    };
    cluster_arrive(); /* all have begun before anyone writes to their memory */
    cluster_wait();
    for (int step = 0; step < s.C; step++) {
        const int active = active_lanes(s, step);
        p.written++;
        for (int row = p.cta * WARPS + p.warp; row < s.L; row += p.ctas * WARPS) {
            const int token = step ? wire->feed[row] : row == 0 && s.start ? tokens[s.token_at + s.start - 1] : 0;
            const int8_t *w = model.embed_w + (int64_t)(token >> 3) * 8 * DP + (token & 7) * 64;
            const int32_t m = model.embed_m[token];
            for (int i = p.thread; i < DP; i += 32)
                wire->x[row * DP + i] = marked(entry(w[i / 64 * 512 + i % 64], m), p.written);
        }
        p.meet();
        for (int half = 0;; half++) { /* of layers: one copy of the norms, for the code's size */
            const int layer = half / 2;
            __syncthreads(); /* all have waited for the weights before: no meeting point is ever two rounds ahead */
            if (half == 2 * LAYERS) {
                classes.ask(p);
            } else if (half % 2) {
                up(layer).ask(p);
                down(layer).ask(p);
            } else {
                qkv(layer).ask(p);
                if (p.cta / CTAS < KV * attention_parts(p))
                    ask_keys(p, s, step, layer, p.cta / CTAS % KV, cache, memory);
            }
            if (half == 2 * LAYERS && p.cta / CTAS * CTAS >= classes.all) break; /* of all of a cluster */
            norm_rows(p, half == 2 * LAYERS ? model.norm_out : half % 2 ? model.norm_mid[layer] : model.norm_in[layer]);
            if (half == 2 * LAYERS) break;
            if (half % 2 == 0) {
                qkv(layer).run(p, p.m->a, PITCH, 0, 0,
                               [&](int row, int channel, const int32_t *sums, const int32_t *m, const uint32_t *) {
                                   const int32_t v = clamp_to(scaled(sums[0], m[0]), 32767);
                                   wire_store(wire->y + row * QP + channel,
                                              (uint32_t)v & 0xffff | mark_of(step, layer));
                               });
                out(layer).ask(p);
                attend(p, s, step, layer, cache, memory);
                p.meet();
                p.written++;
                out(layer).run(p, wire->o, OP, wire->x, DP, add);
            } else {
                up(layer).run(p, p.m->a, PITCH, 0, 0,
                              [&](int row, int channel, const int32_t *sums, const int32_t *m, const uint32_t *) {
                                  wire->h[row * FP + channel] =
                                      (uint8_t)(hidden(scaled(sums[0], m[0]), scaled(sums[1], m[1]), p.m->act) & 255);
                              });
                p.meet();
                p.written++;
                down(layer).run(p, (const int8_t *)wire->h, FP, wire->x, DP, add);
            }
        }
        classes.run(p, p.m->a, PITCH, 0, 0,
                    [&](int row, int channel, const int32_t *sums, const int32_t *m, const uint32_t *) {
                        wire->logits[row * CP + channel] = scaled(sums[0], m[0]) + model.class_b[channel];
                    });
        p.meet();
        if (p.cta == 0) {
            for (int row = p.warp; row < active; row += WARPS) {
                int32_t l[PER];
#pragma unroll
                for (int i = 0; i < PER; i++)
                    l[i] = p.thread * PER + i < CLASSES ? wire->logits[row * CP + p.thread * PER + i] : 0;
                cumulate<PER>(l, CLASSES, p.m->exp, p.m->sums + row * SUMS, p.thread);
            }
            __syncthreads();
            decode_symbols<0>(p, s, step, active, symbols, tokens);
        }
        p.meet();
        for (int row = p.cta; row < active; row += p.ctas) members_of(p, model, row);
        p.meet();
        if (p.cta == 0) {
            for (int i = p.tid; i < active * SUMS; i += THREADS) p.m->sums[i] = wire->sums[i];
            __syncthreads();
            decode_symbols<1>(p, s, step, active, symbols, tokens);
            __syncthreads();
            for (int i = p.tid; i < ROWS * HW; i += THREADS) p.m->q[i] = 0; /* the sums lay there */
        }
        p.meet();
        if (wire->stop) break;
    }
    cluster_arrive(); /* nobody leaves while others write to its memory */
    cluster_wait();
    if (p.tid || p.cta) return;
    state->epoch = (int32_t)p.round;
    end_block(state, sessions[held], held, pieces[0], symbols.coder);
}
#endif

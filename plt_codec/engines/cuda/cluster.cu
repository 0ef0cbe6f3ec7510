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
#include "common.cuh"
#if !P_GATED && (defined(PLTZ_EMULATE) || __CUDA_ARCH__ >= 900)

enum { CTAS = 16, WARPS = 16, LANES = 16, THREADS = WARPS * 32 };
enum { ROWS_ALL = LANES * HEADS, TILES = HEADS, OWN = TILES }; /* queries: 16 lanes of each head, 16 a tile */
DEV constexpr int pitch(int bytes) {
    return bytes % 128 ? bytes : bytes + 64;
} /* two rows of 64 bytes fill all banks */
DEV constexpr int least(int a, int b) { return a < b ? a : b; }
DEV constexpr int most_of(int a, int b) { return a > b ? a : b; }

/* A product's channels (tiles of 8) dealt out to the CTAs of a cluster and their warps; inputs split where warps are
 * left. */
template <int ALL, int CHUNKS, int OF_CTAS, bool SPLIT = true /* else an even number of tiles, by whole warps */,
          bool UNSIGNED = false>
struct Share {
    enum {
        NT = SPLIT ? (ALL + OF_CTAS - 1) / OF_CTAS : (ALL + 2 * OF_CTAS - 1) / (2 * OF_CTAS) * 2, /* tiles of a CTA */
        SPLITS = NT >= WARPS || !SPLIT ? 1 : least(WARPS / NT, CHUNKS),
        TW = NT >= WARPS ? (NT + WARPS - 1) / WARPS : 1, /* tiles of a warp */
        CW = (CHUNKS + SPLITS - 1) / SPLITS,           /* chunks of a warp */
        KEEP = TW * CW <= 8,                           /* weights fit the registers */
    };
    uint4 w[KEEP ? TW * CW : 1];
    const int8_t *from;
    int tile, split; /* first tile of the warp, within the CTA; its part of the inputs */
    int first;       /* first tile of the CTA */

    DEV void place(int rank, int warp) {
        first = rank * NT;
        tile = NT >= WARPS ? warp : warp % NT;
        split = NT >= WARPS ? 0 : warp / NT;
    }
    DEV bool has(int i) const { return tile + i * WARPS < NT && first + tile + i * WARPS < ALL && split < SPLITS; }
    DEV uint4 fetch(int i, int c, int thread) const {
        return *(const uint4 *)(from + ((int64_t)(first + tile + i * WARPS) * CHUNKS + split * CW + c) * 512 +
                                thread * 16);
    }
    DEV void load(const int8_t *weights, int rank, int warp, int thread) {
        from = weights;
        place(rank, warp);
        if (!KEEP) return;
#pragma unroll
        for (int i = 0; i < TW; i++) {
#pragma unroll
            for (int c = 0; c < CW; c++) {
                w[i * CW + c] = has(i) && split * CW + c < CHUNKS ? fetch(i, c, thread) : make_uint4(0, 0, 0, 0);
            }
        }
    }
    /* Sums of tile i of the warp over its inputs: rows g, g, g + 8, g + 8, channels 2 t, 2 t + 1. Whole warps come
     * here. */
    DEV void multiply(int i, const uint8_t *a, int stride, int thread, int32_t out[4]) const {
        int32_t sum[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        const uint8_t *row = a + (thread >> 2) * stride + split * CW * 64 + (thread & 3) * 16;
#pragma unroll
        for (int c = 0; c < CW; c++) {
            if (CW * SPLITS > CHUNKS && split * CW + c >= CHUNKS) continue;
            const uint4 p = *(const uint4 *)(row + c * 64), q = *(const uint4 *)(row + 8 * stride + c * 64);
            const uint4 b = KEEP ? w[KEEP ? i * CW + c : 0] : fetch(i, c, thread);
            if (UNSIGNED) {
                mma_u8(sum[0], p.x, q.x, p.y, q.y, b.x, b.y);
                mma_u8(sum[1], p.z, q.z, p.w, q.w, b.z, b.w);
            } else {
                mma_s8(sum[0], p.x, q.x, p.y, q.y, b.x, b.y);
                mma_s8(sum[1], p.z, q.z, p.w, q.w, b.z, b.w);
            }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) out[n] = sum[0][n] + sum[1][n];
    }
};
typedef Share<HD / 8, DP / 64, 1> ShareQkv; /* of one head; a CTA has whole heads */
typedef Share<DP / 8, OP / 64, CTAS> ShareOut;
typedef Share<FP / 8, DP / 64, CTAS, false> ShareUp;
typedef Share<DP / 8, FP / 64, CTAS, true, true> ShareDown;
typedef Share<CP / 8, DP / 64, 1> ShareClass; /* every CTA computes all classes */

enum { /* shared memory */
       A_PITCH = pitch(DP),
       H_PITCH = pitch(FP),
       O_PITCH = pitch(OP),
       ACC_PITCH = 72,
       PART = 72, /* rows begin 8 banks apart */
       AT_X = 0,                                   /* residuals (16, DP) int32 */
       AT_A = AT_X + LANES * DP * 4,               /* their norm (16, A_PITCH) */
       AT_H = AT_A + LANES * A_PITCH,              /* hidden */
       AT_O = AT_H + LANES * H_PITCH,              /* attention output */
       AT_Q = AT_O + LANES * O_PITCH,              /* queries, keys and values of a step (HEADS + 2 KV, 16, 64) */
       AT_MOST = AT_Q +
           (HEADS + 2 * KV) * LANES * HW, /* (CTAS, ROWS_ALL) of each CTA, then (2, ROWS_ALL): own, result */
       AT_SUM = AT_MOST + (CTAS + 2) * ROWS_ALL * 4,
       AT_PART = AT_SUM + (CTAS + 2) * ROWS_ALL * 4, /* own share of shares times values (ROWS_ALL, 64) int32 */
       AT_PARTS = AT_PART + ROWS_ALL * PART * 4, /* of each CTA, the rows this one adds up: (CTAS, OWN, 64) */
       AT_ACC = AT_PARTS +
           most_of(CTAS * OWN * HW, LANES *CP) * 4, /* sums of split products (16, ACC_PITCH), zero between uses */
       AT_STAGE = AT_ACC + LANES * ACC_PITCH * 4, /* what goes to the other CTAs */
       STAGE_SIZE = most_of(most_of(LANES * HW, OWN *HW), most_of(LANES *ShareUp::NT * 8, LANES *ShareOut::NT * 32)),
       AT_LOGITS = AT_PARTS, /* (16, CP), used while PARTS is not */
       AT_CUM = AT_STAGE + (STAGE_SIZE + 15) / 16 * 16, /* cumulative frequencies (2, 16, SUMS): classes, members */
       AT_STEP = AT_CUM + 2 * LANES * SUMS * 4, /* tokens, classes, positions of the lanes; error: (4, 16) int32 */
       AT_CODER = AT_STEP + 4 * LANES * 4, /* the decoder between its uses */
       AT_WEIGHTS = AT_CODER + 64, /* of keys (WEIGHTS) */
       AT_MEETING = (AT_WEIGHTS + WEIGHTS * 4 + 31) / 32 * 32, /* 32 bytes */
       AT_EXP = AT_MEETING + 32, /* table.exp */
       AT_TURN = AT_EXP + 256, /* cosine, sine of a step: (16, 32) pairs of int16 */
       AT_CLASS = AT_TURN + LANES * 128, /* multipliers and biases of the classes (2, CP) */
       AT_HEAT = AT_CLASS + CP * 8, /* (LAYERS, HEADS) */
       AT_SCALE = AT_HEAT + (LAYERS * HEADS + 3) / 4 * 16, /* multipliers of this CTA: (LAYERS, SCALES) */
       SCALE_OUT = HW,
       SCALE_UP = SCALE_OUT + ShareOut::NT * 8,
       SCALE_DOWN = SCALE_UP + ShareUp::NT * 8,
       SCALES = SCALE_DOWN + ShareDown::NT * 8,
       SHARED = AT_SCALE + LAYERS * SCALES * 4,
};

struct Model { /* addresses of the tensors (pack.py), those of layers in tables of LAYERS */
    const int8_t *embed_w, *class_w, *shift_w;
    const int32_t *embed_m, *class_m, *class_b, *shift_m, *member_m, *member_b, *exp, *phase;
    const int16_t *cosine, *sine;
    const int8_t *qkv_w[LAYERS], *out_w[LAYERS], *up_w[LAYERS], *down_w[LAYERS];
    const int32_t *qkv_m[LAYERS], *out_m[LAYERS], *up_m[LAYERS], *down_m[LAYERS], *heat[LAYERS];
};

struct Place { /* of this thread */
    mutable int rank, warp, thread, tid;
    uint8_t *m;
    uint64_t *meeting; /* of this CTA (common.cuh) */
    mutable uint32_t round; /* exchanges so far */
    mutable int64_t last; /* P_TRACE: when the stage before ended */
};
#ifdef PLTZ_EMULATE
typedef uint64_t Remote;
#else
typedef uint32_t Remote; /* address in the shared memory of the cluster */
#endif
/* Makes the compiler forget what it has computed from the thread's place: else it computes hundreds of addresses ahead
 * of the layers and has no registers left to keep them in. */
DEV void forget(const Place &p) { asm volatile("" : "+r"(p.rank), "+r"(p.warp), "+r"(p.thread), "+r"(p.tid)); }
/* The same for a number that is to be worked out here, once, and kept in a register: not again at each use, nor later.
 */
DEV void forget(int32_t &v) { asm volatile("" : "+r"(v)); }
DEV void forget(uint32_t &v) { asm volatile("" : "+r"(v)); }

/* An exchange: warp w of each CTA sends CTA w what that needs (into `to`, a place of this CTA's memory, there), and all
 * wait until all that was to come has come. Between two exchanges every CTA passes a __syncthreads, and no buffer is
 * written again in the exchange after the one in which it was read: so nothing is overwritten that someone still reads.
 */
struct Sender {
    Remote to, meeting;
    DEV void put16(int at, uint4 v) const { send16(to + at, v, meeting); }
    DEV void put8(int at, uint2 v) const { send8(to + at, v, meeting); }
    DEV void add(int at, int32_t v) const { send_sum(to + at, v, meeting); }
    DEV void least(int at, int32_t v) const { send_least(to + at, v, meeting); }
};
DEV Sender sender(const Place &p, const void *to) {
    return Sender{peer(to, p.warp), peer(p.meeting + (p.round & 1), p.warp)};
}
DEV void wait(const Place &p, uint32_t bytes) {
    forget(p);
    if (p.tid == 0) meeting_expect(p.meeting, p.round, bytes);
    meeting_wait(p.meeting, p.round++);
}
#ifdef P_TRACE /* cycles of each stage in the first CTA, for measurements */
__device__ unsigned long long trace[64];
DEV void mark(const Place &p, int stage) {
    if (p.tid || blockIdx.x) return;
    const int64_t now = clock64();
    if (p.last) atomicAdd(&trace[stage], (unsigned long long)(now - p.last));
    p.last = now;
}
#else
DEV void mark(const Place &, int) {}
#endif

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
        mark(p, 3);
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
    mark(p, 4);
    forget(p);
    spread_rows(p, AT_MOST);
    wait(p, CTAS * ROWS_ALL * 4);
    mark(p, 5);
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
    mark(p, 6);
    forget(p);
    spread_rows(p, AT_SUM);
    wait(p, CTAS * ROWS_ALL * 4);
    mark(p, 7);
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
    mark(p, 8);
    const Sender to = sender(p, parts_in + p.rank * OWN * HW); /* row n goes to the CTA n / OWN */
    for (int i = p.thread * 4; i < OWN * HW; i += 128)
        to.put16(i * 4, *(const uint4 *)(part + (p.warp * OWN + i / HW) * PART + i % HW));
    wait(p, CTAS * OWN * HW * 4);
    mark(p, 9);
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
    int32_t *z = (int32_t *)(p.m + AT_PART), *l = z + DP; /* free at this time */
    int8_t *a = (int8_t *)(p.m + AT_A);
    uint4 w[DP / 64];
    const int member = p.warp * 8 + (p.thread >> 2), token = c * 128 + member;
    const int32_t scale = model.member_m[token], bias = model.member_b[token];
    const int8_t *from = model.embed_w + ((int64_t)c * 16 + p.warp) * 8 * DP + p.thread * 16;
#pragma unroll
    for (int i = 0; i < DP / 64; i++) w[i] = *(const uint4 *)(from + i * 512);
    if (p.warp == 0) {
        const int32_t *x = (const int32_t *)(p.m + AT_X) + k * DP;
        const int32_t m = model.shift_m[c];
        for (int i = p.thread; i < DP; i += 32)
            z[i] = i < D ? clamp_to(x[i] + shift(model.shift_w[(int64_t)c * D + i], m), RESIDUAL_MAX) : 0;
        __syncwarp();
        norm_row(z, a, p.thread);
    }
    __syncthreads();
    int32_t dot = 0;
#pragma unroll
    for (int i = 0; i < DP / 64; i++) {
        const uint4 v = *(const uint4 *)(a + i * 64 + (p.thread & 3) * 16);
        dot = dot4(v.x, w[i].x, dot4(v.y, w[i].y, dot4(v.z, w[i].z, dot4(v.w, w[i].w, dot))));
    }
    dot += __shfl_xor_sync(FULL, dot, 1);
    dot += __shfl_xor_sync(FULL, dot, 2);
    if ((p.thread & 3) == 0) l[member] = scaled(dot, scale) + bias;
    __syncthreads();
    uint32_t *sums = (uint32_t *)(p.m + AT_STAGE);
    if (p.warp == 0) {
        const int32_t mine[4] = {l[p.thread * 4], l[p.thread * 4 + 1], l[p.thread * 4 + 2], l[p.thread * 4 + 3]};
        cumulate<4>(mine, 128, (const int32_t *)(p.m + AT_EXP), sums, p.thread);
    }
    __syncthreads();
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
               0,
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
            mark(p, 0);
            norm_rows(p);
            mark(p, 1);
            make_heads(p, model, layer, qkv);
            mark(p, 2);
            attend_cluster(p, layer, memory, cache, s.L, key, key + s.L);
            out.load(model.out_w[layer], p.rank, p.warp, p.thread);
            wait(p, s.L * HEADS * HD);
            mark(p, 10);
            add_residual(p, out, p.m + AT_O, O_PITCH, scale + SCALE_OUT);
            mark(p, 11);
            upper.load(model.up_w[layer], p.rank, p.warp, p.thread);
            wait(p, LANES * DP * 4);
            mark(p, 12);
            norm_rows(p);
            mark(p, 13);
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
            mark(p, 14);
            const Sender hidden = sender(p, p.m + AT_H + upper.first * 8);
            for (int i = p.thread; i < LANES * ShareUp::NT / 2; i += 32) {
                const int r = i / (ShareUp::NT / 2), n = i % (ShareUp::NT / 2);
                if (upper.first + 2 * n < FP / 8)
                    hidden.put16(r * H_PITCH + n * 16, *(const uint4 *)(p.m + AT_STAGE + i * 16));
            }
            down.load(model.down_w[layer], p.rank, p.warp, p.thread);
            wait(p, LANES * FP);
            mark(p, 15);
            add_residual(p, down, p.m + AT_H, H_PITCH, scale + SCALE_DOWN);
            mark(p, 16);
            if (layer + 1 < LAYERS) {
                if (p.rank < HEADS + 2 * KV)
                    qkv.load(model.qkv_w[layer + 1] + (int64_t)p.rank * HD * DP, 0, p.warp, p.thread);
            } else {
                head.load(model.class_w, 0, p.warp, p.thread);
            }
            wait(p, LANES * DP * 4);
            mark(p, 17);
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
        mark(p, 18);
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
        mark(p, 19);
        for (int k = p.rank; k < active; k += CTAS) make_members(p, model, k, found[k]);
        mark(p, 20);
        wait(p, active * 132 * 4);
        mark(p, 21);
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
        mark(p, 22);
        if (*error) break;
    }
    cluster_arrive(); /* nobody leaves while others write to its memory */
    cluster_wait();
    if (p.rank || p.warp) return;
    if (p.thread) return;
    const Coder coder = *kept;
    Session &to = sessions[held];
    to.lower = coder.lower;
    to.range = coder.range;
    to.point = coder.point;
    to.place = coder.place;
    to.step =
        s.C - 1; /* as after the last step of an iteration of batch.cu: remember() and collect() go on from there */
    pieces[slot] = Piece{held, 0, s.L, s.C - 1};
    if (coder.error) {
        to.error = coder.error;
        if (atomicCAS(&state->error, 0, coder.error) == 0) state->failed = held;
    }
    atomicAdd((unsigned long long *)&state->tokens, (unsigned long long)s.size);
}
#endif

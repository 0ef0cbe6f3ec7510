/* One session: one kernel decodes a whole block on the whole GPU.
 *
 * P_GRID clusters of 16 CTAs. A CTA's place in its cluster is the lane it stands for, and where there are more than 16,
 * also the lane 16 further on: it keeps their residuals, one channel a thread, and norms them. Its cluster stands for
 * some heads and for a slice of the hidden layer. A layer is then
 *
 *     queries, keys, values of the lane and the cluster's heads | D | highest scores | D | sums | D | shares times
 * values | D | the output's part of these heads | L | norm | D | hidden slice | D | its part of the residual | L | norm
 *
 * with D an exchange within the cluster (its shared memory, cluster.cu) and L one between clusters (through L2): sums
 * that others add up, each word with a mark of the exchange it belongs to, so that a reader waits for the words
 * themselves and nothing has to be ordered. The first cluster decodes the symbols and gives the tokens to the others.
 *
 * Weights are loaded from L2 into registers while an exchange is under way. Keys are dealt out to the CTAs of a cluster
 * 32 at a time; the keys of a CTA's last group, which still grows, lie in shared memory too.
 *
 * Compiled for 16 lanes and for 32 (Grid<1>, Grid<2>). A step's time goes with the stages, hardly with the lanes: rows
 * of the second half take the same weights, and their instructions stand between those of the first.
 */
#include "cluster.cuh"
#if P_GRID > 0 && (defined(PLTZ_EMULATE) || __CUDA_ARCH__ >= 900)
namespace grid {

enum {
    CLUSTERS = P_GRID,
    HEADS_EACH = P_GRID_HEADS,
    BUSY = HEADS / HEADS_EACH, /* clusters that have heads */
    KV_EACH = HEADS_EACH > GROUP ? HEADS_EACH / GROUP : 1,
    ITEMS = HEADS_EACH + 2 * KV_EACH, /* rows of 64 bytes a lane and cluster make */
    HT = HD / 8,
    CHUNKS = DP / 64,
    OUT_CHUNKS = HEADS_EACH * HD % 64 ? (HEADS_EACH * HD + 62) / 64 + 1
                                      : HEADS_EACH * HD / 64, /* that the heads of a cluster touch */
    UT = (FP / 8 + CLUSTERS * CTAS - 1) / (CLUSTERS * CTAS),
    DT = (DP / 8 + CTAS - 1) / CTAS, /* tiles a CTA: up, down */
    SLICE = CTAS * UT * 8,
    H_WIDE = pitch(SLICE), /* hidden values of a cluster */
    GROUPS = P_GRID_GROUPS,
    PIECES = GROUPS * 4 / WARPS, /* groups of 32 keys a CTA, at most; pieces of 8 keys a warp */
};
static_assert(GROUPS % 4 == 0, "as many pieces a warp, even and odd groups");
static_assert(HEADS % HEADS_EACH == 0 && (GROUP % HEADS_EACH == 0 || HEADS_EACH % GROUP == 0) && BUSY <= CLUSTERS,
              "heads are dealt out evenly");
static_assert(HD % 8 == 0 && DP <= THREADS && ITEMS <= WARPS, "a thread a channel, a warp an item");
static_assert((int64_t)SLICE * 254 * 127 < 1 << 27 && (int64_t)HEADS_EACH * HD * 127 * 127 < 1 << 27,
              "a part and its mark fit a word");

/* Calls f(i) for this one's share of 0 .. N - 1 among OF: no loop where they are enough (the kernel's time goes with
 * its length). */
template <int N, int OF, class F> DEV void each(int one, F f) {
#pragma unroll
    for (int i = 0; i < N; i += OF) {
        if (i + OF <= N || one + i < N) f(one + i);
    }
}
/* Inputs of a product split so that the warps have equal and little work. */
DEV constexpr int cost(int tiles, int chunks, int splits) {
    return (tiles * splits + WARPS - 1) / WARPS * ((chunks + splits - 1) / splits);
}
DEV constexpr int best_split(int tiles, int chunks, int splits = 1, int best = 1) {
    return splits > chunks ? best
                           : best_split(tiles, chunks, splits + 1,
                                        cost(tiles, chunks, splits) < cost(tiles, chunks, best) ? splits : best);
}
/* TILES x CHUNKS of weights in the registers of a CTA: warp w has the strips w, w + 16, .. (tile, part of the inputs).
 */
template <int TILES, int CHUNKS> struct Strip {
    enum {
        SPLITS = best_split(TILES, CHUNKS),
        EACH = (TILES * SPLITS + WARPS - 1) / WARPS,
        LONG = (CHUNKS + SPLITS - 1) / SPLITS,
        COUNT = EACH * LONG,
        PIECES = COUNT * WARPS
    };
    uint4 w[COUNT];
    DEV static int tile(int warp, int i) { return (warp + i * WARPS) % TILES; }
    DEV static int first(int warp, int i) { /* chunk of strip i */
        if ((i * WARPS + WARPS - 1) / TILES == i * WARPS / TILES)
            return i * WARPS / TILES * LONG; /* all warps have the same part: known when compiled */
        return (int)((unsigned)(warp + i * WARPS) / TILES * LONG);
    }
    DEV static bool has(int warp, int i) { return TILES * SPLITS % WARPS == 0 || warp + i * WARPS < TILES * SPLITS; }
    /* Where the pieces of the warps lie, once: places (PIECES). from(tile): number of the tile in the tensor, of `all`;
     * its chunks begin at `begin` of `wide`. What lies outside is read from inside: it meets zeros, or its sums go
     * unused. */
    template <class F> DEV static void place(int tid, int32_t *places, int all, int wide, int begin, F from) {
        for (int n = tid; n < PIECES; n += THREADS) {
            const int warp = n % WARPS, i = n / WARPS / LONG, chunk = first(warp, i) + n / WARPS % LONG;
            places[n] =
                (least(from(tile(warp, i)), all - 1) * wide + least(begin + least(chunk, CHUNKS - 1), wide - 1)) * 512;
        }
    }
    DEV void load(const Place &p, const int32_t *places, const int8_t *from) { load<0, 1>(p, places, from); }
    template <int PART, int PARTS> DEV void load(const Place &p, const int32_t *places, const int8_t *from) {
#pragma unroll
        for (int i = EACH * LONG * PART / PARTS; i < EACH * LONG * (PART + 1) / PARTS; i++)
            w[i] = *(const uint4 *)(from + (places[i * WARPS + p.warp] + p.thread * 16));
    }
    /* Times N rows, `stride` apart: of each, sums [split][tile][row of the tile][quarter of a chunk], for total(). */
    template <int N> DEV void row(const Place &p, const uint8_t *a, int stride, int32_t *sums) const {
        int32_t out[EACH][N]; /* stored when all is loaded: the compiler leaves a load behind a store, or a branch,
                                 where it stands */
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool here = has(p.warp, i);
#pragma unroll
            for (int r = 0; r < N; r++) {
                int32_t dot[2] = {0, 0};
#pragma unroll
                for (int c = 0; c < LONG; c++) {
                    int chunk = first(p.warp, i) + c;
                    if (CHUNKS % SPLITS && chunk >= CHUNKS) continue;
                    if (!here) chunk = 0; /* a product that goes unused */
                    const uint4 v = *(const uint4 *)(a + r * stride + chunk * 64 + (p.thread & 3) * 16),
                                f = w[i * LONG + c];
                    dot[0] = dot4(v.x, f.x, dot4(v.y, f.y, dot[0]));
                    dot[1] = dot4(v.z, f.z, dot4(v.w, f.w, dot[1]));
                }
                out[i][r] = dot[0] + dot[1];
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!has(p.warp, i)) continue;
#pragma unroll
            for (int r = 0; r < N; r++) sums[r * ROW_SUMS + (p.warp + i * WARPS) * 32 + p.thread] = out[i][r];
        }
    }
    DEV static int32_t total(const int32_t *sums, int n) {
        int32_t all = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) {
            const int4 v = *(const int4 *)(sums + (s * TILES * 8 + n) * 4);
            all += v.x + v.y + v.z + v.w;
        }
        return all;
    }
    /* Times N x 16 rows: sums [split][N * 16][WIDE], for totals(). */
    template <int N, bool UNSIGNED> DEV void rows(const Place &p, const uint8_t *a, int stride, int32_t *sums) const {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (!has(p.warp, i)) continue;
#pragma unroll
            for (int r = 0; r < N; r++) {
                int32_t c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
                const uint8_t *row = a + (r * 16 + (p.thread >> 2)) * stride + (p.thread & 3) * 16;
#pragma unroll
                for (int n = 0; n < LONG; n++) {
                    const int chunk = first(p.warp, i) + n;
                    if (CHUNKS % SPLITS && chunk >= CHUNKS) continue;
                    const uint4 x = *(const uint4 *)(row + chunk * 64),
                                y = *(const uint4 *)(row + 8 * stride + chunk * 64), b = w[i * LONG + n];
                    if (UNSIGNED) {
                        mma_u8(c[0], x.x, y.x, x.y, y.y, b.x, b.y);
                        mma_u8(c[1], x.z, y.z, x.w, y.w, b.z, b.w);
                    } else {
                        mma_s8(c[0], x.x, y.x, x.y, y.y, b.x, b.y);
                        mma_s8(c[1], x.z, y.z, x.w, y.w, b.z, b.w);
                    }
                }
                int32_t *to = sums + ((first(p.warp, i) / LONG * N + r) * 16 + (p.thread >> 2)) * WIDE +
                              tile(p.warp, i) * 8 + (p.thread & 3) * 2;
                *(int2 *)to = make_int2(c[0][0] + c[1][0], c[0][1] + c[1][1]);
                *(int2 *)(to + 8 * WIDE) = make_int2(c[0][2] + c[1][2], c[0][3] + c[1][3]);
            }
        }
    }
    template <int N> DEV static int32_t totals(const int32_t *sums, int row, int n) {
        int32_t all = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) all += sums[(s * N * 16 + row) * WIDE + n];
        return all;
    }
    enum { ROW_SUMS = EACH * WARPS * 32, WIDE = TILES * 8 + 8, TILE_SUMS = SPLITS * 16 * WIDE };
};
/* sender() and wait() of cluster.cu, with the meeting point, of which exchanges take turns at two, known when compiled:
 * a layer has an even number of exchanges, and so has the head of a step. p.round counts pairs of them here. */
template <int WHICH> DEV Sender sender(const Place &p, const void *to) {
    return Sender{peer(to, p.warp), peer(p.meeting + WHICH, p.warp)};
}
template <int WHICH> DEV void wait(const Place &p, uint32_t bytes) {
    forget(p);
    if (p.tid == 0) meeting_expect(p.meeting, WHICH, bytes);
    meeting_wait(p.meeting, p.round * 2 + WHICH);
    p.round += WHICH;
}
typedef Strip<ITEMS * HT, CHUNKS> Qkv;
typedef Strip<DP / 8, OUT_CHUNKS> Out;
typedef Strip<UT, CHUNKS> Up;
typedef Strip<DT, SLICE / 64> Down;
typedef Strip<CP / 8, CHUNKS> Class;
typedef Strip<16, CHUNKS> Member;

/* key_scale() without double, for sums up to 2^28 (8192 keys). A first quotient by float is within 2^-21 of the right
 * one, which is below 2^25 where it counts, so what it leaves fits 32 bits, and the quotient of that sets it right to
 * within 1. */
DEV uint32_t key_scale_short(uint32_t sum) {
    const uint32_t d = max(sum, 1u), most = (1u << 25) - 512;
    const float inverse = near_inverse((float)d);
    const uint32_t q = (uint32_t)min(inverse * 1099511627776.0f, 2147483392.0f);
    const int32_t rest = (int32_t)(0u - q * d), more = (int32_t)floorf((float)rest * inverse),
                  left = rest - more * (int32_t)d;
    const uint32_t out = q + (uint32_t)more + (left >= (int32_t)d ? 1 : 0) - (left < 0 ? 1 : 0);
    return sum < 32769 ? most : min(out, most);
}
/* How many of the new keys, `lanes` from `key` on, the CTA `rank` keeps. */
DEV int owned_lanes(int key, int lanes, int rank) {
    const int here = least(lanes, 32 - key % 32);
    return (key / 32 % CTAS == rank ? here : 0) + ((key / 32 + 1) % CTAS == rank ? lanes - here : 0);
}
enum { VALUES_WIDE = 80 }; /* bytes between new values: no bank is met twice when they are read */
struct Keeper { /* where this CTA finds groups of keys */
    const Cache &cache;
    int8_t *memory, *fresh; /* fresh: (KV_EACH, 2048) of the layer */
    int layer, first_kv, newest; /* newest: the group whose keys lie in `fresh`, or -1 */
    DEV int8_t *keys(int kv) const { return keys_of(cache, memory, layer, first_kv + kv); }
    DEV int8_t *values(int kv) const { return keys(kv) + cache.room * HW; }
    /* The values of new keys, `lanes` from `key` on, those of the newest group, into the cache. rows: (KV_EACH, LANES,
     * VALUES_WIDE). */
    template <int LANES> DEV void put_values(const uint8_t *rows, int key, int lanes, int tid) const {
        if ((key | lanes) % 16 == 0) { /* 16 and 16: a thread turns 4 dims of 4 keys */
            each<KV_EACH * LANES * 4, THREADS>(tid, [&](unsigned i) {
                const int t = i & 3, quad = i >> 2 & 15, lane = i >> 6 << 4 & LANES - 1, kv = i / (LANES * 4),
                          slot = key + lane + t * 2;
                if (lane >= lanes || slot / 32 != newest) return;
                const uint8_t *from = rows + (kv * LANES + lane + t * 2) * VALUES_WIDE + quad * 4;
                const uint32_t a = *(const uint32_t *)from, b = *(const uint32_t *)(from + VALUES_WIDE),
                               c = *(const uint32_t *)(from + 8 * VALUES_WIDE),
                               d = *(const uint32_t *)(from + 9 * VALUES_WIDE);
                const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140),
                               ab2 = __byte_perm(a, b, 0x7362), cd2 = __byte_perm(c, d, 0x7362);
                int8_t *to = values(kv) + value_place(slot, quad * 4);
                *(uint32_t *)to = __byte_perm(ab, cd, 0x5410);
                *(uint32_t *)(to + 64) = __byte_perm(ab, cd, 0x7632);
                *(uint32_t *)(to + 128) = __byte_perm(ab2, cd2, 0x5410);
                *(uint32_t *)(to + 192) = __byte_perm(ab2, cd2, 0x7632);
            });
            return;
        }
#pragma unroll 1
        for (int i = tid; i < KV_EACH * LANES * 64; i += THREADS) {
            const int kv = i / (LANES * 64), lane = i / 64 % LANES, slot = key + lane;
            if (lane < lanes && slot / 32 == newest)
                values(kv)[value_place(slot, i % 64)] = (int8_t)rows[i / 64 * VALUES_WIDE + i % 64];
        }
    }
    /* The newest group's keys to where they are looked for once it is no longer the newest. */
    DEV void put_keys(int tid) const {
        each<KV_EACH * 128, THREADS>(tid, [&](int i) {
            ((uint4 *)(keys(i / 128) + (int64_t)newest * 2048))[i % 128] = ((const uint4 *)fresh)[i];
        });
    }
};
DEV uint32_t marked(int32_t v, uint32_t mark) { return (uint32_t)v << 4 | mark; }

/* The kernel for CTAs that stand for OWN lanes each: lanes rank, rank + 16, .. */
template <int OWN> struct Grid {
    enum { /* shared memory */
           LANES = OWN * CTAS,
           AT_ROW = 0,                                           /* norms of the own lanes (OWN, DP) */
           AT_A = AT_ROW + OWN * DP,                             /* of all lanes (LANES, A_PITCH) */
           AT_HIDDEN = AT_A + LANES * A_PITCH,                   /* (LANES, H_WIDE) */
           AT_O = AT_HIDDEN +
               LANES * H_WIDE, /* attention output of the own lanes (OWN, OUT_CHUNKS, 64), zeros between heads */
           AT_Q = AT_O + OWN * OUT_CHUNKS * 64, /* queries of the cluster's heads (HEADS_EACH, LANES, 64) */
           AT_NEW = AT_Q + HEADS_EACH * LANES * 64, /* new values that this CTA keeps (KV_EACH, LANES, VALUES_WIDE) */
           AT_TALLY = AT_NEW +
               KV_EACH * LANES *
                   VALUES_WIDE, /* highest scores and sums of the rows, in all CTAs and in this one: (4, 2, ROWS) */
           ROWS = HEADS_EACH * LANES,
           MOST = 0,
           SUM = 2 * ROWS,
           MY_MOST = 4 * ROWS,
           MY_SUM = 6 * ROWS, /* layers take turns at the two of each */
           AT_PARTS = AT_TALLY +
               8 * ROWS * 4, /* of each CTA, shares times values of the own lanes (16, OWN, HEADS_EACH, 64) */
           AT_HALVES = AT_PARTS +
               CTAS * OWN * HEADS_EACH *
                   256, /* own shares times values, even and odd groups (2, HEADS_EACH, LANES, PART) */
           AT_SHARES = AT_HALVES +
               2 * HEADS_EACH * LANES * PART *
                   4, /* fragments of shares, low and high bytes (HEADS_EACH, OWN, GROUPS, 2, 512) */
           AT_ROWS = AT_SHARES +
               most_of(HEADS_EACH * OWN * GROUPS * 1024,
                       OWN *(Up::TILE_SUMS + Down::TILE_SUMS) * 4), /* sums of products of the own rows */
           ROWS_SIZE = OWN * most_of(most_of(Qkv::ROW_SUMS, Out::ROW_SUMS), most_of(Class::ROW_SUMS, Member::ROW_SUMS)),
           AT_UP = AT_SHARES, /* sums of products of all rows, used while SHARES is not */
           AT_DOWN = AT_UP + OWN * Up::TILE_SUMS * 4,
           AT_STAGE = AT_ROWS + ROWS_SIZE * 4, /* what goes to the other CTAs */
           AT_MADE = AT_STAGE +
               LANES * UT * 8, /* queries, keys, values of the own lanes (OWN, ITEMS, 64), zeros beyond HD */
           AT_CUM = AT_MADE + OWN * ITEMS * 64, /* cumulative frequencies (2, LANES, SUMS): classes, members */
           AT_OWN = AT_CUM + 2 * LANES * SUMS * 4, /* of the own lanes */
           AT_WEIGHTS = AT_OWN + OWN * SUMS * 4, /* of keys (WEIGHTS) */
           AT_EXP = AT_WEIGHTS + WEIGHTS * 4,
           AT_HEAT = AT_EXP + 256, /* (LAYERS, HEADS_EACH) */
           AT_NORM = (AT_HEAT + LAYERS * HEADS_EACH * 4 + 31) / 32 * 32, /* sums of squares of the warps (OWN, 16) */
           AT_STEP = AT_NORM + OWN * 128, /* classes, tokens of the lanes; error */
           AT_CODER = AT_STEP + OWN * 128 + 128,
           AT_SCALE = AT_CODER - 64, /* of the norms of the own lanes */
           AT_MEETING = AT_CODER + 64 + 32,
           AT_PLACES = AT_MEETING + 32, /* where the pieces of weights lie: of Qkv, Out, Up, Down, Class, Member */
           PLACES_OUT = Qkv::PIECES,
           PLACES_UP = PLACES_OUT + Out::PIECES,
           PLACES_DOWN = PLACES_UP + Up::PIECES,
           PLACES_CLASS = PLACES_DOWN + Down::PIECES,
           PLACES_MEMBER = PLACES_CLASS + Class::PIECES,
           AT_FRESH = (AT_PLACES + (PLACES_MEMBER + Member::PIECES) * 4 + 127) / 128 *
               128, /* keys of the newest own group: (LAYERS, KV_EACH, 2048) */
           SHARED = AT_FRESH + LAYERS * KV_EACH * 2048,
    };
    static_assert(AT_MEETING % 32 == 0 && OWN * ITEMS <= WARPS && LANES <= 32,
                  "a warp an item of a lane; a thread a lane");

    /* Words between clusters. A word of a part: value << 4 | mark. Of a token: token | stop << 16 | mark << 17. Two
     * copies of each buffer, in turn; a copy is written again only after all have sent what they made of its content
     * before. */
    struct Wire {
        uint32_t out[2][LANES][CLUSTERS][DP], down[2][LANES][CLUSTERS][DP], token[2][LANES];
    };
    static_assert(sizeof(Wire) == (size_t)LANES * P_GRID_WIRE, "pack.py: grid_plan");

    /* Sums the parts of `n` clusters of this thread's channel, for the own lanes; from: of the first of them. */
    template <int N> DEV static void collect_parts(const uint32_t *from, uint32_t mark, int32_t all[OWN]) {
        uint32_t v[OWN][N];
        bool whole;
        do {
            whole = true;
#pragma unroll
            for (int i = 0; i < OWN * N; i++)
                v[i / N][i % N] = wire_load(from + (i / N * CTAS * CLUSTERS + i % N) * DP);
#pragma unroll
            for (int i = 0; i < OWN * N; i++) whole = whole && (v[i / N][i % N] & 15) == mark;
        } while (!whole && breathe());
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            all[r] = 0;
#pragma unroll
            for (int i = 0; i < N; i++) all[r] += (int32_t)v[r][i] >> 4;
        }
    }

    /* Norms of the rows whose channel `tid` is x, into AT_ROW. */
    DEV static void norm_lanes(const Place &p, const int32_t x[OWN]) {
        uint2 *sums = (uint2 *)(p.m + AT_NORM);
        double early[OWN];
#pragma unroll
        for (int r = 0; r < OWN; r++) early[r] = (double)x[r];
        forget(early[0], early[OWN - 1]); /* else the conversion comes when the factor is here, and stands in its way */
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            const uint2 mine = sum_warp((uint64_t)((int64_t)x[r] * x[r]));
            if (p.thread == 0) sums[r * WARPS + p.warp] = mine;
        }
        __syncthreads();
        double *scale = (double *)(p.m + AT_SCALE);
        if (p.warp < OWN) { /* a warp a lane: all of them at once would take turns at the few units for double */
            const uint2 mine = p.thread < DP / 32 ? sums[p.warp * WARPS + p.thread] : make_uint2(0, 0);
            const uint2 total = make_uint2(__reduce_add_sync(FULL, mine.x), __reduce_add_sync(FULL, mine.y));
            const double own = norm_scale(joined(total), NORM_GAIN);
            if (p.thread == 0) scale[p.warp] = own;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            if (p.tid < DP) p.m[AT_ROW + r * DP + p.tid] = (uint8_t)norm_one(early[r], scale[r]);
        }
        __syncthreads();
    }

    /* Each row's number in this CTA to all CTAs, by put(sender, place, number), which joins it with what is there. */
    template <int WHICH, class F>
    DEV static void spread(const Place &p, const int32_t *mine, const int32_t *all, F put) {
        __syncthreads();
        const Sender to = sender<WHICH>(p, all);
        each<ROWS, 32>(p.thread, [&](int row) { put(to, row * 4, mine[row]); });
    }

    /* Attention of the cluster's heads over the keys of this CTA. A warp scores the keys `part` * 8 .. + 7 of every
     * fourth own group, so that few keys give all warps work too. Scores are negated, because queries arrive negated.
     * A number of the tally is set back once a __syncthreads has passed since it was read: it is joined again two
     * layers later. The stages are called in the order in which they stand here. */
    struct Attention {
        const Keeper &keep;
        int g, t, keys_all, count, part, first; /* count: own groups, which are rank, rank + 16, .. */
        uint32_t own_at; /* of this thread's copy of the weights of keys */
        int32_t *tally, *other; /* of this layer and of the next */
        uint32_t heat[HEADS_EACH], far[HEADS_EACH];
        int32_t c[HEADS_EACH * OWN][PIECES][4]; /* scores, then weights; of 16 lanes of a head each: tiles */

        DEV Attention(const Place &p, const Keeper &keep, int keys_all, int turn)
            : keep(keep), g(p.thread >> 2), t(p.thread & 3), keys_all(keys_all), part(p.warp & 3), first(p.warp >> 2) {
            const int groups = (keys_all + 31) / 32;
            count = groups > p.rank ? (groups - p.rank + CTAS - 1) / CTAS : 0;
            own_at = p.thread * 4;
            forget(own_at);
            int tally_at = AT_TALLY + turn * ROWS * 4, other_at = AT_TALLY + (turn ^ 1) * ROWS * 4;
            forget(tally_at);
            forget(other_at);
            tally = (int32_t *)(p.m + tally_at);
            other = (int32_t *)(p.m + other_at);
        }

        /* Scores of the own keys, and the lowest of each row in this CTA. Queries and new keys, of `bytes`, are under
         * way. */
        DEV void score(const Place &p, uint32_t bytes) {
            const int key_at = part * 512 + p.thread * 16;
            uint4 k[KV_EACH][PIECES];
#pragma unroll
            for (int kv = 0; kv < KV_EACH; kv++) {
#pragma unroll
                for (int i = 0; i < PIECES; i++) {
                    const int n = first + i * 4, group = p.rank + n * CTAS;
                    k[kv][i] = make_uint4(0, 0, 0, 0);
                    if (n < count && group != keep.newest)
                        k[kv][i] = *(const uint4 *)(keep.keys(kv) + (int64_t)group * 2048 + key_at);
                }
            }
            wait<0>(p, bytes);
#pragma unroll
            for (int h = 0; h < HEADS_EACH; h++) {
                heat[h] = ((const uint32_t *)(p.m + AT_HEAT))[keep.layer * HEADS_EACH + h];
                far[h] = far_enough(heat[h]);
            }
#pragma unroll
            for (int h = 0; h < HEADS_EACH * OWN; h++) {
                const int kv = h / OWN * KV_EACH / HEADS_EACH;
                const uint8_t *rows = p.m + AT_Q + (h * 16 + g) * 64 + t * 16;
                const uint4 a = *(const uint4 *)rows, b = *(const uint4 *)(rows + 512);
                uint32_t f[8] = {a.x, b.x, a.y, b.y, a.z, b.z, a.w, b.w};
#pragma unroll
                for (int i = 0; i < 8; i++) forget(f[i]);
                int32_t low[2] = {0x7fffffff, 0x7fffffff};
#pragma unroll
                for (int i = 0; i < PIECES; i++) {
                    const int n = first + i * 4, group = p.rank + n * CTAS,
                              left = keys_all - group * 32 - part * 8 - t * 2;
                    if (n >= count) break;
                    if (h % OWN == 0 && group == keep.newest)
                        k[kv][i] = *(const uint4 *)(keep.fresh + kv * 2048 + key_at);
#pragma unroll
                    for (int e = 0; e < 4; e++) c[h][i][e] = 0;
                    mma_s8(c[h][i], f[0], f[1], f[2], f[3], k[kv][i].x, k[kv][i].y);
                    mma_s8(c[h][i], f[4], f[5], f[6], f[7], k[kv][i].z, k[kv][i].w);
                    if (group * 32 + 32 > keys_all) { /* not all are keys: the others get a score far below all keys */
#pragma unroll
                        for (int e = 0; e < 4; e++) c[h][i][e] = left > (e & 1) ? c[h][i][e] : 1 << 30;
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++) low[e >> 1] = min(low[e >> 1], c[h][i][e]);
                }
                int32_t mine =
                    t & 1 ? low[1] : low[0]; /* of the four threads of two rows, the odd ones go on with the second */
                mine = min(mine, __shfl_xor_sync(FULL, t & 1 ? low[0] : low[1], 1));
                mine = min(mine, __shfl_xor_sync(FULL, mine, 2));
                if (t < 2) atomicMin(&tally[MY_MOST + h * 16 + g + t * 8], mine);
            }
        }
        DEV void send_highest(const Place &p) const {
            spread<1>(p, tally + MY_MOST, tally + MOST, [](const Sender &to, int at, int32_t v) { to.least(at, v); });
            if (p.tid < ROWS) other[MY_MOST + p.tid] = 0x7fffffff;
        }

        /* Weights of the own keys, and their sum of each row in this CTA, which is sent. */
        DEV void weigh_keys(const Place &p) {
            wait<1>(p, HEADS_EACH * LANES * CTAS * 4);
#pragma unroll
            for (int h = 0; h < HEADS_EACH * OWN; h++) {
                uint32_t total[2] = {0, 0};
                int32_t low[2];
#pragma unroll
                for (int i = 0; i < 2; i++) low[i] = tally[MOST + h * 16 + g + i * 8];
#pragma unroll
                for (int i = 0; i < PIECES; i++) {
                    const int n = first + i * 4, left = keys_all - (p.rank + n * CTAS) * 32 - part * 8 - t * 2;
                    if (n >= count) break;
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const uint32_t w = key_weight((uint32_t)(c[h][i][e] - low[e >> 1]), far[h / OWN], heat[h / OWN],
                                                      p.m + AT_WEIGHTS, own_at);
                        c[h][i][e] = P_COLD && left <= (e & 1) ? 0 : (int32_t)w;
                        total[e >> 1] += (uint32_t)c[h][i][e];
                    }
                }
                uint32_t mine = t & 1 ? total[1] : total[0];
                mine += __shfl_xor_sync(FULL, t & 1 ? total[0] : total[1], 1);
                mine += __shfl_xor_sync(FULL, mine, 2);
                if (t < 2) atomicAdd(&tally[MY_SUM + h * 16 + g + t * 8], (int32_t)mine);
            }
            spread<0>(p, tally + MY_SUM, tally + SUM, [](const Sender &to, int at, int32_t v) { to.add(at, v); });
            if (p.tid < ROWS) {
                other[MY_SUM + p.tid] = 0;
                tally[MOST + p.tid] = 0x7fffffff;
            }
        }

        /* Shares of the own keys, as fragments in AT_SHARES: weights over their sum. */
        DEV void share(const Place &p) {
#pragma unroll
            for (int h = 0; h < HEADS_EACH; h++) {
                uint32_t own = 0; /* the scale of row t of this thread's 2 OWN; a row a thread */
#pragma unroll
                for (int i = 0; i < OWN * 2; i++) {
                    const int32_t sum = tally[SUM + h * LANES + g + i * 8];
                    if ((t & OWN * 2 - 1) == i) own = (uint32_t)sum;
                }
                own = key_scale_short(own) << 7;
#pragma unroll
                for (int r = 0; r < OWN; r++) {
                    const int n16 = h * OWN + r;
                    const uint32_t scale[2] = {__shfl_sync(FULL, own, (p.thread & ~3) + r * 2),
                                               __shfl_sync(FULL, own, (p.thread & ~3) + r * 2 + 1)};
#pragma unroll
                    for (int i = 0; i < PIECES; i++) {
                        const int n = first + i * 4;
                        if (n >= count) break;
                        uint8_t *to = p.m + AT_SHARES + (n16 * GROUPS + n) * 1024 + p.thread * 16 + (part >> 1) * 8 +
                                      (part & 1) * 2;
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const uint32_t two =
                                __byte_perm(key_share_of((uint32_t)c[n16][i][2 * e], scale[e]),
                                            key_share_of((uint32_t)c[n16][i][2 * e + 1], scale[e]), 0x5140);
                            *(uint16_t *)(to + e * 4) = (uint16_t)two; /* low bytes */
                            *(uint16_t *)(to + 512 + e * 4) = (uint16_t)(two >> 16);
                        }
                    }
                }
            }
        }

        /* Shares times values of the own keys. A warp has 8 dims of even or odd groups. The parts of each lane go to
         * the CTA that stands for it. The sums of weights are under way. */
        DEV void mix_values(const Place &p) {
            const int tile = p.warp & 7, half = p.warp >> 3;
            const int value_at = (tile >> 1) * 512 + p.thread * 16 + (tile & 1) * 8;
            uint2 v[KV_EACH][GROUPS / 2];
#pragma unroll
            for (int kv = 0; kv < KV_EACH; kv++) {
                const int8_t *from = keep.values(kv) + (p.rank + half * CTAS) * 2048 + value_at;
#pragma unroll
                for (int i = 0; i < GROUPS / 2; i++) {
                    v[kv][i] = make_uint2(0, 0);
                    if (i * 2 + half < count) v[kv][i] = *(const uint2 *)(from + i * 2 * CTAS * 2048);
                }
            }
            wait<0>(p, HEADS_EACH * LANES * CTAS * 4);
            int32_t lo[HEADS_EACH * OWN][4], hi[HEADS_EACH * OWN][4];
#pragma unroll
            for (int i = 0; i < HEADS_EACH * OWN * 4; i++) lo[i / 4][i % 4] = hi[i / 4][i % 4] = 0;
            share(p);
            __syncthreads();
            if (p.tid < ROWS) tally[SUM + p.tid] = 0;
            enum { AT_ONCE = 2 }; /* groups; one beyond the last has values of zero, so its shares do not count */
#pragma unroll
            for (int n = 0; n < GROUPS / 2; n += AT_ONCE) {
                if (n * 2 + half >= count) break;
                uint4 a[AT_ONCE][HEADS_EACH * OWN], b[AT_ONCE][HEADS_EACH * OWN];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
                    for (int h = 0; h < HEADS_EACH * OWN; h++) {
                        const uint8_t *from =
                            p.m + AT_SHARES + (h * GROUPS + (n + i) * 2 + half) * 1024 + p.thread * 16;
                        a[i][h] = *(const uint4 *)from;
                        b[i][h] = *(const uint4 *)(from + 512);
                    }
                }
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
#pragma unroll
                    for (int h = 0; h < HEADS_EACH * OWN; h++) {
                        const uint2 x = v[h / OWN * KV_EACH / HEADS_EACH][n + i];
                        mma_u8(lo[h], a[i][h].x, a[i][h].y, a[i][h].z, a[i][h].w, x.x, x.y);
                        mma_u8(hi[h], b[i][h].x, b[i][h].y, b[i][h].z, b[i][h].w, x.x, x.y);
                    }
                }
            }
            int32_t *halves = (int32_t *)(p.m + AT_HALVES);
#pragma unroll
            for (int h = 0; h < HEADS_EACH * OWN; h++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    *(int2 *)(halves + ((half * HEADS_EACH * OWN + h) * 16 + g + i * 8) * PART + tile * 8 + t * 2) =
                        make_int2(lo[h][2 * i] + (hi[h][2 * i] << 8), lo[h][2 * i + 1] + (hi[h][2 * i + 1] << 8));
                }
            }
            __syncthreads();
            const Sender to = sender<1>(p, p.m + AT_PARTS + p.rank * OWN * HEADS_EACH * 256);
            each<OWN * HEADS_EACH * 16, 32>(p.thread, [&](int i) {
                const int r = i / (HEADS_EACH * 16), h = i / 16 % HEADS_EACH;
                const int32_t *from = halves + ((h * OWN + r) * 16 + p.warp) * PART + i % 16 * 4;
                const uint4 a = *(const uint4 *)from, b = *(const uint4 *)(from + HEADS_EACH * LANES * PART);
                to.put16(i * 16, make_uint4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w));
            });
        }

        /* Adds up the parts of all CTAs: the output of the own lanes, in AT_O. */
        DEV void finish(const Place &p, int o_at) const {
            wait<1>(p, CTAS * OWN * HEADS_EACH * 256);
            each<OWN * HEADS_EACH * 64, THREADS>(p.tid, [&](int i) {
                int32_t total = 1 << 14;
#pragma unroll
                for (int b = 0; b < CTAS; b++)
                    total += ((const int32_t *)(p.m + AT_PARTS))[b * OWN * HEADS_EACH * 64 + i];
                const int r = i / (HEADS_EACH * 64), h = i / 64 % HEADS_EACH, dim = i % 64;
                if (dim < HD)
                    p.m[AT_O + r * OUT_CHUNKS * 64 + o_at + h * HD + dim] = (uint8_t)clamp_to(total >> 15, 127);
            });
            __syncthreads();
        }
    };

    /* The symbols of one step, as the first cluster decodes them. The first warp of each CTA has the range decoder. */
    struct Symbols {
        Coder coder;
        uint32_t following; /* words of the stream, one a thread; a symbol takes one at most */
        int used, active;
        int32_t cls; /* of lane `thread` */

        DEV void look(const Place &p) {
            following = coder.place + p.thread < coder.words ? coder.data[coder.place + p.thread] : 0;
        }
    };

    /* The decoder of one block of tokens. Every instruction of a layer runs once a layer, so its fetch counts: loops
     * that need not be are straight lines, and code for rare cases is left out (a layer of 62 kB: 27 ms per session; of
     * 32 kB: 21 ms). All members live in registers. */
    struct Decoder {
        const Model &model;
        const Session s;
        const Cache cache;
        int8_t *memory;
        int32_t *tokens; /* of all sessions */
        Wire *wire;
        const uint32_t epoch;
        Place p;
        const int cluster;
        const bool leads, busy; /* whether this cluster decodes the symbols; whether it has heads */
        const int head, first_kv;
        Coder *kept; /* in shared memory: the range decoder between steps, and what the step tells the CTA */
        int32_t *classes, *found, *error;
        int at[OWN], token[OWN]; /* of the own lanes: position in the session, input */
        int32_t x[OWN]; /* of the own lanes: the residual's channel of this thread */
        Qkv qkv;
        Out out;
        Up upper;
        Down down;
        Class head_class;
        const int channel, hidden_tile;
        int32_t *places;
        const int o_chunk, o_at;
        uint32_t phase;
        int32_t cosine, sine;
        int step, key, newest; /* key: the first of the step; newest: the last own group, where it is of this block */
        bool stop;

        DEV Decoder(const Model &model, const Session &session, const Cache &cache, int8_t *memory, int32_t *tokens,
                    Wire *wire, uint32_t epoch)
            : model(model), s(session), cache(cache), memory(memory), tokens(tokens), wire(wire), epoch(epoch),
              p{cluster_rank(),
                (int)threadIdx.x >> 5,
                (int)threadIdx.x & 31,
                (int)threadIdx.x,
                shared(),
                (uint64_t *)(shared() + AT_MEETING),
                0},
              cluster((int)blockIdx.x / CTAS), leads(cluster == 0), busy(cluster < BUSY),
              head(busy ? cluster * HEADS_EACH : 0), first_kv(head / GROUP), kept((Coder *)(p.m + AT_CODER)),
              classes((int32_t *)(p.m + AT_STEP)), found(classes + LANES),
              error(found + LANES), channel(p.tid < DP ? p.tid : 0), hidden_tile((cluster * CTAS + p.rank) * UT),
              places((int32_t *)(p.m + AT_PLACES)), o_chunk(cluster * HEADS_EACH * HD / 64),
              o_at(cluster * HEADS_EACH * HD - o_chunk * 64), step(0), stop(false) {}

        /* Clears and fills the shared memory; finds out which weights this thread loads, and loads the first of them.
         */
        DEV void open(const uint32_t *words) {
            for (int i = p.tid; i < SHARED / 4; i += THREADS) ((uint32_t *)p.m)[i] = 0;
            __syncthreads();
            if (p.tid == 0) {
                *kept = Coder{0, s.range, s.point - s.lower, s.place, s.words, words + s.word_at, 0};
                meeting_open(p.meeting);
            }
            for (int i = p.tid; i < 2 * ROWS; i += THREADS)
                ((int32_t *)(p.m + AT_TALLY))[MOST + i] = ((int32_t *)(p.m + AT_TALLY))[MY_MOST + i] = 0x7fffffff;
            for (int i = p.tid; i < 64; i += THREADS) ((int32_t *)(p.m + AT_EXP))[i] = model.exp[i];
            for (int i = p.tid; i < LAYERS * HEADS_EACH; i += THREADS) {
                ((int32_t *)(p.m + AT_HEAT))[i] = model.heat[i / HEADS_EACH][head + i % HEADS_EACH];
            }
            fill_weights((uint32_t *)(p.m + AT_WEIGHTS), model.exp, p.tid, THREADS);
            if (s.old % 32 && s.old / 32 % CTAS == p.rank) { /* a group begun by the block before */
                for (int i = p.tid; i < LAYERS * KV_EACH * 128; i += THREADS) {
                    const int at = i / 128;
                    const int8_t *from =
                        keys_of(cache, memory, at / KV_EACH, first_kv + at % KV_EACH) + (int64_t)(s.old / 32) * 2048;
                    ((uint4 *)(p.m + AT_FRESH))[i] = ((const uint4 *)from)[i % 128];
                }
            }
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                const int lane = p.rank + r * CTAS;
                at[r] = lane < s.L ? (int32_t)(s.start + lane_start(s, lane)) : 0;
                token[r] = lane == 0 && s.start ? tokens[s.token_at + s.start - 1] : 0;
            }
            Qkv::place(p.tid, places, QP / 8, CHUNKS, 0, [&](int tile) { return row_of(tile / HT) * HT + tile % HT; });
            Out::place(p.tid, places + PLACES_OUT, DP / 8, OP / 64, o_chunk, [&](int tile) { return tile; });
            Up::place(p.tid, places + PLACES_UP, FP / 8, CHUNKS, 0, [&](int tile) { return hidden_tile + tile; });
            Down::place(p.tid, places + PLACES_DOWN, DP / 8, FP / 64, cluster * (SLICE / 64),
                        [&](int tile) { return p.rank * DT + tile; });
            Class::place(p.tid, places + PLACES_CLASS, CP / 8, CHUNKS, 0, [&](int tile) { return tile; });
            Member::place(p.tid, places + PLACES_MEMBER, 16, CHUNKS, 0, [&](int tile) { return tile; });
            __syncthreads();
            if (busy) qkv.load(p, places, model.qkv_w[0]);
            cluster_arrive(); /* all have cleared their memory before anyone writes to it */
            cluster_wait();
            phase = p.thread < HD / 2 ? (uint32_t)model.phase[p.thread] : 0;
            turn_on(0);
        }
        /* The row of an item in the tensor of queries, keys and values, counted in heads. */
        DEV int row_of(int item) const {
            return item < HEADS_EACH             ? head + item
                   : item < HEADS_EACH + KV_EACH ? HEADS + first_kv + item - HEADS_EACH
                                                 : HEADS + KV + first_kv + item - HEADS_EACH - KV_EACH;
        }
        /* The angles of the position of the lane that this warp makes an item of, `ahead` steps on. */
        DEV void turn_on(int ahead) {
            const uint32_t j = (uint32_t)((p.warp < ITEMS ? at[0] : at[OWN - 1]) + ahead) * phase >> 10 & 1023;
            cosine = model.cosine[j];
            sine = model.sine[j];
        }
        /* The next product's weights, a third while each of three exchanges is under way: all at once would hold up the
         * words of others. Where there is room for them, those of the classes come into the registers of qkv, so that
         * no load stands under a condition: a register that may be loaded or may stay as it was is taken all the time,
         * also while attention needs it. */
        enum { SHARED_AHEAD = Class::COUNT <= Qkv::COUNT };
        DEV void load_ahead(int part, int layer) {
            if (SHARED_AHEAD) {
                const bool classes_next = layer + 1 == LAYERS && leads;
                const int8_t *from = classes_next ? model.class_w : model.qkv_w[layer + 1 < LAYERS ? layer + 1 : 0];
                const int32_t *where = places + (classes_next ? PLACES_CLASS : 0) + p.warp;
#pragma unroll
                for (int i = 0; i < Qkv::COUNT; i++) {
                    if (i * 3 / Qkv::COUNT != part) continue;
                    const int at = i < Class::COUNT ? where[i * WARPS] : where[classes_next ? 0 : i * WARPS];
                    qkv.w[i] = *(const uint4 *)(from + (at + p.thread * 16));
                }
            } else if (layer + 1 < LAYERS) {
                const int8_t *from = model.qkv_w[layer + 1];
                if (!busy) return;
                if (part == 0) qkv.template load<0, 3>(p, places, from);
                else if (part == 1) qkv.template load<1, 3>(p, places, from);
                else qkv.template load<2, 3>(p, places, from);
            } else if (leads) {
                if (part == 0) head_class.template load<0, 3>(p, places + PLACES_CLASS, model.class_w);
                else if (part == 1) head_class.template load<1, 3>(p, places + PLACES_CLASS, model.class_w);
                else head_class.template load<2, 3>(p, places + PLACES_CLASS, model.class_w);
            }
        }

        /* The step's inputs into the residual. */
        DEV void enter() {
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                x[r] = 0;
                if (p.tid < DP)
                    x[r] = entry(model.embed_w[(int64_t)(token[r] >> 3) * 8 * DP + (p.tid >> 6) * 512 +
                                               (token[r] & 7) * 64 + (p.tid & 63)],
                                 model.embed_m[token[r]]);
            }
            key = s.old + step * s.L;
            const int last = (key + s.L - 1) / 32;
            newest = last - ((last - p.rank) % CTAS + CTAS) % CTAS;
        }

        /* Queries, keys and values of the own lanes and the cluster's heads: queries to all CTAs, keys and values to
         * the CTAs that keep them. */
        DEV void make_heads(int layer) {
            const int row = row_of(p.warp % ITEMS);
            int32_t m[2] = {0, 0};
            if (p.warp < OWN * ITEMS && p.thread < HD / 2) {
                m[0] = model.qkv_m[layer][row * HD + p.thread];
                m[1] = model.qkv_m[layer][row * HD + p.thread + HD / 2];
            }
            norm_lanes(p, x);
            qkv.template row<OWN>(p, p.m + AT_ROW, DP, (int32_t *)(p.m + AT_ROWS));
            __syncthreads();
            if (p.warp < OWN * ITEMS) {
                const int item = p.warp % ITEMS;
                const int32_t *sums = (const int32_t *)(p.m + AT_ROWS) + p.warp / ITEMS * Qkv::ROW_SUMS;
                uint8_t *stage = p.m + AT_MADE + p.warp * 64;
                int32_t y[2] = {0, 0};
                if (p.thread < HD / 2) {
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        y[i] = clamp_to(scaled(Qkv::total(sums, item * HD + p.thread + i * (HD / 2)), m[i]), 32767);
                }
                if (item < HEADS_EACH + KV_EACH) {
                    const int32_t a = (y[0] * cosine - y[1] * sine + (1 << 13)) >> 14,
                                  b = (y[0] * sine + y[1] * cosine + (1 << 13)) >> 14;
                    const double scale =
                        norm_scale(joined(sum_warp((uint64_t)((int64_t)a * a + (int64_t)b * b))), HEAD_GAIN);
                    y[0] = norm_one(a, scale);
                    y[1] = norm_one(b, scale);
                } else {
                    y[0] = clamp_to(y[0], 127);
                    y[1] = clamp_to(y[1], 127);
                }
                if (p.thread < HD / 2) { /* bytes beyond HD stay zero */
                    const bool minus =
                        item < HEADS_EACH; /* scores are taken from the highest: queries go out negated */
                    stage[p.thread] = (uint8_t)(minus ? -y[0] : y[0]);
                    stage[p.thread + HD / 2] = (uint8_t)(minus ? -y[1] : y[1]);
                }
                __syncwarp();
                __syncwarp();
                const int kv = item - HEADS_EACH, lane = p.rank + p.warp / ITEMS * CTAS, piece = (p.thread & 3) * 16;
                const uint4 mine = *(const uint4 *)(stage + piece);
                if (item < HEADS_EACH) { /* to all */
#pragma unroll
                    for (int n = 0; n < CTAS; n += 8) {
                        const int to = n + (p.thread >> 2);
                        Sender{peer(p.m + AT_Q, to), peer(p.meeting, to)}.put16((item * LANES + lane) * 64 + piece,
                                                                                mine);
                    }
                } else if (p.thread < 4 && lane < s.L) { /* to the CTA that keeps it */
                    const unsigned slot = key + lane, to = slot / 32 % CTAS, row = slot % 32;
                    const int at = kv < KV_EACH ? AT_FRESH + (layer * KV_EACH + kv) * 2048 + row * 64
                                                : AT_NEW + ((kv - KV_EACH) * LANES + lane) * VALUES_WIDE;
                    Sender{peer(p.m, to), peer(p.meeting, to)}.put16(at + piece, mine);
                }
            }
        }

        /* Attention of the cluster's heads, and its part of the output's product, to the CTAs of the other clusters. */
        DEV void attend(int layer, uint32_t turn, uint32_t sign) {
            const Keeper keep = {cache, memory,   (int8_t *)(p.m + AT_FRESH) + layer * KV_EACH * 2048,
                                 layer, first_kv, newest >= s.old / 32 ? newest : -1};
            const int owned = owned_lanes(key, s.L, p.rank);
            Attention attention(p, keep, key + s.L, (int)turn);
            attention.score(p, HEADS_EACH * LANES * 64 + owned * KV_EACH * 128);
            attention.send_highest(p);
            out.load(p, places + PLACES_OUT, model.out_w[layer]); /* while the highest scores are under way */
            if (owned) keep.template put_values<LANES>(p.m + AT_NEW, key, s.L, p.tid);
            attention.weigh_keys(p);
            attention.mix_values(p);
            attention.finish(p, o_at);
            out.template row<OWN>(p, p.m + AT_O, OUT_CHUNKS * 64, (int32_t *)(p.m + AT_ROWS));
            __syncthreads();
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                const int32_t *sums = (const int32_t *)(p.m + AT_ROWS) + r * Out::ROW_SUMS;
                if (p.tid < DP)
                    wire_store(&wire->out[turn][p.rank + r * CTAS][cluster][p.tid],
                               marked(Out::total(sums, p.tid), sign));
            }
            if (owned) keep.put_keys(p.tid);
        }

        /* The parts of N clusters into the residual, once they are there. */
        template <int N> DEV void add_parts(const uint32_t *from, uint32_t sign, int32_t m) {
            int32_t parts[OWN];
            if (p.tid < DP) {
                collect_parts<N>(from, sign, parts);
#pragma unroll
                for (int r = 0; r < OWN; r++) x[r] = clamp_to(x[r] + scaled(parts[r], m), RESIDUAL_MAX);
            }
        }

        /* The cluster's slice of the hidden layer, and its part of what that adds to the residual, to the other
         * clusters. */
        DEV void run_hidden(int layer, uint32_t turn, uint32_t sign) {
            const int column = p.tid % (UT * 8); /* of the hidden values of this CTA, where there are few */
            const int32_t up_m = hidden_tile * 8 + column < FP ? model.up_m[layer][hidden_tile * 8 + column] : 0;
            norm_lanes(p, x);
            const Sender norms = sender<0>(p, p.m + AT_A + p.rank * A_PITCH);
            each<OWN * DP / 16, 32>(p.thread, [&](int i) {
                const int r = i / (DP / 16), column = i % (DP / 16) * 16;
                norms.put16(r * CTAS * A_PITCH + column, *(const uint4 *)(p.m + AT_ROW + r * DP + column));
            });
            down.load(p, places + PLACES_DOWN, model.down_w[layer]);
            load_ahead(0, layer);
            wait<0>(p, LANES * DP);
            upper.template rows<OWN, false>(p, p.m + AT_A, A_PITCH, (int32_t *)(p.m + AT_UP));
            __syncthreads();
            each<LANES * UT * 8, THREADS>(p.tid, [&](int i) {
                const int r = i / (UT * 8), c = i % (UT * 8);
                const int32_t m = LANES * UT * 8 <= THREADS || THREADS % (UT * 8) == 0 ? up_m
                                  : hidden_tile * 8 + c < FP ? model.up_m[layer][hidden_tile * 8 + c]
                                                             : 0;
                const uint32_t u = (uint32_t)min(
                    max(scaled(Up::template totals<OWN>((const int32_t *)(p.m + AT_UP), r, c), m), 0), 255);
                p.m[AT_STAGE + i] = (uint8_t)((u * u + 128) >> 8);
            });
            __syncthreads();
            const Sender hidden = sender<1>(p, p.m + AT_HIDDEN + p.rank * UT * 8);
            if (UT % 2)
                each<LANES * UT, 32>(p.thread, [&](int i) {
                    hidden.put8(i / UT * H_WIDE + i % UT * 8, *(const uint2 *)(p.m + AT_STAGE + i * 8));
                });
            else
                each<LANES * UT / 2, 32>(p.thread, [&](int i) {
                    hidden.put16(i * 2 / UT * H_WIDE + i * 2 % UT * 8, *(const uint4 *)(p.m + AT_STAGE + i * 16));
                });
            load_ahead(1, layer);
            wait<1>(p, LANES * SLICE);
            down.template rows<OWN, true>(p, p.m + AT_HIDDEN, H_WIDE, (int32_t *)(p.m + AT_DOWN));
            __syncthreads();
            each<LANES * DT * 8, THREADS>(p.tid, [&](int i) {
                const int r = i / (DT * 8), c = i % (DT * 8), to = p.rank * DT * 8 + c;
                if (to < DP)
                    wire_store(&wire->down[turn][r][cluster][to],
                               marked(Down::template totals<OWN>((const int32_t *)(p.m + AT_DOWN), r, c), sign));
            });
            load_ahead(2, layer);
        }

        /* One layer. After the last one the clusters that decode no symbols need no residual. */
        DEV void run_layer(int layer) {
            const uint32_t n = (epoch + (uint32_t)step) * LAYERS + (uint32_t)layer + 2, turn = n & 1,
                           sign = n >> 1 & 15;
            forget(p);
            const int32_t out_m = model.out_m[layer][channel];
            if (busy) {
                make_heads(layer);
                attend(layer, turn, sign);
            }
            upper.load(p, places + PLACES_UP, model.up_w[layer]);
            add_parts<BUSY>(&wire->out[turn][p.rank][0][p.tid], sign, out_m);
            const int32_t down_m = model.down_m[layer][channel];
            run_hidden(layer, turn, sign);
            if (layer + 1 == LAYERS && !leads) return;
            add_parts<CLUSTERS>(&wire->down[turn][p.rank][0][p.tid], sign, down_m);
        }

        /* First cluster: the classes of the step's tokens. */
        DEV void decode_classes(Symbols &symbols) {
#pragma unroll
            for (int i = 0; i < Class::COUNT && SHARED_AHEAD; i++) head_class.w[i] = qkv.w[i];
            uint32_t *cum = (uint32_t *)(p.m + AT_CUM), *own = (uint32_t *)(p.m + AT_OWN);
            int32_t *sums = (int32_t *)(p.m + AT_ROWS);
            const int active = symbols.active;
            int32_t m[PER] = {}, b[PER] = {}; /* set in any case, for the reason given at load_ahead() */
            if (p.warp == 0) {
                symbols.coder = *kept;
                symbols.look(p);
            }
            if (p.warp < OWN) {
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    const int c = p.thread * PER + i;
                    m[i] = c < CLASSES ? model.class_m[c] : 0;
                    b[i] = c < CLASSES ? model.class_b[c] : 0;
                }
            }
            norm_lanes(p, x);
            head_class.template row<OWN>(p, p.m + AT_ROW, DP, sums);
            __syncthreads();
            if (p.warp < OWN) {
                int32_t l[PER];
#pragma unroll
                for (int i = 0; i < PER; i++) {
                    const int c = p.thread * PER + i;
                    l[i] = c < CLASSES ? scaled(Class::total(sums + p.warp * Class::ROW_SUMS, c), m[i]) + b[i] : 0;
                }
                cumulate<PER>(l, CLASSES, (const int32_t *)(p.m + AT_EXP), own + p.warp * SUMS, p.thread);
            }
            __syncthreads();
            send_sums<0>(cum, own, SUMS, active);
            wait<0>(p, active * SUMS * 4);
            if (p.warp == 0) {
                symbols.cls = next_symbols<PER>(symbols.coder, cum, CLASSES, active, symbols.following, symbols.used,
                                                p.thread);
                if (p.thread < LANES) classes[p.thread] = symbols.cls;
                if (LANES > 16) { /* more than the 32 words at hand may be needed */
                    symbols.coder.place += symbols.used;
                    symbols.used = 0;
                    symbols.look(p);
                }
            }
            __syncthreads();
        }
        /* `size` cumulative frequencies of each own lane to all CTAs of the cluster. */
        template <int WHICH> DEV void send_sums(uint32_t *to_lanes, const uint32_t *own, int size, int active) const {
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                const int lane = p.rank + r * CTAS;
                if (lane >= active) continue;
                const Sender to = sender<WHICH>(p, to_lanes + lane * SUMS);
#pragma unroll 1
                for (int i = p.thread * 4; i < size; i += 128) to.put16(i * 4, *(const uint4 *)(own + r * SUMS + i));
            }
        }

        /* Cumulative frequencies of the members of the own lanes' classes, to all CTAs of the cluster. */
        DEV void weigh_members(int active) {
            uint32_t *cum = (uint32_t *)(p.m + AT_CUM), *own = (uint32_t *)(p.m + AT_OWN);
            int32_t *sums = (int32_t *)(p.m + AT_ROWS);
            Member member[OWN];
            int4 m4 = {0, 0, 0, 0}, b4 = {0, 0, 0, 0};
            int32_t z[OWN];
#pragma unroll
            for (int r = 0; r < OWN; r++) { /* of a lane that is not active: class 0, which nobody asks for */
                const int c = classes[p.rank + r * CTAS];
                int32_t more[2] = {0, 0}; /* first: all that comes after waits for the weights, which are many */
                if (p.tid < D) more[0] = model.shift_w[(int64_t)c * D + p.tid];
                if (p.tid < D) more[1] = model.shift_m[c];
                forget(more[0]);
                forget(more[1]);
                member[r].load(p, places + PLACES_MEMBER, model.embed_w + (int64_t)c * 128 * DP);
                z[r] = 0;
                if (p.tid < D) z[r] = clamp_to(x[r] + shift(more[0], more[1]), RESIDUAL_MAX);
                if (p.warp == r) {
                    m4 = *(const int4 *)(model.member_m + c * 128 + p.thread * 4);
                    b4 = *(const int4 *)(model.member_b + c * 128 + p.thread * 4);
                }
            }
            norm_lanes(p, z);
#pragma unroll
            for (int r = 0; r < OWN; r++)
                member[r].template row<1>(p, p.m + AT_ROW + r * DP, DP, sums + r * Member::ROW_SUMS);
            __syncthreads();
            if (p.warp < OWN) {
                const int32_t *mine = sums + p.warp * Member::ROW_SUMS;
                const int32_t l[4] = {scaled(Member::total(mine, p.thread * 4), m4.x) + b4.x,
                                      scaled(Member::total(mine, p.thread * 4 + 1), m4.y) + b4.y,
                                      scaled(Member::total(mine, p.thread * 4 + 2), m4.z) + b4.z,
                                      scaled(Member::total(mine, p.thread * 4 + 3), m4.w) + b4.w};
                cumulate<4>(l, 128, (const int32_t *)(p.m + AT_EXP), own + p.warp * SUMS, p.thread);
            }
            __syncthreads();
            send_sums<1>(cum + LANES * SUMS, own, 132, active);
        }

        /* First cluster: the members, and with them the step's tokens, to the other clusters. */
        DEV void decode_members(Symbols &symbols, uint32_t turn, uint32_t sign) {
            const int active = symbols.active;
            if (p.rank < active) weigh_members(active);
            wait<1>(p, active * 132 * 4);
            if (p.warp == 0) {
                Coder &coder = symbols.coder;
                const int32_t symbol = next_symbols<4>(coder, (const uint32_t *)(p.m + AT_CUM) + LANES * SUMS, 128,
                                                       active, symbols.following, symbols.used, p.thread);
                coder.place += symbols.used;
                __syncwarp(); /* all have read what thread 0 now writes */
                if (!coder.error && coder.place > s.most) coder.error = SPENT;
                if (p.thread < LANES) {
                    const int32_t one = p.thread < active ? symbols.cls * 128 + symbol : 0;
                    found[p.thread] = one;
                    if (p.thread % CTAS == p.rank) {
                        wire_store(&wire->token[turn][p.thread],
                                   (uint32_t)one | (coder.error ? 1u << 16 : 0) | sign << 17);
                        if (p.thread < active) tokens[s.token_at + (p.thread < CTAS ? at[0] : at[OWN - 1])] = one;
                    }
                }
                if (p.thread == 0) {
                    *kept = coder;
                    *error = coder.error;
                }
            }
            qkv.load(p, places, model.qkv_w[0]);
            __syncthreads();
#pragma unroll
            for (int r = 0; r < OWN; r++) token[r] = found[p.rank + r * CTAS];
            stop = *error != 0;
        }

        /* The other clusters: the step's tokens, as the first one sends them. */
        DEV void receive_tokens(uint32_t turn, uint32_t sign) {
            if (busy && !SHARED_AHEAD) qkv.load(p, places, model.qkv_w[0]);
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                uint32_t word;
                do word = wire_load(&wire->token[turn][p.rank + r * CTAS]);
                while (word >> 17 != sign && breathe());
                token[r] = (int32_t)(word & 0xffff);
                stop = word >> 16 & 1;
            }
        }

        DEV void run_step() {
            enter();
#pragma unroll 1
            for (int layer = 0; layer < LAYERS; layer++) run_layer(layer);
            forget(p);
            const uint32_t n = epoch + (uint32_t)step + 2, turn = n & 1, sign = n >> 1 & 0x7fff;
            turn_on(1);
            if (leads) {
                Symbols symbols = {{0, 0, 0, 0, 0, 0, 0}, 0, 0, active_lanes(s, step), 0};
                decode_classes(symbols);
                decode_members(symbols, turn, sign);
            } else {
                receive_tokens(turn, sign);
            }
#pragma unroll
            for (int r = 0; r < OWN; r++) at[r]++;
        }

        DEV void close(State *state, Session &to, int held, Piece *pieces) {
            cluster_arrive(); /* nobody leaves while others write to its memory */
            cluster_wait();
            if (blockIdx.x || p.tid) return;
            state->epoch = (int32_t)(epoch + (uint32_t)step);
            end_block(state, to, held, pieces[0], *kept);
        }
    };

    DEV static void decode(State *state, Session *sessions, const int32_t *slots, Piece *pieces, const Cache *caches,
                           int8_t *memory, const Model &model, const uint32_t *words, int32_t *tokens, Wire *wire) {
        const int held = slots[0];
        if (held < 0) return; /* in all CTAs */
        Decoder decoder(model, sessions[held], caches[0], memory, tokens, wire, (uint32_t)state->epoch);
        decoder.open(words);
        for (; decoder.step < decoder.s.C && !decoder.stop; decoder.step++) decoder.run_step();
        decoder.close(state, sessions[held], held, pieces);
    }
};
} // namespace grid

KERNEL(512)
decode_grid(State *state, Session *sessions, const int32_t *slots, Piece *pieces, const Cache *caches, int8_t *memory,
            const GRID_CONSTANT Model model, const uint32_t *words, int32_t *tokens, grid::Grid<1>::Wire *wire) {
    static_assert(grid::Grid<1>::SHARED == P_GRID_SHARED, "pack.py: grid_plan");
    grid::Grid<1>::decode(state, sessions, slots, pieces, caches, memory, model, words, tokens, wire);
}
#if P_GRID_LANES > 16
KERNEL(512)
decode_grid_wide(State *state, Session *sessions, const int32_t *slots, Piece *pieces, const Cache *caches,
                 int8_t *memory, const GRID_CONSTANT Model model, const uint32_t *words, int32_t *tokens,
                 grid::Grid<2>::Wire *wire) {
    static_assert(grid::Grid<2>::SHARED == P_GRID_WIDE_SHARED, "pack.py: grid_plan");
    grid::Grid<2>::decode(state, sessions, slots, pieces, caches, memory, model, words, tokens, wire);
}
#endif
#endif

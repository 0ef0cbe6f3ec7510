/* A cluster of 16 CTAs, for cluster.cu and grid.cu: its memory, its exchanges, its share of a product. */
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

struct Place { /* of this thread */
    mutable int rank, warp, thread, tid;
    uint8_t *m;
    uint64_t *meeting; /* of this CTA (common.cuh) */
    mutable uint32_t round; /* exchanges so far */
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
#endif

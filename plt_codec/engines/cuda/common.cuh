/* What all kernels share: the shape, the instructions, the pieces of the numeric contract, the range coder.
 *
 * The shape comes as macros (P_D, P_LAYERS, ...; pack.py). Every instruction that plain C++ lacks has a name here, and
 * emulate.h gives the same names on a CPU, so that the tests run these sources without a GPU.
 *
 * Layouts. A product multiplies chunks of 64 inputs: thread (g, t) = (thread / 4, thread % 4) of a warp holds the 16
 * bytes t * 16 .. t * 16 + 15 of row g, which are its fragments of two mma.m16n8k32 (the order of inputs within a chunk
 * is the same on both sides and changes no sum). Activations and keys are therefore plain rows; weights are tiles [row
 * / 8][k / 64][row % 8] [k % 64]; values are stored as the fragments that the product of weights and values reads
 * (value_place).
 */
#include "base.cuh"

#ifndef PLTZ_EMULATE

DEV void mma_s8(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV void mma_u8(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
DEV void copy16(void *to, const void *from) { /* global to shared, asynchronous */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}
DEV void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> DEV void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#if __CUDA_ARCH__ >= 900
DEV int cluster_rank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}
/* A meeting point of a CTA, two words of shared memory: one for even rounds, one for odd ones. Others send data
 * together with word of its arrival; a round is over when as many bytes have come as were expected. */
DEV void meeting_open(uint64_t *m) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(m)));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(m + 1)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEV void meeting_expect(uint64_t *m, uint32_t round, uint32_t bytes) { /* by one thread */
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(m + (round & 1))),
                 "r"(bytes)
                 : "memory");
}
DEV void meeting_wait(
    uint64_t *m,
    uint32_t round) { /* 20 ns: how long a thread may sleep between two looks; without, a step takes 1 % more */
    asm volatile(
        "{.reg .pred p;\n again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, 20;\n @!p bra again;}" ::"r"(
            shared_address(m + (round & 1))),
        "r"(round >> 1 & 1)
        : "memory");
}
/* From global memory, with word of its arrival; multiples of 16 bytes. It takes no turn among the loads of a
 * multiprocessor. */
DEV void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *m, uint32_t round) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(m + (round & 1)))
                 : "memory");
}
/* An address of this CTA's shared memory in CTA `rank` of the cluster. */
DEV uint32_t peer(const void *p, int rank) {
    uint32_t a;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared_address(p)), "r"(rank));
    return a;
}
DEV void send16(uint32_t to, uint4 v, uint32_t meeting) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to),
        "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(meeting)
        : "memory");
}
DEV void send8(uint32_t to, uint2 v, uint32_t meeting) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1,%2}, [%3];" ::"r"(to),
                 "r"(v.x), "r"(v.y), "r"(meeting)
                 : "memory");
}
/* The same, joined with what is there: added to it; the lower of both. */
DEV void send_sum(uint32_t to, int32_t v, uint32_t meeting) {
    asm volatile(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];" ::"r"(to),
        "r"(v), "r"(meeting)
        : "memory");
}
DEV void send_least(uint32_t to, int32_t v, uint32_t meeting) {
    asm volatile(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.s32 [%0], %1, [%2];" ::"r"(to),
        "r"(v), "r"(meeting)
        : "memory");
}
/* Into another CTA's shared memory: there once both have met. */
DEV void put4(uint32_t to, uint32_t v) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
DEV void put16(uint32_t to, uint4 v) {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
#endif
/* Words that CTAs of different clusters give each other through L2, without any order among them. */
DEV uint32_t wire_load(const uint32_t *from) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
    return v;
}
DEV uint2 wire_load2(const uint32_t *from) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
    return v;
}
DEV void wire_store(uint32_t *to, uint32_t v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v)); }
/* A word that says that what its CTA wrote before is there; who has read it, and then looks again, sees that. */
DEV void post(uint32_t *to, uint32_t v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
DEV void look_again() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEV bool breathe() { return true; } /* between two looks at a word */
DEV int32_t dot4(uint32_t a, uint32_t b, int32_t c) { return __dp4a((int32_t)a, (int32_t)b, c); }
DEV uint32_t shift_right(uint32_t v, uint32_t n) { /* 0 from n = 32 on */
    uint32_t out;
    asm("shr.u32 %0, %1, %2;" : "=r"(out) : "r"(v), "r"(n));
    return out;
}
DEV uint64_t multiply(uint32_t a, uint32_t b) { /* by one instruction; the compiler makes two of the same in C */
    uint64_t out;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(out) : "r"(a), "r"(b));
    return out;
}
DEV double near_inverse(double v) { /* to 2^-19 or better */
    double out;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(out) : "d"(v));
    return out;
}
DEV double near_inverse_root(double v) {
    double out;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(out) : "d"(v));
    return out;
}
DEV float near_inverse(float v) { /* to 2^-22 or better */
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}
DEV double whole(double v) { return __dadd_rd(v, 4503599627370496.0) - 4503599627370496.0; } /* floor, 0 <= v < 2^52 */
DEV int32_t low_word(double v) { return __double2loint(v); }
DEV void forget(double &a, double &b) { asm volatile("" : "+d"(a), "+d"(b)); } /* see cluster.cu */
#endif

enum {
    D = P_D,
    LAYERS = P_LAYERS,
    HEADS = P_HEADS,
    KV = P_KV,
    HD = P_HEAD,
    FF = P_HIDDEN,
    VOCAB = P_VOCAB,
    MEMORY = P_MEMORY,
    NORM_GAIN = P_NORM_GAIN,
    HEAD_GAIN = P_HEAD_GAIN,
    GATED = P_GATED,
    GATE_MAX = 511, /* contract 2 */
    GROUP = HEADS / KV,
    CLASSES = VOCAB / 128,
    HW = 64, /* HW: bytes a head takes, zeros after HD */
    DP = (D + 63) / 64 * 64,
    OP = (HEADS * HD + 63) / 64 * 64,
    FP = (FF + 63) / 64 * 64,
    QKV = (HEADS + 2 * KV) * HD,
    QP = (QKV + 63) / 64 * 64,
    CP = (CLASSES + 63) / 64 * 64,
    PER = (CLASSES + 31) / 32, /* classes a thread of a warp holds */
    SUMS = ((CLASSES > 128 ? CLASSES : 128) + 4) / 4 * 4, /* cumulative frequencies of a row */
    RESIDUAL_MAX = (1 << 22) - 1,
    LANES_MAX = 64,
    DEFAULT_LANES = 16,
    DEFAULT_STEPS = 512,
    OK = 0,
    DAMAGED = 1,
    SPENT = 2,
};
#define FULL 0xffffffffu

/* ---------------------------------------------------------------- state in device memory; device.py has the same */

struct Session { /* one sequence; 192 bytes */
    int64_t token_at, total; /* its tokens: those of the context are counted, of them the last is there at least */
    int64_t word_at, words; /* its stream: decoder: 32-bit words given; encoder: room */
    uint64_t lower, range, point;
    int64_t place; /* words read or written */
    double bits; /* encoder: ideal length so far */
    int64_t most; /* decoder: words that may be read: a frame that takes more claims too many tokens */
    int64_t start; /* the block under way */
    int32_t lanes, steps;
    int32_t size, L, C, full, step, old;
    int32_t error, done;
    int32_t first,
        context; /* tokens of its context, and where those are remembered (-1: it has none): its own begin at `first` */
    int32_t apart, unused; /* keys that are read where the context is remembered: whole groups of 32, the first ones */
    int64_t spare[6];
};
struct Piece { /* rows of one slot in this iteration, step-major */
    int32_t session, row, rows, step;
};
struct Row {
    int32_t slot, at, token, cls; /* position; input; class (decoder: as decoded), -1 where nothing is predicted */
    int32_t key, target, session, lane;
};
struct Cache { /* keys and values of a slot: (LAYERS, KV, keys then values, room, 64) bytes from `at` on */
    int64_t at, room;
};
/* Lists of slots that collect() makes, each with room for all: those that begin behind a context, those whose block ends
 * and another follows, and those of each attention. */
enum { BEGIN, END, FEWEST, FEWER, MANY, LISTS };
enum { BY_BLOCK = 2 }; /* State::decoding: by a kernel that decodes a block; 1: by steps; 0: it encodes */
struct State {
    int32_t rows, next, left, error, failed, slots, count, rows_max, decoding;
    int32_t epoch; /* steps of grid.cu so far */
    int32_t in_place; /* whether contexts are read where they are remembered */
    int32_t listed[LISTS]; /* slots in each list of collect() */
    int64_t tokens;
};

struct Model { /* addresses of the tensors, those of layers in tables of LAYERS; model.py: the same order */
    const int8_t *embed_w, *class_w, *shift_w;
    const int32_t *embed_m, *class_m, *class_b, *shift_m, *member_m, *member_b, *exp, *phase;
    const int16_t *cosine, *sine;
    const int8_t *qkv_w[LAYERS], *out_w[LAYERS], *up_w[LAYERS], *down_w[LAYERS];
    const int32_t *qkv_m[LAYERS], *out_m[LAYERS], *up_m[LAYERS], *down_m[LAYERS], *heat[LAYERS];
#if P_GATED
    const int32_t *norm_out, *act, *norm_in[LAYERS], *norm_mid[LAYERS];
#endif
};

DEV int8_t *keys_of(const Cache &c, int8_t *memory, int layer, int head) {
    return memory + c.at + (int64_t)(layer * KV + head) * c.room * (2 * HW);
}

/* ---------------------------------------------------------------- contract */

DEV int32_t clamp_to(int32_t a, int32_t most) { return min(max(a, -most), most); }
/* rs(dot * m, 24). Where a row of some matrix could leave 2^30 (P_WIDE; pack.py), it is held there: contract 2 says so,
 * and in contract 1, where no logit gets that far, all that follows clamps further. */
DEV int32_t scaled(int32_t dot, int32_t m) {
    const int64_t y = ((int64_t)dot * m + (1 << 23)) >> 24;
    if (P_WIDE) return (int32_t)(y > 1 << 30 ? 1 << 30 : y < -(1 << 30) ? -(1 << 30) : y);
    return (int32_t)y;
}
/* rs(w * m, 16) of a weight and a multiplier: within 127 * 2^15. */
DEV int32_t shift(int32_t w, int32_t m) { return (int32_t)(((int64_t)w * m + (1 << 15)) >> 16); }
DEV int32_t entry(int32_t w, int32_t m) { return clamp_to(shift(w, m), RESIDUAL_MAX); }
/* The sum of a warp's numbers, all below 2^49: in two parts, for which there is an instruction: 24 bits, and the rest.
 */
DEV uint2 sum_warp(uint64_t v) {
    const uint32_t low = __reduce_add_sync(FULL, (uint32_t)v & 0xffffff),
                   high = __reduce_add_sync(FULL, (uint32_t)(v >> 24));
    return make_uint2(low & 0xffffff, high + (low >> 24));
}
DEV double joined(uint2 sum) { return fma((double)sum.y, 16777216.0, (double)sum.x); }
/* floor(n / d) of whole numbers, 0 <= n < 2^51, 0 < d < 2^32, all in double: a first reciprocal, after two steps of
 * Newton's, gives it to within 1; the rest, which is exact, sets it right. No conversion stands in the chain. */
DEV double quotient(double n, double d) {
    double inverse = near_inverse(d);
    inverse = fma(inverse, fma(-d, inverse, 1.0), inverse);
    inverse = fma(inverse, fma(-d, inverse, 1.0), inverse);
    const double q = whole(n * inverse), rest = fma(-q, d, n);
    return rest < 0 ? q - 1 : rest >= d ? q + 1 : q;
}
/* A whole number within 1 of the root of s: an approximate root after a step of Newton's. */
DEV double near_root(double s) {
    const double guess = near_inverse_root(s), root = s * guess;
    return whole(fma(0.5 * guess, fma(-root, root, s), root));
}
DEV double floor_root(double root, double rest) { /* of root^2 + rest, both exact, root within 1 of it */
    return rest < 0 ? root - 1 : rest > 2 * root ? root + 1 : root;
}
/* (gain << 32) // max(1, isqrt(total)) as a factor that turns x into x t / 2^40, total < 2^53. */
DEV double norm_scale(double total, uint32_t gain) {
    const double s = fmax(total, 1.0), near = near_root(s), root = floor_root(near, fma(-near, near, s));
    return quotient((double)((uint64_t)gain << 32), root) * (1.0 / ((uint64_t)1 << 40));
}
DEV int32_t nearest(double v) {
    return low_word(v + 6755399441055744.0);
} /* |v| < 2^31; 1.5 * 2^52 leaves no fraction */
/* clamp(rs(x * t, 40), 127). In double: |x| t < 2^50, so the product and 2^-42 beside it are exact, and 2^-42 sends the
 * halves up. Factor: of norm_scale(). */
DEV int32_t norm_one(double x, double factor) {
    return clamp_to(nearest(fma(x, factor, 1.0 / ((uint64_t)1 << 42))), 127);
}
/* Contract 2. (norm_gain << 32) // max(1, isqrt(total)) as a factor that turns x into x t / 2^32. A row of more than
 * 512 numbers can have a total of up to 2^54, so the two parts of its sum, each exact, meet only where little is left
 * of them. */
DEV double gained_scale(uint2 total) {
    const double high = (double)total.y * 16777216.0, low = (double)(total.x | total.y ? total.x : 1),
                 root = near_root(high + low);
    return quotient((double)((uint64_t)NORM_GAIN << 32), floor_root(root, fma(-root, root, high) + low)) *
           (1.0 / ((uint64_t)1 << 32));
}
/* clamp(rs(rs(x * t, 32) * gain, 20), 127); as norm_one(), with 2^-34 for the halves. The first is within 2^18. */
DEV int32_t gained_one(int32_t x, double factor, int32_t gain) {
    const int32_t unit = nearest(fma((double)x, factor, 1.0 / ((uint64_t)1 << 34)));
    return clamp_to((int32_t)(((int64_t)unit * gain + (1 << 19)) >> 20), 127);
}

/* One warp: x (DP) -> out (DP), zeros beyond D on both sides; gains (DP): contract 2. */
DEV void norm_row(const int32_t *x, int8_t *out, int thread, const int32_t *gains = 0) {
    int32_t v[DP / 32];
    uint64_t total = 0;
#pragma unroll
    for (int i = 0; i < DP / 64; i++) {
        const int2 two = *(const int2 *)(x + i * 64 + thread * 2);
        v[2 * i] = two.x;
        v[2 * i + 1] = two.y;
        total += (uint64_t)((int64_t)two.x * two.x) + (uint64_t)((int64_t)two.y * two.y);
    }
    const uint2 sum = sum_warp(total);
    const double scale = GATED ? gained_scale(sum) : norm_scale(joined(sum), NORM_GAIN);
#pragma unroll
    for (int i = 0; i < DP / 64; i++) {
        const int2 gain = GATED ? *(const int2 *)(gains + i * 64 + thread * 2) : make_int2(0, 0);
        const int32_t a = GATED ? gained_one(v[2 * i], scale, gain.x) : norm_one(v[2 * i], scale);
        const int32_t b = GATED ? gained_one(v[2 * i + 1], scale, gain.y) : norm_one(v[2 * i + 1], scale);
        *(uint16_t *)(out + i * 64 + thread * 2) = (uint16_t)((uint32_t)a & 255 | ((uint32_t)b & 255) << 8);
    }
}

/* One warp: a row's queries and keys, HD values each, turned by its position and normed (contract 2: brought to 8
 * bits): y -> to(head), of HW, bytes beyond HD untouched. Eight heads at a time; each has its scale worked out by a
 * thread of its own. */
template <class To> DEV void turn_heads(const int16_t *y, int32_t at, const int32_t *phase, const int16_t *cosine,
                                        const int16_t *sine, int thread, To to) {
    enum { ALL = HEADS + KV, PART = 8 };
    const bool mine = thread < HD / 2;
    const uint32_t j = mine ? (uint32_t)at * (uint32_t)phase[thread] >> 10 & 1023 : 0;
    const int32_t c = cosine[j], s = sine[j];
#pragma unroll
    for (int first = 0; first < ALL; first += PART) {
        int32_t a[PART], b[PART];
        double total = 0;
#pragma unroll
        for (int i = 0; i < PART; i++) {
            const int16_t *from = y + (first + i) * HD;
            const bool there = first + i < ALL && mine;
            const int32_t p = there ? from[thread] : 0, q = there ? from[thread + HD / 2] : 0;
            a[i] = (p * c - q * s + (1 << 13)) >> 14; /* |p|, |q| < 2^15, |c|, |s| <= 2^14: below 2^30 + 2^13 */
            b[i] = (p * s + q * c + (1 << 13)) >> 14;
        }
#pragma unroll
        for (int i = 0; i < PART && !GATED; i++) {
            const uint2 sum = sum_warp((uint64_t)((int64_t)a[i] * a[i] + (int64_t)b[i] * b[i]));
            if (thread == i) total = joined(sum);
        }
        const double scale = GATED ? 0 : norm_scale(total, HEAD_GAIN);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            if (first + i >= ALL) break;
            const double factor = GATED ? 0 : __shfl_sync(FULL, scale, i);
            int8_t *out = to(first + i);
            if (!mine) continue;
            out[thread] = (int8_t)(GATED ? clamp_to((a[i] + 64) >> 7, 127) : norm_one(a[i], factor));
            out[thread + HD / 2] = (int8_t)(GATED ? clamp_to((b[i] + 64) >> 7, 127) : norm_one(b[i], factor));
        }
    }
}

/* Byte of the value (key, dim) in a head's values: [key / 32][dim / 16][thread][dim / 8 % 2][half][byte]. */
DEV int value_place(int key, int dim) {
    const int k = key & 31, tile = k >> 3, t = (k & 7) >> 1;
    return (key >> 5) * 2048 + (dim >> 4) * 512 + ((dim & 7) * 4 + t) * 16 + (dim >> 3 & 1) * 8 + (tile >> 1) * 4 +
           (tile & 1) * 2 + (k & 1);
}

/* ---------------------------------------------------------------- attention of 16 queries by a warp */

/* Weight of a key: w = rs(exp[e & 63], 5) >> (e >> 6), e = min(below * heat >> 16, 1023), below = most - s. It is 0
 * from e = 1023 on, so a larger e does no harm; but heat * 2^10 must fit 32 bits. Where it does not (P_HOT; pack.py),
 * `below` ends at `far`, from where on e is 1023. The table lies in shared memory once for each thread of a warp (64 x
 * 32), so that no two threads meet in a bank. `table` is this thread's copy; or all of it, and `own` = 4 * thread,
 * which the compiler joins with the mask: an instruction less, a register more. */
enum { WEIGHTS = 64 * 32 };
DEV void fill_weights(uint32_t *table, const int32_t *exp, int tid, int threads) {
    for (int i = tid; i < WEIGHTS; i += threads) table[i] = (uint32_t)(exp[i >> 5] + 16) >> 5;
}
DEV uint32_t far_enough(uint32_t heat) { return heat ? (1023u * 65536u + heat - 1) / heat : 0; }
DEV uint32_t key_weight(uint32_t below, uint32_t far, uint32_t heat, const uint8_t *table, uint32_t own = 0) {
    if (P_HOT) {
        const uint32_t e = min(min(below, far) * heat, 1023u << 16);
        return *(const uint32_t *)(table + (e >> 9 & 63 << 7 | own)) >> (e >> 22);
    }
    const uint64_t e = multiply(
        below, heat << 10); /* the whole powers of two in the upper half: the multiplier's work, not the shifter's */
    return shift_right(*(const uint32_t *)(table + ((uint32_t)e >> 19 & 63 << 7 | own)), (uint32_t)(e >> 32));
}
/* 2^40 / sum, and a little less where one key has all the weight: there rs(w * t, 24) would be 2^16, one more than 16
 * bits hold, and 2^16 - 1 gives the same output, since |v| < 2^14. */
DEV uint32_t key_scale(uint32_t sum) {
    return (uint32_t)fmin(quotient((double)((uint64_t)1 << 40), (double)max(sum, 1u)), (double)((1u << 25) - 512));
}

struct Queries { /* fragments of 16 queries, negated; rows g and g + 8 of this thread */
    uint4 a, b;
    int32_t limit[2], most[2]; /* keys they see; the highest score */
    uint32_t heat[2], far[2], t[2];
    int32_t whole; /* keys that all rows of the warp see */
};
DEV uint32_t negated(uint32_t v) { /* of four bytes in -127 .. 127 */
    uint32_t out = 0;
    for (int i = 0; i < 32; i += 8) out |= ((0u - (v >> i)) & 255) << i;
    return out;
}
DEV uint4 negated(uint4 v) { return make_uint4(negated(v.x), negated(v.y), negated(v.z), negated(v.w)); }
DEV void finish_queries(Queries &q) {
    q.a = negated(q.a);
    q.b = negated(q.b);
    q.whole = min(q.limit[0], q.limit[1]);
    for (int i = 4; i < 32; i <<= 1) q.whole = min(q.whole, __shfl_xor_sync(FULL, q.whole, i));
    q.far[0] = far_enough(q.heat[0]);
    q.far[1] = far_enough(q.heat[1]);
}
struct Keys { /* fragments of 32 keys, or of 32 values */
    uint4 f[4];
};
DEV Keys load_keys(const int8_t *from, int kg, int thread) {
    Keys k;
#pragma unroll
    for (int j = 0; j < 4; j++) k.f[j] = *(const uint4 *)(from + (int64_t)kg * 2048 + j * 512 + thread * 16);
    return k;
}
/* c[j] = base - score of keys 8 j + 2 t, + 1 for rows g, g, g + 8, g + 8. */
DEV void scores(const Queries &q, const Keys &k, int32_t base0, int32_t base1, int32_t c[4][4]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        c[j][0] = c[j][1] = base0;
        c[j][2] = c[j][3] = base1;
        mma_s8(c[j], q.a.x, q.b.x, q.a.y, q.b.y, k.f[j].x, k.f[j].y);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) mma_s8(c[j], q.a.z, q.b.z, q.a.w, q.b.w, k.f[j].z, k.f[j].w);
}
DEV bool sees(const Queries &q, int kg, int j, int i, int thread) {
    return kg * 32 + j * 8 + (thread & 3) * 2 + (i & 1) < q.limit[i >> 1];
}
/* c: -score of 32 keys; low: the lowest so far. */
DEV void top(const Queries &q, int kg, int thread, const int32_t c[4][4], int32_t low[2]) {
    if (kg * 32 + 32 <= q.whole) {
#pragma unroll
        for (int i = 0; i < 16; i++) low[i >> 1 & 1] = min(low[i >> 1 & 1], c[i >> 2][i & 3]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (sees(q, kg, j, i, thread)) low[i >> 1] = min(low[i >> 1], c[j][i]);
        }
    }
}
/* c, how far below the highest the scores of 32 keys are, becomes their weights. */
DEV void weigh(const Queries &q, int kg, int thread, const uint8_t *table, int32_t c[4][4], uint32_t own = 0) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[j][i] = (int32_t)key_weight((uint32_t)c[j][i], q.far[i >> 1], q.heat[i >> 1], table, own);
    }
    if (kg * 32 + 32 > q.whole) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) c[j][i] = sees(q, kg, j, i, thread) ? c[j][i] : 0;
        }
    }
}
DEV void weigh(const Queries &q, const Keys &k, int kg, int thread, const uint8_t *table, int32_t c[4][4],
               uint32_t own = 0) {
    scores(q, k, q.most[0], q.most[1], c);
    weigh(q, kg, thread, table, c, own);
}
DEV void add_weights(const int32_t c[4][4], uint32_t total[2]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        total[0] += (uint32_t)(c[j][0] + c[j][1]);
        total[1] += (uint32_t)(c[j][2] + c[j][3]);
    }
}
/* Share of a key, p = rs(w * t, 24) < 2^16, in the upper half of a word. key_share_of: in the lower half, from t * 2^7;
 * w <= 2^15, t < 2^25. */
DEV uint32_t key_share(uint32_t w, uint32_t t) { return w * (t >> 8) + ((w * (t & 255) + (1 << 23)) >> 8); }
DEV uint32_t key_share_of(uint32_t w, uint32_t t) { return (uint32_t)((multiply(w + w, t) + (1u << 31)) >> 32); }
/* Shares of 32 keys as fragments of their low and of their high bytes. */
DEV void shares_of(const Queries &q, const int32_t w[4][4], uint32_t low[4], uint32_t high[4]) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[i] = key_share((uint32_t)w[(r & 2) + (i >> 1)][(r & 1) * 2 + (i & 1)], q.t[r & 1]);
        const uint32_t first = __byte_perm(p[0], p[1], 0x7632), second = __byte_perm(p[2], p[3], 0x7632);
        low[r] = __byte_perm(first, second, 0x6420);
        high[r] = __byte_perm(first, second, 0x7531);
    }
}
/* low + 256 high += shares of 32 keys times their values, for N / 2 of the 4 pieces of 16 dims from `first` on;
 * o[n]: dims 8 n + 2 t, + 1 of rows g, g, g + 8, g + 8. */
template <int N> DEV void mix(const Queries &q, const int8_t *values, int kg, int thread, int first,
                              const int32_t w[4][4], int32_t low[N][4], int32_t high[N][4]) {
    uint32_t part[4], upper[4];
    shares_of(q, w, part, upper);
    const uint32_t more = upper[0] | upper[1] | upper[2] | upper[3];
    if (!__any_sync(FULL, (part[0] | part[1] | part[2] | part[3] | more) != 0)) return;
    const bool large = __any_sync(FULL, more != 0);
    const int8_t *from = values + (int64_t)kg * 2048 + first * 512 + thread * 16;
    uint4 v[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; n++) v[n] = *(const uint4 *)(from + n * 512);
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        mma_u8(low[2 * n], part[0], part[1], part[2], part[3], v[n].x, v[n].y);
        mma_u8(low[2 * n + 1], part[0], part[1], part[2], part[3], v[n].z, v[n].w);
    }
    if (!large) return;
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        mma_u8(high[2 * n], upper[0], upper[1], upper[2], upper[3], v[n].x, v[n].y);
        mma_u8(high[2 * n + 1], upper[0], upper[1], upper[2], upper[3], v[n].z, v[n].w);
    }
}

/* ---------------------------------------------------------------- frequencies and the range coder */

/* One warp: logits l[N] a thread, symbol thread * N + i, `n` symbols in all -> sums (n + 1) cumulative frequencies. */
template <int N> DEV void cumulate(const int32_t *l, int n, const int32_t *exp, uint32_t *sums, int thread) {
    int32_t most = (int32_t)0x80000000;
    uint32_t w[N], total = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (thread * N + i < n) most = max(most, l[i]);
    }
    most = __reduce_max_sync(FULL, most);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t e = min((uint32_t)most - (uint32_t)l[i], 1983u);
        w[i] = total;
        if (thread * N + i < n) total += (uint32_t)exp[e & 63] >> (e >> 6);
    }
    uint32_t below = total;
    for (int i = 1; i < 32; i <<= 1) {
        const uint32_t other = __shfl_up_sync(FULL, below, i);
        if (thread >= i) below += other;
    }
    const uint32_t all = __shfl_sync(FULL, below, 31);
    below -= total;
    const uint32_t ratio = (uint32_t)quotient((double)(((uint64_t)(1 << 24) - (uint32_t)n) << 20), (double)all);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int s = thread * N + i;
        if (s < n) sums[s] = (uint32_t)s + (uint32_t)(((uint64_t)(below + w[i]) * ratio) >> 20);
    }
    if (thread == 0) sums[n] = 1u << 24;
}

struct Coder { /* a decoder's state, the same in all threads of a warp */
    uint64_t lower, range, point;
    int64_t place, words;
    const uint32_t *data;
    int32_t error;
};
/* One warp: the next symbol of n (its cumulative frequencies in sums). On error: symbol 0, error set. */
DEV int32_t decode_symbol(Coder &c, const uint32_t *sums, int n, int thread) {
    const uint64_t scale = c.range >> 24, at = c.point - c.lower;
    int count = 0;
    for (int i = 0; i < n; i += 128) {
        int mine = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int s = i + j * 32 + thread;
            if (s < n) mine += scale * sums[s] <= at;
        }
        /* how many of n lie at or below: the sum of the threads' counts (0 to 4), bit by bit */
#pragma unroll
        for (int b = 0; b < 3; b++) count += __popc(__ballot_sync(FULL, mine >> b & 1)) << b;
    }
    if (at >= scale << 24 || c.error) {
        c.error = c.error ? c.error : DAMAGED;
        return 0;
    }
    const int symbol = count - 1;
    const uint32_t from = sums[symbol];
    c.lower += scale * from;
    c.range = scale * (sums[symbol + 1] - from);
    if (!(c.range >> 32)) {
        c.lower <<= 32;
        c.range <<= 32;
        c.point = c.point << 32 | (c.place < c.words ? c.data[c.place] : 0);
        c.place++;
    }
    return symbol;
}
/* The next symbol of n. s: N cumulative frequencies of this thread and the one behind them, symbols thread * N ..;
 * words: the stream's next 32, one a thread, of which `used` are used up. One chain of dependent steps a symbol, so no
 * branches in it; c.lower is 0 here: only its distance to the point counts. */
template <int N>
DEV int32_t next_symbol(Coder &c, const uint32_t s[N + 1], uint32_t words, int &used) {
    const uint64_t scale = c.range >> 24, at = c.point;
    const uint32_t word = __shfl_sync(FULL, words, used);
    int mine = 0;
    uint32_t low = s[0], high = s[1];
#pragma unroll
    for (int i = 1; i < N; i++) {
        if (scale * s[i] <= at) {
            mine = i;
            low = s[i];
            high = s[i + 1];
        }
    }
    const uint32_t below = __ballot_sync(FULL, scale * s[0] <= at);
    const int winner = 31 - __clz((int)below);
    low = __shfl_sync(FULL, low, winner);
    high = __shfl_sync(FULL, high, winner);
    mine = __shfl_sync(FULL, mine, winner);
    const bool bad = at >= scale << 24; /* what follows is then of no use, and stays harmless */
    c.error |= bad ? DAMAGED : OK;
    const uint64_t rest = at - scale * low, range = scale * (high - low);
    const bool more = !(range >> 32);
    c.range = more ? range << 32 : range;
    c.point = more ? rest << 32 | word : rest;
    used += more;
    return bad ? 0 : winner * N + mine;
}
/* One warp: the symbols of the lanes from rows of sums of n symbols; that of lane k in thread k. */
template <int N> DEV int32_t next_symbols(Coder &c, const uint32_t *sums, int n, int active, uint32_t words, int &used,
                                          int thread) {
    uint32_t s[N + 1], next[N + 1];
    int32_t found = 0;
    const uint32_t *from = sums + thread * N;
    auto fetch = [&](uint32_t *to, const uint32_t *from) {
#pragma unroll
        for (int i = 0; i <= N; i++) to[i] = n == 32 * N || thread * N + i < n ? from[i] : 1u << 24;
    };
    fetch(s, from);
#pragma unroll 2
    for (int k = 0; k < active; k++) {
        from += SUMS;
        fetch(next, from); /* past the last there is room too */
        const int32_t symbol = next_symbol<N>(c, s, words, used);
#pragma unroll
        for (int i = 0; i <= N; i++) s[i] = next[i];
        if (thread == k) found = symbol;
    }
    return found;
}
DEV double bits_of(uint32_t frequency) { return 24.0 - log2((double)frequency); }

/* ---------------------------------------------------------------- blocks, lanes, steps (lanes.py) */

DEV void set_block(Session &s, int64_t start) {
    const int64_t whole = (int64_t)s.lanes * s.steps, left = s.total - start;
    s.start = start;
    s.size = (int32_t)(left < whole ? left : whole);
    s.L = s.lanes < s.size ? s.lanes : s.size;
    s.C = (s.size + s.L - 1) / s.L;
    s.full = s.size - s.L * (s.C - 1);
    s.step = 0;
}
DEV int lane_start(const Session &s, int k) { return k * s.C - (k > s.full ? k - s.full : 0); }
DEV int active_lanes(const Session &s, int step) { return step < s.C - 1 ? s.L : s.full; }
/* First step from which on lane k is remembered by the next block. */
DEV int first_kept(const Session &s, int k) {
    const int at = s.size - MEMORY - lane_start(s, k);
    return at < 0 ? 0 : at > s.C ? s.C : at;
}
DEV int count_kept(const Session &s) {
    int n = 0;
    for (int k = 0; k < s.L; k++) n += s.C - first_kept(s, k);
    return n;
}
/* First lane that is remembered at a step: lanes start later the higher they are, so all above it are too. */
DEV int first_kept_lane(const Session &s, int step) {
    int k = 0;
    while (k < s.L && first_kept(s, k) > step) k++;
    return k;
}

/* out += shares of 32 keys times their values v; out[n]: dims 8 n + 2 t, + 1 of rows g, g, g + 8, g + 8. One sum for
 * both bytes of the shares, unlike mix(): the registers that a second one takes are worth more than the few shifts of
 * large shares. */
DEV void add_values(const Queries &q, const Keys &v, const int32_t w[4][4], int32_t out[8][4]) {
    uint32_t low[4], high[4], large = 0;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        uint32_t first[4], second[4]; /* words of w * t + 2^23: the share's low byte is the last of the first, its high
                                         byte the second */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint64_t p = multiply((uint32_t)w[(r & 2) + (i >> 1)][(r & 1) * 2 + (i & 1)], q.t[r & 1]) + (1 << 23);
            first[i] = (uint32_t)p;
            second[i] = (uint32_t)(p >> 32);
        }
        low[r] = __byte_perm(__byte_perm(first[0], first[1], 0x73), __byte_perm(first[2], first[3], 0x73), 0x5410);
        high[r] = __byte_perm(__byte_perm(second[0], second[1], 0x40), __byte_perm(second[2], second[3], 0x40), 0x5410);
        large |= high[r];
    }
    if (!__any_sync(FULL, (low[0] | low[1] | low[2] | low[3] | large) != 0)) return;
    if (__any_sync(FULL, large != 0)) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            int32_t part[4] = {0, 0, 0, 0};
            mma_u8(part, high[0], high[1], high[2], high[3], n & 1 ? v.f[n / 2].z : v.f[n / 2].x,
                   n & 1 ? v.f[n / 2].w : v.f[n / 2].y);
#pragma unroll
            for (int i = 0; i < 4; i++) out[n][i] += part[i] << 8;
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        mma_u8(out[n], low[0], low[1], low[2], low[3], n & 1 ? v.f[n / 2].z : v.f[n / 2].x,
               n & 1 ? v.f[n / 2].w : v.f[n / 2].y);
    }
}

/* Contract 2: of the hidden layer, from its gate and its linear half. act: int16 numbers. */
DEV int32_t hidden(int32_t gate, int32_t up, const int32_t *act) {
    return clamp_to((act[clamp_to(gate, GATE_MAX) + GATE_MAX] * clamp_to(up, 32767) + (1 << 15)) >> 16, 127);
}

/* ---------------------------------------------------------------- kernels that decode a block */

/* One CTA of 16 warps: cumulative frequencies (129) of the members of class c. x(i): the residual of the row; gains
 * (DP): contract 2. In shared memory: z (DP), its norm a (DP), logits l (128) and table.exp. */
template <class X> DEV void member_sums(const Model &model, int c, int warp, int thread, X x, const int32_t *gains,
                                        int32_t *z, int8_t *a, int32_t *l, const int32_t *exp, uint32_t *sums) {
    const int member = warp * 8 + (thread >> 2), token = c * 128 + member;
    const int32_t scale = model.member_m[token], bias = model.member_b[token];
    const int8_t *from = model.embed_w + ((int64_t)c * 16 + warp) * 8 * DP + thread * 16;
    uint4 w[DP / 64];
#pragma unroll
    for (int i = 0; i < DP / 64; i++) w[i] = *(const uint4 *)(from + i * 512);
    if (warp == 0) {
        const int32_t m = model.shift_m[c];
        for (int i = thread; i < DP; i += 32)
            z[i] = i < D ? clamp_to(x(i) + shift(model.shift_w[(int64_t)c * D + i], m), RESIDUAL_MAX) : 0;
        __syncwarp();
        norm_row(z, a, thread, gains);
    }
    __syncthreads();
    int32_t dot = 0;
#pragma unroll
    for (int i = 0; i < DP / 64; i++) {
        const uint4 v = *(const uint4 *)(a + i * 64 + (thread & 3) * 16);
        dot = dot4(v.x, w[i].x, dot4(v.y, w[i].y, dot4(v.z, w[i].z, dot4(v.w, w[i].w, dot))));
    }
    dot += __shfl_xor_sync(FULL, dot, 1);
    dot += __shfl_xor_sync(FULL, dot, 2);
    if ((thread & 3) == 0) l[member] = scaled(dot, scale) + bias;
    __syncthreads();
    if (warp == 0) {
        const int32_t mine[4] = {l[thread * 4], l[thread * 4 + 1], l[thread * 4 + 2], l[thread * 4 + 3]};
        cumulate<4>(mine, 128, exp, sums, thread);
    }
    __syncthreads();
}

/* One thread: session number `held` as collect() and remember() of batch.cu expect it after the last step of a block.
 */
DEV void end_block(State *state, Session &s, int held, Piece &piece, const Coder &coder) {
    s.lower = coder.lower;
    s.range = coder.range;
    s.point = coder.point;
    s.place = coder.place;
    s.step = s.C - 1;
    piece = Piece{held, 0, s.L, s.C - 1};
    if (coder.error) {
        s.error = coder.error;
        if (atomicCAS(&state->error, 0, coder.error) == 0) state->failed = held;
    }
    atomicAdd((unsigned long long *)&state->tokens, (unsigned long long)s.size);
}

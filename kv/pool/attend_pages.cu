/* Attention over pages, of one new token per session. Spec of the rows: FORMAT.md, "Pages".
 *
 *     attend_pages   grid (key heads, splits, sessions)
 *
 * gpu_attention.py compiles and launches it; the shape comes as macros. On a CPU the tests run it by emulate.h.
 *
 * A split is some tokens of pages, or some exact tokens, of one key head; the CTA that ends last joins the splits. A
 * warp takes P_STEP tiles of 16 tokens at once, and keeps a softmax of its own. Products are mma.m16n8k16: scores are
 * keys (16 tokens x dims) times queries (dims x 8 query heads), sums are values (16 dims x tokens) times weights
 * (tokens x 8 query heads). No number but weights changes hands between lanes: thread (g, t) = (lane / 4, lane % 4)
 * takes a quarter t of the keys of tokens g and g + 8, and an eighth g of the values of tokens 2t, 2t + 1, 2t + 8 and
 * 2t + 9. So the order of dims in a product is that in which lanes hold them; queries are given in the same order.
 *
 * Nibbles become numbers by byte permutations: one finds the high bytes of four centroids, one the low bytes. What the
 * centre of keys adds to a score is a product, too, of the angles of places within 64 tokens and of queries that are
 * turned back to the first of these. Scores are in units of log2, so that weights are powers of two. */
#include "base.cuh"

#define COLUMNS (8 * P_COLUMN_TILES)        /* query heads of a product; those beyond P_GROUP are zeros */
#define DIM_TILES (P_DIM / 16)              /* of 16 dims */
#define ANGLE_TILES (P_ANGLES / 16)         /* of 16 frequencies */
#define TOKENS (16 * P_STEP)                /* that a warp takes at once */
#define PAIR (P_UNIT > 64 ? 2 : 1)          /* pieces of 64 tokens that share a product with the centre of keys */
#define EACH_UNIT (P_UNIT / TOKENS)         /* tiles of a warp that come after each other */
#define APART (64 / TOKENS)                 /* tiles between those of a pair */
#define ROW (P_Q4 ? P_DIM : 2 * P_DIM)      /* bytes of a token's key and value */
#define KEY (ROW / 8)                       /* bytes of a token's key that a lane reads */
#define KEY_PIECE (KEY < 16 ? KEY : 16)     /* of them side by side: lanes t = 0 to 3 read 64 bytes at once */
#define VALUE (ROW / 16)                    /* of its value */
#define VALUE_PIECES (ROW / 32)             /* of 16 bytes, of a token's value */
#define KEY_ROOM (32 * (2 * KEY + 8))       /* bytes of shared memory for the keys and scales of a tile */
#define VALUE_ROOM (16 * ROW / 2)
#define ANGLE_ROOM (8 * P_ANGLES * PAIR)    /* cosines and sines of a position */
#define WARP_ROOM (P_STEP * (KEY_ROOM + VALUE_ROOM) + ANGLE_ROOM)
#define THREADS (32 * P_WARPS)
#define AHEAD (2 * P_STEP - 1)              /* groups of copies that are under way while one is waited for */
#define NOTHING -1e30f                      /* below any score */
#define SLACK 8.0f                          /* how far a score may be above what weights are relative to */

static_assert(P_DIM % 32 == 0 && P_ANGLES % 16 == 0 && P_BLOCK % 16 == 0 && 64 % TOKENS == 0, "a shape");
static_assert(P_SINKS <= TOKENS && P_WARPS > 1, "sinks are in the first tile");
static_assert(P_UNIT % TOKENS == 0 && (P_UNIT <= 64 || (P_UNIT == 128 && P_GROUP <= 4)), "a unit");
static_assert(P_ROOM >= P_WARPS * WARP_ROOM && P_ROOM >= 4 * P_WARPS * P_GROUP * P_DIM, "room of the warps");
static_assert(P_ROOM >= 8 * P_GROUP * P_DIM && P_ROOM % 16 == 0 && WARP_ROOM % 16 == 0, "room of the join");

#ifndef PLTZ_EMULATE
#define MMA(name, types)                                                                                           \
    DEV void name(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {         \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." types ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "            \
            "{%0,%1,%2,%3};"                                                                                       \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                       \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                               \
    }
MMA(mma_half, "f16.f16")
MMA(mma_bf16, "bf16.bf16")
DEV uint32_t transposed(uint32_t v) { /* of 8 x 8 numbers of 16 bits, two per lane */
    uint32_t out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
    return out;
}
/* Global to shared, asynchronous. By the hint L2 fetches what is asked for soon: the key's value, the next key head. */
template <int N> DEV void copy(void *to, const void *from) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    if (N == 16)
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(N) : "memory");
}
DEV void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
DEV uint32_t two_halves(float low, float high) {
    uint32_t out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
DEV uint32_t two_bf16(float low, float high) {
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
DEV float of_half(uint32_t v) { /* the low 16 bits */
    float out;
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, l;}" : "=f"(out) : "r"(v));
    return out;
}
DEV float of_high_half(uint32_t v) {
    float out;
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, h;}" : "=f"(out) : "r"(v));
    return out;
}
DEV float of_bits(uint32_t v) { return __uint_as_float(v); }
DEV uint32_t sums_of_halves(uint32_t a, uint32_t b) {
    uint32_t out;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}
DEV uint32_t sums_of_bf16(uint32_t a, uint32_t b) { /* 1 a + b */
    uint32_t out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(0x3f803f80), "r"(b));
    return out;
}
/* Bytes of two words, by the low four nibbles of a third, all below 8. (__byte_perm takes the rest of them away.) */
DEV uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t select) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(select));
    return out;
}
DEV float power(float v) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
    return out;
}
DEV float root(float v) { return sqrtf(v); }
struct Two {
    float x, y;
};
DEV Two far_load(const float *from) { /* what another CTA wrote */
    Two v;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from));
    return v;
}
DEV void look_again() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
#else
struct Brain { /* to nearest, ties to even */
    uint16_t bits;
    Brain() {}
    explicit Brain(float v) {
        uint32_t whole;
        memcpy(&whole, &v, 4);
        bits = (uint16_t)((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
    operator float() const {
        const uint32_t whole = (uint32_t)bits << 16;
        float out;
        memcpy(&out, &whole, 4);
        return out;
    }
};
template <class T> static float number_at(uint32_t v, int n) {
    const uint16_t bits = (uint16_t)(v >> 16 * n);
    T h;
    memcpy(&h, &bits, 2);
    return (float)h;
}
template <class T> static uint32_t bits_at(float v, int n) {
    const T h = (T)v;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return (uint32_t)bits << 16 * n;
}
template <class T> static void mma_floats(float *c, const uint32_t *mine) {
    uint32_t (*table)[8] = exchange<6>(mine);
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; i++) {
        uint32_t left[8];
        left_row(left, table, g + (i >> 1) * 8);
        for (int k = 0; k < 16; k++)
            c[i] += number_at<T>(left[k / 2], k & 1) *
                    number_at<T>(table[(t * 2 + (i & 1)) * 4 + (k / 2 & 3)][4 + k / 8], k & 1);
    }
}
static void mma_half(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    mma_floats<_Float16>(c, mine);
}
static void mma_bf16(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
    mma_floats<Brain>(c, mine);
}
static uint32_t transposed(uint32_t v) {
    uint32_t (*table)[8] = exchange<1>(&v);
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
    const uint32_t low = table[8 * t + g / 2][0], high = table[8 * t + 4 + g / 2][0];
    return (low >> 16 * (g & 1) & 0xffff) | (high >> 16 * (g & 1)) << 16;
}
template <int N> static void copy(void *to, const void *from) { memcpy(to, from, N); }
static uint32_t two_halves(float low, float high) { return bits_at<_Float16>(low, 0) | bits_at<_Float16>(high, 1); }
static uint32_t two_bf16(float low, float high) { return bits_at<Brain>(low, 0) | bits_at<Brain>(high, 1); }
static float of_half(uint32_t v) { return number_at<_Float16>(v, 0); }
static float of_high_half(uint32_t v) { return number_at<_Float16>(v, 1); }
static float of_bits(uint32_t v) {
    float out;
    memcpy(&out, &v, 4);
    return out;
}
static uint32_t sums_of_halves(uint32_t a, uint32_t b) {
    return two_halves(of_half(a) + of_half(b), of_high_half(a) + of_high_half(b));
}
static uint32_t sums_of_bf16(uint32_t a, uint32_t b) {
    return two_bf16(number_at<Brain>(a, 0) + number_at<Brain>(b, 0), number_at<Brain>(a, 1) + number_at<Brain>(b, 1));
}
static uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t select) { return __byte_perm(a, b, select); }
static float power(float v) { return exp2f(v); }
static float root(float v) { return sqrtf(v); }
struct Two {
    float x, y;
};
static Two far_load(const float *from) { return {from[0], from[1]}; }
#endif

struct Four {
    float v[4];
};
DEV Four four_at(const void *from) {
    const uint4 v = *(const uint4 *)from;
    return {of_bits(v.x), of_bits(v.y), of_bits(v.z), of_bits(v.w)};
}
template <int N> DEV void words_at(uint32_t *to, const void *from) { /* N words, by the widest loads */
    if (N % 4 == 0) {
        for (int i = 0; i < N / 4; i++) {
            const uint4 v = ((const uint4 *)from)[i];
            to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
        }
    } else if (N % 2 == 0) {
        for (int i = 0; i < N / 2; i++) {
            const uint2 v = ((const uint2 *)from)[i];
            to[2 * i] = v.x, to[2 * i + 1] = v.y;
        }
    } else {
        for (int i = 0; i < N; i++) to[i] = ((const uint32_t *)from)[i];
    }
}
/* Copies a lane's N bytes, in pieces of at most 16 that lie APART_BY bytes from each other. */
template <int N, int APART_BY = 16> DEV void copy_lane(uint8_t *to, const uint8_t *from, int lane) {
    constexpr int EACH = N < 16 ? N : 16;
#pragma unroll
    for (int i = 0; i < N / EACH; i++) copy<EACH>(to + (i * 32 + lane) * EACH, from + i * APART_BY);
}
template <int N> DEV void lane_words(uint32_t *to, const uint8_t *from, int lane) {
    constexpr int EACH = N < 16 ? N : 16;
#pragma unroll
    for (int i = 0; i < N / EACH; i++) words_at<EACH / 4>(to + i * EACH / 4, from + (i * 32 + lane) * EACH);
}

/* The bytes of the eight magnitudes of a type, low and high ones. */
struct Book {
    uint32_t low0, low1, high0, high1;
};
/* The numbers of eight nibbles, two per word. */
DEV void numbers(uint32_t *to, uint32_t nibbles, const Book &book) {
    const uint32_t up = nibbles << 4;
    uint32_t select = nibbles & 0x77777777;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t signs = bytes_of(up, nibbles, i ? 0x7362 : 0x5140) & 0x80808080;
        const uint32_t high = bytes_of(book.high0, book.high1, select) ^ signs;
        const uint32_t low = bytes_of(book.low0, book.low1, select);
        to[2 * i] = bytes_of(low, high, 0x5140);
        to[2 * i + 1] = bytes_of(low, high, 0x7362);
        select >>= 16;
    }
}

/* What a warp has seen: sums of values (rows: dims), what weights are relative to, and sums of this lane's weights. */
struct State {
    float sum[P_COLUMN_TILES][DIM_TILES][4];
    float unit[P_COLUMN_TILES][2], total[P_COLUMN_TILES][2];
};

DEV void begin(State &state) {
#pragma unroll
    for (int n = 0; n < P_COLUMN_TILES; n++) {
#pragma unroll
        for (int j = 0; j < DIM_TILES; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) state.sum[n][j][i] = 0;
        state.unit[n][0] = state.unit[n][1] = NOTHING;
        state.total[n][0] = state.total[n][1] = 0;
    }
}

/* Scores of M tiles of tokens become weights. Seldom is a score so large that all before has to shrink. */
template <int M> DEV void weigh(State &state, float (&score)[M][P_COLUMN_TILES][4]) {
    float most[P_COLUMN_TILES][2];
    bool beyond = false;
#pragma unroll
    for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            most[n][e] = NOTHING;
#pragma unroll
            for (int m = 0; m < M; m++) most[n][e] = max(most[n][e], max(score[m][n][e], score[m][n][2 + e]));
            beyond |= most[n][e] > state.unit[n][e] + SLACK;
        }
    if (__any_sync(~0u, beyond)) {
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float unit = most[n][e];
                for (int x = 4; x < 32; x *= 2) unit = max(unit, __shfl_xor_sync(~0u, unit, x));
                unit = max(unit, state.unit[n][e]);
                const float shrink = power(state.unit[n][e] - unit);
                state.unit[n][e] = unit;
                state.total[n][e] *= shrink;
#pragma unroll
                for (int j = 0; j < DIM_TILES; j++) state.sum[n][j][e] *= shrink, state.sum[n][j][2 + e] *= shrink;
            }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float weight = power(score[m][n][i] - state.unit[n][i & 1]);
                score[m][n][i] = weight;
                state.total[n][i & 1] += weight;
            }
}

/* Sum of a float over lanes that differ in g. */
DEV float over_tokens(float v) {
    for (int x = 4; x < 32; x *= 2) v += __shfl_xor_sync(~0u, v, x);
    return v;
}
DEV float over_warp(float v) {
    for (int x = 1; x < 32; x *= 2) v += __shfl_xor_sync(~0u, v, x);
    return v;
}
/* The Walsh-Hadamard transform, without its root, of a row of P_DIM: P_DIM / 32 side by side in each lane. */
DEV void transform(float *v) {
#pragma unroll
    for (int half = 1; half < P_DIM / 32; half *= 2)
#pragma unroll
        for (int i = 0; i < P_DIM / 32; i++)
            if (!(i & half)) {
                const float a = v[i], b = v[i + half];
                v[i] = a + b, v[i + half] = a - b;
            }
    const int lane = (int)threadIdx.x & 31;
    for (int x = 1; x < 32; x *= 2)
#pragma unroll
        for (int i = 0; i < P_DIM / 32; i++) {
            const float other = __shfl_xor_sync(~0u, v[i], x);
            v[i] = lane & x ? other - v[i] : v[i] + other;
        }
}
DEV float query_at(const uint16_t *from) { return P_BF16 ? of_bits((uint32_t)*from << 16) : of_half(*from); }

/* Shared memory: room of the warps (in the end: their sums), the angles of 64 places, queries, what is left of them
 * with the centre of keys, and where warps meet. */
#define PLACES (4 * 2 * ANGLE_TILES * 32 * 16)
#define AT_PLACES P_ROOM
#define AT_QUERIES (AT_PLACES + PLACES)
#define AT_CENTRED (AT_QUERIES + COLUMNS * P_DIM * 2)
#define AT_SPREAD (AT_CENTRED + COLUMNS * P_ANGLES * 8)
#define AT_ENDS (AT_SPREAD + COLUMNS * 8)
#define AT_LAST (AT_ENDS + P_WARPS * COLUMNS * 8)
#define AT_BOOKS (AT_LAST + 16)
static_assert(P_SHARED >= AT_BOOKS + 32, "shared memory");

/* Books of float16 and bfloat16. Half of each comes from shared memory and stays in registers: a constant, or what all
 * lanes load from one place, the compiler would move there again and again. So there are two places. */
DEV void give_books() {
    if (threadIdx.x < 2)
        ((uint4 *)(shared() + AT_BOOKS))[threadIdx.x] =
            make_uint4(P_HALF_LOW0, P_HALF_HIGH0, P_BF16_LOW0, P_BF16_HIGH0);
}
DEV void take_books(Book &halves, Book &brains) {
    const uint4 v = ((const uint4 *)(shared() + AT_BOOKS))[threadIdx.x & 1];
    halves = {v.x, P_HALF_LOW1, v.y, P_HALF_HIGH1};
    brains = {v.z, P_BF16_LOW1, v.w, P_BF16_HIGH1};
}

/* Queries of a key head to shared memory, as products read them; those of pages are scaled, and rotated for q4. */
DEV void give_queries(const uint16_t *query, const float *centre, float scaling, bool pages) {
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    constexpr int EACH = P_DIM / 32;
    uint16_t *const to = (uint16_t *)(shared() + AT_QUERIES);
    for (int h = warp; h < COLUMNS; h += P_WARPS) {
        const uint16_t *const row = query + h * P_DIM;
        const bool there = h < P_GROUP;
        if (!pages) {
            for (int i = lane; i < P_DIM; i += 32) to[h * P_DIM + i] = there ? row[i] : 0;
            continue;
        }
        float v[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = there ? query_at(row + lane * EACH + i) : 0;
        float by = scaling;
        if (P_Q4) {
            transform(v);
            by *= P_DIM_ROOT;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) to[h * P_DIM + lane * EACH + i] = (uint16_t)two_halves(v[i] * by, 0);
        /* with the centre of keys: (a, b) per frequency, in a unit in which they fit float16 at any angle */
        constexpr int PER_LANE = (P_ANGLES + 31) / 32;
        float a[PER_LANE], b[PER_LANE], largest = 0, constant = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int f = i * 32 + lane;
            a[i] = b[i] = 0;
            if (there && f < P_TURNED) {
                const float left = query_at(row + f), right = query_at(row + P_TURNED + f);
                const float low = centre[f], high = centre[P_TURNED + f];
                a[i] = (left * low + right * high) * scaling;
                b[i] = (right * low - left * high) * scaling;
                largest = max(largest, a[i] * a[i] + b[i] * b[i]);
            }
        }
        for (int i = 2 * P_TURNED + lane; i < P_DIM; i += 32) constant += there ? query_at(row + i) * centre[i] : 0;
        for (int x = 1; x < 32; x *= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, x));
        largest = root(largest);
        constant = over_warp(constant) * scaling;
        const float by_unit = largest > 0 ? 1 / largest : 0;
        float *const centred = (float *)(shared() + AT_CENTRED), *const spread = (float *)(shared() + AT_SPREAD);
#pragma unroll
        for (int i = 0; i < PER_LANE; i++) {
            const int f = i * 32 + lane;
            if (f < P_ANGLES) { /* where lane (h % 8, t) reads four */
                const int t = f / (P_ANGLES / 4), four = f % (P_ANGLES / 4) / 4;
                const int at = (((h / 8 * ANGLE_TILES + four) * 2 * 32) + (h % 8) * 4 + t) * 4 + f % 4;
                centred[at] = a[i] * by_unit;
                centred[at + 32 * 4] = b[i] * by_unit;
            }
        }
        if (!lane) spread[h] = largest, spread[COLUMNS + h] = constant;
    }
}
/* A lane's part of the queries: two words for each 16 dims and 8 query heads. PIECE: dims that lie side by side. */
template <int PIECE> DEV void take_queries(uint32_t (&to)[P_COLUMN_TILES][2 * DIM_TILES]) {
    const int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
        for (int i = 0; i < P_DIM / 4; i += 8) {
            const int dim = (i / PIECE * 4 + lane % 4) * PIECE + i % PIECE;
            words_at<4>(to[n] + i / 2, shared() + AT_QUERIES + ((n * 8 + lane / 4) * P_DIM + dim) * 2);
        }
}

/* Where the tokens of a session lie, of one key head, and the room of a warp. */
struct Pages {
    const uint8_t *rows;   /* of this key head */
    const uint32_t *scale; /* two float16 per row: of key and value */
    const int *table;
    const float *cosines, *sines;
    uint8_t *room;
    int stop; /* token at which this split ends */
};
template <int N> DEV void rows_of(int (&to)[N], const Pages &p, int tile) { /* blocks of a warp's tile */
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int token = tile * TOKENS + i * P_BLOCK;
        to[i] = token < p.stop ? p.table[token / P_BLOCK] : 0;
    }
}
#define BLOCKS (TOKENS > P_BLOCK ? TOKENS / P_BLOCK : 1)
DEV int64_t first_row(const int (&blocks)[BLOCKS], int tile, int m) { /* of 16 tokens, side by side */
    return (int64_t)blocks[BLOCKS > 1 ? m * 16 / P_BLOCK : 0] * P_BLOCK + (tile * TOKENS + m * 16) % P_BLOCK;
}
DEV uint8_t *key_room(const Pages &p, int m) { return p.room + m * KEY_ROOM; }
DEV uint8_t *value_room(const Pages &p, int m) { return p.room + P_STEP * KEY_ROOM + m * VALUE_ROOM; }
DEV float *angle_room(const Pages &p) { return (float *)(p.room + P_STEP * (KEY_ROOM + VALUE_ROOM)); }
DEV void ask_keys(const Pages &p, const int (&blocks)[BLOCKS], int tile, int m) {
    if (tile * TOKENS + m * 16 < p.stop) {
        const int lane = (int)threadIdx.x & 31, g = lane / 4, t = lane % 4;
        const int64_t row = first_row(blocks, tile, m);
        const uint8_t *const from = p.rows + row * (P_HEADS * ROW) + g * (P_HEADS * ROW) + t * KEY_PIECE;
        const uint32_t *const scale = p.scale + row * P_HEADS + g * P_HEADS;
        uint8_t *const to = key_room(p, m);
        copy_lane<KEY, 64>(to, from, lane);
        copy_lane<KEY, 64>(to + 32 * KEY, from + 8 * P_HEADS * ROW, lane);
        copy_lane<4>(to + 64 * KEY, (const uint8_t *)scale, lane);
        copy_lane<4>(to + 64 * KEY + 128, (const uint8_t *)(scale + 8 * P_HEADS), lane);
    }
    copies_commit();
}
/* Where a piece of 16 bytes of a token's value lies: such that lanes that read at once read different banks. */
DEV int value_place(int token, int piece) {
    const int row = token / 2 + token % 2 * 8;
    return (row * VALUE_PIECES + (piece ^ (row & 2 & VALUE_PIECES - 1))) * 16;
}
DEV void ask_values(const Pages &p, const int (&blocks)[BLOCKS], int tile, int m) { /* lanes read what others ask for */
    if (tile * TOKENS + m * 16 < p.stop) {
        const uint8_t *const from = p.rows + first_row(blocks, tile, m) * (P_HEADS * ROW) + ROW / 2;
#pragma unroll
        for (int first = 0; first < 16 * VALUE_PIECES; first += 32) {
            const int i = first + ((int)threadIdx.x & 31), token = i / VALUE_PIECES, piece = i % VALUE_PIECES;
            if (i < 16 * VALUE_PIECES)
                copy<16>(value_room(p, m) + value_place(token, piece), from + token * (P_HEADS * ROW) + piece * 16);
        }
    }
    copies_commit();
}
DEV void ask_angles(const Pages &p, int tile) { /* of the first of each 64 tokens of a unit */
    const int lane = (int)threadIdx.x & 31;
    constexpr int EACH = P_ANGLES / 2; /* pieces of 16 bytes, of one position */
    for (int i = lane; i < PAIR * EACH; i += 32) {
        const int place = tile * TOKENS / 64 + i / EACH, at = i % (P_ANGLES / 4) * 4;
        if (place * 64 < p.stop)
            copy<16>(angle_room(p) + i * 4,
                     (i % EACH < P_ANGLES / 4 ? p.cosines : p.sines) + (int64_t)place * P_ANGLES + at);
    }
}

/* A lane's part of the queries with the centre of keys, turned back to the first of 64 tokens. In a pair the columns
 * of the first four query heads are those of the first 64 tokens, the others those of the second. */
DEV void turn_queries(uint32_t (&to)[P_COLUMN_TILES][4 * ANGLE_TILES], const Pages &p) {
    const int lane = (int)threadIdx.x & 31;
    const float *const angles = angle_room(p) + lane / 16 * (PAIR - 1) * 2 * P_ANGLES + lane % 4 * (P_ANGLES / 4);
    const float *const centred = (const float *)(shared() + AT_CENTRED) + lane % (32 / PAIR) * 4;
#pragma unroll
    for (int i = 0; i < ANGLE_TILES; i++) {
        const Four c = four_at(angles + 4 * i), s = four_at(angles + P_ANGLES + 4 * i);
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++) {
            const float *const from = centred + (n * ANGLE_TILES + i) * 64 * 4;
            const Four a = four_at(from), b = four_at(from + 32 * 4);
            float x[4], y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[e] = a.v[e] * c.v[e] + b.v[e] * s.v[e];
                y[e] = b.v[e] * c.v[e] - a.v[e] * s.v[e];
            }
            to[n][2 * i] = two_halves(x[0], x[1]), to[n][2 * i + 1] = two_halves(x[2], x[3]);
            to[n][2 * ANGLE_TILES + 2 * i] = two_halves(y[0], y[1]);
            to[n][2 * ANGLE_TILES + 2 * i + 1] = two_halves(y[2], y[3]);
        }
    }
}
/* What the centre of keys adds to the scores of a warp's tile, or of both tiles of a pair. */
DEV void centre_scores(float (&score)[P_STEP][P_COLUMN_TILES][4],
                       const uint32_t (&turned)[P_COLUMN_TILES][4 * ANGLE_TILES], int tile, const float *spread) {
    const int lane = (int)threadIdx.x & 31;
    const uint8_t *const places = shared() + AT_PLACES + tile * TOKENS % 64 / 16 * (2 * ANGLE_TILES * 512) + lane * 16;
#pragma unroll
    for (int m = 0; m < P_STEP; m++) {
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[m][n][i] = 0;
#pragma unroll
        for (int k = 0; k < 2 * ANGLE_TILES; k++) {
            const uint4 a = *(const uint4 *)(places + (m * 2 * ANGLE_TILES + k) * 512);
#pragma unroll
            for (int n = 0; n < P_COLUMN_TILES; n++)
                mma_half(score[m][n], a.x, a.y, a.z, a.w, turned[n][2 * k], turned[n][2 * k + 1]);
        }
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column = n * 8 + (lane % 4 * 2 + (i & 1)) % (8 / PAIR);
                score[m][n][i] = score[m][n][i] * spread[column] + spread[COLUMNS + column];
            }
    }
}
/* Keys of 16 tokens, as they lie in shared memory, times queries. */
DEV void key_scores(float (&score)[P_COLUMN_TILES][4], const uint8_t *from,
                    const uint32_t (&query)[P_COLUMN_TILES][2 * DIM_TILES], const Book &halves) {
    const int lane = (int)threadIdx.x & 31;
    uint32_t word[2][KEY / 4];
    lane_words<KEY>(word[0], from, lane);
    lane_words<KEY>(word[1], from + 32 * KEY, lane);
#pragma unroll
    for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) score[n][i] = 0;
#pragma unroll
    for (int w = 0; w < KEY / 4; w++) {
        uint32_t part[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (P_Q4) {
                numbers(part[r], word[r][w], halves);
            } else { /* 1024 + 128 + code, less 1152 */
                const uint32_t bytes = word[r][w] ^ 0x80808080;
                part[r][0] = sums_of_halves(bytes_of(bytes, 0x64646464, 0x4140), 0xe480e480);
                part[r][1] = sums_of_halves(bytes_of(bytes, 0x64646464, 0x4342), 0xe480e480);
            }
#pragma unroll
        for (int k = 0; k < (P_Q4 ? 2 : 1); k++)
#pragma unroll
            for (int n = 0; n < P_COLUMN_TILES; n++) {
                const int at = w * (P_Q4 ? 2 : 1) + k;
                mma_half(score[n], part[0][2 * k], part[1][2 * k], part[0][2 * k + 1], part[1][2 * k + 1],
                         query[n][2 * at], query[n][2 * at + 1]);
            }
    }
}
/* Adds values of 16 tokens, as they lie in shared memory, times weights. */
DEV void add_values(State &state, const uint8_t *from, const uint32_t (&weight)[P_COLUMN_TILES][2],
                    const Book &brains) {
    const int lane = (int)threadIdx.x & 31, g = lane / 4, t = lane % 4;
    constexpr int WORDS = (VALUE + 3) / 4;
    uint32_t word[4][WORDS];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = 2 * t + i % 2 + i / 2 * 8;
        if (VALUE < 4) { /* two lanes read the same word */
            word[i][0] = *(const uint32_t *)(from + value_place(token, 0) + g / 2 * 4) >> g % 2 * 16;
            continue;
        }
#pragma unroll
        for (int j = 0; j < (VALUE + 15) / 16; j++)
            words_at<(WORDS < 4 ? WORDS : 4)>(
                word[i] + 4 * j, from + value_place(token, (g * VALUE + 16 * j) / 16) + g * VALUE % 16);
    }
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        uint32_t part[4][4]; /* even dims of tokens 0 and 1, odd ones, those of tokens 2 and 3; per tile of dims */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t one = word[2 * i][w], other = word[2 * i + 1][w];
            if (P_Q4) {
                numbers(part[2 * i], (one & 0x0f0f0f0f) | (other << 4 & 0xf0f0f0f0), brains);
                numbers(part[2 * i + 1], (one >> 4 & 0x0f0f0f0f) | (other & 0xf0f0f0f0), brains);
            } else { /* 128 + the low 7 bits, less 128 or, for negative codes, 256 */
#pragma unroll
                for (int d = 0; d < 4; d++) {
                    const uint32_t both = bytes_of(one, other, 0x0400 + d * 0x101);
                    part[2 * i + d % 2][d / 2] =
                        sums_of_bf16((both & 0x007f007f) | 0x43004300, (both & 0x00800080) | 0xc300c300);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < (P_Q4 ? 4 : 2); j++)
            if (w * (P_Q4 ? 4 : 2) + j < DIM_TILES)
#pragma unroll
                for (int n = 0; n < P_COLUMN_TILES; n++)
                    mma_bf16(state.sum[n][w * (P_Q4 ? 4 : 2) + j], part[0][j], part[1][j], part[2][j], part[3][j],
                             weight[n][0], weight[n][1]);
    }
}

/* The tile of a warp that comes after `number` others. */
DEV int tile_at(int first, int number) {
    const int unit = first / P_UNIT + (int)threadIdx.x / 32 + number / EACH_UNIT * P_WARPS, n = number % EACH_UNIT;
    return unit * EACH_UNIT + n / PAIR + n % PAIR * APART;
}
/* Asks for the first tile of a warp. */
DEV void ask_first(const Pages &p, int first) {
    const int tile = tile_at(first, 0);
    int blocks[BLOCKS];
    rows_of(blocks, p, tile);
    ask_angles(p, tile);
#pragma unroll
    for (int m = 0; m < P_STEP; m++) ask_keys(p, blocks, tile, m);
#pragma unroll
    for (int m = 0; m < P_STEP; m++) ask_values(p, blocks, tile, m);
}
/* Tokens of pages from `first` on, by all warps of the CTA in turn. */
DEV void attend_packed(State &state, const Pages &p, int first) {
    const int lane = (int)threadIdx.x & 31, g = lane / 4;
    const float *const spread = (const float *)(shared() + AT_SPREAD);
    uint32_t query[P_COLUMN_TILES][2 * DIM_TILES], turned[P_COLUMN_TILES][4 * ANGLE_TILES];
    take_queries<KEY_PIECE * (P_Q4 ? 2 : 1)>(query);
    Book halves, brains;
    take_books(halves, brains);
    float centred[P_STEP][P_COLUMN_TILES][4];
    for (int number = 0;; number++) {
        const int tile = tile_at(first, number), next = tile_at(first, number + 1);
        if (number % EACH_UNIT == 0) {
            if (tile * TOKENS >= p.stop) break;
            copies_wait<AHEAD>();
            __syncwarp();
            turn_queries(turned, p);
            __syncwarp();
            ask_angles(p, tile_at(first, number + EACH_UNIT));
        }
        int blocks[BLOCKS];
        rows_of(blocks, p, next);
        if (number % PAIR == 0) {
            centre_scores(centred, turned, tile, spread);
        } else {
#pragma unroll
            for (int m = 0; m < P_STEP; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) centred[m][0][i] = __shfl_xor_sync(~0u, centred[m][0][i], 2);
        }
        float score[P_STEP][P_COLUMN_TILES][4];
        uint32_t scale[P_STEP][2];
#pragma unroll
        for (int m = 0; m < P_STEP; m++) {
            copies_wait<AHEAD>();
            float found[P_COLUMN_TILES][4];
            key_scores(found, key_room(p, m), query, halves);
            lane_words<4>(&scale[m][0], key_room(p, m) + 64 * KEY, lane);
            lane_words<4>(&scale[m][1], key_room(p, m) + 64 * KEY + 128, lane);
            ask_keys(p, blocks, next, m);
#pragma unroll
            for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    score[m][n][i] = found[n][i] * of_half(scale[m][i / 2]) + centred[m][n][i];
        }
        if (tile == 0 || (tile + 1) * TOKENS > p.stop) { /* sinks, and what is behind the end */
#pragma unroll
            for (int m = 0; m < P_STEP; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int token = tile * TOKENS + m * 16 + r * 8 + g;
                    if (token >= P_SINKS && token < p.stop) continue;
                    scale[m][r] = 0;
#pragma unroll
                    for (int n = 0; n < P_COLUMN_TILES; n++) score[m][n][2 * r] = score[m][n][2 * r + 1] = 2 * NOTHING;
                }
        }
        weigh(state, score);
#pragma unroll
        for (int m = 0; m < P_STEP; m++) {
            uint32_t weight[P_COLUMN_TILES][2];
#pragma unroll
            for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float by = of_high_half(scale[m][r]);
                    weight[n][r] = transposed(two_bf16(score[m][n][2 * r] * by, score[m][n][2 * r + 1] * by));
                }
            copies_wait<AHEAD>();
            __syncwarp();
            add_values(state, value_room(p, m), weight, brains);
            __syncwarp();
            ask_values(p, blocks, next, m);
        }
    }
}

#if P_BF16
#define mma_exact mma_bf16
#define two_exact two_bf16
#else
#define mma_exact mma_half
#define two_exact two_halves
#endif
/* Exact tokens, in any order, with gaps: columns from `first` to `stop`. Keys and values are those of the key head. */
DEV void attend_exact(State &state, const uint16_t *keys, const uint16_t *values, const uint8_t *real, int first,
                      int stop, float scaling) {
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    __syncthreads();
    uint32_t query[P_COLUMN_TILES][2 * DIM_TILES];
    take_queries<8>(query);
    for (int begin = first + 16 * warp; begin < stop; begin += 16 * P_WARPS) {
        uint32_t key[2][2 * DIM_TILES], value[4][DIM_TILES];
        bool live[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int column = begin + g + 8 * r;
            live[r] = column < stop && real[column];
#pragma unroll
            for (int i = 0; i < 2 * DIM_TILES; i++) key[r][i] = 0;
            if (live[r])
#pragma unroll
                for (int i = 0; i < DIM_TILES / 2; i++)
                    words_at<4>(key[r] + 4 * i, keys + (int64_t)column * P_DIM + (i * 4 + t) * 8);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = begin + 2 * t + i % 2 + i / 2 * 8;
#pragma unroll
            for (int j = 0; j < DIM_TILES; j++) value[i][j] = 0;
            if (column < stop && real[column])
                words_at<DIM_TILES>(value[i], values + (int64_t)column * P_DIM + g * (P_DIM / 8));
        }
        float score[1][P_COLUMN_TILES][4];
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) score[0][n][i] = 0;
#pragma unroll
            for (int k = 0; k < DIM_TILES; k++)
                mma_exact(score[0][n], key[0][2 * k], key[1][2 * k], key[0][2 * k + 1], key[1][2 * k + 1],
                          query[n][2 * k], query[n][2 * k + 1]);
#pragma unroll
            for (int i = 0; i < 4; i++) score[0][n][i] = live[i / 2] ? score[0][n][i] * scaling : 2 * NOTHING;
        }
        weigh(state, score);
#pragma unroll
        for (int n = 0; n < P_COLUMN_TILES; n++) {
            uint32_t weight[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                weight[r] = transposed(two_exact(score[0][n][2 * r], score[0][n][2 * r + 1]));
#pragma unroll
            for (int j = 0; j < DIM_TILES; j++)
                mma_exact(
                    state.sum[n][j], bytes_of(value[0][j], value[1][j], 0x5410),
                    bytes_of(value[0][j], value[1][j], 0x7632), bytes_of(value[2][j], value[3][j], 0x5410),
                    bytes_of(value[2][j], value[3][j], 0x7632), weight[0], weight[1]);
        }
    }
}

/* The warps' sums to global memory: of this split, (query heads, splits, P_DIM) and (query heads, splits, 2). */
DEV void give_sums(State &state, float *sums, float *ends, int splits, int split) {
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float (*const met)[COLUMNS][2] = (float (*)[COLUMNS][2])(shared() + AT_ENDS);
    float *const own = (float *)shared() + warp * P_GROUP * P_DIM;
    copies_wait<0>();
#pragma unroll
    for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float total = over_tokens(state.total[n][e]);
            if (!g) met[warp][n * 8 + t * 2 + e][0] = state.unit[n][e], met[warp][n * 8 + t * 2 + e][1] = total;
        }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < P_COLUMN_TILES; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int column = n * 8 + t * 2 + e;
            if (column >= P_GROUP) continue;
            float unit = NOTHING, total = 0;
            for (int w = 0; w < P_WARPS; w++) unit = max(unit, met[w][column][0]);
            for (int w = 0; w < P_WARPS; w++) total += met[w][column][1] * power(met[w][column][0] - unit);
            if (!g && !warp) {
                ends[(column * splits + split) * 2] = unit;
                ends[(column * splits + split) * 2 + 1] = total;
            }
            const float by = power(state.unit[n][e] - unit);
#pragma unroll
            for (int j = 0; j < DIM_TILES; j++) {
                float *const to = own + column * P_DIM + g * (P_DIM / 8) + 2 * j;
                to[0] = state.sum[n][j][e] * by, to[1] = state.sum[n][j][2 + e] * by;
            }
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < P_GROUP * P_DIM; i += THREADS) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < P_WARPS; w++) sum += ((float *)shared())[w * P_GROUP * P_DIM + i];
        sums[((int64_t)(i / P_DIM) * splits + split) * P_DIM + i % P_DIM] = sum;
    }
}

/* All splits of a key head, by the CTA that ended last. */
DEV void join(const float *sums, const float *ends, const float *centre, float *out, int page_splits, int splits) {
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    float (*const met)[4] = (float (*)[4])(shared() + AT_ENDS); /* unit, sum of all weights, of those of pages */
    float *const rotated = (float *)shared(), *const plain = rotated + P_GROUP * P_DIM;
    for (int h = warp; h < P_GROUP; h += P_WARPS) {
        float unit = NOTHING, whole = 0, pages = 0;
        for (int s = lane; s < splits; s += 32) { /* a sum over splits is relative to the largest so far */
            const Two end = far_load(ends + (h * splits + s) * 2);
            const float larger = max(unit, end.x), shrink = power(unit - larger), some = end.y * power(end.x - larger);
            whole = whole * shrink + some;
            pages = pages * shrink + (s < page_splits ? some : 0);
            unit = larger;
        }
        float most = unit;
        for (int x = 1; x < 32; x *= 2) most = max(most, __shfl_xor_sync(~0u, most, x));
        whole = over_warp(whole * power(unit - most)), pages = over_warp(pages * power(unit - most));
        if (!lane) met[h][0] = most, met[h][1] = whole, met[h][2] = pages;
    }
    __syncthreads();
    constexpr int AT_ONCE = 8; /* splits that are asked for before one is waited for */
    for (int i = 2 * (int)threadIdx.x; i < P_GROUP * P_DIM; i += 2 * THREADS) {
        const int h = i / P_DIM;
        const float unit = met[h][0];
        Two of_pages = {0, 0}, of_exact = {0, 0};
        for (int begin = 0; begin < splits; begin += AT_ONCE) {
            Two end[AT_ONCE], sum[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int64_t at = (int64_t)h * splits + min(begin + j, splits - 1);
                end[j] = far_load(ends + at * 2);
                sum[j] = far_load(sums + at * P_DIM + i % P_DIM);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int s = begin + j;
                const float by = s < splits ? power(end[j].x - unit) : 0;
                const float packed = s < page_splits ? by : 0, exact = by - packed;
                of_pages.x += packed * sum[j].x, of_pages.y += packed * sum[j].y;
                of_exact.x += exact * sum[j].x, of_exact.y += exact * sum[j].y;
            }
        }
        rotated[i] = of_pages.x, rotated[i + 1] = of_pages.y;
        plain[i] = of_exact.x, plain[i + 1] = of_exact.y;
    }
    __syncthreads();
    constexpr int EACH = P_DIM / 32;
    for (int h = warp; h < P_GROUP; h += P_WARPS) {
        float v[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = rotated[h * P_DIM + lane * EACH + i];
        if (P_Q4) transform(v);
        const float whole = met[h][1], by = whole > 0 ? 1 / whole : 1;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int d = lane * EACH + i;
            const float sum = v[i] * (P_Q4 ? P_DIM_ROOT : 1) + plain[h * P_DIM + d] + met[h][2] * centre[d];
            out[h * P_DIM + d] = sum * by;
        }
    }
}

/* Sets out (B, query heads, P_DIM). `places`: cosines and sines of 64 places, as products read them. `ended`: zeros, as
 * before after the launch. Splits behind `page_splits` are exact tokens. */
KERNEL_OF(THREADS, P_CTAS)
attend_pages(const uint16_t *query, const uint8_t *pages, const uint32_t *scale, const int *table, const int *packed,
             const uint16_t *keys, const uint16_t *values, const uint8_t *real, const float *centre,
             const float *tile_cos, const float *tile_sin, const uint8_t *places, float *sums, float *ends, float *out,
             int *ended, float scaling, int columns, int room, int table_row, int chunk, int exact_chunk,
             int page_splits) {
    const int head = (int)blockIdx.x, split = (int)blockIdx.y, session = (int)blockIdx.z, splits = (int)gridDim.y;
    const int64_t place = (int64_t)session * P_HEADS + head;
    sums += place * P_GROUP * splits * P_DIM;
    ends += place * P_GROUP * splits * 2;
    State state;
    begin(state);
    if (split < page_splits) {
        const int first = split * chunk;
        const Pages p = {
            pages + head * ROW, scale + head, table + (int64_t)session * table_row, tile_cos, tile_sin,
            shared() + (int)threadIdx.x / 32 * WARP_ROOM, min(first + chunk, packed[session])};
        if (first < p.stop) {
            ask_first(p, first);
            for (int i = (int)threadIdx.x; i < PLACES / 16; i += THREADS)
                copy<16>(shared() + AT_PLACES + i * 16, places + i * 16);
            give_books();
            give_queries(query + place * P_GROUP * P_DIM, centre + head * P_DIM, scaling, true);
            copies_commit();
            copies_wait<0>();
            __syncthreads();
            attend_packed(state, p, first);
        }
    } else {
        const int first = (split - page_splits) * exact_chunk;
        give_queries(query + place * P_GROUP * P_DIM, centre, scaling, false);
        attend_exact(state, keys + place * room * P_DIM, values + place * room * P_DIM,
                     real + (int64_t)session * room, first, min(first + exact_chunk, columns), scaling);
    }
    __syncthreads();
    give_sums(state, sums, ends, splits, split);
    /* the last CTA of a key head sees what the others wrote */
    __syncthreads();
    int *const last = (int *)(shared() + AT_LAST);
    if (!threadIdx.x) {
        look_again();
        *last = atomicAdd(ended + place, 1) == splits - 1;
        if (*last) ended[place] = 0;
        look_again();
    }
    __syncthreads();
    if (!*last) return;
    join(sums, ends, centre + (P_HEADS + head) * P_DIM, out + place * P_GROUP * P_DIM, page_splits, splits);
}

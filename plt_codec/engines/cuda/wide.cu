/* Many sessions together on one H100 or H200: batch.cu's products, its heads and, for encoding, its attention by
 * `wgmma`, the products of 64 rows that four warps start together and wait for later (P_WGMMA; which shapes: pack.py).
 *
 * What it gains over `mma` (RESULTS.md, "Wide"): operands come from shared memory without a thread loading them, so
 * keys, values and weights pass once through it for 64 or 128 rows instead of 16 or 32, and a thread's numbers go out
 * 16 bytes at a time.
 *
 * Fragments. Four warps have 64 rows; warp n rows 16 n .. 16 n + 15. Thread (g, t) = (thread / 4, thread % 4) of a warp
 * holds, of a product of N columns, N / 2 numbers: c[i] is row g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2. Where
 * the left side comes from registers, they are its bytes 4 t .. 4 t + 3 (of 32) of row g and of row g + 8, then bytes
 * 16 + 4 t .. of both.
 */
#if P_WGMMA
static_assert(!GATED, "to_up has no gate here");

/* ---------------------------------------------------------------- instructions */

#ifndef PLTZ_EMULATE
typedef uint32_t Spot; /* an address of shared memory */
extern __shared__ __align__(1024) uint8_t wide_memory[]; /* shared(), for matrices whose places the address decides */
DEV Spot shared_spot() { return shared_address(wide_memory); }
DEV Spot aligned(Spot p, uint32_t to) { return (p + to - 1) & ~(to - 1); }
DEV void copy16(Spot to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
DEV uint32_t word_at(
    Spot p, uint32_t offset) { /* bits that one of both has, the other lacks; what is there is never written again */
    uint32_t out;
    asm("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(p | offset));
    return out;
}
DEV void set_word(Spot p, uint32_t v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(p), "r"(v) : "memory"); }
DEV uint32_t joined_at(uint32_t a, uint32_t by, uint32_t b) { /* a * by + b, not on the units that shift */
    uint32_t out;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(by), "r"(b));
    return out;
}
/* A side of a product as the instruction wants it: a word that tells where it is and how it lies. R rows of 64 bytes at
 * p (a multiple of 512), as piece_of() lays them, from row `row` (a multiple of 8) and byte k (0 or 32) of each on.
 * From the lowest bits: the address / 16; 1, which means nothing here; 512 / 16, from 8 rows to the next 8; 2 at the
 * top, the 64-byte swizzle. */
DEV uint64_t matrix(Spot p, int row, int k) {
    return (uint64_t)0x80000020 << 32 | ((p + (uint32_t)(row * 64 + k)) >> 4 | 1 << 16);
}
DEV void copies_seen() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
} /* by products: what this thread copied before */

/* wide_S_N: c += a b, or c = a b where add is 0; 64 rows, N columns, 32 inputs; S: signs of a; b is signed. Between
 * wide_begin() and the wide_end of its c nobody touches c, nor a where that is in registers. */
DEV void wide_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wide_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEV void wide_but_last() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
} /* until all but the last are done */
#define REGS4(c, i) "+r"((c)[i]), "+r"((c)[i + 1]), "+r"((c)[i + 2]), "+r"((c)[i + 3])
#define REGS16(c, i) REGS4(c, i), REGS4(c, i + 4), REGS4(c, i + 8), REGS4(c, i + 12)
#define REGS32(c) REGS16(c, 0), REGS16(c, 16)
#define REGS64(c) REGS32(c), REGS16(c, 32), REGS16(c, 48)
#define NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES32 NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES64                                                                                \
    NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
            ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WIDE(shape, c, a, b, add)                   \
    "{.reg .pred p;\n setp.ne.b32 p, " add ", 0;\n" \
    "wgmma.mma_async.sync.aligned." shape " {" c "}, " a ", " b ", p;\n}"
DEV void wide_s8_32(int32_t *c, const uint32_t a[4], uint64_t b, int add) {
    asm volatile(WIDE("m64n32k32.s32.s8.s8", NAMES16, "{%16, %17, %18, %19}", "%20", "%21")
                 : REGS16(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
DEV void wide_s8_64(int32_t *c, const uint32_t a[4], uint64_t b, int add) {
    asm volatile(WIDE("m64n64k32.s32.s8.s8", NAMES32, "{%32, %33, %34, %35}", "%36", "%37")
                 : REGS32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
DEV void wide_u8_64(int32_t *c, const uint32_t a[4], uint64_t b, int add) {
    asm volatile(WIDE("m64n64k32.s32.u8.s8", NAMES32, "{%32, %33, %34, %35}", "%36", "%37")
                 : REGS32(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
DEV void wide_s8_128(int32_t *c, uint64_t a, uint64_t b, int add) {
    asm volatile(WIDE("m64n128k32.s32.s8.s8", NAMES64, "%64", "%65", "%66") : REGS64(c) : "l"(a), "l"(b), "r"(add));
}
DEV void wide_u8_128(int32_t *c, uint64_t a, uint64_t b, int add) {
    asm volatile(WIDE("m64n128k32.s32.u8.s8", NAMES64, "%64", "%65", "%66") : REGS64(c) : "l"(a), "l"(b), "r"(add));
}
/* Until all are done. What may still be under way is named, so that the compiler keeps away from it up to here; `used`:
 * 8 words that are the left side of some. */
DEV void wide_end_32(int32_t *c) { asm volatile("wgmma.wait_group.sync.aligned 0;" : REGS32(c) : : "memory"); }
DEV void wide_end_64(int32_t *c) { asm volatile("wgmma.wait_group.sync.aligned 0;" : REGS64(c) : : "memory"); }
DEV void wide_end_80(int32_t *c, int32_t *d, int32_t *e, const uint32_t *used) {
    asm volatile("wgmma.wait_group.sync.aligned 0;"
                 : REGS16(c, 0), REGS32(d), REGS32(e)
                 : "r"(used[0]), "r"(used[1]), "r"(used[2]), "r"(used[3]), "r"(used[4]), "r"(used[5]), "r"(used[6]),
                   "r"(used[7])
                 : "memory");
}
#endif

/* Where piece c (16 bytes) of row `row` lies, rows of 64 bytes: as the 64-byte swizzle has it, pieces change places
 * with the row, so that eight rows' pieces c lie in all 32 banks. The emulation reads matrices in the same way. */
DEV int piece_of(int row, int c) { return row * 64 + ((c ^ (row >> 1 & 3)) << 4); }

/* ---------------------------------------------------------------- products */

enum {
    WIDE_STEPS = 6, /* chunks of 64 inputs that the shared memory holds: two in use, four coming */
    WIDE_CHUNK = (BM + BN) * 64
};
static_assert(WIDE_STEPS * WIDE_CHUNK == PRODUCT_SHARED, "batch.py gives that");

/* Where channel n of a product's columns comes from, both counted from the CTA's first. A thread has columns 8 j + 2 t,
 * + 1: the weights stand in shared memory in such an order that these are EACH neighbouring channels, 16 bytes of the
 * output, and those of four threads 64. */
template <int EACH> DEV int channel_of(int n) {
    const int j = n >> 3, t = n >> 1 & 3, i = n & 1;
    return j / (EACH / 2) * 4 * EACH + t * EACH + j % (EACH / 2) * 2 + i;
}
/* As product() of batch.cu: 128 rows times 128 channels a CTA, 64 rows times 128 channels four warps. */
template <int KIND, int K, bool UNSIGNED = false> DEV void product_wide(const State *state, const int8_t *a,
                                                                        const int8_t *w, const int32_t *m,
                                                                        const int32_t *table, void *out, int stride) {
    const int row0 = (int)blockIdx.y * BM, channel0 = (int)blockIdx.x * BN, all = state->rows;
    if (row0 >= all) return;
    const Spot mem = shared_spot();
    const int tid = (int)threadIdx.x, thread = thread_of(), g = thread >> 2, t = thread & 3;
    const int wg = __shfl_sync(FULL, tid >> 7, 0); /* which four warps; so the compiler sees that it is the warp's */
    enum { CHUNKS = K / 64, EACH = KIND == TO_QKV ? 8 : KIND == TO_HIDDEN ? 16 : 4, HALF = 64 };
    const int row = tid >> 2, piece = tid & 3,
              place = piece_of(row, piece); /* copied by this thread: of this row and of HALF rows on */
    const int8_t *a_from = a + (int64_t)(row0 + row) * K + piece * 16;
    const int8_t *w_from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int channel = channel_of<EACH>(row + i * HALF);
        if (channel0 + channel >= stride) channel -= 64; /* half a CTA is missing */
        w_from[i] = w + (int64_t)(channel0 + channel >> 3) * CHUNKS * 512 + (channel & 7) * 64 + piece * 16;
    }
    auto load = [&](int chunk) {
        if (chunk < CHUNKS) {
            const Spot to = mem + chunk % WIDE_STEPS * WIDE_CHUNK;
            copy16(to + place, a_from + chunk * 64);
            copy16(to + place + piece_of(HALF, 0), a_from + (int64_t)HALF * K + chunk * 64);
#pragma unroll
            for (int i = 0; i < 2; i++) copy16(to + BM * 64 + place + piece_of(i * HALF, 0), w_from[i] + chunk * 512);
        }
        copies_commit();
    };
    int32_t c[64];
    for (int chunk = 0; chunk < WIDE_STEPS - 2; chunk++) load(chunk);
#pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        copies_wait<WIDE_STEPS - 3>();
        copies_seen();
        __syncthreads();
        load(chunk + WIDE_STEPS - 2); /* where the chunk before the last was: of the last, products may be under way */
        const Spot at = mem + chunk % WIDE_STEPS * WIDE_CHUNK, bt = at + BM * 64;
        wide_begin();
#pragma unroll
        for (int k = 0; k < 64; k += 32) {
            if (UNSIGNED) wide_u8_128(c, matrix(at, wg * 64, k), matrix(bt, 0, k), chunk + k > 0);
            else wide_s8_128(c, matrix(at, wg * 64, k), matrix(bt, 0, k), chunk + k > 0);
        }
        wide_commit();
        wide_but_last();
    }
    wide_end_64(c);
#pragma unroll
    for (int part = 0; part < 32 / EACH; part++) { /* EACH neighbours of rows g and g + 8 */
        const int n = channel0 + part * 4 * EACH + t * EACH;
        if (n >= stride) break;
        int32_t by[EACH], plus[4];
#pragma unroll
        for (int i = 0; i < EACH; i += 4) *(int4 *)(by + i) = *(const int4 *)(m + n + i);
        if (KIND == TO_LOGITS) *(int4 *)plus = *(const int4 *)(table + n);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = row0 + (tid >> 5) * 16 + h * 8 + g;
            if (r >= all) continue;
            const int64_t to = (int64_t)r * stride + n;
            int32_t y[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) y[i] = scaled(c[(part * (EACH / 2) + i / 2) * 4 + h * 2 + i % 2], by[i]);
            uint32_t v[4];
            if (KIND == TO_QKV) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] = ((uint32_t)clamp_to(y[i * 2 % EACH], 32767) & 0xffff) |
                           (uint32_t)clamp_to(y[(i * 2 + 1) % EACH], 32767) << 16;
                }
                *(uint4 *)((int16_t *)out + to) = make_uint4(v[0], v[1], v[2], v[3]);
            } else if (KIND == TO_HIDDEN) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] = 0;
#pragma unroll
                    for (int b = 0; b < 4; b++) {
                        const uint32_t u = (uint32_t)min(max(y[(i * 4 + b) % EACH], 0), 255);
                        v[i] |= (u * u + 128) >> 8 << 8 * b;
                    }
                }
                *(uint4 *)((uint8_t *)out + to) = make_uint4(v[0], v[1], v[2], v[3]);
            } else {
                int4 *at = (int4 *)((int32_t *)out + to);
                const int4 x = KIND == TO_RESIDUAL ? *at : *(const int4 *)plus;
                int4 sum = {x.x + y[0], x.y + y[1], x.z + y[2], x.w + y[3]};
                if (KIND == TO_RESIDUAL) {
                    sum = int4{clamp_to(sum.x, RESIDUAL_MAX), clamp_to(sum.y, RESIDUAL_MAX),
                               clamp_to(sum.z, RESIDUAL_MAX), clamp_to(sum.w, RESIDUAL_MAX)};
                }
                *at = sum;
            }
        }
    }
}
KERNEL2(256) to_qkv(const State *state, const int8_t *a, const int8_t *w, const int32_t *m, int16_t *y) {
    product_wide<TO_QKV, DP>(state, a, w, m, 0, y, QP);
}
KERNEL2(256) to_out(const State *state, const int8_t *o, const int8_t *w, const int32_t *m, int32_t *x) {
    product_wide<TO_RESIDUAL, OP>(state, o, w, m, 0, x, DP);
}
KERNEL2(256)
to_up(const State *state, const int8_t *a, const int8_t *w, const int32_t *m, const int32_t *act, uint8_t *h) {
    product_wide<TO_HIDDEN, DP>(state, a, w, m, act, h, FP);
}
KERNEL2(256) to_down(const State *state, const int8_t *h, const int8_t *w, const int32_t *m, int32_t *x) {
    product_wide<TO_RESIDUAL, FP, true>(state, h, w, m, 0, x, DP);
}
KERNEL2(256)
to_class(const State *state, const int8_t *a, const int8_t *w, const int32_t *m, const int32_t *bias, int32_t *logits) {
    product_wide<TO_LOGITS, DP>(state, a, w, m, bias, logits, CP);
}

/* ---------------------------------------------------------------- attention */

/* As heads() of batch.cu, 16 rows a CTA. wide: values go where attend_wide() reads them (value_row_place()), by
 * dimension: a byte of a row stands alone there. Where the 16 rows of a CTA are 16 neighbouring keys, their values meet
 * in shared memory, KV x HW x 16 bytes, and go out 16 bytes at a time. */
KERNEL2(512)
heads_wide(const State *state, const Row *rows, const int16_t *y, const int32_t *phase, const int16_t *cosine,
           const int16_t *sine, int32_t layer, int8_t *q, const Cache *caches, int8_t *memory, int32_t wide) {
    const int first = (int)(blockIdx.x * (blockDim.x >> 5)), r = first + warp_of(), thread = thread_of(),
              all = state->rows;
    if (first >= all || (!wide && r >= all)) return;
    const Row row = rows[min(r, all - 1)];
    const Cache cache = caches[row.slot];
    const int16_t *from = y + (int64_t)r * QP;
    if (r < all) {
        turn_heads(from, row.at, phase, cosine, sine, thread, [&](int h) {
            return h < HEADS ? q + ((int64_t)r * HEADS + h) * HW
                             : keys_of(cache, memory, layer, h - HEADS) + (int64_t)row.key * HW;
        });
    }
    if (wide) {
        const Row low = rows[first], high = rows[min(first + 15, all - 1)];
        if (high.slot == low.slot && high.key == low.key + 15 && low.key % 16 == 0) { /* the same for all of the CTA */
            int8_t *met = (int8_t *)shared() + ((row.key & 7) >> 1) * 4 + (row.key >> 3 & 1) * 2 + (row.key & 1);
#pragma unroll
            for (int h = 0; h < KV; h++) {
                for (int i = thread; i < HD; i += 32)
                    met[(h * HW + i) * 16] = (int8_t)clamp_to(from[(HEADS + KV + h) * HD + i], 127);
            }
            __syncthreads();
            for (int i = (int)threadIdx.x; i < KV * HW; i += (int)blockDim.x) {
                int8_t *v = keys_of(cache, memory, layer, i / HW) + cache.room * HW;
                if (i % HW < HD) *(uint4 *)(v + value_row_place(low.key, i % HW)) = *(const uint4 *)(shared() + i * 16);
            }
            return;
        }
        if (r >= all) return;
    }
#pragma unroll
    for (int h = 0; h < KV; h++) {
        int8_t *v = keys_of(cache, memory, layer, h) + cache.room * HW;
        for (int i = thread; i < HD; i += 32)
            v[value_at(row.key, i, wide)] = (int8_t)clamp_to(from[(HEADS + KV + h) * HD + i], 127);
    }
}

enum {
    WIDE_QUERIES = 128,
    WIDE_THREADS = 256, /* of a CTA: 16 queries a warp */
    WIDE_STAGES = 4,
    WIDE_COMING = 2,
    WIDE_STAGE = 2 * 64 * HW
}; /* 64 keys each, then their values; those on the way */

/* key_weight() by the table of this thread, which begins at `own`. */
DEV uint32_t weight_at(uint32_t below, uint32_t far, uint32_t heat, Spot own) {
    if (P_HOT) {
        const uint32_t e = min(min(below, far) * heat, 1023u << 16);
        return word_at(own, e >> 9 & 63 << 7) >> (e >> 22);
    }
    const uint64_t e = multiply(below, heat << 10);
    return shift_right(word_at(own, (uint32_t)e >> 19 & 63 << 7), (uint32_t)(e >> 32));
}
template <int N> DEV void fill(int32_t (&c)[N], const int32_t (&most)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) c[i] = most[i >> 1 & 1];
}
/* work(c, s) for all stages s, c: the scores of a stage's 64 keys. */
template <bool ADD, class Scores, class Work> DEV void sweep(int stages, Scores scores_of, Work work) {
#pragma unroll 1
    for (int s = 0; s < stages; s++) {
        int32_t c[32];
        scores_of(c, s, ADD);
        work(c, s);
    }
}

/* Attention as attend() of batch.cu, for many rows of a slot at once: a CTA 128 queries of one key head and one slot, a
 * warp 16 of them and all their keys, so no warp waits for another's sums. Three times over the keys, 64 at a time,
 * which pass through a ring of WIDE_STAGES in shared memory: highest score; sum of weights; shares times values. The
 * scores come out negated, from the second time on atop the highest: how far below it they are. A share has 16 bits, a
 * product's left side 8: low and high bytes are two products with a sum each. Shared memory: the table of weights at a
 * multiple of its size, so that `|` adds to it, then the ring. */
KERNEL2(256)
attend_wide(const Session *sessions, const Piece *pieces, const int8_t *q, const Cache *caches, int8_t *memory,
            int32_t layer, const int32_t *heat, const int32_t *exp, int8_t *o) {
    const Piece piece = pieces[blockIdx.z];
    if (!piece.rows) return;
    const int head = (int)blockIdx.y, tid = (int)threadIdx.x, thread = thread_of(), g = thread >> 2, t = thread & 3,
              queries = piece.rows * GROUP;
    const int L = sessions[piece.session].L, old = sessions[piece.session].old;
    const Cache cache = caches[blockIdx.z];
    const int8_t *keys = keys_of(cache, memory, layer, head);
    const Spot table = aligned(shared_spot(), WEIGHTS * 4), mem = table + WEIGHTS * 4, own = table + thread * 4;
    const int each = tid * 16, place = piece_of(tid >> 2, tid & 3);
    for (int i = tid; i < WEIGHTS; i += WIDE_THREADS) set_word(table + i * 4, (uint32_t)(exp[i >> 5] + 16) >> 5);
    auto limit_of = [&](int query) {
        return old + (piece.step + min(query, queries - 1) / GROUP / L + 1) * L;
    }; /* keys it sees */
    for (int chunk = (int)blockIdx.x; chunk * WIDE_QUERIES < queries; chunk += (int)gridDim.x) {
        const int first = chunk * WIDE_QUERIES, mine = first + warp_of() * 16;
        const int stages = (limit_of(first + WIDE_QUERIES - 1) + 63) / 64,
                  whole = limit_of(mine) / 64; /* of which all queries of the warp see all keys */
        const int8_t *from = keys + each;
        auto load = [&](int s, bool both) { /* stages one after the other */
                                            if (s < stages) {
                                                const Spot to = mem + s % WIDE_STAGES * WIDE_STAGE + place;
                                                copy16(to, from);
                                                if (both) copy16(to + 64 * HW, from + cache.room * HW);
                                                from += 64 * HW;
                                            }
                                            copies_commit();
        };
        auto start = [&](bool both) {
            __syncthreads(); /* all have read what was there */
            from = keys + each;
            for (int s = 0; s < WIDE_COMING; s++) load(s, both);
        };
        auto arrived = [&](int s, bool both) { /* what is loaded now comes where WIDE_STAGES - WIDE_COMING rounds ago
                                                  was read: later products may be under way */
                                               copies_wait<WIDE_COMING - 1>();
                                               copies_seen();
                                               __syncthreads();
                                               load(s + WIDE_COMING, both);
                                               return mem + s % WIDE_STAGES * WIDE_STAGE;
        };
        uint32_t fa[4], fb[4]; /* the queries, negated: dims 0 to 31, 32 to 63 */
        int32_t limit[2], most[2];
        uint32_t heated[2], far[2];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* rows past the last repeat it */
            const int query = min(mine + h * 8 + g, queries - 1), r = query / GROUP, qh = head * GROUP + query % GROUP;
            const uint32_t *from = (const uint32_t *)(q + ((int64_t)(piece.row + r) * HEADS + qh) * HW) + t;
            fa[h] = negated(from[0]);
            fa[2 + h] = negated(from[4]);
            fb[h] = negated(from[8]);
            fb[2 + h] = negated(from[12]);
            limit[h] = limit_of(query);
            heated[h] = (uint32_t)heat[qh];
            far[h] = far_enough(heated[h]);
            most[h] = 0x7fffffff; /* of -score, until all are seen */
        }
        auto seen = [&](int s, int i) { return s * 64 + (i >> 2) * 8 + t * 2 + (i & 1) < limit[i >> 1 & 1]; };
        auto scores_of = [&](int32_t (&c)[32], int s, int add) { /* c: -score, and what was there if `add` */
                                                                 const Spot at = arrived(s, false);
                                                                 if (add) fill(c, most);
                                                                 wide_begin();
                                                                 wide_s8_64(c, fa, matrix(at, 0, 0), add);
                                                                 wide_s8_64(c, fb, matrix(at, 0, 32), 1);
                                                                 wide_commit();
                                                                 wide_end_32(c);
        };
        start(false);
        sweep<false>(stages, scores_of, [&](int32_t (&c)[32], int s) {
            if (s >= whole) {
#pragma unroll
                for (int i = 0; i < 32; i++) c[i] = seen(s, i) ? c[i] : 0x7fffffff;
            }
#pragma unroll
            for (int i = 0; i < 32; i++) most[i >> 1 & 1] = min(most[i >> 1 & 1], c[i]);
        });
#pragma unroll
        for (int h = 0; h < 2; h++) {
            for (int i = 1; i < 4; i <<= 1) most[h] = min(most[h], __shfl_xor_sync(FULL, most[h], i));
            most[h] = -most[h];
        }
        uint32_t total[2] = {0, 0};
        start(false);
        sweep<true>(stages, scores_of, [&](int32_t (&c)[32], int s) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                c[i] = (int32_t)weight_at((uint32_t)c[i], far[i >> 1 & 1], heated[i >> 1 & 1], own);
            if (s >= whole) {
#pragma unroll
                for (int i = 0; i < 32; i++) c[i] = seen(s, i) ? c[i] : 0;
            }
#pragma unroll
            for (int i = 0; i < 32; i += 2) total[i >> 1 & 1] += (uint32_t)(c[i] + c[i + 1]);
        });
        start(true);
        uint32_t scale[2], part[8]; /* part: shares of 32 keys as a left side, low bytes, then high bytes */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            for (int i = 1; i < 4; i <<= 1) total[h] += __shfl_xor_sync(FULL, total[h], i);
            scale[h] = key_scale(total[h]);
        }
        int32_t low[32], high[32], d[16];
#pragma unroll
        for (int i = 0; i < 32; i++) low[i] = high[i] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) part[i] = 0;
        auto weigh = [&](int32_t (&d)[16], int s, int half) {
#pragma unroll
            for (int i = 0; i < 16; i++)
                d[i] = (int32_t)weight_at((uint32_t)d[i], far[i >> 1 & 1], heated[i >> 1 & 1], own);
            if (s >= whole) {
#pragma unroll
                for (int i = 0; i < 16; i++) d[i] = seen(s, half * 16 + i) ? d[i] : 0;
            }
        };
#pragma unroll 1
        for (int s = 0; s < stages; s++) {
            const Spot at = arrived(s, true);
#pragma unroll
            for (int half = 0; half < 2; half++) { /* 32 keys: the numbers of 64 are more than the registers hold */
                fill(d, most);
                wide_begin();
                wide_s8_32(d, fa, matrix(at, half * 32, 0), 1);
                wide_s8_32(d, fb, matrix(at, half * 32, 32), 1);
                wide_commit();
                wide_end_80(d, low, high, part);
                weigh(d, s, half);
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    uint32_t one[4], two[4]; /* as in add_values() */
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint64_t p =
                            multiply((uint32_t)d[((r & 2) + (i >> 1)) * 4 + (r & 1) * 2 + (i & 1)], scale[r & 1]) +
                            (1 << 23);
                        one[i] = (uint32_t)p;
                        two[i] = (uint32_t)(p >> 32);
                    }
                    part[r] = __byte_perm(__byte_perm(one[0], one[1], 0x73), __byte_perm(one[2], one[3], 0x73), 0x5410);
                    part[4 + r] = joined_at(joined_at(two[3], 256, two[2]), 65536, joined_at(two[1], 256, two[0]));
                }
                wide_begin();
                wide_u8_64(low, part, matrix(at + 64 * HW, 0, half * 32), 1);
                wide_u8_64(high, part + 4, matrix(at + 64 * HW, 0, half * 32), 1);
                wide_commit();
            }
        }
        wide_end_80(d, low, high, part);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = mine + h * 8 + g;
            if (query >= queries) continue;
            int8_t *to = o + (int64_t)(piece.row + query / GROUP) * OP + (head * GROUP + query % GROUP) * HD;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const int dim = n * 8 + t * 2;
                uint32_t two = 0;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int32_t v = low[n * 4 + h * 2 + i] + (high[n * 4 + h * 2 + i] << 8);
                    two |= ((uint32_t)clamp_to((v + (1 << 14)) >> 15, 127) & 255) << 8 * i;
                }
                if (dim < HD) *(uint16_t *)(to + dim) = (uint16_t)two;
            }
        }
    }
}
#endif

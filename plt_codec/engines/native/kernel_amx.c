/* The kernel for processors with AMX: tiles of 16 x 64 bytes do the products, AVX-512 the rest.
 *
 * A block of 16 channels by 64 inputs of a Matrix is one tile as it lies in memory. So are 16 keys of 64 dimensions,
 * and 64 keys by 16 dimensions of the values (rows dv * 4 bytes apart). Rows past the last one are multiplied too and
 * ignored.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "kernel.h"

#if defined(PLTZ_X86)
#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi"
#if defined(PLTZ_TILES_IN_C)
#define TARGET __attribute__((target(AVX512)))
#elif defined(__clang__)
#define TARGET __attribute__((target(AVX512 ",amx-tile,amx-int8")))
#else
#define TARGET __attribute__((target(AVX512 ",amx-tile,amx-int8,prefer-vector-width=512")))
#endif
#define SIGNED_KEYS 1
#include "avx512.h"

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(PLTZ_TILES_IN_C)
#include "tiles.h"
#else
/* The intrinsics of some compilers do not say that these read and write memory, which lets stores move past them. */
#define LOAD(n, at, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n::"r"(at), "r"((size_t)(stride)) : "memory")
#define STORE(n, at, stride) \
    __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(at), "r"((size_t)(stride)) : "memory")
#endif

#define scores vnni_scores
#define mix vnni_mix
#include "kernel_body.h"

#include "amx_attend.h"

TARGET static void attend_here(const Attention *a, Scratch *s) {
    if (a->dp != 64 || a->queries <= 2 || !attend_low(a, s)) attend(a, s);
}

enum {
    PIECE = 32 * 32, /* sums of a piece of a product: 32 rows times 2 blocks */
    SLICE = 8,       /* least outputs of 16 channels finished between two steps of the next piece */
};

typedef struct {
    int row, rows, block, blocks; /* its part of the product */
} Patch;

INLINE Patch patch_of(const Product *p, int number) {
    const int across = (p->blocks + 1) / 2, row = number / across * 32, block = number % across * 2;
    return (Patch){row, p->rows - row < 32 ? p->rows - row : 32, block, p->blocks - block < 2 ? 1 : 2};
}

/* Multiply a step of 64 inputs: tiles 0..3 hold sums, 4 and 5 rows, 6 and 7 blocks. */
INLINE void step_piece(const Product *p, Patch piece, int k) {
    const size_t stride = (size_t)p->matrix->stride;
    const uint8_t *a = p->a + piece.row * stride + k * 64;
    const int8_t *w = p->matrix->w + (p->block + piece.block) * 16 * stride + (size_t)k * 1024;
    LOAD(4, a, stride);
    LOAD(6, w, 64);
    _tile_dpbusd(0, 4, 6);
    if (piece.blocks > 1) {
        LOAD(7, w + 16 * stride, 64);
        _tile_dpbusd(1, 4, 7);
    }
    if (piece.rows <= 16) return;
    LOAD(5, a + 16 * stride, stride);
    _tile_dpbusd(2, 5, 6);
    if (piece.blocks > 1) _tile_dpbusd(3, 5, 7);
}

INLINE void store_piece(int32_t *sums) {
    STORE(0, sums, 128);
    STORE(1, sums + 16, 128);
    STORE(2, sums + 16 * 32, 128);
    STORE(3, sums + 16 * 32 + 16, 128);
}

/* Write outputs `from` to `to` of a piece, all rows of a block first. */
INLINE void finish_some(const int narrow, const Output kind, const Product *p, Patch piece, const int32_t *sums,
                        int from, int to) {
    while (from < to) {
        const int b = from / piece.rows, at = (piece.block + b) * 16, channel = p->block * 16 + at;
        const int end = to - b * piece.rows < piece.rows ? to - b * piece.rows : piece.rows;
        const __m512i offset = _mm512_loadu_si512(p->matrix->offset + channel),
                      m = _mm512_loadu_si512(p->matrix->m + channel);
        const __m512i odd = _mm512_srli_epi64(m, 32), bias = kind == TO_LOGITS ? _mm512_loadu_si512(p->bias + at) : m;
        const int8_t *next = p->next + ((size_t)piece.row * p->blocks + piece.block * piece.rows) * 64;
        for (int r = from - b * piece.rows; r < end; r++, from++) {
            _mm_prefetch((const char *)next + (size_t)from * 64, _MM_HINT_T1); /* a line at a time: more would wait */
            const __m512i y = rescale(narrow, _mm512_loadu_si512(sums + r * 32 + b * 16), offset, m, odd);
            put(kind, p, (piece.row + r) * p->out_stride + at, y, bias);
        }
    }
}

/* Multiply in pieces. A piece's sums are finished while the next piece is multiplied, since tiles and vectors work
 * at the same time. */
INLINE void multiply_as(const int narrow, const Output kind, const Product *given, Scratch *s) {
    const Product copy = *given, *p = &copy; /* as far as the compiler sees, no store can change it */
    const int steps = p->matrix->stride / 64, pieces = (p->rows + 31) / 32 * ((p->blocks + 1) / 2);
    Patch before = {0};
    for (int n = 0; n <= pieces; n++) {
        const Patch piece = n < pieces ? patch_of(p, n) : before;
        int32_t *to = s->acc + n % 2 * PIECE;
        const int32_t *from = s->acc + (n + 1) % 2 * PIECE;
        const int outputs = before.rows * before.blocks,
                  slice = outputs / steps + 1 > SLICE ? outputs / steps + 1 : SLICE;
        int done = 0;
        if (n < pieces) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int k = 0; k < steps; k++) {
                step_piece(p, piece, k);
                const int end = done + slice < outputs ? done + slice : outputs;
                finish_some(narrow, kind, p, before, from, done, end);
                done = end;
            }
            store_piece(to);
        }
        finish_some(narrow, kind, p, before, from, done, outputs);
        before = piece;
    }
}

TARGET static void multiply_here(const Product *p, Scratch *s) {
    const int narrow = p->matrix->narrow;
    if (p->rows <= 2) {
        multiply(p, s);
        return;
    }
    switch (p->kind) {
    case TO_QKV: narrow ? multiply_as(1, TO_QKV, p, s) : multiply_as(0, TO_QKV, p, s); break;
    case TO_RESIDUAL: narrow ? multiply_as(1, TO_RESIDUAL, p, s) : multiply_as(0, TO_RESIDUAL, p, s); break;
    case TO_HIDDEN: narrow ? multiply_as(1, TO_HIDDEN, p, s) : multiply_as(0, TO_HIDDEN, p, s); break;
    case TO_LOGITS: narrow ? multiply_as(1, TO_LOGITS, p, s) : multiply_as(0, TO_LOGITS, p, s); break;
    }
}

/* Return whether the processor has AMX and the operating system grants this process the state of its tiles. */
static int supported(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512vnni") ||
        !__builtin_cpu_supports("avx512vbmi")) {
        return 0;
    }
#if defined(PLTZ_TILES_IN_C)
    return 1;
#else
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 24 & 3) != 3) return 0;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
#endif
#else
    return 0;
#endif
}

/* Set up all eight tiles: 16 rows of 64 bytes. */
TARGET static void begin(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t columns[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.columns[i] = 64;
        config.rows[i] = 16;
    }
#if defined(PLTZ_TILES_IN_C)
    (void)config;
#else
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
#endif
}

TARGET static void end(void) { _tile_release(); }

const Kernel pltz_amx = {"amx",     supported, begin, end, multiply_here, norm, turn, attend_here, gained,
                         turn_only, gate,      1,     0};
#endif

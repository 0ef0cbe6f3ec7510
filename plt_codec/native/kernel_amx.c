/* The kernel for processors with AMX: tiles of 16 x 64 bytes do the products, AVX-512 the rest.
 *
 * A block of 16 channels by 64 inputs of a Matrix is one tile as it lies in memory, and so are 16 keys of 64 dimensions and
 * 64 keys by 16 dimensions of the values (rows dv * 4 bytes apart). Rows past the last one are multiplied too and ignored.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "kernel.h"

#if defined(PLTZ_X86)
#if defined(__clang__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,amx-tile,amx-int8")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,amx-tile,amx-int8,prefer-vector-width=512")))
#endif
#include "avx512.h"

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* The intrinsics of some compilers do not say that these read and write memory, which lets stores move past them. */
#define LOAD(n, at, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n ::"r"(at), "r"((size_t)(stride)) : "memory")
#define STORE(n, at, stride) __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(at), "r"((size_t)(stride)) : "memory")

/* 16 or 32 rows times 1 or 2 blocks: tiles 0..3 hold sums, 4 and 5 rows, 6 and 7 blocks. Tile numbers must be literal. */
TARGET static void tile_1x1(const uint8_t *a, size_t stride, const int8_t *w, int tiles, int32_t *acc, size_t pitch) {
    _tile_zero(0);
    for (int k = 0; k < tiles; k++) {
        LOAD(4, a + k * 64, stride);
        LOAD(6, w + (size_t)k * 1024, 64);
        _tile_dpbusd(0, 4, 6);
    }
    STORE(0, acc, pitch * 4);
}

TARGET static void tile_1x2(const uint8_t *a, size_t stride, const int8_t *w, int tiles, int32_t *acc, size_t pitch) {
    const int8_t *v = w + (size_t)tiles * 1024;
    _tile_zero(0);
    _tile_zero(1);
    for (int k = 0; k < tiles; k++) {
        LOAD(4, a + k * 64, stride);
        LOAD(6, w + (size_t)k * 1024, 64);
        LOAD(7, v + (size_t)k * 1024, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
    }
    STORE(0, acc, pitch * 4);
    STORE(1, acc + 16, pitch * 4);
}

TARGET static void tile_2x2(const uint8_t *a, size_t stride, const int8_t *w, int tiles, int32_t *acc, size_t pitch) {
    const int8_t *v = w + (size_t)tiles * 1024;
    const uint8_t *c = a + 16 * stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < tiles; k++) {
        LOAD(4, a + k * 64, stride);
        LOAD(6, w + (size_t)k * 1024, 64);
        LOAD(7, v + (size_t)k * 1024, 64);
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        LOAD(5, c + k * 64, stride);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    STORE(0, acc, pitch * 4);
    STORE(1, acc + 16, pitch * 4);
    STORE(2, acc + 16 * pitch, pitch * 4);
    STORE(3, acc + 16 * pitch + 16, pitch * 4);
}

TARGET static void tile(const int8_t *w, const int32_t *sum, int blocks, int quads, const uint8_t *a, int stride, int rows,
                        int32_t *acc) {
    if (rows <= 2) {
        vnni_tile(w, sum, blocks, quads, a, stride, rows, acc);
        return;
    }
    const size_t pitch = (size_t)blocks * 16, bytes = (size_t)quads * 64, s = (size_t)stride;
    int r = 0;
    for (; r < rows; r += 32) {
        const uint8_t *row = a + r * s;
        int32_t *to = acc + r * pitch;
        const int one = rows - r <= 16;
        int b = 0;
        for (; b + 2 <= blocks; b += 2) (one ? tile_1x2 : tile_2x2)(row, s, w + b * bytes, quads / 16, to + b * 16, pitch);
        if (b < blocks) {
            tile_1x1(row, s, w + b * bytes, quads / 16, to + b * 16, pitch);
            if (!one) tile_1x1(row + 16 * s, s, w + b * bytes, quads / 16, to + 16 * pitch + b * 16, pitch);
        }
    }
}

#define scores vnni_scores
#define mix vnni_mix
#include "kernel_body.h"

#include "amx_attend.h"

TARGET static void attend_here(const Attention *a, Scratch *s) {
    if (a->dp != 64 || a->queries <= 2 || !attend_low(a, s)) attend(a, s);
}

/* A product in pieces of 32 rows and 2 blocks, each finished while its sums are near. */
TARGET static void multiply_here(const Product *p, Scratch *s) {
    const size_t stride = (size_t)p->matrix->stride;
    for (int r = 0; r < p->rows; r += 32) {
        for (int b = 0; b < p->blocks; b += 2) {
            const size_t out = r * p->out_stride + b * 16;
            Product piece = *p;
            piece.block += b;
            piece.blocks = p->blocks - b < 2 ? 1 : 2;
            piece.rows = p->rows - r < 32 ? p->rows - r : 32;
            piece.a += r * stride;
            if (p->kind == TO_QKV) piece.qkv += out;
            else if (p->kind == TO_HIDDEN) piece.hidden += out;
            else piece.x += out;
            if (p->kind == TO_LOGITS) piece.bias += b * 16;
            piece.next += ((size_t)r * p->blocks + b * 32) * 64; /* a line an output of 16 channels: see finish_as */
            multiply(&piece, s);
        }
    }
}

/* The processor has it and the kernel of the system grants the state of its tiles to this process. */
static int supported(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
        !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi") ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 24 & 3) != 3) {
        return 0;
    }
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
#else
    return 0;
#endif
}

/* All eight tiles: 16 rows of 64 bytes. */
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
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

TARGET static void end(void) { _tile_release(); }

const Kernel pltz_amx = {"amx", supported, begin, end, multiply_here, norm, turn, attend_here, gained, turn_only, gate};
#endif

/* The kernel for 64-bit ARM processors with the dot product instructions (all since about 2018). They multiply
 * signed bytes, so 128 is subtracted from unsigned sides. Activations get the sums of the weights added back, keys
 * do not (see kernel.h). */
#include "kernel.h"

#if defined(PLTZ_ARM)
#include <arm_neon.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__clang__)
#define TARGET __attribute__((target("dotprod")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { TOGETHER = 4 }; /* rows whose 4 vectors of sums fit the registers */

INLINE int8x16_t load_quad(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(v));
}

/* Compute sums[r][j]: channels 4 j .. 4 j + 3 of a block of 16; `flip` takes 128 from the block's bytes. R and flip
 * are constants. */
INLINE void micro(const int R, const int flip, const int8_t *rows, size_t stride, const void *block, int quads,
                  size_t step, int32x4_t sums[TOGETHER][4]) {
    const int8_t *b = block;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) sums[r][j] = vdupq_n_s32(0);
    }
    for (int k = 0; k < quads; k++, b += step) {
        int8x16_t w[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            w[j] = vld1q_s8(b + j * 16);
            if (flip) w[j] = veorq_s8(w[j], vdupq_n_s8(-128));
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const int8x16_t a = load_quad(rows + r * stride + k * 4);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sums[r][j] = vdotq_s32(sums[r][j], w[j], a);
        }
    }
}

INLINE void micro_store(const int R, const int flip, const int8_t *rows, size_t stride, const void *block, int quads,
                        const int32_t *sum, int32_t *acc, size_t pitch) {
    int32x4_t sums[TOGETHER][4];
    micro(R, flip, rows, stride, block, quads, 64, sums);
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < 4; j++) {
            const int32x4_t offset = sum ? vshlq_n_s32(vld1q_s32(sum + j * 4), 7) : vdupq_n_s32(0);
            vst1q_s32(acc + r * pitch + j * 4, vaddq_s32(sums[r][j], offset));
        }
    }
}

INLINE void micro_rows(const int flip, const int8_t *rows, size_t stride, int count, const void *block, int quads,
                       const int32_t *sum, int32_t *acc, size_t pitch) {
    for (; count >= 4; count -= 4, rows += 4 * stride, acc += 4 * pitch) {
        micro_store(4, flip, rows, stride, block, quads, sum, acc, pitch);
    }
    for (; count; count--, rows += stride, acc += pitch)
        micro_store(1, flip, rows, stride, block, quads, sum, acc, pitch);
}

TARGET static void tile(const int8_t *w, const int32_t *sum, int blocks, int quads, const uint8_t *a, int stride,
                        int rows, int32_t *acc) {
    enum { WIDEST = 8192 };
    int8_t flipped[TOGETHER * WIDEST];
    const size_t pitch = (size_t)blocks * 16;
    for (int r = 0; r < rows; r += TOGETHER) {
        const int count = rows - r < TOGETHER ? rows - r : TOGETHER;
        for (int k = 0; k < count * stride; k++) flipped[k] = (int8_t)(a[(size_t)r * stride + k] - 128);
        for (int b = 0; b < blocks; b++) {
            micro_rows(0, flipped, (size_t)stride, count, w + (size_t)b * quads * 64, quads, sum + b * 16,
                       acc + r * pitch + b * 16, pitch);
        }
    }
}

TARGET static void scores(const uint8_t *keys, int n, const int8_t *q, int dp, int queries, int32_t *score,
                          size_t pitch) {
    for (int k = 0; k < n; k += 16) {
        micro_rows(1, q, (size_t)dp, queries, keys + (size_t)k * dp, dp / 4, 0, score + k, pitch);
    }
}

/* Scale sums. See kernel_plain.c for the effect of the clamp. */
TARGET static void rescale(int32_t *acc, const int32_t *offset, const int32_t *m, int n) {
    const int32x4_t most = vdupq_n_s32(1 << 30), least = vdupq_n_s32(-(1 << 30));
    for (int i = 0; i < n; i += 4) {
        const int32x4_t dot = vaddq_s32(vld1q_s32(acc + i), vld1q_s32(offset + i)), scale = vld1q_s32(m + i);
        const int64x2_t low = vrshrq_n_s64(vmull_s32(vget_low_s32(dot), vget_low_s32(scale)), 24);
        const int64x2_t high = vrshrq_n_s64(vmull_s32(vget_high_s32(dot), vget_high_s32(scale)), 24);
        const int32x4_t y = vcombine_s32(vqmovn_s64(low), vqmovn_s64(high));
        vst1q_s32(acc + i, vmaxq_s32(vminq_s32(y, most), least));
    }
}

/* Return the highest of most and n scores. */
TARGET static int32_t maximum(const int32_t *score, int n, int32_t most) {
    for (int k = 0; k < n; k++) most = score[k] > most ? score[k] : most;
    return most;
}

/* Compute weights as in kernel_plain.c. */
TARGET static uint32_t weigh(const int32_t *score, int n, int32_t most, uint32_t heat, const uint16_t *weight,
                             const uint32_t *weights, uint16_t *out) {
    const uint32_t far = heat ? (1023u * 65536u + heat - 1) / heat : 0;
    uint32_t sum = 0;
    (void)weight;
    for (int k = 0; k < n; k++) {
        uint32_t e = (uint32_t)(most - score[k]);
        e = (e < far ? e : far) * heat >> 16;
        out[k] = (uint16_t)weights[e < 1023 ? e : 1023];
        sum += out[k];
    }
    return sum;
}

/* Compute p = rs(w * t, 24) = 256 h + l + 32896 with signed bytes h, l: those of all queries, then these. */
TARGET static void share(const uint16_t *restrict w, int n, uint32_t t, void *shares, int query) {
    int8_t *restrict high = (int8_t *)shares + query * CHUNK, *restrict low = high + QUERIES * CHUNK;
    for (int k = 0; k < n; k++) {
        const uint32_t p = (uint32_t)(((uint64_t)w[k] * t + (1 << 23)) >> 24);
        high[k] = (int8_t)((p >> 8) - 128);
        low[k] = (int8_t)((p & 255) - 128);
    }
}

INLINE void mix_rows(const int R, const int8_t *shares, const int8_t *block, int n, int dv, const int32x4_t all[4],
                     int32_t *mixed) {
    int32x4_t high[TOGETHER][4], low[TOGETHER][4];
    micro(R, 0, shares, CHUNK, block, n / 4, (size_t)dv * 4, high);
    micro(R, 0, shares + QUERIES * CHUNK, CHUNK, block, n / 4, (size_t)dv * 4, low);
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < 4; j++) {
            int32_t *to = mixed + r * dv + j * 4;
            const int32x4_t sum =
                vaddq_s32(vshlq_n_s32(high[r][j], 8), vaddq_s32(low[r][j], vmulq_n_s32(all[j], 32896)));
            vst1q_s32(to, vaddq_s32(vld1q_s32(to), sum));
        }
    }
}

TARGET static void mix(const int8_t *values, int n, int dv, const void *shares, int queries, int32_t *mixed) {
    int8_t ones[CHUNK];
    memset(ones, 1, sizeof ones);
    for (int i = 0; i < dv; i += 16) {
        int32x4_t all[TOGETHER][4];
        const int8_t *block = values + i * 4;
        micro(1, 0, ones, CHUNK, block, n / 4, (size_t)dv * 4, all);
        int r = 0;
        for (; r + 4 <= queries; r += 4)
            mix_rows(4, (const int8_t *)shares + r * CHUNK, block, n, dv, all[0], mixed + r * dv + i);
        for (; r < queries; r++)
            mix_rows(1, (const int8_t *)shares + r * CHUNK, block, n, dv, all[0], mixed + r * dv + i);
    }
}

#include "kernel_body.h"

static int supported(void) {
#if defined(__APPLE__)
    return 1;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) >> 20 & 1) != 0; /* HWCAP_ASIMDDP */
#else
    return 0;
#endif
}

const Kernel pltz_neon = {"neon", supported, 0, 0, multiply, norm, turn, attend, gained, turn_only, gate, 0, 0};
#endif

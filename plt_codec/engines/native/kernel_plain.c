/* The kernel in plain C, for any machine: slower than the others, and their reference in the tests. */
#include <string.h>

#include "kernel.h"

#define TARGET

typedef int8_t Bytes __attribute__((vector_size(8)));
typedef int16_t Halves __attribute__((vector_size(16)));
typedef int32_t Words __attribute__((vector_size(32)));

static inline Halves load_halves(const int8_t *p) {
    Bytes v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, Halves);
}

/* Compute lanes[4 c + j] = sum over quads of block[quad][c][j] * row[quad][j], for a block of 16 channels. Two
 * products of 8-bit values (at most 2 * 128 * 127) fit 16 bits; their sums go on in 32. Vectors are those of GNU C,
 * which become the machine's own. */
static void dot_quads(const int8_t *block, const int8_t *row, int quads, int32_t *lanes) {
    Words sums[8] = {0};
    for (int k = 0; k < quads; k += 2, block += 128, row += 8) {
        const int more = k + 1 < quads;
        const int8_t *next = more ? block + 64 : block;
        const int8_t first[8] = {row[0], row[1], row[2], row[3], row[0], row[1], row[2], row[3]};
        int8_t second[8] = {0};
        for (int j = 0; more && j < 8; j++) second[j] = row[4 + j % 4];
        const Halves a = load_halves(first), b = load_halves(second);
        for (int c = 0; c < 8; c++) {
            sums[c] += __builtin_convertvector(load_halves(block + c * 8) * a + load_halves(next + c * 8) * b, Words);
        }
    }
    memcpy(lanes, sums, sizeof sums);
}

/* Compute acc[row][channel] = sum over k of a[row][k] * w[channel][k]. */
static void tile(const int8_t *w, const int32_t *sum, int blocks, int quads, const uint8_t *a, int stride, int rows,
                 int32_t *acc) {
    int8_t row[8192];
    for (int r = 0; r < rows; r++) {
        for (int k = 0; k < stride; k++) row[k] = (int8_t)(a[(size_t)r * stride + k] - 128);
        for (int b = 0; b < blocks; b++, acc += 16) {
            int32_t lanes[64];
            dot_quads(w + (size_t)b * quads * 64, row, quads, lanes);
            for (int c = 0; c < 16; c++) {
                const uint32_t dot = (uint32_t)(lanes[4 * c] + lanes[4 * c + 1] + lanes[4 * c + 2] + lanes[4 * c + 3]);
                acc[c] = (int32_t)(dot + 128u * (uint32_t)sum[b * 16 + c]);
            }
        }
    }
}

/* Compute acc = rs((acc + offset) * m, 24), clamped to 2^30 where the contract clamps below it anyway. Sums of d <=
 * 512 products alone become logits and are not clamped. They stay below 512 * 127 * 127 * 2^31 / 2^24 < 2^30. */
static void rescale(int32_t *acc, const int32_t *offset, const int32_t *m, int n) {
    for (int i = 0; i < n; i++) {
        const int32_t dot = (int32_t)((uint32_t)acc[i] + (uint32_t)offset[i]);
        int64_t y = ((int64_t)dot * m[i] + (1 << 23)) >> 24;
        const int64_t most = 1 << 30;
        y = y > most ? most : y;
        acc[i] = (int32_t)(y < -most ? -most : y);
    }
}

/* Compute score[query][key] = q . k. */
static void scores(const uint8_t *keys, int n, const int8_t *q, int dp, int queries, int32_t *score, size_t pitch) {
    int8_t block[16 * HEAD_WIDTH];
    for (int k = 0; k < n; k += 16, keys += 16 * dp) {
        for (int i = 0; i < 16 * dp; i++) block[i] = (int8_t)(keys[i] - 128);
        for (int r = 0; r < queries; r++) {
            int32_t lanes[64], *to = score + r * pitch + k;
            dot_quads(block, q + r * dp, dp / 4, lanes);
            for (int c = 0; c < 16; c++) to[c] = lanes[4 * c] + lanes[4 * c + 1] + lanes[4 * c + 2] + lanes[4 * c + 3];
        }
    }
}

/* Return the difference from which on a step is the last one. A difference of 1 makes heat / 2^16 steps down the
 * table. From `far` on, the product is 1023 * 2^16 or more. Up to there it is below 1023 * 2^16 + 2^31 and fits 32
 * bits. */
static uint32_t far_enough(uint32_t heat) {
    return heat ? (1023u * 65536u + heat - 1) / heat : 0;
}

/* Return the highest of most and n scores. */
static int32_t maximum(const int32_t *score, int n, int32_t most) {
    for (int k = 0; k < n; k++) most = score[k] > most ? score[k] : most;
    return most;
}

/* Turn scores (n) and the highest into weights (n), and return their sum. */
static uint32_t weigh(const int32_t *score, int n, int32_t most, uint32_t heat, const uint16_t *weight,
                      const uint32_t *weights, uint16_t *out) {
    const uint32_t far = far_enough(heat);
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

/* Compute p = rs(w * t, 24), one query after the other. */
static void share(const uint16_t *restrict w, int n, uint32_t t, void *shares, int query) {
    uint16_t *restrict p = (uint16_t *)shares + query * CHUNK;
    for (int k = 0; k < n; k++) p[k] = (uint16_t)(((uint64_t)w[k] * t + (1 << 23)) >> 24);
}

/* Add mixed[query][i] += sum over keys of p[query][key] * v[key][i]. */
static void mix(const int8_t *values, int n, int dv, const void *shares, int queries, int32_t *mixed) {
    for (int r = 0; r < queries; r++, mixed += dv) {
        const uint16_t *p = (const uint16_t *)shares + r * CHUNK;
        for (int k = 0; k < n; k += 4) {
            const int32_t a = p[k], b = p[k + 1], c = p[k + 2], d = p[k + 3];
            const int8_t *v = values + (size_t)k * dv;
            if (!(a | b | c | d)) continue;
            for (int i = 0; i < dv; i++)
                mixed[i] += a * v[i * 4] + b * v[i * 4 + 1] + c * v[i * 4 + 2] + d * v[i * 4 + 3];
        }
    }
}

#include "kernel_body.h"

static int supported(void) { return 1; }

const Kernel pltz_plain = {"plain", supported, 0, 0, multiply, norm, turn, attend, gained, turn_only, gate, 0, 0};

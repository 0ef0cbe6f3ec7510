/* The parts of a kernel that a compiler turns into good code for any machine. Included once by each kernel_*.c, which
 * first defines TARGET (function attributes), tile(), rescale(), scores(), maximum(), weigh(), share() and mix().
 */
#include <math.h>
#include <string.h>

TARGET static inline int32_t clamp32(int32_t a, int32_t low, int32_t high) {
    return a < low ? low : a > high ? high : a;
}

#if !defined(OWN_MULTIPLY)
/* Turn sums into outputs. */
TARGET static void finish(const Product *p, int32_t *sums) {
    const Matrix *w = p->matrix;
    const int n = p->blocks * 16, first = p->block * 16;
    for (int r = 0; r < p->rows; r++) {
        int32_t *restrict acc = sums + r * n;
        rescale(acc, w->offset + first, w->m + first, n);
        switch (p->kind) {
        case TO_QKV: {
            int16_t *restrict out = p->qkv + r * p->out_stride;
            for (int i = 0; i < n; i++) out[i] = (int16_t)clamp32(acc[i], -32767, 32767);
            break;
        }
        case TO_RESIDUAL: {
            int32_t *restrict x = p->x + r * p->out_stride;
            for (int i = 0; i < n; i++) x[i] = clamp32(x[i] + acc[i], -RESIDUAL_MAX, RESIDUAL_MAX);
            break;
        }
        case TO_HIDDEN: {
            uint8_t *restrict out = p->hidden + r * p->out_stride;
            for (int i = 0; i < n; i++) {
                int32_t u = clamp32(acc[i], 0, 255);
                out[i] = (uint8_t)((u * u + 128) >> 8);
            }
            break;
        }
        case TO_LOGITS: {
            int32_t *restrict out = p->x + r * p->out_stride;
            for (int i = 0; i < n; i++) out[i] = acc[i] + p->bias[i];
            break;
        }
        }
    }
}

TARGET static void multiply(const Product *p, Scratch *s) {
    const Matrix *w = p->matrix;
    const int first = p->block * 16;
    tile(w->w + (size_t)first * w->stride, w->sum + first, p->blocks, w->stride / 4, p->a, w->stride, p->rows, s->acc);
    finish(p, s->acc);
}
#endif

/* Return NUMERICS.md, "norm": t for a sum of squares. The quotient is cut in double and exact. With x < 2^50, r <
 * 2^27 and q = x // r the true one is at most q + 1 - 1 / r. That is not rounded up to q + 1, since r (q + 1) <
 * 2^53. */
TARGET static double scale_for(uint64_t total, uint32_t gain) {
    uint64_t root = (uint64_t)sqrt((double)total);
    while (root * root > total) root--;
    while ((root + 1) * (root + 1) <= total) root++;
    return (double)(int64_t)((double)((uint64_t)gain << 32) / (double)(root ? root : 1));
}

#if !defined(OWN_NORM)
/* Return the sum of squares of n integers. */
TARGET static uint64_t squares(const int32_t *restrict x, int n) {
    uint64_t total = 0;
    for (int i = 0; i < n; i++) total += (uint64_t)((int64_t)x[i] * x[i]);
    return total;
}

/* Compute NUMERICS.md, "norm", with y + 128 in a byte. The products run in doubles and are exact. x t and its sum
 * with 2^39 are integers below 2^53 (|x t| <= gain << 32 < 2^50). 2^-40 is a power of two, and 4096 * 2^40 = 2^52
 * more keeps the sum below 2^53. So (int) cuts the exact value, which is positive, and floors it. */
TARGET static void scale_to_bytes(const int32_t *restrict x, int n, double t, uint8_t *restrict out) {
    const double scale = t * 0x1p-40;
    for (int i = 0; i < n; i++) {
        int32_t y = (int32_t)((double)x[i] * scale + 4096.5) - 4096;
        out[i] = (uint8_t)(clamp32(y, -127, 127) + 128);
    }
}

/* Rotate pairs. |y| < 2^15 and |cos|, |sin| <= 2^14: the sums stay below 2^30 + 2^13. */
TARGET static void rotate(const int16_t *restrict y, const int16_t *restrict cos, const int16_t *restrict sin, int half,
                          int32_t *restrict z) {
    for (int i = 0; i < half; i++) {
        const int32_t a = y[i], b = y[i + half], c = cos[i], s = sin[i];
        z[i] = (a * c - b * s + 8192) >> 14;
        z[i + half] = (a * s + b * c + 8192) >> 14;
    }
}

/* Compute scale_for of TURNED sums. */
TARGET static void scales_for(const uint64_t *totals, uint32_t gain, double *t) {
    for (int h = 0; h < TURNED; h++) t[h] = scale_for(totals[h], gain);
}
#endif

TARGET static void norm(const int32_t *restrict x, int n, uint32_t gain, uint8_t *restrict out) {
    scale_to_bytes(x, n, scale_for(squares(x, n), gain), out);
}

TARGET static void turn(const int16_t *restrict y, int heads, const int16_t *restrict cos, const int16_t *restrict sin,
                        int d, uint32_t gain, uint8_t *restrict out) {
    int32_t z[TURNED * HEAD_WIDTH];
    uint64_t totals[TURNED] = {0};
    double t[TURNED];
    for (int h = 0; h < heads; h++) {
        rotate(y + h * d, cos, sin, d / 2, z + h * HEAD_WIDTH);
        totals[h] = squares(z + h * HEAD_WIDTH, d);
    }
    scales_for(totals, gain, t);
    for (int h = 0; h < heads; h++) scale_to_bytes(z + h * HEAD_WIDTH, d, t[h], out + h * d);
}

/* Return t for attention of up to QUERIES queries over one cache of keys and values.
 *
 * A weight p is at most 2^16, and 2^16 exactly when the sum of w is 2^15, that is when all other keys weigh nothing.
 * It needs 2^15 t >= 2^40 - 2^23, so t >= 2^25 - 2^8 and the sum is below 2^15 + 1. Then p = 2^16 - 1 gives the same
 * output, rs((2^16 - 1) v, 15) = 2 v + floor((2^14 - v) / 2^15) = 2 v, and fits two bytes. t = 2^25 - 257 makes it so:
 * 2^15 t + 2^23 = 2^40 - 2^15. So t < 2^25 always.
 *
 * Where there are 16-bit products only, p comes out of them. With t = 2^9 a + b, b < 2^9 (a < 2^16), and as 2^23 = 2^9
 * 2^14,
 *     p = (w t + 2^23) >> 24 = (w a + c) >> 15,  c = (w b >> 9) + 2^14 = (w (2^7 b) >> 16) + 2^14 < 2^16,
 * and with w a = 2^16 h + l:  p = 2 h + ((l + c) >> 15). There (l + c) >> 1 is an average of 16-bit numbers, (l + (c -
 * 1) + 1) >> 1, which machines compute without overflow.
 */
static inline uint32_t share_scale(uint32_t sum) {
    return sum == 1u << 15 ? (1u << 25) - 257 : (uint32_t)((UINT64_C(1) << 40) / sum);
}

TARGET static void attend(const Attention *a, Scratch *s) {
    const int queries = a->queries, d = a->d, dv = a->dv;
    int most = 0;
    for (int r = 0; r < queries; r++) most = a->limit[r] > most ? a->limit[r] : most;
    const int padded = (most + KEY_PAD - 1) / KEY_PAD * KEY_PAD;
    uint32_t t[QUERIES];
    int32_t highest[QUERIES];
    for (int r = 0; r < queries; r++) highest[r] = INT32_MIN;
    for (int begin = 0; begin < padded; begin += CHUNK) { /* the highest score of a chunk while it is near */
        const int n = padded - begin < CHUNK ? padded - begin : CHUNK;
        scores(a->keys + (size_t)begin * a->dp, n, a->q, a->dp, queries, s->score + begin, s->pitch);
        for (int r = 0; r < queries; r++) {
            const int seen = a->limit[r] - begin < n ? a->limit[r] - begin : n;
            if (seen > 0) highest[r] = maximum(s->score + r * s->pitch + begin, seen, highest[r]);
        }
    }
    for (int r = 0; r < queries; r++) {
        const uint32_t sum = weigh(s->score + r * s->pitch, a->limit[r], highest[r], a->heat[r], a->weight, a->weights,
                                   s->weight + r * s->pitch);
        t[r] = share_scale(sum);
        memset(s->weight + r * s->pitch + a->limit[r], 0, (size_t)(padded - a->limit[r]) * sizeof(uint16_t));
        memset(s->mixed + r * dv, 0, (size_t)dv * sizeof(int32_t));
    }
    for (int begin = 0; begin < padded; begin += CHUNK) {
        const int n = padded - begin < CHUNK ? padded - begin : CHUNK;
        for (int r = 0; r < queries; r++) {
            share(s->weight + r * s->pitch + begin, n, t[r], s->shares, r);
        }
        mix(a->values + (size_t)begin * dv, n, dv, s->shares, queries, s->mixed);
    }
    for (int r = 0; r < queries; r++) {
        const int32_t *restrict mixed = s->mixed + r * dv;
        uint8_t *restrict out = a->out[r];
        for (int i = 0; i < d; i++) out[i] = (uint8_t)(clamp32((mixed[i] + (1 << 14)) >> 15, -127, 127) + 128);
    }
}

/* Compute contract 2, "norm with gains". Both products run in doubles and are exact, as above. z = rs(x t, 32) with
 * |x t| < 2^50 is offset to be positive by 2^20 2^32. Then |z g| < 2^49 is offset by 2^30 2^20. Cutting a positive
 * number floors it. */
TARGET static void gained(const int32_t *restrict x, int n, uint32_t gain, const int32_t *restrict gains,
                          uint8_t *restrict out) {
    uint64_t total = 0;
    for (int i = 0; i < n; i++) total += (uint64_t)((int64_t)x[i] * x[i]);
    const double scale = scale_for(total, gain) * 0x1p-32;
    for (int i = 0; i < n; i++) {
        const int32_t z = (int32_t)((double)x[i] * scale + 1048576.5) - 1048576;
        const int32_t y = (int32_t)((double)z * (double)gains[i] * 0x1p-20 + 1073741824.5) - 1073741824;
        out[i] = (uint8_t)(clamp32(y, -127, 127) + 128);
    }
}

/* Rotate as rotate(), the sums divided by 2^7 once more and clamped to a byte. */
TARGET static void turn_only(const int16_t *restrict y, int heads, const int16_t *restrict cos,
                             const int16_t *restrict sin, int d, uint8_t *restrict out) {
    const int half = d / 2;
    for (int h = 0; h < heads; h++, y += d, out += d) {
        for (int i = 0; i < half; i++) {
            const int32_t a = y[i], b = y[i + half], c = cos[i], s = sin[i];
            const int32_t first = (a * c - b * s + 8192) >> 14, second = (a * s + b * c + 8192) >> 14;
            out[i] = (uint8_t)(clamp32((first + 64) >> 7, -127, 127) + 128);
            out[i + half] = (uint8_t)(clamp32((second + 64) >> 7, -127, 127) + 128);
        }
    }
}

/* Apply the gate. |act| < 2^15, |linear| < 2^15 once clamped: products fit 32 bits. */
TARGET static void gate(const int32_t *restrict gates, const int32_t *restrict linear, int n,
                        const int16_t *restrict act, uint8_t *restrict out) {
    for (int i = 0; i < n; i++) {
        const int32_t a = act[clamp32(gates[i], -GATE_MAX, GATE_MAX) + GATE_MAX];
        const int32_t h = (a * clamp32(linear[i], -32767, 32767) + (1 << 15)) >> 16;
        out[i] = (uint8_t)(clamp32(h, -127, 127) + 128);
    }
}

/* The kernel for processors with AVX2.
 *
 * vpmaddubsw adds two products of bytes, one side unsigned, in 16 bits. It saturates unless the unsigned side is below
 * 2^7 (2 * 127 * 127 < 2^15). So the factors of weights, keys and values are split into such digits:
 *
 *     inputs and queries   value + 64 in 0..127; the few that do not fit have a rest, multiplied by size with its sign
 *     the hidden layer     digits of 6 bits; fours of them that are 0 are skipped
 *     shares of values     the same
 *
 * Where two such sums fit 16 bits, they are added there: widening them (vpmaddwd by ones) costs as much as
 * multiplying.
 */
#include "kernel.h"

#if defined(PLTZ_X86)
#include <immintrin.h>

#define TARGET __attribute__((target("avx2,bmi,bmi2")))
#define INLINE static inline __attribute__((always_inline)) TARGET

enum { WIDEST = 8192 }; /* most inputs */

/* sum += v, in its register: gcc copies and spills sums that a loop carries. */
#define ADD(words, sum, v) __asm__("vpadd" words " %1, %0, %0" : "+x"(sum) : "x"(v))

INLINE __m256i load(const void *p) { return _mm256_loadu_si256(p); }

INLINE void store(void *p, __m256i v) { _mm256_storeu_si256(p, v); }

INLINE __m256i load_quad(const void *p) { /* 4 bytes, eight times */
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

INLINE void fetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* Multiply one step of 8 inputs. `narrow`: two fours of them add up in 16 bits. R, B and narrow are constants. */
INLINE void step(const int R, const int B, const int narrow, const uint8_t *rows, int stride, const int8_t *w,
                 __m256i sums[2][4]) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
        const __m256i a = load_quad(rows + r * stride), b = load_quad(rows + r * stride + 4);
#pragma GCC unroll 4
        for (int i = 0; i < 2 * B; i++) {
            const int8_t *at = w + (size_t)(i / 2 * 16) * stride + i % 2 * 32;
            const __m256i p = _mm256_maddubs_epi16(a, load(at)), q = _mm256_maddubs_epi16(b, load(at + 64));
            if (narrow) {
                ADD("d", sums[r][i], _mm256_madd_epi16(_mm256_add_epi16(p, q), ones));
            } else {
                ADD("d", sums[r][i], _mm256_madd_epi16(p, ones));
                ADD("d", sums[r][i], _mm256_madd_epi16(q, ones));
            }
        }
    }
}

/* Rows of inputs of value + 128 as bytes: `near` 0..127 is value + 64 where that fits, `rest` in -64..64 is the
 * difference. `far` has one bit per four inputs with a rest that is not 0, one element per 256 inputs. */
typedef struct {
    uint8_t near[2 * WIDEST];
    int8_t rest[2 * WIDEST];
    uint64_t far[2][WIDEST / 256];
} Rows;

INLINE void split_rows(const uint8_t *a, int stride, int count, Rows *rows) {
    for (int r = 0; r < count; r++) {
        for (int k = 0; k < stride; k += 32) {
            /* value + 64, modulo 2^8 */
            const __m256i u = _mm256_sub_epi8(load(a + r * stride + k), _mm256_set1_epi8(64));
            const __m256i near = _mm256_min_epu8(_mm256_subs_epu8(load(a + r * stride + k), _mm256_set1_epi8(64)),
                                                 _mm256_set1_epi8(127));
            const __m256i none = _mm256_cmpeq_epi32(u, near);
            uint64_t *far = &rows->far[r][k / 256];
            store(rows->near + r * stride + k, near);
            store(rows->rest + r * stride + k, _mm256_sub_epi8(u, near));
            *far = (k % 256 ? *far : 0) | (uint64_t)(uint8_t)~_mm256_movemask_ps(_mm256_castsi256_ps(none))
                                              << k % 256 / 4;
        }
    }
}

/* Multiply R rows and B blocks in registers: acc[r][c] = sum over k of (value + 128) * block[k / 4][c][k % 4]. The
 * weights of the blocks add up to `sum`. `wide`: see Matrix. Each step fetches one line of the next data. R (1 or 2)
 * and B are constants. */
INLINE void micro(const int R, const int B, const Rows *rows, int stride, const int8_t *w, const uint8_t *wide,
                  const int32_t *sum, int32_t *acc, size_t pitch, const int8_t *next) {
    const __m256i ones = _mm256_set1_epi16(1);
    const size_t block = (size_t)stride * 16;
    __m256i sums[2][4];
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 4
        for (int i = 0; i < 2 * B; i++) sums[r][i] = _mm256_slli_epi32(load(sum + i * 8), 6);
    }
    for (int k = 0; k < stride; k += 8, next += 64) {
        fetch(next);
        const int apart = (wide[k / 64] | wide[(B - 1) * stride / 64 + k / 64]) >> k / 8 % 8 & 1;
        if (apart) step(R, B, 0, rows->near + k, stride, w + k * 16, sums);
        else step(R, B, 1, rows->near + k, stride, w + k * 16, sums);
    }
#pragma GCC unroll 2
    for (int r = 0; r < R; r++) {
        for (int from = 0; from < stride; from += 256) {
            for (uint64_t far = rows->far[r][from / 256]; far; far &= far - 1) {
                const int k = from + __builtin_ctzll(far) * 4;
                const __m256i a = load_quad(rows->rest + r * stride + k), size = _mm256_abs_epi8(a);
#pragma GCC unroll 4
                for (int i = 0; i < 2 * B; i++) {
                    const __m256i signs = _mm256_sign_epi8(load(w + i / 2 * block + i % 2 * 32 + k * 16), a);
                    ADD("d", sums[r][i], _mm256_madd_epi16(_mm256_maddubs_epi16(size, signs), ones));
                }
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 2 * B; i++) store(acc + r * pitch + i * 8, sums[r][i]);
    }
}

TARGET static void dense(const Matrix *m, int first, int blocks, const uint8_t *a, int rows, int32_t *acc,
                         const int8_t *next) {
    Rows split;
    const int stride = m->stride, all = rows;
    const size_t pitch = (size_t)blocks * 16;
    for (int count; rows; rows -= count, a += count * stride, acc += count * pitch) {
        count = rows > 1 ? 2 : 1;
        split_rows(a, stride, count, &split);
        for (int b = 0; b < blocks; b += 2) {
            const int8_t *w = m->w + (size_t)(first + b) * 16 * stride;
            const int8_t *then = next + (size_t)b * 16 * stride; /* the first 8 rows fetch it, a quarter per two rows */
            const int8_t *later = rows > all - 8 ? then + (size_t)(all - rows) * stride * 4 : w;
            const uint8_t *wide = m->wide + (size_t)(first + b) * stride / 64;
            const int32_t *sum = m->sum + (first + b) * 16;
            if (b + 1 < blocks) {
                if (count == 2) micro(2, 2, &split, stride, w, wide, sum, acc + b * 16, pitch, later);
                else micro(1, 2, &split, stride, w, wide, sum, acc + b * 16, pitch, later);
            } else {
                if (count == 2) micro(2, 1, &split, stride, w, wide, sum, acc + b * 16, pitch, later);
                else micro(1, 1, &split, stride, w, wide, sum, acc + b * 16, pitch, later);
            }
        }
    }
}

/* Blocks of 16 channels or dimensions: their place, the distance from one block and from one step of 4 inputs to the
 * next. */
typedef struct {
    const int8_t *at;
    size_t block, quad;
} Blocks;

/* Add sums[2 b ..] += sum of digit * block[b][k / 4][c][k % 4] over the fours of inputs whose bit in `some` is set.
 * The digits, below 64, are a row's bytes & 63 or, with `top`, >> 6. Two fours add up in 16 bits, 4 * 63 * 127 <
 * 2^15. B (1 to 4) and top are constants. */
INLINE void add_digits(const int B, const int top, const uint8_t *row, uint64_t some, Blocks blocks, __m256i *sums) {
    const __m256i ones = _mm256_set1_epi16(1), mask = _mm256_set1_epi8(top ? 3 : 63);
    /* one more whose digits are 0, so that their number is even */
    if (__builtin_parityll(some)) some |= ~some & (some + 1);
    for (; some; some &= some - 1) {
        const int k = __builtin_ctzll(some);
        some &= some - 1;
        const int l = __builtin_ctzll(some);
        const int8_t *at = blocks.at + k * blocks.quad, *then = blocks.at + l * blocks.quad;
        const __m256i u = load_quad(row + k * 4), v = load_quad(row + l * 4);
        const __m256i a = _mm256_and_si256(top ? _mm256_srli_epi16(u, 6) : u, mask),
                      b = _mm256_and_si256(top ? _mm256_srli_epi16(v, 6) : v, mask);
#pragma GCC unroll 8
        for (int i = 0; i < 2 * B; i++) {
            const size_t place = i / 2 * blocks.block + i % 2 * 32;
            const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, load(at + place)),
                                                   _mm256_maddubs_epi16(b, load(then + place)));
            ADD("d", sums[i], _mm256_madd_epi16(pairs, ones));
        }
    }
}

/* Return one bit per four of up to 256 bytes: set if one of them has a bit of `mask`. */
INLINE uint64_t fours(const uint8_t *row, int n, __m256i mask) {
    uint64_t none = 0;
    for (int k = n - 32; k >= 0; k -= 32) {
        const __m256i zero = _mm256_cmpeq_epi32(_mm256_and_si256(load(row + k), mask), _mm256_setzero_si256());
        none = none << 8 | (uint64_t)_mm256_movemask_ps(_mm256_castsi256_ps(zero));
    }
    return ~none & ~UINT64_C(0) >> (64 - n / 4);
}

INLINE void times_64(const int B, __m256i *sums) {
#pragma GCC unroll 8
    for (int i = 0; i < 2 * B; i++) sums[i] = _mm256_slli_epi32(sums[i], 6);
}

/* Add acc[16 b + c] += sum over k < n of u[k] * block[b][k / 4][c][k % 4], n <= 256. u is a byte of the row or, with
 * a second row, a share() of 16 bits. The first byte has bits 0 to 5 and 12, 13; the second has 6 to 11 and 14, 15.
 * Most digits are 0. B is a constant. */
INLINE void add_row(const int B, const uint8_t *row, const uint8_t *second, int n, Blocks blocks, int32_t *acc) {
    const __m256i low = _mm256_set1_epi8(63), high = _mm256_set1_epi8(-64);
    const uint64_t lows = fours(row, n, low), middles = second ? fours(second, n, low) : 0, tops = fours(row, n, high);
    const uint64_t last = second ? fours(second, n, high) : 0;
    __m256i sums[8];
    if (!(lows | middles | tops | last)) return;
#pragma GCC unroll 8
    for (int i = 0; i < 2 * B; i++) sums[i] = _mm256_setzero_si256();
    if (last) {
        add_digits(B, 1, second, last, blocks, sums);
#pragma GCC unroll 8
        for (int i = 0; i < 2 * B; i++) sums[i] = _mm256_slli_epi32(sums[i], 2);
    }
    if (last | tops) {
        add_digits(B, 1, row, tops, blocks, sums);
        times_64(B, sums);
    }
    if (last | tops | middles) {
        add_digits(B, 0, second, middles, blocks, sums);
        if (second) times_64(B, sums);
    }
    add_digits(B, 0, row, lows, blocks, sums);
#pragma GCC unroll 8
    for (int i = 0; i < 2 * B; i++) store(acc + i * 8, _mm256_add_epi32(load(acc + i * 8), sums[i]));
}

/* Do the same for any number of blocks up to 4. */
TARGET static void add_sparse(int number, const uint8_t *row, const uint8_t *second, int n, Blocks blocks,
                              int32_t *acc) {
    switch (number) {
    case 1: add_row(1, row, second, n, blocks, acc); break;
    case 2: add_row(2, row, second, n, blocks, acc); break;
    case 3: add_row(3, row, second, n, blocks, acc); break;
    default: add_row(4, row, second, n, blocks, acc);
    }
}

/* Multiply inputs of the hidden layer, one piece of them at a time, whose weights stay in the first cache. */
TARGET static void sparse(const int8_t *w, int blocks, const uint8_t *a, int stride, int rows, int32_t *acc,
                          const int8_t *next) {
    const size_t pitch = (size_t)blocks * 16;
    __builtin_memset(acc, 0, rows * pitch * sizeof *acc);
    for (int b = 0; b < blocks; b += 4) {
        for (int k = 0; k < stride; k += 256) {
            const Blocks piece = {w + (size_t)b * 16 * stride + (size_t)k * 16, (size_t)stride * 16, 64};
            const int8_t *later = k + 256 < stride ? piece.at + 64 * 64 : next + (size_t)b * 16 * stride;
            for (int r = 0; r < rows; r++) {
                for (int i = r; i < 64; i += rows) {
                    for (int j = 0; j < 4; j++) fetch(later + j * piece.block + i * 64);
                }
                add_sparse(blocks - b, a + (size_t)r * stride + k, 0, stride - k < 256 ? stride - k : 256, piece,
                           acc + r * pitch + b * 16);
            }
        }
    }
}

/* Scale 8 sums: rs((acc + offset) * m, 24). See kernel_plain.c for the effect of the clamp. AVX2 has no arithmetic
 * shift of 64 bits. |y| < 2^60, so 2^60 is added before a logical one and 2^36 subtracted after it. */
INLINE __m256i scale_four(__m256i dot, __m256i m) {
    const __m256i bias = _mm256_set1_epi64x((1ll << 60) + (1 << 23)), back = _mm256_set1_epi64x(1ll << 36);
    const __m256i most = _mm256_set1_epi64x(1 << 30), least = _mm256_set1_epi64x(-(1 << 30));
    __m256i y = _mm256_srli_epi64(_mm256_add_epi64(_mm256_mul_epi32(dot, m), bias), 24);
    y = _mm256_sub_epi64(y, back);
    y = _mm256_blendv_epi8(y, most, _mm256_cmpgt_epi64(y, most));
    return _mm256_blendv_epi8(y, least, _mm256_cmpgt_epi64(least, y));
}

INLINE __m256i rescale(const int narrow, __m256i acc, __m256i offset, __m256i m) {
    const __m256i half = _mm256_set1_epi64x(1 << 23), dot = _mm256_add_epi32(acc, offset);
    const __m256i dot_odd = _mm256_srli_epi64(dot, 32), m_odd = _mm256_srli_epi64(m, 32);
    if (narrow) {
        const __m256i a = _mm256_add_epi64(_mm256_mul_epi32(dot, m), half),
                      b = _mm256_add_epi64(_mm256_mul_epi32(dot_odd, m_odd), half);
        return _mm256_blend_epi32(_mm256_srli_epi64(a, 24), _mm256_slli_epi64(b, 8), 0xaa);
    }
    return _mm256_blend_epi32(scale_four(dot, m), _mm256_slli_epi64(scale_four(dot_odd, m_odd), 32), 0xaa);
}

INLINE __m256i between(__m256i a, int low, int high) {
    return _mm256_max_epi32(_mm256_min_epi32(a, _mm256_set1_epi32(high)), _mm256_set1_epi32(low));
}

/* Return 16 outputs in order from two times 8. */
INLINE __m256i pack(__m256i a, __m256i b) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8); }

/* Write one output of 16 channels, of channel b on; `at`: its distance from the product's first one. */
INLINE void put(const Output kind, const Product *p, size_t at, int b, __m256i y, __m256i z) {
    if (kind == TO_QKV) {
        store(p->qkv + at, _mm256_max_epi16(pack(y, z), _mm256_set1_epi16(-32767)));
    } else if (kind == TO_RESIDUAL) {
        store(p->x + at, between(_mm256_add_epi32(y, load(p->x + at)), -RESIDUAL_MAX, RESIDUAL_MAX));
        store(p->x + at + 8, between(_mm256_add_epi32(z, load(p->x + at + 8)), -RESIDUAL_MAX, RESIDUAL_MAX));
    } else if (kind == TO_HIDDEN) {
        __m256i u = _mm256_max_epi16(_mm256_min_epi16(pack(y, z), _mm256_set1_epi16(255)), _mm256_setzero_si256());
        u = _mm256_srli_epi16(_mm256_add_epi16(_mm256_mullo_epi16(u, u), _mm256_set1_epi16(128)), 8); /* below 2^16 */
        _mm_storeu_si128((__m128i *)(p->hidden + at),
                         _mm_packus_epi16(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
    } else {
        store(p->x + at, _mm256_add_epi32(y, load(p->bias + b)));
        store(p->x + at + 8, _mm256_add_epi32(z, load(p->bias + b + 8)));
    }
}

INLINE void finish_as(const int narrow, const Output kind, const Product *given, const int32_t *sums) {
    const Product copy = *given, *p = &copy; /* as far as the compiler sees, no store can change it */
    for (int b = 0; b < p->blocks * 16; b += 16) {
        const int32_t *offset = p->matrix->offset + p->block * 16 + b, *m = p->matrix->m + p->block * 16 + b;
        const __m256i offset_0 = load(offset), offset_1 = load(offset + 8), m_0 = load(m), m_1 = load(m + 8);
        for (int r = 0; r < p->rows; r++) {
            const int32_t *acc = sums + r * p->blocks * 16 + b;
            const __m256i y = rescale(narrow, load(acc), offset_0, m_0),
                          z = rescale(narrow, load(acc + 8), offset_1, m_1);
            put(kind, p, r * p->out_stride + b, b, y, z);
        }
    }
}

#include "finish.h"

#define OWN_MULTIPLY
TARGET static void multiply(const Product *p, Scratch *s) {
    const Matrix *m = p->matrix;
    if (m->centred) dense(m, p->block, p->blocks, p->a, p->rows, s->acc, p->next);
    else sparse(m->w + (size_t)p->block * 16 * m->stride, p->blocks, p->a, m->stride, p->rows, s->acc, p->next);
    finish(p, s->acc);
}

#include "avx2_attend.h"
#include "kernel_body.h"

static int supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

const Kernel pltz_avx2 = {"avx2", supported, 0, 0, multiply, norm, turn, attend, gained, turn_only, gate, 1, 1};
#endif

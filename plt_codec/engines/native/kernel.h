/* The interface of a kernel to the engine (layers.c, head.c), and the layouts both share.
 *
 * Every kernel computes the same integers (NUMERICS.md); they differ in instructions only. Common layouts:
 *
 *     activations  u8, value + 128 (or 0..254 for the hidden layer), rows padded to a multiple of 64
 *     Matrix.w     s8, channels in blocks of 16: [channel / 16][k / 4][channel % 16][k % 4], padding is 0
 *     keys         u8, value + 128, or s8 where Kernel.signed_keys: [key / 16][i / 4][key % 16][i % 4]
 *     values       s8: [key / 4][i][key % 4], i padded to a multiple of 16
 *
 * With a = u - 128, sum(w a) = sum(w u) - 128 sum(w): Matrix.offset holds the second term. Sums wrap modulo 2^32 on
 * the way. The result fits an int32, so wrapping is harmless. Scores may be q . (k + 128) = q . k + 128 sum(q). The
 * second term is the same for all keys of a query, and only max s - s is used.
 */
#ifndef PLTZ_KERNEL_H
#define PLTZ_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    CLASS = 128,
    LANES = 64,            /* most lanes of a block */
    RESIDUAL_MAX = (1 << 22) - 1,
    SYMBOL_STEPS = 1984,   /* entries of the symbols' exponent table */
    KEY_STEPS = 1024,      /* entries of the keys' exponent table */
    QUERIES = 32,          /* queries that attend together */
    KEY_PAD = 64,          /* room for keys is a multiple of this */
    CHUNK = 256,           /* keys whose weights are spread over values at once */
    GROUP = 4,             /* channel blocks that one work item multiplies */
    TILE = 128,            /* rows that one work item multiplies */
    ROW_PAD = 16,          /* rows that a kernel may read past the last one */
    HEAD_WIDTH = 64,       /* most dimensions of a head */
    TURNED = 8,            /* heads that are turned together */
    GATE_MAX = 511,        /* largest gate; the table of its function goes from -GATE_MAX on */
};

typedef struct {
    int n, k;            /* channels, inputs */
    int blocks, stride;  /* channels / 16 and bytes per row of inputs, both rounded up */
    int8_t *w;
    int32_t *offset, *m; /* (blocks * 16): see above; multiplier */
    int32_t *sum;        /* (blocks * 16): sum of w, for kernels that multiply u - 128 */
    /* (blocks, stride / 64): one bit per 8 inputs, see mark_wide(); NULL if the kernel does not read it */
    uint8_t *wide;
    int centred;         /* inputs are value + 128, not 0..254; for AVX2 */
    int narrow;          /* no input makes a scaled sum 2^30 or more: it needs no clamp in 64 bits */
} Matrix;

typedef enum { TO_QKV, TO_RESIDUAL, TO_HIDDEN, TO_LOGITS } Output;

/* Some rows times some channel blocks of a matrix, scaled: rs((w @ a) * m, 24), then as `kind` says. */
typedef struct {
    const Matrix *matrix;
    int block, blocks;        /* first channel block, their number: <= GROUP, or <= 8 where rows <= 16 */
    const uint8_t *a;         /* (rows, matrix->stride) */
    int rows;                 /* <= TILE */
    Output kind;
    int16_t *qkv;             /* TO_QKV: clamped to 2^15 - 1 */
    int32_t *x;               /* TO_RESIDUAL: added to and clamped; TO_LOGITS: written, bias added */
    uint8_t *hidden;          /* TO_HIDDEN: rs(u * u, 8), u clamped to 0..255 */
    const int32_t *bias;      /* TO_LOGITS: of the first channel on */
    size_t out_stride;        /* elements per row of the output; output pointers stand at the first channel */
    const int8_t *next;       /* weights probably wanted next */
} Product;

typedef struct {
    const uint8_t *keys;
    const int8_t *values;
    const int8_t *q;            /* (queries, dp) */
    int queries, d, dp, dv;     /* head width; rounded up to 4; to 16 */
    int limit[QUERIES];         /* keys each query sees, >= 1 */
    uint32_t heat[QUERIES];
    uint8_t *out[QUERIES];      /* d bytes each, value + 128 */
    const uint16_t *weight;     /* (64) rs(table.exp, 5) */
    const uint32_t *weights;    /* (KEY_STEPS) the whole table */
    const uint8_t *next;        /* keys probably wanted next */
} Attention;

typedef struct {
    _Alignas(64) int32_t acc[TILE * GROUP * 16]; /* also 16 rows of 8 blocks; kernels read it a line at a time */
    uint16_t shares[QUERIES * CHUNK];            /* attention weights, two bytes each, as share() lays them */
    int32_t mixed[2 * QUERIES * HEAD_WIDTH];
    int32_t *score;   /* (QUERIES, pitch) */
    uint16_t *weight; /* (QUERIES, pitch) */
    size_t pitch;
} Scratch;

typedef struct {
    const char *name;
    int (*supported)(void);
    void (*begin)(void);  /* once in each thread that computes; NULL: nothing to do */
    void (*end)(void);
    void (*multiply)(const Product *, Scratch *);
    void (*norm)(const int32_t *x, int n, uint32_t gain, uint8_t *out);
    /* Turn and norm up to TURNED heads of a row, each a pair of half heads: y (heads, d) -> out (heads, d) value +
     * 128. */
    void (*turn)(const int16_t *y, int heads, const int16_t *cos, const int16_t *sin, int d, uint32_t gain,
                 uint8_t *out);
    void (*attend)(const Attention *, Scratch *);
    /* Contract 2. Norm with gains; heads turned, not normed; gate and linear half -> hidden layer, value + 128. */
    void (*gained)(const int32_t *x, int n, uint32_t gain, const int32_t *gains, uint8_t *out);
    void (*turn_only)(const int16_t *y, int heads, const int16_t *cos, const int16_t *sin, int d, uint8_t *out);
    void (*gate)(const int32_t *gate, const int32_t *linear, int n, const int16_t *act, uint8_t *out);
    int signed_keys;
    int reads_wide; /* Matrix.wide */
} Kernel;

extern const Kernel pltz_plain;
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PLTZ_PLAIN_ONLY)
#define PLTZ_X86 1
extern const Kernel pltz_avx2, pltz_vnni, pltz_amx;
#endif
#if defined(__aarch64__) && defined(__GNUC__) && !defined(PLTZ_PLAIN_ONLY)
#define PLTZ_ARM 1
extern const Kernel pltz_neon;
#endif

#endif

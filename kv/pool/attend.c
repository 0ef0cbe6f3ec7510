/* Attention of one new token per session over pages and exact tokens, on a CPU. Spec: FORMAT.md, "Pages".
 *
 *     attend(kind, sizes, q, out, pages, tables, exact, centre, angles, first, last)
 *
 * A task is one key head of one session, with all query heads that share it. Tokens pass in tiles of 64: their keys are
 * unpacked into a tile that stays in the cache, every query head takes its scores from it, then the same with values.
 * The query is rotated once where keys are (q4), so no key is ever rotated back; the sum of values is, once, at the end.
 *
 * The centre of keys is at position 0, and a key's is turned to its position. With a and b of the query and the centre
 *
 *     q . R(p) centre  =  sum of  a cos(p w) + b sin(p w)
 *
 * At each tile a and b are turned to its first position. Then the angles of 64 positions serve every tile. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#define WITH_AVX 1
#endif

enum { TILE = 64, GROUPS = 64, PADDED = 16 };
enum { RAW, Q8, Q4, KINDS };
enum { FLOAT32, BFLOAT16, FLOAT16, TYPES };
static const long SIZE[TYPES] = {4, 2, 2};
static const float BOOK[16] = {0.1284f,  0.3881f,  0.6568f,  0.9424f,  1.2562f,  1.6180f,  2.0690f,  2.7326f,
                               -0.1284f, -0.3881f, -0.6568f, -0.9424f, -1.2562f, -1.6180f, -2.0690f, -2.7326f};

typedef struct {
    int kind, type;                                    /* of pages, and of exact tokens and raw pages */
    long batch, heads, group, dim, half;               /* key heads, query heads of each; turned pairs */
    long blocks, block, table_row, sinks, cap, columns; /* of the pool; exact tokens with room, and those in use */
    const float *q;                                    /* (batch, heads, group, dim), scaled */
    float *out;                                        /* the same */
    const uint8_t *pages;                              /* (blocks, block, heads, packed) */
    const uint16_t *scale;                             /* (blocks, block, heads, 2), float16 */
    const int32_t *table, *packed;                     /* (batch, table_row), (batch,) */
    const uint8_t *keys, *values, *real;               /* (batch, heads, cap, dim) twice, (batch, cap) */
    const float *centre;                               /* (2, heads, dim), or NULL */
    const float *tile_cos, *tile_sin;                  /* of the first position of each tile: (tiles, half) */
    const float *cos, *sin;                            /* of positions 0 to 63: (TILE, half) */
} Job;

typedef struct {
    float *tile;                    /* (TILE, wide) */
    float *q, *turned, *sum, *plain; /* (group, wide): query, the same rotated, sums of rotated and of plain values */
    float *a, *b, *score;           /* (group, half) twice, (group, TILE) */
    float *most, *total, *weight;   /* (group,): largest score, sum of weights, of those of pages */
    float *constant;                /* (group,) */
    float cos[2 * TILE];            /* a and b at the first position of a tile */
} Scratch;

static long wide_of(long elements) { return (elements + PADDED - 1) / PADDED * PADDED; }

static inline float of_bits(uint32_t bits)
{
    float found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

static inline float of_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest < 0x400) /* subnormal */
        return of_bits(sign | 0x3f800000) * (float)rest * 0x1p-24f;
    return of_bits(sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + (112u << 23)));
}

static inline float element(const uint8_t *from, long at, int type)
{
    if (type == FLOAT32) {
        float found;
        memcpy(&found, from + 4 * at, sizeof found);
        return found;
    }
    uint16_t bits;
    memcpy(&bits, from + 2 * at, sizeof bits);
    return type == BFLOAT16 ? of_bits((uint32_t)bits << 16) : of_half(bits);
}

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define NAME(name) NAMED(name, SUFFIX)

#ifdef WITH_AVX
#define SUFFIX _avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define BYTES 64
#include "attend_body.h"
#undef SUFFIX
#undef TARGET
#undef BYTES
#define SUFFIX _avx2
#define TARGET __attribute__((target("avx2,fma")))
#define BYTES 32
#include "attend_body.h"
#undef SUFFIX
#undef TARGET
#undef BYTES
#endif
#define SUFFIX _plain
#define TARGET
#define BYTES 16
#include "attend_body.h"

typedef void (*Work)(const Job *, Scratch *, long);

static Work work_of(int widest)
{
#ifdef WITH_AVX
    __builtin_cpu_init();
    if (widest >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
        return attend_avx512;
    if (widest >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return attend_avx2;
#endif
    (void)widest;
    return attend_plain;
}

/* Reserve all rooms as one, padded with zeros. Returns NULL where memory does not suffice. */
static float *reserve(Scratch *s, const Job *j)
{
    const size_t wide = (size_t)wide_of(j->dim), half = (size_t)wide_of(j->half), group = (size_t)j->group;
    float *room = calloc(TILE * wide + group * (4 * wide + 2 * half + TILE + 4) + PADDED, sizeof *room);
    if (!room)
        return NULL;
    float *at = room;
    s->tile = at, at += TILE * wide;
    s->q = at, at += group * wide;
    s->turned = at, at += group * wide;
    s->sum = at, at += group * wide;
    s->plain = at, at += group * wide;
    s->a = at, at += group * half;
    s->b = at, at += group * half;
    s->score = at, at += group * TILE;
    s->most = at, at += group;
    s->total = at, at += group;
    s->weight = at, at += group;
    s->constant = at;
    return room;
}

/* ---- Python */

enum { BUFFERS = 14 };

/* Return whether all buffers have their sizes, and all tables name blocks of the pool. */
static int check(const Job *j, const Py_buffer *b, long tiles)
{
    const long most = 1 << 20;
    if (j->kind < 0 || j->kind >= KINDS || j->type < 0 || j->type >= TYPES || j->batch < 0 || j->batch > most ||
        j->heads < 1 || j->heads > most || j->group < 1 || j->group > GROUPS || j->dim < 1 || j->dim > 1024 ||
        j->half < 0 || 2 * j->half > j->dim || j->blocks < 0 || j->blocks > 1L << 40 || j->block < 1 ||
        j->block > most || j->table_row < 0 || j->table_row > 1L << 31 || j->sinks < 0 || j->columns < 0 ||
        j->columns > j->cap || j->cap > 1L << 31 || (j->kind == Q4 && (j->dim < 2 || j->dim & (j->dim - 1))))
        return 0;
    const Py_ssize_t row = j->heads * j->dim, queries = 4 * j->batch * row * j->group;
    const Py_ssize_t packed = j->kind == RAW ? 2 * SIZE[j->type] * j->dim : j->kind == Q8 ? 2 * j->dim : j->dim;
    const Py_ssize_t places = j->blocks * j->block * j->heads, exact = j->batch * row * j->cap * SIZE[j->type];
    const Py_ssize_t half = wide_of(j->half);
    int sound = b[0].len == queries && b[1].len == queries && b[2].len == places * packed &&
                b[3].len == (j->kind == RAW ? 0 : 4 * places) && b[4].len == 4 * j->batch * j->table_row &&
                b[5].len == 4 * j->batch && b[6].len == exact && b[7].len == exact &&
                b[8].len == j->batch * j->cap && b[9].len == (j->kind == RAW ? 0 : 8 * row) &&
                b[10].len == 4 * tiles * half && b[11].len == b[10].len && b[12].len == 4 * TILE * half &&
                b[13].len == b[12].len;
    for (long n = 0; sound && n < j->batch; n++) {
        const long tokens = ((const int32_t *)b[5].buf)[n];
        sound = tokens >= 0 && tokens <= j->table_row * j->block && (j->kind == RAW || tokens <= tiles * TILE);
        for (long at = 0; sound && at * j->block < tokens; at++) {
            const long block = ((const int32_t *)b[4].buf)[n * j->table_row + at];
            sound = 0 <= block && block < j->blocks;
        }
    }
    return sound;
}

static PyObject *py_attend(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer b[BUFFERS];
    Job j;
    long tiles, first, last;
    int widest;
    memset(&j, 0, sizeof j);
    if (!PyArg_ParseTuple(args, "ii(lllll)(llllll)ly*w*y*y*y*y*y*y*y*y*y*y*y*y*lli", &j.kind, &j.type, &j.batch,
                          &j.heads, &j.group, &j.dim, &j.half, &j.blocks, &j.block, &j.table_row, &j.sinks, &j.cap,
                          &j.columns, &tiles, b, b + 1, b + 2, b + 3, b + 4, b + 5, b + 6, b + 7, b + 8, b + 9, b + 10,
                          b + 11, b + 12, b + 13, &first, &last, &widest))
        return NULL;
    PyObject *result = NULL;
    float *room = NULL;
    if (tiles < 0 || !check(&j, b, tiles) || first < 0 || first > last || last > j.batch * j.heads) {
        PyErr_SetString(PyExc_ValueError, "pages, tables or tensors of another shape");
        goto done;
    }
    j.q = b[0].buf, j.out = b[1].buf, j.pages = b[2].buf, j.scale = b[3].buf, j.table = b[4].buf, j.packed = b[5].buf;
    j.keys = b[6].buf, j.values = b[7].buf, j.real = b[8].buf, j.centre = b[9].len ? b[9].buf : NULL;
    j.tile_cos = b[10].buf, j.tile_sin = b[11].buf, j.cos = b[12].buf, j.sin = b[13].buf;
    Scratch scratch;
    if (!(room = reserve(&scratch, &j))) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    const Work work = work_of(widest);
    for (long task = first; task < last; task++)
        work(&j, &scratch, task);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    free(room);
    for (int n = 0; n < BUFFERS; n++)
        PyBuffer_Release(b + n);
    return result;
}

static PyMethodDef METHODS[] = {
    {"attend", py_attend, METH_VARARGS, "Set out to the attention of queries over pages and exact tokens."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_attend", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__attend(void);
PyMODINIT_FUNC PyInit__attend(void) { return PyModule_Create(&MODULE); }

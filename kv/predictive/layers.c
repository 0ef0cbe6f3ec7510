/* The layers of the predictive form on a CPU: from integers to KV, and from KV to integers. Spec: FORMAT.md.
 *
 *     restore(layers, sizes, ..., q, kv, first, last)      q (T, layers, width)  ->  kv (layers, 2, heads, T, dim)
 *     quantise(layers, sizes, ..., kv, q, first, last)     the other way
 *
 * A block of tokens passes through all layers before the next one begins, so everything of it stays in the cache. Each
 * thread takes blocks of its own, and no two threads wait for each other. With x the embedding and the rows of the two
 * layers below, z = x A, or x itself where predictors have full rank:
 *
 *     row = shift + z W + (q step) D                       W = B D and shift = constant D are made beforehand
 *
 * Most q are zero at low rates. Then (q step) D adds the rows of D that count, and multiplies nothing else.
 *
 * Every length is checked before the first read. Rounding may differ by machine, as between any two decoders. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 128, BELOW = 2, FLOAT32 = 4, BFLOAT16 = 2 };
enum { SOUND = 0, NOT_FINITE = 1, TOO_FAR = 2 };

typedef struct {
    const float *reduce, *join, *shift, *decode;  /* A or NULL, W, (width,), D */
    const float *spread, *constant, *encode;      /* of the encoder: B or P, (width,), the inverse of D */
    long rank;                                    /* columns of A, or 0 */
} Layer;

typedef struct {
    const Layer *layer;
    long layers, hidden, heads, dim, half, tokens, width;
    const float *embedded, *step, *cos, *sin; /* (tokens, hidden), (tokens,), (tokens, half) twice */
    int16_t *q;
    void *kv;
    int size; /* bytes of an element of kv */
} Job;

typedef struct {
    float *row[BELOW + 1]; /* of a layer, and of the two below it: (TOKENS, width) */
    float *z, *scaled;     /* (TOKENS, highest rank), (TOKENS, width) */
    float *wanted, *guess; /* of the encoder: (TOKENS, width) */
    float *value;          /* integers that are not zero, times the step; (TOKENS * width,) */
    int32_t *at;           /* and their components */
    int32_t count[TOKENS];
} Scratch;

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define NAME(name) NAMED(name, SUFFIX)

#if defined(__GNUC__) && defined(__x86_64__)
#define SUFFIX _avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define BYTES 64
#define ROWS 12
#include "layers_body.h"
#undef SUFFIX
#undef TARGET
#undef BYTES
#undef ROWS
#define SUFFIX _avx2
#define TARGET __attribute__((target("avx2,fma")))
#define BYTES 32
#define ROWS 6
#include "layers_body.h"
#undef SUFFIX
#undef TARGET
#undef BYTES
#undef ROWS
#define WITH_AVX 1
#endif
#define SUFFIX _plain
#define TARGET
#define BYTES 16
#define ROWS 6
#include "layers_body.h"

typedef int (*Work)(const Job *, Scratch *, long, long);

/* Return the work for this processor. width: of its vectors in bytes at most. */
static Work work_of(int encodes, int widest)
{
#ifdef WITH_AVX
    __builtin_cpu_init();
    if (widest >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
        return encodes ? quantise_avx512 : restore_avx512;
    if (widest >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return encodes ? quantise_avx2 : restore_avx2;
#endif
    (void)widest;
    return encodes ? quantise_plain : restore_plain;
}

static void release(Scratch *s)
{
    for (int n = 0; n <= BELOW; n++)
        free(s->row[n]);
    free(s->z);
    free(s->scaled);
    free(s->wanted);
    free(s->guess);
    free(s->value);
    free(s->at);
}

static int reserve(Scratch *s, const Job *j, int encodes)
{
    const size_t floats = sizeof(float) * TOKENS * (size_t)j->width;
    long rank = 1;
    int sound = 1;
    memset(s, 0, sizeof *s);
    for (long n = 0; n < j->layers; n++)
        rank = j->layer[n].rank > rank ? j->layer[n].rank : rank;
    for (int n = 0; n <= BELOW; n++)
        sound &= (s->row[n] = malloc(floats)) != NULL;
    sound &= (s->z = malloc(sizeof(float) * TOKENS * (size_t)rank)) && (s->scaled = malloc(floats));
    sound &= (s->value = malloc(floats)) && (s->at = malloc(floats));
    if (encodes)
        sound &= (s->wanted = malloc(floats)) && (s->guess = malloc(floats));
    return sound;
}

/* ---- Python */

enum { MATRICES = 7 };

/* Set the matrices of a layer from buffers: A (or nothing), W, shift, D, B or P, constant, the inverse of D. */
static int set_layer(Layer *l, const Py_buffer *b, long inputs, long width)
{
    const Py_ssize_t column = (Py_ssize_t)sizeof(float) * inputs, row = (Py_ssize_t)sizeof(float) * width;
    l->rank = b[0].len ? (long)(b[0].len / column) : 0;
    const long from = l->rank ? l->rank : inputs;
    l->reduce = l->rank ? b[0].buf : NULL;
    l->join = b[1].buf, l->shift = b[2].buf, l->decode = b[3].buf;
    l->spread = b[4].buf, l->constant = b[5].buf, l->encode = b[6].buf;
    return b[0].len == l->rank * column && b[1].len == from * row && b[2].len == row && b[3].len == width * row &&
           b[4].len == from * row && b[5].len == row && b[6].len == width * row;
}

static PyObject *run(PyObject *args, int encodes)
{
    PyObject *matrices, *result = NULL;
    Py_buffer embedded, step, cos, sin, q, kv;
    Job j;
    long first, last;
    int widest;
    memset(&j, 0, sizeof j);
    if (!PyArg_ParseTuple(args, "O!llly*y*y*y*w*w*illi", &PyTuple_Type, &matrices, &j.hidden, &j.heads, &j.dim,
                          &embedded, &step, &cos, &sin, &q, &kv, &j.size, &first, &last, &widest))
        return NULL;
    const Py_ssize_t held = PyTuple_GET_SIZE(matrices);
    Py_buffer *buffers = calloc((size_t)held + 1, sizeof *buffers);
    Layer *layers = calloc((size_t)held / MATRICES + 1, sizeof *layers);
    Scratch scratch;
    memset(&scratch, 0, sizeof scratch);
    Py_ssize_t taken = 0;
    if (!buffers || !layers) {
        PyErr_NoMemory();
        goto done;
    }
    for (; taken < held; taken++)
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(matrices, taken), buffers + taken, PyBUF_SIMPLE))
            goto done;
    j.layer = layers, j.layers = (long)(held / MATRICES);
    j.tokens = (long)(step.len / (Py_ssize_t)sizeof(float));
    j.half = j.tokens ? (long)(cos.len / (Py_ssize_t)sizeof(float)) / j.tokens : 0;
    j.embedded = embedded.buf, j.step = step.buf, j.cos = cos.buf, j.sin = sin.buf, j.q = q.buf, j.kv = kv.buf;
    int sound = held % MATRICES == 0 && j.layers > 0 && j.layers <= 4096 && j.hidden > 0 && j.hidden <= 1 << 20 &&
                j.heads > 0 && j.heads <= 1 << 15 && j.dim > 0 && j.dim <= 1 << 15 && j.tokens <= 1 << 26 &&
                2 * j.half <= j.dim && (j.size == FLOAT32 || (j.size == BFLOAT16 && !encodes));
    j.width = sound ? 2 * j.heads * j.dim : 0; /* both were checked, so the product fits a long */
    sound = sound && j.width <= 1 << 20;
    const Py_ssize_t each = (Py_ssize_t)j.tokens * (Py_ssize_t)sizeof(float);
    const Py_ssize_t elements = sound ? (Py_ssize_t)j.tokens * j.layers * j.width : 0;
    sound = sound && step.len == each && cos.len == each * j.half && sin.len == cos.len &&
            embedded.len == each * j.hidden && q.len == 2 * elements && kv.len == j.size * elements && 0 <= first &&
            first <= last && last <= j.tokens;
    for (long n = 0; sound && n < j.layers; n++)
        sound = set_layer(layers + n, buffers + MATRICES * n, j.hidden + (n < BELOW ? n : BELOW) * j.width, j.width);
    if (!sound) {
        PyErr_SetString(PyExc_ValueError, "matrices, inputs or room of another shape");
        goto done;
    }
    if (!reserve(&scratch, &j, encodes)) {
        PyErr_NoMemory();
        goto done;
    }
    int found = SOUND;
    Py_BEGIN_ALLOW_THREADS;
    const Work work = work_of(encodes, widest);
    for (long at = first; at < last && found == SOUND; at += TOKENS)
        found = work(&j, &scratch, at, last - at < TOKENS ? last - at : TOKENS);
    Py_END_ALLOW_THREADS;
    result = PyLong_FromLong(found);
done:
    release(&scratch);
    while (buffers && taken--)
        PyBuffer_Release(buffers + taken);
    free(buffers);
    free(layers);
    PyBuffer_Release(&embedded);
    PyBuffer_Release(&step);
    PyBuffer_Release(&cos);
    PyBuffer_Release(&sin);
    PyBuffer_Release(&q);
    PyBuffer_Release(&kv);
    return result;
}

static PyObject *py_restore(PyObject *self, PyObject *args)
{
    (void)self;
    return run(args, 0);
}

static PyObject *py_quantise(PyObject *self, PyObject *args)
{
    (void)self;
    return run(args, 1);
}

static PyMethodDef METHODS[] = {
    {"restore", py_restore, METH_VARARGS, "Fill KV from integers; return 0, or 1 where a number is not finite."},
    {"quantise", py_quantise, METH_VARARGS, "Fill integers from KV; return 0, 1 as restore, or 2: one is too large."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_layers", NULL, 0, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__layers(void);
PyMODINIT_FUNC PyInit__layers(void) { return PyModule_Create(&MODULE); }

/* The search of a SketchIndex, without an array for each step (sketch.py, `found_here` and `joined_here`, do the same).
 *
 *     nearest([(hashes, owners, starts), ...], [(number, hashes), ...], [wanted, ...], scales, least, count)
 *         -> [[(number, shared), ...], ...]
 *
 * Runs are hashes, ascending, each with the number of its sketch. starts, 2^k and one more, say where the hashes of each
 * value of their first k bits begin. Behind the runs stand sketches that are in none. For each row of wanted hashes,
 * distinct and ascending, returns the sketches with `least` or more of them. At most `count` of them, those of the
 * highest product of hits and scale first; of equal ones the highest number. ValueError for arrays that do not fit
 * together. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __GNUC__
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define PREFETCH(p) (void)(p)
#endif

enum { MOST_RUNS = 128 };

typedef struct {
    const uint32_t *hashes, *owners, *starts; /* owners: NULL where all are those of sketch `number` */
    size_t size;
    uint32_t number;
    unsigned shift; /* of a hash, which leaves its first k bits */
} Run;

typedef struct {
    uint32_t number;
    double shared;
} Item;

typedef struct {
    uint32_t *hits, *touched; /* per sketch; the numbers of those with hits, in any order */
    size_t sketches, met;
} Tally;

static int count_hit(Tally *tally, uint32_t number)
{
    if (number >= tally->sketches)
        return 0;
    if (!tally->hits[number]++)
        tally->touched[tally->met++] = number;
    return 1;
}

static size_t start_of(const Run *run, uint32_t wanted)
{
    const size_t start = run->starts[(uint64_t)wanted >> run->shift];
    return start < run->size ? start : run->size;
}

static int tell(const Run *run, const uint32_t *wanted, size_t count, Tally *tally)
{
    if (!run->owners) { /* both are short: side by side */
        size_t i = 0, j = 0;
        uint32_t hits = 0;
        while (i < count && j < run->size) {
            const uint32_t a = wanted[i], b = run->hashes[j];
            hits += a == b;
            i += a <= b;
            j += b <= a;
        }
        while (hits--)
            if (!count_hit(tally, run->number))
                return 0;
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (i + 8 < count)
            PREFETCH(run->starts + ((uint64_t)wanted[i + 8] >> run->shift));
        if (i + 4 < count)
            PREFETCH(run->hashes + start_of(run, wanted[i + 4]));
        size_t at = start_of(run, wanted[i]);
        while (at < run->size && run->hashes[at] < wanted[i])
            at++;
        for (; at < run->size && run->hashes[at] == wanted[i]; at++)
            if (!count_hit(tally, run->owners[at]))
                return 0;
    }
    return 1;
}

/* Fill `best` with at most `most` sketches, the best first, and return how many. */
static size_t choose(const Tally *tally, const double *scales, uint32_t least, Item *best, size_t most)
{
    size_t found = 0;
    for (size_t n = 0; n < tally->met; n++) {
        const uint32_t number = tally->touched[n], hits = tally->hits[number];
        if (hits < least)
            continue;
        const double shared = hits * scales[number];
        size_t at = found;
        while (at && (shared > best[at - 1].shared || (shared == best[at - 1].shared && number > best[at - 1].number)))
            at--;
        if (at == most)
            continue;
        found += found < most;
        memmove(best + at + 1, best + at, (found - 1 - at) * sizeof *best);
        best[at] = (Item){number, shared};
    }
    return found;
}

/* Take a view of an array of items of `width` bytes. Return 0, with an error set, where it is none. */
static int view(PyObject *array, size_t width, Py_buffer *into)
{
    if (PyObject_GetBuffer(array, into, PyBUF_C_CONTIGUOUS))
        return 0;
    if ((size_t)into->itemsize == width)
        return 1;
    PyBuffer_Release(into);
    PyErr_SetString(PyExc_ValueError, "an array has items of another size");
    return 0;
}

/* The runs and sketches that a search goes through, and the arrays that they are in. */
typedef struct {
    Py_buffer views[3 * MOST_RUNS + 1];
    size_t held;
    Run parts[MOST_RUNS];
    Py_ssize_t all;
    const double *scales;
    size_t sketches;
} Parts;

static void close_parts(Parts *parts)
{
    while (parts->held)
        PyBuffer_Release(&parts->views[--parts->held]);
}

/* Return the next view of an array of words, or NULL with an error set. */
static const Py_buffer *words(Parts *parts, PyObject *array)
{
    if (!view(array, 4, &parts->views[parts->held]))
        return NULL;
    return &parts->views[parts->held++];
}

static int open_run(Parts *parts, PyObject *tuple, Run *run)
{
    PyObject *first, *second, *third;
    const Py_buffer *hashes, *owners, *starts;
    if (!PyArg_ParseTuple(tuple, "OOO", &first, &second, &third) || !(hashes = words(parts, first)) ||
        !(owners = words(parts, second)) || !(starts = words(parts, third)))
        return 0;
    if (owners->len != hashes->len) {
        PyErr_SetString(PyExc_ValueError, "a run has not one owner per hash");
        return 0;
    }
    *run = (Run){hashes->buf, owners->buf, starts->buf, (size_t)hashes->len / 4, 0, 32};
    const size_t count = (size_t)starts->len / 4;
    while (run->shift && ((size_t)1 << (32 - run->shift)) + 1 < count)
        run->shift--;
    if (count == ((size_t)1 << (32 - run->shift)) + 1)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the starts of a run are not a power of two and one more");
    return 0;
}

static int open_sketch(Parts *parts, PyObject *tuple, Run *run)
{
    PyObject *first, *second;
    const Py_buffer *hashes;
    if (!PyArg_ParseTuple(tuple, "OO", &first, &second))
        return 0;
    const unsigned long number = PyLong_AsUnsignedLong(first);
    if (PyErr_Occurred() || !(hashes = words(parts, second)))
        return 0;
    *run = (Run){hashes->buf, NULL, NULL, (size_t)hashes->len / 4,
                  number > UINT32_MAX ? UINT32_MAX : (uint32_t)number, 0};
    return 1;
}

/* Return 0, with an error set and nothing held, where the arguments do not fit together. */
static int open_parts(Parts *parts, PyObject *runs, PyObject *recent, PyObject *scales)
{
    const Py_ssize_t sorted = PyList_GET_SIZE(runs);
    parts->held = 0;
    parts->all = sorted + PyList_GET_SIZE(recent);
    if (parts->all > MOST_RUNS) {
        PyErr_SetString(PyExc_ValueError, "there are too many runs, or a number is below 0");
        return 0;
    }
    if (!view(scales, 8, &parts->views[0]))
        return 0;
    parts->scales = parts->views[0].buf, parts->sketches = (size_t)parts->views[0].len / 8, parts->held = 1;
    for (Py_ssize_t n = 0; n < parts->all; n++) {
        PyObject *part = n < sorted ? PyList_GET_ITEM(runs, n) : PyList_GET_ITEM(recent, n - sorted);
        if (!PyTuple_Check(part))
            PyErr_SetString(PyExc_TypeError, "expected tuples");
        else if (n < sorted ? open_run(parts, part, &parts->parts[n]) : open_sketch(parts, part, &parts->parts[n]))
            continue;
        close_parts(parts);
        return 0;
    }
    return 1;
}

static PyObject *as_list(const Item *items, size_t count)
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t n = 0; list && n < count; n++) {
        PyObject *pair = Py_BuildValue("(Id)", items[n].number, items[n].shared);
        if (!pair)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)n, pair);
    }
    return list;
}

/* The search for several sequences one after the other. One keeps Python's lock: it is over sooner than a thread that
 * has given it up gets it back. */
static PyObject *nearest(PyObject *self, PyObject *args)
{
    PyObject *runs, *recent, *wanted, *scales, *result = NULL;
    Py_ssize_t least, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O!O!Onn", &PyList_Type, &runs, &PyList_Type, &recent, &PyList_Type, &wanted, &scales,
                          &least, &count))
        return NULL;
    if (count < 0 || least < 0) {
        PyErr_SetString(PyExc_ValueError, "there are too many runs, or a number is below 0");
        return NULL;
    }
    Parts parts;
    if (!open_parts(&parts, runs, recent, scales))
        return NULL;
    if ((size_t)count > parts.sketches)
        count = (Py_ssize_t)parts.sketches;
    const size_t sequences = (size_t)PyList_GET_SIZE(wanted), most = (size_t)count;
    size_t held = 0;
    Tally tally = {.sketches = parts.sketches};
    tally.hits = calloc(parts.sketches + 1, sizeof *tally.hits);
    tally.touched = malloc((parts.sketches + 1) * sizeof *tally.touched);
    const int small = sequences < SIZE_MAX / sizeof(Item) / (most + 1);
    Item *best = small ? malloc((sequences * most + 1) * sizeof *best) : NULL;
    size_t *found = calloc(sequences + 1, sizeof *found);
    Py_buffer *rows = calloc(sequences + 1, sizeof *rows);
    if (!tally.hits || !tally.touched || !best || !found || !rows) {
        PyErr_NoMemory();
        goto end;
    }
    for (; held < sequences; held++)
        if (!view(PyList_GET_ITEM(wanted, (Py_ssize_t)held), 4, &rows[held]))
            goto end;
    int fits = 1;
    PyThreadState *state = sequences > 1 ? PyEval_SaveThread() : NULL;
    for (size_t s = 0; s < sequences && fits; s++) {
        for (Py_ssize_t n = 0; n < parts.all && fits; n++)
            fits = tell(&parts.parts[n], rows[s].buf, (size_t)rows[s].len / 4, &tally);
        if (fits && most)
            found[s] = choose(&tally, parts.scales, (uint32_t)least, best + s * most, most);
        while (tally.met)
            tally.hits[tally.touched[--tally.met]] = 0;
    }
    if (state)
        PyEval_RestoreThread(state);
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "a hash belongs to a sketch that is not there");
        goto end;
    }
    result = PyList_New((Py_ssize_t)sequences);
    for (size_t s = 0; result && s < sequences; s++) {
        PyObject *list = as_list(best + s * most, found[s]);
        if (!list)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, (Py_ssize_t)s, list);
    }
end:
    while (held)
        PyBuffer_Release(&rows[--held]);
    free(rows);
    free(found);
    free(best);
    free(tally.hits);
    free(tally.touched);
    close_parts(&parts);
    return result;
}

/* join(hashes, owners, more hashes, their owners, bits) -> hashes, owners, starts, as bytes: two runs as one, and where
 * the hashes of each value of their first `bits` begin. Of equal hashes those of the first run stand first. */
static PyObject *join(PyObject *self, PyObject *args)
{
    PyObject *arrays[4], *made[3] = {NULL, NULL, NULL}, *result = NULL;
    Py_buffer in[4];
    int bits, held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOi", &arrays[0], &arrays[1], &arrays[2], &arrays[3], &bits))
        return NULL;
    for (; held < 4; held++)
        if (!view(arrays[held], 4, &in[held]))
            goto end;
    if (in[0].len != in[1].len || in[2].len != in[3].len || bits < 1 || bits > 31) {
        PyErr_SetString(PyExc_ValueError, "a run has not one owner per hash, or starts have no or too many bits");
        goto end;
    }
    const size_t first = (size_t)in[0].len / 4, second = (size_t)in[2].len / 4, starts = ((size_t)1 << bits) + 1;
    made[0] = PyBytes_FromStringAndSize(NULL, in[0].len + in[2].len);
    made[1] = PyBytes_FromStringAndSize(NULL, in[0].len + in[2].len);
    made[2] = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(starts * 4));
    if (!made[0] || !made[1] || !made[2])
        goto end;
    uint32_t *hashes = (uint32_t *)PyBytes_AS_STRING(made[0]), *owners = (uint32_t *)PyBytes_AS_STRING(made[1]),
             *begin = (uint32_t *)PyBytes_AS_STRING(made[2]);
    const uint32_t *a = in[0].buf, *a_owners = in[1].buf, *b = in[2].buf, *b_owners = in[3].buf;
    Py_BEGIN_ALLOW_THREADS
    size_t i = 0, j = 0, next = 0;
    for (size_t n = 0; n < first + second; n++) {
        const int from_a = j == second || (i < first && a[i] <= b[j]);
        hashes[n] = from_a ? a[i] : b[j];
        owners[n] = from_a ? a_owners[i++] : b_owners[j++];
        for (const size_t value = hashes[n] >> (32 - bits); next <= value;) /* rows that do not ascend stay harmless */
            begin[next++] = (uint32_t)n;
    }
    while (next < starts)
        begin[next++] = (uint32_t)(first + second);
    Py_END_ALLOW_THREADS
    result = PyTuple_Pack(3, made[0], made[1], made[2]);
end:
    for (int n = 0; n < 3; n++)
        Py_XDECREF(made[n]);
    while (held)
        PyBuffer_Release(&in[--held]);
    return result;
}

static PyMethodDef methods[] = {
    {"nearest", nearest, METH_VARARGS, "Return the sketches that share most with wanted hashes, and how many."},
    {"join", join, METH_VARARGS, "Return two runs as one, with its starts."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sketch", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sketch(void)
{
    return PyModule_Create(&module);
}

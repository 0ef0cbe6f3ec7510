/* The search of a SketchIndex, without an array for each step (sketch.py, `found_here`, does the same).
 *
 *     nearest([(hashes, owners), ...], [(number, hashes), ...], wanted, scales, least, count) -> [(number, shared), ...]
 *
 * Runs are hashes, ascending, each with the number of its sketch. Behind them stand sketches that are in no run.
 * Returns the sketches with `least` or more of the wanted hashes, which are distinct and ascending. At most `count` of
 * them, those of the highest product of hits and scale first; of equal ones the highest number. ValueError for arrays
 * that do not fit together. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 128 };

typedef struct {
    const uint32_t *hashes, *owners; /* owners: NULL where all are those of sketch `number` */
    size_t size;
    uint32_t number;
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

/* Return the first place from `at` on whose hash is not below `wanted`: in steps twice as long each, then by halves. */
static size_t not_below(const uint32_t *hashes, size_t at, size_t size, uint32_t wanted)
{
    size_t step = 1, end = at;
    while (end < size && hashes[end] < wanted) {
        at = end + 1;
        end += step;
        step *= 2;
    }
    if (end > size)
        end = size;
    while (at < end) {
        const size_t middle = at + (end - at) / 2;
        if (hashes[middle] < wanted)
            at = middle + 1;
        else
            end = middle;
    }
    return at;
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
    size_t at = 0;
    for (size_t i = 0; i < count && at < run->size; i++) {
        at = not_below(run->hashes, at, run->size, wanted[i]);
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

static PyObject *nearest(PyObject *self, PyObject *args)
{
    PyObject *runs, *recent, *result = NULL;
    PyObject *wanted_array, *scales_array;
    Py_ssize_t least, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!O!OOnn", &PyList_Type, &runs, &PyList_Type, &recent, &wanted_array, &scales_array,
                          &least, &count))
        return NULL;
    const Py_ssize_t sorted = PyList_GET_SIZE(runs), all = sorted + PyList_GET_SIZE(recent);
    if (all > MOST_RUNS || count < 0 || least < 0) {
        PyErr_SetString(PyExc_ValueError, "there are too many runs, or a number is below 0");
        return NULL;
    }
    Py_buffer views[2 * MOST_RUNS + 2];
    Run parts[MOST_RUNS];
    size_t held = 0;
    if (!view(wanted_array, 4, &views[held]))
        return NULL;
    const Py_buffer *wanted = &views[held++];
    if (!view(scales_array, 8, &views[held]))
        goto end;
    const Py_buffer *scales = &views[held++];
    for (Py_ssize_t n = 0; n < all; n++) {
        PyObject *pair = n < sorted ? PyList_GET_ITEM(runs, n) : PyList_GET_ITEM(recent, n - sorted), *first, *second;
        if (!PyTuple_Check(pair)) {
            PyErr_SetString(PyExc_TypeError, "expected pairs");
            goto end;
        }
        if (!PyArg_ParseTuple(pair, "OO", &first, &second))
            goto end;
        Run *run = &parts[n];
        *run = (Run){0};
        if (n < sorted) {
            if (!view(first, 4, &views[held]))
                goto end;
            run->hashes = views[held].buf, run->size = (size_t)views[held++].len / 4;
            if (!view(second, 4, &views[held]))
                goto end;
            run->owners = views[held].buf;
            if ((size_t)views[held++].len / 4 != run->size) {
                PyErr_SetString(PyExc_ValueError, "a run has not one owner per hash");
                goto end;
            }
        } else {
            const unsigned long number = PyLong_AsUnsignedLong(first);
            if (PyErr_Occurred() || !view(second, 4, &views[held]))
                goto end;
            run->number = number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
            run->hashes = views[held].buf, run->size = (size_t)views[held++].len / 4;
        }
    }
    Tally tally = {.sketches = (size_t)scales->len / 8};
    if ((size_t)count > tally.sketches)
        count = (Py_ssize_t)tally.sketches;
    tally.hits = calloc(tally.sketches + 1, sizeof *tally.hits);
    tally.touched = malloc((tally.sketches + 1) * sizeof *tally.touched);
    Item *best = malloc(((size_t)count + 1) * sizeof *best);
    int fits = 1;
    size_t found = 0;
    if (tally.hits && tally.touched && best) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t n = 0; n < all && fits; n++)
            fits = tell(&parts[n], wanted->buf, (size_t)wanted->len / 4, &tally);
        if (fits && count)
            found = choose(&tally, scales->buf, (uint32_t)least, best, (size_t)count);
        Py_END_ALLOW_THREADS
        if (!fits)
            PyErr_SetString(PyExc_ValueError, "a hash belongs to a sketch that is not there");
        else if ((result = PyList_New((Py_ssize_t)found)))
            for (size_t n = 0; n < found; n++) {
                PyObject *pair = Py_BuildValue("(Id)", best[n].number, best[n].shared);
                if (!pair) {
                    Py_CLEAR(result);
                    break;
                }
                PyList_SET_ITEM(result, (Py_ssize_t)n, pair);
            }
    } else {
        PyErr_NoMemory();
    }
    free(tally.hits);
    free(tally.touched);
    free(best);
end:
    while (held)
        PyBuffer_Release(&views[--held]);
    return result;
}

static PyMethodDef methods[] = {
    {"nearest", nearest, METH_VARARGS, "Return the sketches that share most with wanted hashes, and how many."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sketch", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sketch(void)
{
    return PyModule_Create(&module);
}

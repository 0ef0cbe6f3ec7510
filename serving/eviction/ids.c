/* Copies token ids for token_buffer.py from a Python list, an array of 32-bit or 64-bit integers, or a tensor's
 * memory. They are written into bytearrays, one after the other, as 32-bit integers.
 *
 *     copy_ids([1, 2, 3], [bytearray(8), bytearray(8)]) -> True
 *     copy_ids([1, "x"], [bytearray(8)]) -> False: not all are exact integers in range, and the output is meaningless
 *     copy_memory(address, 8, 3, [bytearray(12)]) -> True: 3 integers of 8 bytes at a valid address
 *
 * The range is 0 to 2^30 - 1 in a list, and 0 to 2^31 - 1 in an array.
 *
 * Why C: a list of 16,384 ids takes 15 us here, 80 us by array("I", ids), and 50 us as a tuple, which leaves
 * the work for later. The integers of a list are read in place, since a call for each takes longer than the
 * reading (37 us). They are prefetched AHEAD of their turn: after a step of a model they are in no near cache
 * (73 us of 110 us where they are scattered). Errors are collected and tested at the end. Only exact integers
 * are read, so no code of the caller runs in the loop, and the list cannot change during it. An array of
 * 64-bit integers is half as long afterwards. In all cases the ids are then known to be in range, and the GIL
 * is kept, which numpy's own functions release. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define FETCH(address) __builtin_prefetch(address)
#else
#define FETCH(address) ((void)(address))
#endif

/* Items. From 8 to 64 the time is equal; without prefetching, a scattered list takes 10 to 20 % longer. Four items per
 * turn gain nothing. */
enum { AHEAD = 32 };

/* Return an exact integer from 0 to 2^30 - 1. For anything else, set bits in `*bad` and return a meaningless value. */
static inline uint32_t small(PyObject *one, uintptr_t *bad)
{
    const PyLongObject *number = (const PyLongObject *)one;
    if (!PyLong_CheckExact(one)) { /* it may be smaller than an integer object */
        *bad = 1;
        return 0;
    }
#if PY_VERSION_HEX >= 0x030C0000
    /* digits << 3, plus 1 for zero and 2 for negative; immortal integers may have the bit between */
    uintptr_t tag = number->long_value.lv_tag;
    *bad |= tag & ~(uintptr_t)(1 << 3 | 1 << 2 | 1);
    return number->long_value.ob_digit[0] & (uint32_t)(0 - (tag >> 3 & 1));
#else
    uintptr_t size = (uintptr_t)Py_SIZE(one); /* digits, negative for negative numbers */
    *bad |= size & ~(uintptr_t)1;
    return number->ob_digit[0] & (uint32_t)(0 - size);
#endif
}

static int copy_list(PyObject *const *items, uint32_t *out, Py_ssize_t count)
{
    uintptr_t bad = 0;
    Py_ssize_t i = 0;
    for (; i < count - AHEAD; i++) {
        FETCH((const char *)items[i + AHEAD] + 16);
        out[i] = small(items[i], &bad);
    }
    for (; i < count; i++)
        out[i] = small(items[i], &bad);
    return !bad;
}

static int copy_row64(const uint64_t *ids, uint32_t *out, Py_ssize_t count)
{
    uint64_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        all |= ids[i];
        out[i] = (uint32_t)ids[i];
    }
    return all <= INT32_MAX;
}

static int copy_row32(const uint32_t *ids, uint32_t *out, Py_ssize_t count)
{
    uint32_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        all |= ids[i];
        out[i] = ids[i];
    }
    return all <= INT32_MAX;
}

/* The place of ids: integers of `width` bytes each, or objects of a list where that is 0. */
typedef struct {
    const char *at;
    Py_ssize_t width, count;
} Ids;

static int copy_part(const Ids *ids, Py_ssize_t start, uint32_t *out, Py_ssize_t count)
{
    switch (ids->width) {
    case 0: return copy_list((PyObject *const *)ids->at + start, out, count);
    case 4: return copy_row32((const uint32_t *)ids->at + start, out, count);
    default: return copy_row64((const uint64_t *)ids->at + start, out, count);
    }
}

/* Fill one bytearray after the other. Return NULL with an error set where they do not hold all ids. */
static PyObject *copy(const Ids *ids, PyObject *rooms)
{
    Py_ssize_t done = 0;
    int good = 1;
    if (!PyList_Check(rooms))
        return PyErr_Format(PyExc_TypeError, "expected a list of bytearrays");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rooms) && done < ids->count; i++) {
        PyObject *room = PyList_GET_ITEM(rooms, i);
        if (!PyByteArray_Check(room))
            return PyErr_Format(PyExc_TypeError, "expected a list of bytearrays");
        char *out = PyByteArray_AS_STRING(room);
        Py_ssize_t left = ids->count - done, count = PyByteArray_GET_SIZE(room) / 4;
        count = count < left ? count : left;
        if (count && (uintptr_t)out % 4)
            return PyErr_Format(PyExc_ValueError, "expected room at a multiple of 4");
        good &= copy_part(ids, done, (uint32_t *)out, count);
        done += count;
    }
    if (done < ids->count)
        return PyErr_Format(PyExc_ValueError, "expected 4 bytes of room for each of %zd ids", ids->count);
    return PyBool_FromLong(good);
}

/* Return the bytes per integer of a row of aligned 4-byte or 8-byte integers, signed or not; 0 for any other buffer. */
static Py_ssize_t row_width(const Py_buffer *ids)
{
    const char *format = ids->format ? ids->format : "B";
    int whole = format[0] && strchr("ilqILQ", format[0]) && !format[1];
    int wide = ids->itemsize == 4 || ids->itemsize == 8;
    int packed = ids->ndim == 1 && ids->strides[0] == ids->itemsize;
    return whole && wide && packed && (uintptr_t)ids->buf % (uintptr_t)ids->itemsize == 0 ? ids->itemsize : 0;
}

static PyObject *copy_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "expected ids and a list of bytearrays");
    if (PyList_Check(args[0])) {
        Ids ids = {(const char *)((PyListObject *)args[0])->ob_item, 0, PyList_GET_SIZE(args[0])};
        return copy(&ids, args[1]);
    }
    Py_buffer row;
    if (PyObject_GetBuffer(args[0], &row, PyBUF_STRIDED_RO | PyBUF_FORMAT))
        return NULL;
    Ids ids = {row.buf, row_width(&row), 0};
    ids.count = ids.width ? row.len / ids.width : 0;
    PyObject *done = ids.width ? copy(&ids, args[1]) : PyBool_FromLong(0);
    PyBuffer_Release(&row);
    return done;
}

static PyObject *copy_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "expected an address, bytes an id, a count and a list of bytearrays");
    Ids ids = {PyLong_AsVoidPtr(args[0]), PyLong_AsSsize_t(args[1]), PyLong_AsSsize_t(args[2])};
    if (PyErr_Occurred())
        return NULL;
    if ((ids.width != 4 && ids.width != 8) || ids.count < 0 || (uintptr_t)ids.at % (uintptr_t)ids.width)
        return PyErr_Format(PyExc_ValueError, "expected integers of 4 or 8 bytes, aligned");
    return copy(&ids, args[3]);
}

static PyMethodDef methods[] = {
    {"copy_ids", (PyCFunction)(void (*)(void))copy_ids, METH_FASTCALL, "copy_ids(ids, rooms) -> bool: see ids.c."},
    {"copy_memory", (PyCFunction)(void (*)(void))copy_memory, METH_FASTCALL,
     "copy_memory(address, width, count, rooms) -> bool: see ids.c."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_ids", "Token ids out of lists, arrays and tensors; see ids.c.", 0, methods, 0, 0, 0, 0,
};

PyMODINIT_FUNC PyInit__ids(void) { return PyModule_Create(&definition); }

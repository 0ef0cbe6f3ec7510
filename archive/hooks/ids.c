/* Token ids out of a Python list, an array of 32-bit or 64-bit integers, or a tensor's memory, for snapshot.py: written into a writable buffer as
 * 32-bit integers.
 *
 *     copy_ids([1, 2, 3], bytearray(12)) -> True
 *     copy_ids([1, "x"], bytearray(12)) -> False: nothing but exact integers from 0 to 2^30 - 1, in an array to 2^31 - 1, is copied; the room then
 *                                          holds anything
 *     copy_memory(address, 8, 3, bytearray(12)) -> True: three integers of 8 bytes that lie there; the caller answers for the address
 *
 * Why C: a list of 16,384 takes 15 us here, 80 by array("I", ids), and 50 as a tuple, which leaves the work for later. A list is read where its integers
 * lie, for a call for each takes longer than the reading (37 us), and they are asked for AHEAD of their turn: after a step of a model they are in no near
 * cache (73 us of 110 where they lie scattered). What is wrong with one of them is gathered and looked at in the end. They are exact integers, so no code
 * of the caller runs in the loop: the list cannot change while it is read. An array of 64-bit ones is half as long afterwards; of all it is known then
 * that the ids are in range, and the interpreter is kept, which numpy's own functions let go of. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define FETCH(address) __builtin_prefetch(address)
#else
#define FETCH(address) ((void)(address))
#endif

enum { AHEAD = 32 }; /* items */

/* An exact integer from 0 to 2^30 - 1, and whether it is not: then `*bad` has bits set, and what is returned is of no use. */
static inline uint32_t small(PyObject *one, uintptr_t *bad)
{
    const PyLongObject *number = (const PyLongObject *)one;
    *bad |= (uintptr_t)Py_TYPE(one) ^ (uintptr_t)&PyLong_Type;
#if PY_VERSION_HEX >= 0x030C0000
    uintptr_t tag = number->long_value.lv_tag; /* digits << 3, and 1 for zero, 2 for below it; an immortal one may have the bit between */
    *bad |= tag & ~(uintptr_t)(1 << 3 | 1 << 2 | 1);
    return number->long_value.ob_digit[0] & (uint32_t)(0 - (tag >> 3 & 1));
#else
    uintptr_t size = (uintptr_t)Py_SIZE(one); /* digits; below zero for numbers that are */
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

static int copy_array(const int64_t *ids, uint32_t *out, Py_ssize_t count)
{
    uint64_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        all |= (uint64_t)ids[i];
        out[i] = (uint32_t)ids[i];
    }
    return all <= INT32_MAX;
}

static int copy_array32(const int32_t *ids, uint32_t *out, Py_ssize_t count)
{
    uint32_t all = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        all |= (uint32_t)ids[i];
        out[i] = (uint32_t)ids[i];
    }
    return all <= INT32_MAX;
}

/* Whether a buffer is a row of aligned signed integers of 4 or 8 bytes. */
static int is_row(const Py_buffer *ids)
{
    const char *format = ids->format ? ids->format : "B";
    int is_signed = (format[0] == 'i' || format[0] == 'l' || format[0] == 'q') && !format[1];
    int wide = ids->itemsize == 4 || ids->itemsize == 8;
    int packed = ids->ndim == 1 && ids->strides[0] == ids->itemsize;
    return is_signed && wide && packed && (uintptr_t)ids->buf % (uintptr_t)ids->itemsize == 0;
}

/* A row of `width` bytes an id. */
static int copy_row(const void *ids, Py_ssize_t width, uint32_t *out, Py_ssize_t count)
{
    return width == 8 ? copy_array(ids, out, count) : copy_array32(ids, out, count);
}

/* The room that the last argument gives, once it is large enough; NULL with an error set where it is not. */
static uint32_t *room_for(Py_ssize_t count, PyObject *given, Py_buffer *room)
{
    if (PyObject_GetBuffer(given, room, PyBUF_WRITABLE))
        return NULL;
    if (!count || (count <= room->len / 4 && (uintptr_t)room->buf % 4 == 0))
        return room->buf;
    PyErr_SetString(PyExc_ValueError, "expected 4 bytes of room for each id, at a multiple of 4");
    PyBuffer_Release(room);
    return NULL;
}

static PyObject *copy_ids(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 2)
        return PyErr_Format(PyExc_TypeError, "expected ids and a writable buffer");
    Py_buffer ids = {0}, room;
    int list = PyList_Check(args[0]), done = 0;
    if (!list && PyObject_GetBuffer(args[0], &ids, PyBUF_STRIDED_RO | PyBUF_FORMAT))
        return NULL;
    Py_ssize_t count = list ? PyList_GET_SIZE(args[0]) : ids.len / (ids.itemsize ? ids.itemsize : 1);
    uint32_t *out = room_for(count, args[1], &room);
    if (out) {
        if (list)
            done = copy_list(((PyListObject *)args[0])->ob_item, out, count);
        else if (is_row(&ids))
            done = copy_row(ids.buf, ids.itemsize, out, count);
        PyBuffer_Release(&room);
    }
    PyBuffer_Release(&ids);
    return out ? PyBool_FromLong(done) : NULL;
}

static PyObject *copy_memory(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "expected an address, bytes an id, a count and a writable buffer");
    const void *ids = PyLong_AsVoidPtr(args[0]);
    Py_ssize_t width = PyLong_AsSsize_t(args[1]), count = PyLong_AsSsize_t(args[2]);
    Py_buffer room;
    if (PyErr_Occurred())
        return NULL;
    if ((width != 4 && width != 8) || count < 0 || (uintptr_t)ids % (uintptr_t)width)
        return PyErr_Format(PyExc_ValueError, "expected integers of 4 or 8 bytes, aligned");
    uint32_t *out = room_for(count, args[3], &room);
    if (!out)
        return NULL;
    int done = copy_row(ids, width, out, count);
    PyBuffer_Release(&room);
    return PyBool_FromLong(done);
}

static PyMethodDef methods[] = {
    {"copy_ids", (PyCFunction)(void (*)(void))copy_ids, METH_FASTCALL, "copy_ids(ids, room) -> bool: see ids.c."},
    {"copy_memory", (PyCFunction)(void (*)(void))copy_memory, METH_FASTCALL,
     "copy_memory(address, width, count, room) -> bool: see ids.c."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_ids", "Token ids out of lists, arrays and tensors; see ids.c.", 0, methods, 0, 0, 0, 0,
};

PyMODINIT_FUNC PyInit__ids(void) { return PyModule_Create(&definition); }

/* Operations of a put on thousands of rows without Python for each: hash them, compare the decoded ones.
 *
 *     digests(b"pltz segment".ljust(16, b"\0"), 32, 0, (b"head",) * 2, [b"row", b"another"])
 *         -> bytes of hashlib.blake2b(b"headrow", digest_size=32, person=b"pltz segment").digest(),
 *            then those of b"headanother"
 *     same([array([7, 1], "u4"), array([2], "u4")], [array([7, 1], "u4"), array([2], "u4")])
 *         -> 7, the largest of all these 32-bit numbers; -1 where a row differs in any byte from the one at its place
 *
 *     columns(b"\x0a\x02\xe4\x01", 0, 4, 5, 0b10) -> (4, [(1, 10, 13, 59, [10, 11, 12, 13, 11])])
 *         The columns of a block (block.py): column 1 of 5 records, least value 10, 2 bits each. The values are
 *         None where all are the least. ValueError says which rule is broken.
 *
 * Rows are any contiguous buffers. Nobody may write to them meanwhile, because the GIL is released.
 *
 * digests: BLAKE2b (RFC 7693). `key`: bytes of the key, 0 for none. With a key each head begins with it, padded with
 * zeros to a block of 128 bytes, as the RFC says. hashlib hashes one message after the other, each a chain of dependent
 * instructions. Here eight messages are hashed at once with AVX-512, four with AVX2 (blake2b_lanes.h). `lanes` is 0
 * where the processor has neither: hashlib is as good then. Segments of 530 and 4000 tokens, half and half, on one core
 * of a Zen 4: 3.4 GB/s with AVX-512, 2.1 with AVX2; hashlib 0.9.
 *
 * hashlib is correct and well maintained, but releases the GIL for one message at a time, and naming is a quarter of
 * the cost of a put of small sessions. A writer of a million of them does 27 thousand per second with hashlib and 34
 * thousand with this (2 cores, nothing else running). ids.py compares the first digests of a process with hashlib's,
 * and uses hashlib where they differ. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token ids are little-endian: this is for machines that are, too"
#endif

enum { BLOCK = 128, MOST = 64 }; /* bytes */
enum { ROWS = 128, COLUMNS = 13, MAX_WIDTH = 33 }; /* of a block: FORMAT.md, "Block" */

typedef struct {
    const uint8_t *head, *row;
    size_t head_size, row_size; /* bytes */
    uint8_t *out;
} Message;

static const uint64_t START[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static inline uint64_t load(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

static inline uint32_t load_u32(const uint8_t *at)
{
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

/* Return the block of a message from byte `at` on: in place, or assembled in `room` and padded with zeros. */
static const uint8_t *block_at(const Message *one, size_t at, uint8_t *room)
{
    if (at >= one->head_size && at - one->head_size + BLOCK <= one->row_size)
        return one->row + (at - one->head_size);
    memset(room, 0, BLOCK);
    size_t there = 0;
    if (at < one->head_size) {
        there = one->head_size - at < BLOCK ? one->head_size - at : BLOCK;
        memcpy(room, one->head + at, there);
    }
    const size_t row_at = at + there - one->head_size, left = there < BLOCK ? one->row_size - row_at : 0;
    if (left)
        memcpy(room + there, one->row + row_at, left < BLOCK - there ? left : BLOCK - there);
    return room;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define TARGET __attribute__((target("avx512f,avx512vl,avx512dq,prefer-vector-width=512")))
#define LANES 8
#define NAMED(name) name##_eight
#include "blake2b_lanes.h"

#define TARGET __attribute__((target("avx2")))
#define LANES 4
#define NAMED(name) name##_four
#include "blake2b_lanes.h"

static int lanes(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return 8;
    return __builtin_cpu_supports("avx2") ? 4 : 0;
}

static void hash(int abreast, const Message *messages, size_t count, const uint64_t start[8], size_t size)
{
    if (abreast == 8)
        hash_eight(messages, count, start, size);
    else
        hash_four(messages, count, start, size);
}
#else
static int lanes(void)
{
    return 0;
}

static void hash(int abreast, const Message *messages, size_t count, const uint64_t start[8], size_t size)
{
    (void)abreast, (void)messages, (void)count, (void)start, (void)size;
}
#endif

/* Release the first `held` buffers and free their array. */
static void release(Py_buffer *buffers, Py_ssize_t held)
{
    while (held)
        PyBuffer_Release(&buffers[--held]);
    PyMem_Free(buffers);
}

/* Return the buffers of a list; NULL with an error set. */
static Py_buffer *hold(PyObject *rows, Py_ssize_t count)
{
    Py_buffer *buffers = PyMem_New(Py_buffer, count);
    if (!buffers)
        return (Py_buffer *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyObject_GetBuffer(PyList_GET_ITEM(rows, i), &buffers[i], PyBUF_SIMPLE) < 0) {
            release(buffers, i);
            return NULL;
        }
    return buffers;
}

/* Fill `count` messages from heads and rows. Return -1 with an error set. */
static int fill(Message *messages, PyObject *heads, const Py_buffer *rows, Py_ssize_t count, uint8_t *out, int size)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *head = PyTuple_GET_ITEM(heads, i);
        if (!PyBytes_Check(head)) {
            PyErr_SetString(PyExc_TypeError, "expected heads as bytes");
            return -1;
        }
        messages[i] = (Message){(const uint8_t *)PyBytes_AS_STRING(head), rows[i].buf, (size_t)PyBytes_GET_SIZE(head),
                                (size_t)rows[i].len, out + i * size};
    }
    return 0;
}

static PyObject *digests(PyObject *self, PyObject *args)
{
    (void)self;
    const char *person;
    Py_ssize_t person_size;
    int size, key, abreast = lanes();
    PyObject *heads, *rows;
    if (!PyArg_ParseTuple(args, "y#iiO!O!|i", &person, &person_size, &size, &key, &PyTuple_Type, &heads, &PyList_Type,
                          &rows, &abreast))
        return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(rows);
    if (person_size != 16 || size < 1 || size > MOST || key < 0 || key > MOST || PyTuple_GET_SIZE(heads) != count)
        return PyErr_Format(PyExc_ValueError,
                            "expected a person of 16 bytes, 1 to %d bytes of a digest and up to that of a key, "
                            "and a head for every row",
                            MOST);
    if (!lanes() || (abreast != 4 && abreast != lanes()))
        return PyErr_Format(PyExc_ValueError, "this processor hashes %d abreast", lanes());
    uint64_t start[8];
    memcpy(start, START, sizeof start);
    start[0] ^= (uint64_t)size | (uint64_t)key << 8 | 1 << 16 | 1 << 24;
    start[6] ^= load((const uint8_t *)person);
    start[7] ^= load((const uint8_t *)person + 8);
    PyObject *found = PyBytes_FromStringAndSize(NULL, count * size);
    Message *messages = PyMem_New(Message, count);
    Py_buffer *buffers = found && messages ? hold(rows, count) : NULL;
    if (found && !messages)
        PyErr_NoMemory();
    int bad = !buffers || fill(messages, heads, buffers, count, (uint8_t *)PyBytes_AS_STRING(found), size) < 0;
    if (!bad) {
        Py_BEGIN_ALLOW_THREADS
        hash(abreast, messages, (size_t)count, start, (size_t)size);
        Py_END_ALLOW_THREADS
    }
    if (buffers)
        release(buffers, count);
    PyMem_Free(messages);
    if (bad)
        Py_CLEAR(found);
    return found;
}

static PyObject *same(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *rows, *wanted;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &rows, &PyList_Type, &wanted))
        return NULL;
    const Py_ssize_t count = PyList_GET_SIZE(rows);
    if (PyList_GET_SIZE(wanted) != count)
        return PyLong_FromLong(-1);
    Py_buffer *ones = hold(rows, count), *others = ones ? hold(wanted, count) : NULL;
    if (!others) {
        if (ones)
            release(ones, count);
        return NULL;
    }
    int equal = 1;
    uint32_t most = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && equal; i++) {
        const Py_ssize_t size = ones[i].len;
        equal = size == others[i].len && !memcmp(ones[i].buf, others[i].buf, (size_t)size);
        for (Py_ssize_t at = 0; equal && at + 4 <= size; at += 4) {
            const uint32_t number = load_u32((const uint8_t *)ones[i].buf + at);
            most = number > most ? number : most;
        }
    }
    Py_END_ALLOW_THREADS
    release(ones, count);
    release(others, count);
    return PyLong_FromLongLong(equal ? (long long)most : -1);
}

/* Read a varint of at most 32 bits in its one encoding, and move `at` behind it. Return 0 where there is none. */
static int varint(const uint8_t *data, size_t *at, size_t end, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < 5 && *at < end; i++) {
        const uint8_t byte = data[(*at)++];
        *value |= (uint64_t)(byte & 0x7f) << 7 * i;
        if (byte < 0x80)
            return (!i || byte) && *value <= UINT32_MAX;
    }
    return 0;
}

typedef struct {
    int number;
    uint64_t low, width;
} Shape;

/* Return (number, least, largest, sum, values or None) of a column; NULL with an error set. */
static PyObject *column(const uint8_t *data, size_t size, size_t at, size_t count, Shape shape)
{
    if (!shape.width)
        return Py_BuildValue("iKKKO", shape.number, shape.low, shape.low, shape.low * count, Py_None);
    const uint64_t mask = ((uint64_t)1 << shape.width) - 1;
    uint64_t most = 0, sum = 0;
    PyObject *values = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; values && i < count; i++) {
        const size_t bit = i * shape.width, from = at + bit / 8, left = size - from;
        uint64_t word = 0;
        memcpy(&word, data + from, left < 8 ? left : 8);
        const uint64_t value = (word >> bit % 8 & mask) + shape.low;
        most = value > most ? value : most;
        sum += value;
        PyObject *one = PyLong_FromUnsignedLongLong(value);
        if (one)
            PyList_SET_ITEM(values, (Py_ssize_t)i, one);
        else
            Py_CLEAR(values);
    }
    return values ? Py_BuildValue("iKKKN", shape.number, shape.low, most, sum, values) : NULL;
}

static PyObject *columns(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer held;
    Py_ssize_t begin, stop, rows;
    unsigned long there;
    if (!PyArg_ParseTuple(args, "y*nnnk", &held, &begin, &stop, &rows, &there))
        return NULL;
    const uint8_t *data = held.buf;
    const char *wrong = NULL;
    Shape shapes[COLUMNS];
    int found = 0;
    size_t at = (size_t)begin, end = (size_t)stop, count = (size_t)rows;
    if (begin < 0 || stop < begin || stop > held.len || rows < 1 || rows > ROWS || there >> COLUMNS)
        wrong = "has columns that no block has";
    for (int number = 0; number < COLUMNS && !wrong; number++) {
        if (!(there >> number & 1))
            continue;
        Shape shape = {number, 0, 0};
        if (!varint(data, &at, end, &shape.low) || (count > 1 && at == end))
            wrong = "ends before its columns do";
        else if (count > 1 && (shape.width = data[at++]) > MAX_WIDTH)
            wrong = "has numbers of more than 33 bits";
        shapes[found++] = shape;
    }
    PyObject *list = wrong ? NULL : PyList_New(0);
    for (int i = 0; i < found && list; i++) {
        const size_t size = (count * shapes[i].width + 7) / 8;
        PyObject *one = NULL;
        if (size > end - at)
            wrong = "ends before its columns do";
        else
            one = column(data, (size_t)held.len, at, count, shapes[i]);
        if (!one || PyList_Append(list, one) < 0)
            Py_CLEAR(list);
        Py_XDECREF(one);
        at += size;
    }
    PyBuffer_Release(&held);
    if (wrong)
        PyErr_SetString(PyExc_ValueError, wrong);
    return list ? Py_BuildValue("nN", (Py_ssize_t)at, list) : NULL;
}

static PyMethodDef METHODS[] = {
    {"columns", columns, METH_VARARGS,
     "columns(data, begin, end, count, there): where the columns end, and of each its number, low, high, sum, values."},
    {"same", same, METH_VARARGS,
     "same(rows, wanted): the largest number of 32 bits in them, or -1 where they are not the same."},
    {"digests", digests, METH_VARARGS,
     "digests(person, size, key, heads, rows, abreast=lanes): a digest each of a head and a row, one after the other."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_batch", "Rows by the thousand: hashing, comparing.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__batch(void)
{
    PyObject *module = PyModule_Create(&MODULE);
    if (module && PyModule_AddIntConstant(module, "lanes", lanes()) < 0)
        Py_CLEAR(module);
    return module;
}

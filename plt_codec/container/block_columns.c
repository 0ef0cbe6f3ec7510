/* The columns of a block, read without Python for each number (block.py, `read_columns_here`, does the same).
 *
 *     read(b"\x0a\x02\xe4\x01", 0, 4, 5, 0b10) -> (4, [(1, 10, 13, 59, [10, 11, 12, 13, 11])])
 *         Column 1 of 5 records: least value 10, 2 bits each. The values are None where all are the least. ValueError
 *         says which rule of FORMAT.md, "Columns of a block", is broken. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the bits of a column are read little-endian: this is for machines that are, too"
#endif

enum { ROWS = 128, COLUMNS = 14, COUNT = 4, SIZE = 5, MAX_WIDTH = 33, EXP_GOLOMB = 64, RATE_BITS = 12 };

static const char ENDS[] = "ends before its columns do", WIDE[] = "has numbers of more than 33 bits",
                  LESS[] = "has a bitstring of less than no bytes";

typedef struct {
    int number;
    uint64_t low, shape;
} Shape;

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

/* Return `width` bits, at most 33, from bit `bit` on. All of them are in `data`, which has `size` bytes. */
static uint64_t bits_at(const uint8_t *data, size_t size, size_t bit, unsigned width)
{
    const size_t from = bit / 8, left = from < size ? size - from : 0;
    uint64_t word = 0;
    if (left >= 8)
        memcpy(&word, data + from, 8);
    else if (left)
        memcpy(&word, data + from, left);
    return word >> bit % 8 & (((uint64_t)1 << width) - 1);
}

/* Fill `values` with the numbers of a column from byte `at` on, and move `at` behind them. Return what is wrong. */
static const char *numbers(const uint8_t *data, size_t *at, size_t end, size_t count, Shape shape, uint64_t *values)
{
    size_t bit = 8 * *at;
    const size_t last = 8 * end;
    unsigned widths[ROWS];
    const int golomb = shape.shape >= EXP_GOLOMB;
    const unsigned order = golomb ? (unsigned)shape.shape - EXP_GOLOMB : 0;
    for (size_t i = 0; i < count; i++) {
        widths[i] = golomb ? order : (unsigned)shape.shape;
        if (!golomb)
            continue;
        for (;; widths[i]++, bit++) {
            if (bit >= last)
                return ENDS;
            if (widths[i] > MAX_WIDTH)
                return WIDE;
            if (data[bit / 8] >> bit % 8 & 1)
                break;
        }
        bit++;
    }
    for (size_t i = 0; i < count; i++) {
        if (widths[i] > last - bit)
            return ENDS;
        values[i] = shape.low + bits_at(data, end, bit, widths[i]);
        if (golomb)
            values[i] += ((uint64_t)1 << widths[i]) - ((uint64_t)1 << order);
        bit += widths[i];
    }
    *at = (bit + 7) / 8;
    return NULL;
}

/* Turn differences from what counts predict into sizes. Return what is wrong. */
static const char *undeviate(uint64_t *sizes, const uint64_t *counts, size_t count, uint64_t rate)
{
    for (size_t i = 0; i < count; i++) {
        const int64_t stored = (int64_t)sizes[i], predicted = (int64_t)(counts[i] * rate >> RATE_BITS);
        const int64_t size = predicted + (stored >> 1 ^ -(stored & 1));
        if (size < 0)
            return LESS;
        sizes[i] = (uint64_t)size;
    }
    return NULL;
}

/* Return (number, least, largest, sum, values or None) of a column; NULL with an error set. */
static PyObject *found(int number, const uint64_t *values, size_t count)
{
    uint64_t least = values[0], most = values[0], sum = 0;
    for (size_t i = 0; i < count; i++) {
        least = values[i] < least ? values[i] : least;
        most = values[i] > most ? values[i] : most;
        sum += values[i];
    }
    if (least == most)
        return Py_BuildValue("iKKKO", number, least, most, sum, Py_None);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *one = PyLong_FromUnsignedLongLong(values[i]);
        if (one)
            PyList_SET_ITEM(list, (Py_ssize_t)i, one);
        else
            Py_CLEAR(list);
    }
    return list ? Py_BuildValue("iKKKN", number, least, most, sum, list) : NULL;
}

static PyObject *read_columns(PyObject *self, PyObject *args)
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
    int many = 0;
    uint64_t rate = 0, values[COLUMNS][ROWS];
    memset(values[COUNT], 0, sizeof values[COUNT]);
    size_t at = (size_t)begin, end = (size_t)stop, count = (size_t)rows;
    if (begin < 0 || stop < begin || stop > held.len || rows < 1 || rows > ROWS || there >> COLUMNS)
        wrong = "has columns that no block has";
    /* least number and shape of each column stand before all values */
    if (!wrong && there >> SIZE & 1 && count > 1) {
        if (end - at < 2)
            wrong = ENDS;
        else
            rate = data[at] | (uint64_t)data[at + 1] << 8, at += 2;
    }
    for (int number = 0; number < COLUMNS && !wrong; number++) {
        if (!(there >> number & 1))
            continue;
        Shape shape = {number, 0, 0};
        if (!varint(data, &at, end, &shape.low) || (count > 1 && at == end))
            wrong = ENDS;
        else if (count > 1 && (shape.shape = data[at++]) > MAX_WIDTH &&
                 (shape.shape < EXP_GOLOMB || shape.shape > EXP_GOLOMB + MAX_WIDTH))
            wrong = WIDE;
        shapes[many++] = shape;
    }
    for (int i = 0; i < many && !wrong; i++)
        wrong = numbers(data, &at, end, count, shapes[i], values[shapes[i].number]);
    if (!wrong && rate)
        wrong = undeviate(values[SIZE], values[COUNT], count, rate);
    PyBuffer_Release(&held);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    PyObject *list = PyList_New(many);
    for (int i = 0; i < many && list; i++) {
        PyObject *one = found(shapes[i].number, values[shapes[i].number], count);
        if (one)
            PyList_SET_ITEM(list, i, one);
        else
            Py_CLEAR(list);
    }
    return list ? Py_BuildValue("nN", (Py_ssize_t)at, list) : NULL;
}

static PyMethodDef METHODS[] = {
    {"read", read_columns, METH_VARARGS,
     "read(data, begin, end, count, there): where the columns end, and of each its number, low, high, sum, values."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_block_columns", "The columns of a block.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__block_columns(void)
{
    return PyModule_Create(&MODULE);
}

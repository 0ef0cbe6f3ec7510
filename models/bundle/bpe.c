/* Byte-level BPE of ASCII, split into words as most tokenizers do. tokenizer.py says where it takes the library's place.
 *
 *     table(triples) -> table                     triples: left, right and merged id of each merge, by rank, as int32
 *     encode(table, byte_ids, text) -> ids        int32 each; None where a word is longer than LONGEST
 *
 * A word is what the first of these matches:
 *
 *     '(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)    [^\r\n\p{L}\p{N}]?\p{L}+    \p{N}{1,3}     ?[^\s\p{L}\p{N}]+[\r\n]*
 *     \s*[\r\n]+    \s+(?!\S)    \s+
 *
 * Of the pairs of neighbours in a word that one of the lowest rank is merged, again and again, of equal ones the first. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { LONGEST = 128 }; /* bytes of a word: the time of a merge is linear in it */
enum { SPACE = 1, LINE = 2, LETTER = 4, DIGIT = 8 };

typedef struct {
    uint32_t pair, rank; /* rank: from 1, 0 of a free place */
    int32_t merged;
} Merge;

static uint8_t KINDS[256]; /* of characters; 0: others */

static uint32_t place_of(uint32_t pair, uint32_t mask) { return (pair * 0x9e3779b1u >> 7) & mask; }
static uint32_t pair_of(int32_t left, int32_t right) { return (uint32_t)left << 16 | (uint32_t)right; }

static const Merge *merge_of(const Merge *table, uint32_t mask, int32_t left, int32_t right)
{
    const uint32_t pair = pair_of(left, right);
    for (uint32_t at = place_of(pair, mask); table[at].rank; at = (at + 1) & mask)
        if (table[at].pair == pair)
            return table + at;
    return NULL;
}

/* Return where a run of characters of these kinds ends. */
static size_t run(const uint8_t *text, size_t at, size_t end, int kinds)
{
    while (at < end && KINDS[text[at]] & kinds)
        at++;
    return at;
}

/* Return where the word ends that begins here. */
static size_t word(const uint8_t *text, size_t at, size_t end)
{
    const int kind = KINDS[text[at]], next = at + 1 < end ? KINDS[text[at + 1]] : SPACE;
    if (text[at] == '\'' && at + 1 < end) {
        if (strchr("sdmtSDMT", text[at + 1]) && text[at + 1])
            return at + 2;
        for (const char *two = "llvereLLVERE"; *two && at + 2 < end; two += 2)
            if (!memcmp(text + at + 1, two, 2))
                return at + 3;
    }
    if (kind & LETTER || (!(kind & (LINE | DIGIT)) && next & LETTER))
        return run(text, at + 1, end, LETTER);
    if (kind & DIGIT)
        return run(text, at, at + 3 < end ? at + 3 : end, DIGIT);
    if (!kind || (text[at] == ' ' && !next)) {
        for (at++; at < end && !KINDS[text[at]];)
            at++;
        return run(text, at, end, LINE);
    }
    const size_t whole = run(text, at, end, SPACE);
    for (size_t last = whole; last > at; last--)
        if (KINDS[text[last - 1]] & LINE)
            return last;
    return whole == end || whole == at + 1 ? whole : whole - 1;
}

/* Spell a word in ids, and return how many these are. */
static size_t spell(const Merge *table, uint32_t mask, const int32_t *bytes, const uint8_t *text, size_t size, int32_t *ids)
{
    const Merge *found[LONGEST]; /* of each id with the next one */
    for (size_t i = 0; i < size; i++)
        ids[i] = bytes[text[i]];
    for (size_t i = 0; i + 1 < size; i++)
        found[i] = merge_of(table, mask, ids[i], ids[i + 1]);
    for (;;) {
        size_t best = size;
        for (size_t i = 0; i + 1 < size; i++)
            if (found[i] && (best == size || found[i]->rank < found[best]->rank))
                best = i;
        if (best == size)
            return size;
        ids[best] = found[best]->merged;
        size--;
        memmove(ids + best + 1, ids + best + 2, (size - best - 1) * sizeof *ids);
        memmove(found + best, found + best + 1, (size - best - 1) * sizeof *found);
        if (best + 1 < size)
            found[best] = merge_of(table, mask, ids[best], ids[best + 1]);
        if (best)
            found[best - 1] = merge_of(table, mask, ids[best - 1], ids[best]);
    }
}

static PyObject *py_table(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer triples;
    if (!PyArg_ParseTuple(args, "y*", &triples))
        return NULL;
    const int32_t *row = triples.buf;
    const size_t count = (size_t)triples.len / (3 * sizeof *row);
    uint32_t slots = 4;
    while (slots < 2 * count)
        slots *= 2;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(slots * sizeof(Merge)));
    if (made) {
        Merge *table = (Merge *)PyBytes_AS_STRING(made);
        memset(table, 0, slots * sizeof *table);
        for (uint32_t rank = 1; rank <= count; rank++, row += 3) {
            uint32_t at = place_of(pair_of(row[0], row[1]), slots - 1);
            while (table[at].rank && table[at].pair != pair_of(row[0], row[1]))
                at = (at + 1) & (slots - 1);
            table[at] = (Merge){pair_of(row[0], row[1]), rank, row[2]};
        }
    }
    PyBuffer_Release(&triples);
    return made;
}

static PyObject *py_encode(PyObject *self, PyObject *args)
{
    (void)self;
    const char *table, *bytes, *data;
    Py_ssize_t table_size, bytes_size, end;
    if (!PyArg_ParseTuple(args, "y#y#y#", &table, &table_size, &bytes, &bytes_size, &data, &end))
        return NULL;
    const uint32_t mask = (uint32_t)((size_t)table_size / sizeof(Merge)) - 1;
    PyObject *made = PyBytes_FromStringAndSize(NULL, end * (Py_ssize_t)sizeof(int32_t));
    if (!made)
        return NULL;
    int32_t *ids = (int32_t *)PyBytes_AS_STRING(made);
    size_t count = 0;
    for (size_t at = 0, next; at < (size_t)end; at = next) {
        next = word((const uint8_t *)data, at, (size_t)end);
        if (next - at > LONGEST) {
            Py_DECREF(made);
            Py_RETURN_NONE;
        }
        count += spell((const Merge *)table, mask, (const int32_t *)bytes, (const uint8_t *)data + at, next - at, ids + count);
    }
    _PyBytes_Resize(&made, (Py_ssize_t)(count * sizeof *ids));
    return made;
}

static PyMethodDef METHODS[] = {
    {"table", py_table, METH_VARARGS, "table(triples): merges by their pairs."},
    {"encode", py_encode, METH_VARARGS, "encode(table, byte_ids, text): its ids; None: a word is too long."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_bpe", "Byte-level BPE of ASCII.", -1, METHODS, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__bpe(void)
{
    for (int c = 0; c < 128; c++)
        KINDS[c] = (uint8_t)(c == '\n' || c == '\r' ? SPACE | LINE : c == ' ' || (c >= 9 && c <= 12) ? SPACE
                             : c >= '0' && c <= '9' ? DIGIT
                             : (c | 32) >= 'a' && (c | 32) <= 'z' ? LETTER : 0);
    return PyModule_Create(&MODULE);
}

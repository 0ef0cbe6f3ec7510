"""Codes: the numbers of a table's ways, units and contexts, as FORMAT.md lists them."""

from __future__ import annotations

from typing import Final

SPLITTER: Final = 1  # number of the splitter: one that makes other tables of the same logs has the next

# Ways to code a value, those that new fields have most often first
SAME, LONG, INTEGER, RECENT, ELSEWHERE, OBJECT, TRUE, FALSE, OLD, LIST, NULL = range(11)
TIME, ID, EPOCH, UUID, BASE64, JSON, PARSED, MESSAGE, BITS, SHARED, STAMPED, SIGNED = range(11, 23)

# Units of a log
LINE, TEXT, BYTES, BLOCK = range(4)

# Contexts of numbers in the model of the past; each number has 1024
UNIT, STYLE, SIZE_OF_BYTES, KEYS, KEY_AGE, LINES_OF_KEY, STRING_AGE, LINE_AGE, DEPTH, BLOCK_KEY, COMMA = (
    n << 10 for n in range(1, 12)
)

# Contexts of numbers in the model of a slot; each number has 1024
DELTA, MOMENT, SHAPE, RANK, DISTANCE, NUMBER, COUNT, RUN, COPIED, SIZE = (n << 10 for n in range(1, 11))
DIGITS, PREFIX, FLAVOUR, ALPHABET, COMMON, COUNTER, GAPS, VERSION, MARK, STEP, SPELLING = (
    n << 10 for n in range(11, 22)
)

FIT: Final = 1 << 62  # whole numbers are smaller, whatever their sign
MAX_DEPTH: Final = 64  # of values in each other; what is deeper is JSON text
LONGEST_PIECE: Final = 2000  # characters of new text after which a piece ends where it may

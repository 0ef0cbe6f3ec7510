"""Codes: the numbers of a table's ways, units and contexts, as FORMAT.md lists them."""

from __future__ import annotations

from typing import Final

SPLITTER: Final = 1  # number of the splitter: one that makes other tables of the same logs has the next

# Ways to code a value
SAME, NULL, TRUE, FALSE, INTEGER, EPOCH, DECIMAL, JSON, OBJECT, LIST = range(10)
RECENT, ELSEWHERE, OLD, UUID, ID, STAMPED, BASE64, TIME, SHORT, LONG, PARSED, MESSAGE, BITS = range(10, 23)
SHARED, SUMMED, SIGNED = range(23, 26)

# Units of a log
LINE, TEXT, BYTES, BLOCK, BLANK = range(5)

# Contexts of numbers in the model of the past; each number has 1024
UNIT, STYLE, SIZE_OF_BYTES, SHAPE_AGE, KEYS, KEY_AGE, LINES_OF_KEY, STRING_AGE, SLOT, LINE_AGE = (
    n << 10 for n in range(1, 11)
)
DEPTH, BLOCK_KEY, COMMA = (n << 10 for n in range(11, 14))

# Contexts of numbers in the model of a slot; each number has 1024
DELTA, MOMENT, SHAPE, SHAPE_RANK, RANK, SOURCE, DISTANCE, COUNT, RUN, COPY, COPIED, SIZE, DIGITS, PREFIX = (
    n << 10 for n in range(1, 15)
)
FLAVOUR, SPELLING, MARK, END, WIDTH, START, ALPHABET, COMMON, COUNTER, VERSION, GAPS, PLAIN = (
    n << 10 for n in range(15, 27)
)
REST, STEP, STAND, PAIR = (n << 10 for n in range(27, 31))

FIT: Final = 1 << 62  # whole numbers are smaller, whatever their sign
MAX_DEPTH: Final = 64  # of values in each other; what is deeper is JSON text
SHORTEST_LONG: Final = 64  # characters of a string that is coded line by line
LONGEST_PIECE: Final = 2000  # characters of new text after which a piece ends where it may

"""The kernels of attention over pages and of the copy of blocks, in Triton. Spec of the rows: FORMAT.md, "Pages".

    attend_pages    grid (splits, sessions x key heads)   each split: some pages, or some exact tokens, of one key head
    join_splits     grid (sessions x query heads,)        one head of the splits' sums

The query heads that share a key head are the rows of a product, so pages are read once for all of them. In q4 the query
is rotated once, and the sum of values once. Nibbles become numbers by two byte permutations (PTX `prmt`): one finds the
high bytes of four centroids, one the low bytes. Scores are in units of log2, so that weights are powers of two.
"""

# mypy: disable-error-code="no-untyped-def"
# Triton reads the annotations of its arguments, and knows none but its own.

from __future__ import annotations

import struct

import numpy as np
import triton
import triton.language as tl

from pltz.kv.forms.q4 import HALF_BOOK


def _lookup(words: list[int]) -> str:
    """Return PTX that turns four bytes into the numbers of their low and of their high nibbles, 16 bits each.

    ``words``: the numbers of the eight magnitudes, as bits. Bit 3 of a nibble is the sign.
    """
    low = struct.unpack("<II", bytes(word & 255 for word in words))
    high = struct.unpack("<II", bytes(word >> 8 for word in words))
    lines = [".reg .b32 sel, up, h, l, z;", "and.b32 sel, $4, 0x77777777;", "shl.b32 up, $4, 4;"]
    for n, places in enumerate(["0x5140", "0x7362"]):
        lines += ["shr.b32 sel, sel, 16;"] if n else []
        lines += [
            f"prmt.b32 h, {high[0]:#x}, {high[1]:#x}, sel;",  # of low, high, low and high nibble
            f"prmt.b32 l, {low[0]:#x}, {low[1]:#x}, sel;",
            f"prmt.b32 z, up, $4, {places};",  # bytes with the signs of these nibbles in front
            "and.b32 z, z, 0x80808080;",
            "xor.b32 h, h, z;",
            f"prmt.b32 ${n}, l, h, 0x6240;",
            f"prmt.b32 ${n + 2}, l, h, 0x7351;",
        ]
    return "{\n" + "\n".join(lines) + "\n}"


def _bfloat16(value: float) -> int:
    bits = int(np.float32(value).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


FLOAT16 = tl.constexpr(_lookup([int(np.float16(c).view(np.uint16)) for c in HALF_BOOK]))
BFLOAT16 = tl.constexpr(_lookup([_bfloat16(c) for c in HALF_BOOK]))


@triton.jit  # type: ignore
def _numbers(nibbles, book, FAST: tl.constexpr, HALF: tl.constexpr):
    """Return the centroids of the low and of the high nibbles of bytes, float16 for HALF, else bfloat16."""
    if FAST:
        if HALF:
            low, high = tl.inline_asm_elementwise(
                FLOAT16, "=&r,=&r,=&r,=&r,r", [nibbles], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
            )
        else:
            low, high = tl.inline_asm_elementwise(
                BFLOAT16, "=&r,=&r,=&r,=&r,r", [nibbles], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
            )
    else:
        low = tl.load(book + (nibbles & 15).to(tl.int32))
        high = tl.load(book + (nibbles >> 4).to(tl.int32))
        if HALF:
            low, high = low.to(tl.float16), high.to(tl.float16)
        else:
            low, high = low.to(tl.bfloat16), high.to(tl.bfloat16)
    return low, high


VARYING = [  # no kernel for each value
    "columns", "room", "table_row", "part_row", "apart_tiles", "chunk", "exact_chunk", "page_splits", "splits"
]  # fmt: skip


@triton.jit(do_not_specialize=VARYING)  # type: ignore
def attend_pages(
    query, pages, scale, table, packed, keys, values, real, centre, tile_cos, tile_sin, cos, sin, turn, book,
    sums, ends, parts, aparts, scaling, columns, room, table_row, part_row, apart_tiles, chunk, exact_chunk,
    page_splits, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, ANGLES: tl.constexpr,
    ANGLE_ROW: tl.constexpr, BLOCK: tl.constexpr, SINKS: tl.constexpr, Q4: tl.constexpr, MASS: tl.constexpr,
    FAST: tl.constexpr, EXACT: tl.constexpr, COPIES: tl.constexpr, EXACT_TILE: tl.constexpr,
):  # fmt: skip
    """Set sums (B, query heads, splits, DIM) and ends (..., 2): largest score and sum of weights of each split.

    Sums of q4 pages are rotated, even elements first. ``parts``: (B, query heads, part_row) log2 of the weights of
    every min(BLOCK, 64) tokens. ``turn``: (DIM, DIM) plus and minus 1, the transform with even columns first. EXACT:
    values are weighed in float16; else in bfloat16, which has room for scales of any size. COPIES: of the query heads
    in the 16 rows of a product. With more than one, ``aparts`` (B, query heads, 64 apart_tiles) is written first: what
    the centre of keys adds to each score. With one, each tile computes it.
    """
    split = tl.program_id(0)
    session, head = tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    group = tl.arange(0, 16)
    some = group < GROUP
    at_dim, at_half = tl.arange(0, DIM), tl.arange(0, DIM // 2)
    rows = (session * HEADS + head) * GROUP + group
    copy = group % (16 // COPIES)  # rows that are left over hold the same query heads again
    asked = copy < GROUP
    of_copy = (session * HEADS + head) * GROUP + copy
    q = tl.load(query + of_copy[:, None] * DIM + at_dim[None, :], mask=asked[:, None], other=0.0)
    most = tl.full((16,), float("-inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    place = (rows * splits + split) * DIM
    if split < page_splits:
        # the query: rotated for q4, and with the centre of keys
        if Q4:
            even = tl.load(turn + at_dim[:, None] * DIM + at_half[None, :])
            odd = tl.load(turn + at_dim[:, None] * DIM + DIM // 2 + at_half[None, :])
            by = scaling * DIM**-0.5
            q_even = (tl.dot(q, even.to(q.dtype)) * by).to(tl.float16)
            q_odd = (tl.dot(q, odd.to(q.dtype)) * by).to(tl.float16)
        else:
            q_all = (q.to(tl.float32) * scaling).to(tl.float16)
        angle = tl.arange(0, ANGLES)
        turned = angle < HALF
        left = tl.load(
            query + of_copy[:, None] * DIM + angle[None, :], mask=asked[:, None] & turned[None, :], other=0.0
        ).to(tl.float32)
        right = tl.load(
            query + of_copy[:, None] * DIM + HALF + angle[None, :], mask=asked[:, None] & turned[None, :], other=0.0
        ).to(tl.float32)
        low = tl.load(centre + head * DIM + angle, mask=turned, other=0.0)
        high = tl.load(centre + head * DIM + HALF + angle, mask=turned, other=0.0)
        a = (left * low[None, :] + right * high[None, :]) * scaling
        b = (right * low[None, :] - left * high[None, :]) * scaling
        largest = tl.max(tl.sqrt(a * a + b * b), 1)  # in this unit they fit float16 at any angle
        by_unit = 1 / tl.where(largest > 0, largest, 1.0)
        a, b = a * by_unit[:, None], b * by_unit[:, None]
        still = tl.load(centre + head * DIM + at_dim, mask=at_dim >= 2 * HALF, other=0.0)
        constant = tl.sum(q.to(tl.float32) * still[None, :], 1) * scaling
        at_tile = tl.arange(0, 64)
        table_cos = tl.load(
            cos + at_tile[:, None] * ANGLE_ROW + angle[None, :], mask=(angle < ANGLE_ROW)[None, :], other=0.0
        ).to(tl.float16)
        table_sin = tl.load(
            sin + at_tile[:, None] * ANGLE_ROW + angle[None, :], mask=(angle < ANGLE_ROW)[None, :], other=0.0
        ).to(tl.float16)
        tokens = tl.load(packed + session)
        stop = tl.minimum((split + 1) * chunk, tokens)
        apart_row = apart_tiles * 64
        ahead = aparts + (session * HEADS + head).to(tl.int64) * GROUP * apart_row
        if COPIES > 1:
            # what the centre of keys adds to the scores: each copy of the query heads has a tile of its own
            for begin in range(split * chunk, stop, 64 * COPIES):
                tile = begin // 64 + group // (16 // COPIES)
                inside = (tile * 64 < stop)[:, None] & (angle < ANGLE_ROW)[None, :]
                c = tl.load(tile_cos + tile[:, None] * ANGLE_ROW + angle[None, :], mask=inside, other=0.0)
                s = tl.load(tile_sin + tile[:, None] * ANGLE_ROW + angle[None, :], mask=inside, other=0.0)
                beside = tl.dot((a * c + b * s).to(tl.float16), tl.trans(table_cos))
                beside += tl.dot((b * c - a * s).to(tl.float16), tl.trans(table_sin))
                at_token = tile[:, None] * 64 + at_tile[None, :]
                tl.store(
                    ahead + copy[:, None] * apart_row + at_token,
                    beside * largest[:, None] + constant[:, None],
                    mask=asked[:, None] & (at_token < stop),
                )
            tl.debug_barrier()
        sum_even = tl.zeros((16, DIM // 2), tl.float32)
        sum_odd = tl.zeros((16, DIM // 2), tl.float32)
        sum_all = tl.zeros((16, DIM), tl.float32)
        for number in range(split * chunk // 64, (stop + 63) // 64):
            begin = number * 64
            token = begin + at_tile
            here = token < tokens
            block = tl.load(table + session * table_row + token // BLOCK, mask=here, other=0).to(tl.int64)
            row = (block * BLOCK + token % BLOCK) * HEADS + head
            key_scale = tl.load(scale + 2 * row).to(tl.float32)
            value_scale = tl.load(scale + 2 * row + 1).to(tl.float32)
            if Q4:
                bytes_k = tl.load(pages + row[:, None] * DIM + at_half[None, :])
                bytes_v = tl.load(pages + row[:, None] * DIM + DIM // 2 + at_half[None, :])
                k_even, k_odd = _numbers(bytes_k, book, FAST, True)
                score = tl.dot(q_even, tl.trans(k_even)) + tl.dot(q_odd, tl.trans(k_odd))
            else:
                k_all = tl.load(pages + row[:, None] * (2 * DIM) + at_dim[None, :])
                bytes_v = tl.load(pages + row[:, None] * (2 * DIM) + DIM + at_dim[None, :])
                score = tl.dot(q_all, tl.trans(k_all.to(tl.float16)))
            if COPIES > 1:
                apart = tl.load(ahead + group[:, None] * apart_row + token[None, :], mask=some[:, None], other=0.0)
                score = score * key_scale[None, :] + apart
            else:
                # the centre of keys: its angles at the first position of the tile, then those within the tile
                c = tl.load(tile_cos + begin // 64 * ANGLE_ROW + angle, mask=angle < ANGLE_ROW, other=0.0)
                s = tl.load(tile_sin + begin // 64 * ANGLE_ROW + angle, mask=angle < ANGLE_ROW, other=0.0)
                a_here = (a * c[None, :] + b * s[None, :]).to(tl.float16)
                b_here = (b * c[None, :] - a * s[None, :]).to(tl.float16)
                apart = tl.dot(a_here, tl.trans(table_cos)) + tl.dot(b_here, tl.trans(table_sin))
                score = score * key_scale[None, :] + apart * largest[:, None] + constant[:, None]
            score = tl.where((here & (token >= SINKS))[None, :], score, float("-inf"))
            larger = tl.maximum(most, tl.max(score, 1))
            unit = tl.where(larger == float("-inf"), 0.0, larger)
            weight = tl.exp2(score - unit[:, None])
            shrink = tl.exp2(most - unit)
            total = total * shrink + tl.sum(weight, 1)
            most = larger
            if MASS:
                SUB: tl.constexpr = min(BLOCK, 64)
                by_part = tl.sum(tl.reshape(weight, (16, 64 // SUB, SUB)), 2)
                part = begin // SUB + tl.arange(0, 64 // SUB)
                tl.store(
                    parts + rows[:, None] * part_row + part[None, :],
                    tl.log2(by_part) + unit[:, None],
                    mask=some[:, None] & (part * SUB < tokens)[None, :],
                )
            weight = weight * value_scale[None, :]
            weight = weight.to(tl.float16) if EXACT else weight.to(tl.bfloat16)
            if Q4:
                v_even, v_odd = _numbers(bytes_v, book, FAST, EXACT)
                sum_even = sum_even * shrink[:, None] + tl.dot(weight, v_even)
                sum_odd = sum_odd * shrink[:, None] + tl.dot(weight, v_odd)
            else:
                sum_all = sum_all * shrink[:, None] + tl.dot(weight, bytes_v.to(weight.dtype))
        if Q4:
            tl.store(sums + place[:, None] + at_half[None, :], sum_even, mask=some[:, None])
            tl.store(sums + place[:, None] + DIM // 2 + at_half[None, :], sum_odd, mask=some[:, None])
        else:
            tl.store(sums + place[:, None] + at_dim[None, :], sum_all, mask=some[:, None])
    else:
        # exact tokens, in any order, with gaps
        first = (split - page_splits) * exact_chunk
        sum_exact = tl.zeros((16, DIM), tl.float32)
        base = (session * HEADS + head).to(tl.int64) * room * DIM
        for begin in range(first, tl.minimum(first + exact_chunk, columns), EXACT_TILE):
            column = begin + tl.arange(0, EXACT_TILE)
            here = column < columns
            live = tl.load(real + session * room + column, mask=here, other=0) != 0
            k = tl.load(keys + base + column[:, None] * DIM + at_dim[None, :], mask=live[:, None], other=0.0)
            v = tl.load(values + base + column[:, None] * DIM + at_dim[None, :], mask=live[:, None], other=0.0)
            score = tl.dot(q.to(k.dtype), tl.trans(k)) * scaling
            score = tl.where(live[None, :], score, float("-inf"))
            larger = tl.maximum(most, tl.max(score, 1))
            unit = tl.where(larger == float("-inf"), 0.0, larger)
            weight = tl.exp2(score - unit[:, None])
            shrink = tl.exp2(most - unit)
            total = total * shrink + tl.sum(weight, 1)
            most = larger
            sum_exact = sum_exact * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
        tl.store(sums + place[:, None] + at_dim[None, :], sum_exact, mask=some[:, None])
    tl.store(ends + 2 * (rows * splits + split), most, mask=some)
    tl.store(ends + 2 * (rows * splits + split) + 1, total, mask=some)


@triton.jit(do_not_specialize=["page_splits", "splits"])  # type: ignore
def join_splits(
    sums, ends, centre, turn, out, final, page_splits, splits,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, Q4: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Set out (B, query heads, DIM) and final (B, query heads): log2 of the sum of all weights."""
    row = tl.program_id(0)
    head = row // GROUP % HEADS
    at_dim, at_split = tl.arange(0, DIM), tl.arange(0, WIDE)
    there = at_split < splits
    most = tl.load(ends + 2 * (row * splits + at_split), mask=there, other=float("-inf"))
    total = tl.load(ends + 2 * (row * splits + at_split) + 1, mask=there, other=0.0)
    unit = tl.max(most, 0)
    unit = tl.where(unit == float("-inf"), 0.0, unit)
    by = tl.exp2(most - unit)
    whole = tl.sum(by * total, 0)
    pages = tl.sum(tl.where(at_split < page_splits, by * total, 0.0), 0)
    rotated = tl.zeros((DIM,), tl.float32)
    plain = tl.zeros((DIM,), tl.float32)
    for begin in range(0, splits, AT_ONCE):
        split = begin + tl.arange(0, AT_ONCE)
        largest = tl.load(ends + 2 * (row * splits + split), mask=split < splits, other=float("-inf"))
        place = (row * splits + split)[:, None] * DIM + at_dim[None, :]
        some = tl.load(sums + place, mask=(split < splits)[:, None], other=0.0) * tl.exp2(largest - unit)[:, None]
        rotated += tl.sum(tl.where((split < page_splits)[:, None], some, 0.0), 0)
        plain += tl.sum(tl.where((split < page_splits)[:, None], 0.0, some), 0)
    if Q4:
        matrix = tl.load(turn + at_dim[:, None] * DIM + at_dim[None, :]).to(tl.float32)
        rotated = tl.sum(matrix * rotated[None, :], 1) * DIM**-0.5
    middle = tl.load(centre + (HEADS + head) * DIM + at_dim)
    found = (rotated + plain + pages * middle) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + row * DIM + at_dim, found)
    tl.store(final + row, unit + tl.log2(whole))


@triton.jit  # type: ignore
def copy_pages(source, target, begins, ends, source_layer, target_layer, words, PIECE: tl.constexpr):
    """Copy block begins[i] to block ends[i], in each layer; a block is ``words`` numbers of 64 bits."""
    layer = tl.program_id(1).to(tl.int64)
    one = tl.load(begins + tl.program_id(0)) * words + layer * source_layer
    other = tl.load(ends + tl.program_id(0)) * words + layer * target_layer
    at = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    tl.store(target + other + at, tl.load(source + one + at, mask=at < words), mask=at < words)

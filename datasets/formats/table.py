"""Tables: Parquet and Arrow files, a session per row. They need pyarrow, the extra ``tables``.

A row is taken in the first of these ways that fits its columns (of those chosen, if any are):

    one column of lists of integers         token ids
    one column of strings                   JSON where all of it is, else a text
    name, session, perhaps tenant, time     a session with a name (`session_columns`)
    anything else                           an object with the columns as keys

Columns that JSON cannot hold (times, decimals, bytes) are left out, with a remark, unless they were chosen.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from pltz.datasets.byte_input import ByteInput
from pltz.datasets.input_format import InputFormat, Part, ReadOptions, of_row
from pltz.plt_codec.errors import CorruptError, LimitError, UsageError

ROWS = 256  # decoded at once
ROW_GROUP = 1 << 32  # bytes of an unpacked row group; a larger one is refused
IDS = ("input_ids", "ids", "tokens", "token_ids")


def _read(source: ByteInput, options: ReadOptions) -> Iterator[Part]:
    """Yield the rows of a Parquet or Arrow file. Raises UsageError, CorruptError, ContentError."""
    try:
        import pyarrow
    except ImportError as exc:
        raise UsageError(f"{source.name}: tables need pyarrow: pip install 'pltz[tables]'") from exc
    parquet = source.peek(4) == b"PAR1"
    stream: Any = source.path or io.BytesIO(source.rest())
    number = 0
    try:
        batches = _parquet(stream, source.name, options) if parquet else _arrow(stream, source.name, options)
        for rows in batches:
            for row in rows:
                number += 1
                yield from of_row(row, f"{source.name}: row {number}", options)
    except (pyarrow.ArrowException, OSError, EOFError) as exc:
        raise CorruptError(f"{source.name}: expected a table: {exc}") from exc


def _parquet(stream: Any, name: str, options: ReadOptions) -> Iterator[list[dict[str, Any]]]:
    from pyarrow import parquet

    with parquet.ParquetFile(stream) as file:
        columns = _columns(file.schema_arrow, name, options)
        groups = range(file.metadata.num_row_groups)
        largest = max((file.metadata.row_group(number).total_byte_size for number in groups), default=0)
        if largest > ROW_GROUP:
            raise LimitError(f"{name}: expected row groups of at most {ROW_GROUP} bytes, found {largest}")
        for batch in file.iter_batches(ROWS, columns=columns):
            yield batch.to_pylist()


def _arrow(stream: Any, name: str, options: ReadOptions) -> Iterator[list[dict[str, Any]]]:
    import pyarrow

    with pyarrow.OSFile(str(stream)) if not hasattr(stream, "read") else stream as opened:
        is_file = opened.read(6) == b"ARROW1"
        opened.seek(0)
        reader = pyarrow.ipc.open_file(opened) if is_file else pyarrow.ipc.open_stream(opened)
        columns = _columns(reader.schema, name, options)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS).select(columns).to_pylist()


def _columns(schema: Any, name: str, options: ReadOptions) -> list[str]:
    """Return the columns to read. Raises UsageError where one is missing or JSON cannot hold it."""
    held = {field.name: _is_json(field.type) for field in schema}
    if missing := sorted(set(options.columns) - held.keys()):
        raise UsageError(f"{name}: no column {missing[0]!r}; the columns are {', '.join(held)}")
    if options.columns:
        if strange := [column for column in options.columns if not held[column]]:
            raise UsageError(f"{name}: column {strange[0]!r} holds {schema.field(strange[0]).type}, which JSON cannot")
        return list(options.columns)
    if out := [column for column, fits in held.items() if not fits]:
        options.warn(f"{name}: columns left out, as JSON cannot hold them: {', '.join(out)}")
    found = [column for column, fits in held.items() if fits]
    ids = [column for column in found if column in IDS and _is_ids(schema.field(column).type)]
    return ids[:1] or found


def _is_ids(kind: Any) -> bool:
    from pyarrow import types

    return _is_list(kind) and bool(types.is_integer(kind.value_type))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_json(kind: Any) -> bool:
    """Return whether JSON holds every value of an Arrow type."""
    from pyarrow import types

    if _is_list(kind):
        return _is_json(kind.value_type)
    if types.is_struct(kind):
        return all(_is_json(kind.field(number).type) for number in range(kind.num_fields))
    if types.is_dictionary(kind):
        return _is_json(kind.value_type)
    plain = types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_null
    return any(test(kind) for test in plain) or bool(types.is_float64(kind) or types.is_float32(kind))


FORMATS = (
    InputFormat("parquet", "json", "Parquet tables, a session per row", of_head=lambda h: h[:4] == b"PAR1", read=_read),
    InputFormat(
        "arrow",
        "json",
        "Arrow tables, a session per row",
        of_head=lambda head: head[:6] == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff",
        read=_read,
    ),
)

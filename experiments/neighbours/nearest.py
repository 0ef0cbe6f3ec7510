"""Sessions coded after the nearest earlier one of their tenant, next to zstd with the same neighbour.

    a tenant's sessions, in order:  ... | 64 at hand | session | ...
    session --sketch--> a few of those at hand --encode after each--> the shortest, decoded and compared

A session that gains nothing stays alone. The contexts end in a mark, as those of a .pltz file do. No bytes count for
the name of a neighbour: what a real file takes is measured by `by_file`. ``eight`` are the nearest
eight together. The three nearest are given to zstd as a prefix too (``--patch-from``), and the 64 sessions before as a
dictionary.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pltz.cli.bench.codec.compressors import rendered
from pltz.coding.sketch import Sketch, SketchIndex, hashes_of
from pltz.models.session import transcript
from pltz.plt_codec import repeats
from pltz.plt_codec.container.frame import CONTEXT_TOKENS, context_of
from pltz.plt_codec.errors import ModelError
from pltz.plt_codec.repeats import NOTHING, Copy
from pltz.plt_codec.types import FrameItem

if TYPE_CHECKING:
    from pltz.cli.bench.codec.corpus import SampleSession
    from pltz.coding.codec import Codec
    from pltz.models.session.session import Session
    from pltz.plt_codec.lanes import Tokens

AT_HAND = 64  # earlier sessions
TOGETHER = 16  # sessions that share a dictionary of zstd, made of those at hand for the first
DICTIONARY = 110 << 10  # bytes, as the zstd command has it
EIGHT = 8  # neighbours in one context
PATCHES = 3  # neighbours that zstd gets as prefix, one at a time
BATCH = 4096  # sequences per call of a coder
SEED = 64


@dataclass(frozen=True)
class TenantSessions:
    """The sessions of one tenant, in order.

    Attributes:
        sessions: all of them.
        tokens: those of each session, (T,).
        texts: each session as zstd gets it.
        measured: numbers of the sessions that are measured.
        first: number of the first session of the data; those before it are from elsewhere, and at hand for all.
    """

    source: str
    sessions: list[Session]
    tokens: list[Tokens]
    texts: list[bytes]
    measured: list[int]
    first: int = 0

    def at_hand(self, number: int) -> range:
        """Return the numbers of the sessions at hand for one."""
        return range(self.first) if self.first else range(max(0, number - AT_HAND), number)


def tenants_of(
    records: Iterable[SampleSession],
    codec: Codec,
    *,
    least: int,
    most: int,
    count: int,
    earlier: Mapping[str, Sequence[Session]] | None = None,
) -> list[TenantSessions]:
    """Return the sources of records as tenants.

    Args:
        least, most: tokens of the sessions that are measured.
        count: most sessions measured of each, spread evenly.
        earlier: sessions at hand by source, in place of those of the data (`drawn`).
    """
    by_source: dict[str, list[Session]] = {}
    for record in records:
        by_source.setdefault(record.source, []).append(record.session)
    found = []
    for source, sessions in sorted(by_source.items()):
        others = list((earlier or {}).get(source, ()))
        every = [*others, *sessions]
        tokens: list[Tokens] = [np.asarray(t) for t in transcript.to_tokens_many(every, codec.bundle.tokenizer)]
        fit = [n for n in range(len(others), len(every)) if least <= len(tokens[n]) <= most]
        if fit:
            spread = sorted({fit[n * len(fit) // count] for n in range(count)})
            texts = [rendered(session, "lean") for session in every]
            found.append(TenantSessions(source, every, tokens, texts, spread, len(others)))
    return found


@dataclass(frozen=True)
class Neighbourly:
    """The bytes of each measured session of a tenant, without a name for the neighbour.

    Attributes:
        alone: coded alone.
        after: coded after each of a few neighbours, the nearest first; with copies from it where that is shorter.
        eight: coded after the nearest eight together, likewise.
    """

    alone: list[int]
    after: list[list[int]]
    eight: list[int]

    def chosen(self, tries: int) -> list[int]:
        """Return the bytes of each session, alone or after the best of ``tries`` neighbours."""
        return [min([alone, *sizes[:tries]]) for alone, sizes in zip(self.alone, self.after, strict=True)]

    def after_eight(self) -> list[int]:
        """Return the bytes of each session alone or after the nearest eight together, whichever are fewer."""
        return list(map(min, self.alone, self.eight))


def measure(codec: Codec, tenant: TenantSessions, near: Sequence[Sequence[int]], tries: int) -> Neighbourly:
    """Code a tenant's sessions alone and after their nearest neighbours; decode all and compare.

    ``near``: those of each, from `nearest`. Raises ModelError where one came back changed.
    """
    known: list[list[Tokens | None]] = []
    for others in near:
        rows = [tenant.tokens[n] for n in others]
        known.append([None, together(rows[:EIGHT]), *map(context_of, rows[:tries])])
    sequences = [tenant.tokens[n] for n, contexts in zip(tenant.measured, known, strict=True) for _ in contexts]
    contexts = [one for row in known for one in row]
    sizes = coded(codec, sequences, contexts)
    alone = [row[0] for row in _rows(sizes, known) for _ in row]
    ways = [
        (n, copies)
        for n, (tokens, context, size) in enumerate(zip(sequences, contexts, alone, strict=True))
        if context is not None
        for copies in repeats.candidates(tokens, context, size)
    ]
    taken = coded(codec, [sequences[n] for n, _ in ways], [contexts[n] for n, _ in ways], [c for _, c in ways])
    for (n, _), size in zip(ways, taken, strict=True):
        sizes[n] = min(sizes[n], size)
    found = _rows(sizes, known)
    return Neighbourly([row[0] for row in found], [row[2:] for row in found], [row[1] for row in found])


def _rows(flat: Sequence[int], like: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Return numbers as rows of the same lengths."""
    left = iter(flat)
    return [[next(left) for _ in row] for row in like]


def drawn(records: Iterable[SampleSession]) -> dict[str, list[Session]]:
    """Return 64 sessions of each source at random, the same ones each time, in their order."""
    dice, seen = random.Random(SEED), dict[str, int]()
    kept: dict[str, dict[int, tuple[int, Session]]] = {}
    for record in records:
        number = seen[record.source] = seen.get(record.source, 0) + 1
        place = number - 1 if number <= AT_HAND else dice.randrange(number)
        if place < AT_HAND:
            kept.setdefault(record.source, {})[place] = number, record.session
    return {source: [one for _, one in sorted(rows.values(), key=lambda row: row[0])] for source, rows in kept.items()}


def together(rows: Sequence[Tokens]) -> Tokens | None:
    """Return the context of several sessions, (m,): whole from the nearest on, which comes last; None for none."""
    parts: list[Tokens] = []
    left = CONTEXT_TOKENS - 1
    for row in rows:
        parts.append(row[:left])
        left -= len(parts[-1])
    return context_of(np.concatenate(parts[::-1])) if parts else None


def nearest(tenant: TenantSessions, memory: int, tries: int) -> list[list[int]]:
    """Return, for each measured session, the numbers of the nearest at hand, the nearest first.

    ``memory``: tokens that a coder takes as context.
    """
    sketches, found = [Sketch.of(hashes_of(t[:memory])) for t in tenant.tokens], list[list[int]]()
    for number in tenant.measured:
        hand = tenant.at_hand(number)
        index = SketchIndex([sketches[n] for n in hand])
        found.append([hand[n] for n, _ in index.nearest_to(hashes_of(tenant.tokens[number]), tries)])
    return found


def by_zstd(tenant: TenantSessions, near: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Return the bytes of zstd -19 for each session: alone, after the best of its neighbours, with those at hand.

    ``near``: the neighbours of each.
    """
    texts, near = tenant.texts, [others[:PATCHES] for others in near]
    groups = [tenant.measured[at : at + TOGETHER] for at in range(0, len(tenant.measured), TOGETHER)]
    with ThreadPoolExecutor() as pool:  # zstd releases the interpreter lock
        plain = list(pool.map(lambda n: _blocks(texts[n], None), tenant.measured))
        pairs = [(n, other) for n, others in zip(tenant.measured, near, strict=True) for other in others]
        after = list(pool.map(lambda pair: _blocks(texts[pair[0]], _raw(texts[pair[1]])), pairs))
        pools = [[texts[n] for n in tenant.at_hand(group[0])] for group in groups]
        rows = list(pool.map(_with_dictionary, [[texts[n] for n in group] for group in groups], pools))
    shared = [size for row in rows for size in row]
    patched = dict(zip(tenant.measured, plain, strict=True))
    for (n, _), size in zip(pairs, after, strict=True):
        patched[n] = min(size, patched[n])
    return plain, [patched[n] for n in tenant.measured], list(map(min, shared, plain))


def by_file(codec: Codec, tenant: TenantSessions, neighbours: bool) -> dict[str, float]:
    """Return the bytes of a .pltz file of the measured sessions, and the processor time of coding, in seconds.

    Raises ModelError where a session came back changed.
    """
    sessions = [tenant.sessions[n] for n in tenant.measured]
    start = time.process_time()
    data = codec.compress(sessions, independent=not neighbours)
    spent = time.process_time() - start
    back = list(codec.decompress(data))
    if len(back) != len(sessions) or any(a.difference(b) for a, b in zip(sessions, back, strict=True)):
        raise ModelError("a session came back changed: no figure of this run is valid")
    return {"bytes": len(data), "cpu_s": round(spent, 3)}


def coded(
    codec: Codec,
    sequences: Sequence[Tokens],
    contexts: Sequence[Tokens | None],
    copies: Sequence[Sequence[Copy]] | None = None,
) -> list[int]:
    """Return the bytes of each sequence after its context, decoded and compared.

    ``copies``: those that are taken out of each, from `repeats.candidates`. Raises ModelError.
    """
    coder: Any = codec.coder  # that of a bundle takes contexts
    taken = copies or [()] * len(sequences)
    rests = [repeats.literals(tokens, some) for tokens, some in zip(sequences, taken, strict=True)]
    order = sorted(range(len(sequences)), key=lambda n: -len(rests[n]))
    found: dict[int, int] = {}
    for begin in range(0, len(order), BATCH):
        part = order[begin : begin + BATCH]
        given, known = [rests[n] for n in part], [contexts[n] for n in part]
        frames = coder.encode(given, contexts=known)
        items = [FrameItem(f.data, len(t), context=c) for f, t, c in zip(frames, given, known, strict=True)]
        for n, frame, back in zip(part, frames, coder.decode(items), strict=True):
            past = contexts[n]
            if not np.array_equal(sequences[n], repeats.expand(back, taken[n], NOTHING if past is None else past)):
                raise ModelError("a session came back changed: no figure of this run is valid")
            found[n] = len(frame.data) + (len(repeats.pack(taken[n])) if taken[n] else 0)
    return [found[n] for n in range(len(sequences))]


def _raw(content: bytes) -> Any:
    import zstandard

    return zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _with_dictionary(texts: Sequence[bytes], pool: Sequence[bytes]) -> list[int]:
    """Return the bytes of zstd -19 with a pool: as a trained dictionary or as raw content, whichever is shorter."""
    import zstandard

    shared, size = [], max(map(len, texts))
    if content := b"".join(pool):
        shared.append(_raw(content))
    with suppress(zstandard.ZstdError, ValueError):  # too few samples
        shared.append(zstandard.train_dictionary(DICTIONARY, list(pool)))
    ways = [[_blocks(text, None) for text in texts]]
    for dictionary in shared:
        dictionary.precompute_compress(compression_params=_parameters(size, dictionary))
        ways.append([_blocks(text, dictionary, size) for text in texts])
    return min(ways, key=sum)


def _parameters(size: int, shared: Any) -> Any:
    """Return the parameters of zstd -19 for texts of so many bytes."""
    import zstandard

    return zstandard.ZstdCompressionParameters.from_level(
        19,
        source_size=size,
        dict_size=len(shared.as_bytes()) if shared else 0,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        write_content_size=False,
        write_checksum=False,
        write_dict_id=False,
    )


def _blocks(text: bytes, shared: Any, size: int | None = None) -> int:
    """Return the bytes of zstd -19 without magic number, lengths, checksum and header.

    ``size``: that for which parameters are chosen, in bytes; None is that of the text.
    """
    import zstandard

    parameters = _parameters(size or len(text), shared)
    data = zstandard.ZstdCompressor(compression_params=parameters, dict_data=shared).compress(text)
    back = zstandard.ZstdDecompressor(dict_data=shared, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    if back.decompress(data, max_output_size=len(text) + 1) != text:
        raise ModelError("zstd gave back another text: no figure of this run is valid")
    return max(1, len(data) - 2)  # descriptor and window are the same for all of this length

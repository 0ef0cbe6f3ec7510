"""Write the vectors beside this file: `python tests/golden/vectors/make.py`. README.md says what they are.

The product writes bytes here, and the oracle of NUMERICS.md the numbers of the model. The tests of the second reader
read them back. Vectors that exist are never rewritten: a changed byte is a new format version.
"""

import importlib.util
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import save

from pltz.archive.encryption.box import seal
from pltz.archive.encryption.keys import Secret
from pltz.archive.encryption.root_keys import RootKeys
from pltz.benchmarks.random_weights import random_weights
from pltz.coding.log.bit_coder import BitWriter
from pltz.models.bundle import patch
from pltz.models.bundle.bundle import Bundle
from pltz.models.bundle.tokenizer import SPECIALS
from pltz.models.session import spelling
from pltz.models.session.session import Session
from pltz.models.session.transcript import to_tokens
from pltz.plt_codec import ppmd
from pltz.plt_codec.container.block import encode_block
from pltz.plt_codec.container.columns import write_column
from pltz.plt_codec.engines.token_coder import TokenCoder
from pltz.plt_codec.engines.torch import TorchEngine
from pltz.plt_codec.lanes import Layout
from pltz.plt_codec.range_coder import RangeEncoder
from pltz.plt_codec.varint import write_varint
from pltz.plt_codec.weights import CLASS, Weights
from pltz.plt_codec.zstd import Fallback
from tests.second_reader.model import BIG, Model, clamp, rs

HERE = Path(__file__).parent
TOTAL = 1 << 24
Vectors = list[dict[str, Any]]


def integers() -> Vectors:
    """Varints: a number and its bytes."""
    numbers = (0, 1, 127, 128, 300, 16383, 16384, (1 << 21) - 1, 1 << 28, (1 << 32) - 1)
    return [{"number": number, "bytes": write_varint(number).hex()} for number in numbers]


def columns() -> Vectors:
    """Numbers of a column, and their bytes."""
    lists = [[0], [5, 0, 31], [7] * 40, [*range(100, 117)], [(1 << 64) - 1, 0], [7, 3, 300, 12, 0, 1] * 5]
    return [{"numbers": numbers, "bytes": write_column(numbers).hex()} for numbers in lists]


def blocks() -> Vectors:
    """Columns, parts and bitstrings of a block, the salt and offset of its check, and its bytes."""
    cases = [
        ({1: [0], 4: [5]}, [b"\x07"], [b"hello"], b"PLTZ and more", 24),
        ({1: [0, 1, 0], 4: [3, 0, 900], 13: [0, 0, 2]}, [b"abc"], [b"\x01", b"", bytes(range(200))], b"PLTZ", 99),
        ({4: [10 * n for n in range(1, 41)]}, [b""], [bytes(6 * n + n % 3) for n in range(1, 41)], b"PLTZ", 24),
        ({4: [9, 9, 9]}, [b""], [b"x" * 4095, b"y", b"z" * 10], b"PLTZ", 24),
    ]
    return [
        {
            "columns": {str(number): values for number, values in found.items()}, "parts": b"".join(parts).hex(),
            "bitstrings": [data.hex() for data in bitstrings], "salt": salt.hex(), "offset": offset,
            "bytes": b"".join(encode_block(found, parts, bitstrings, salt, offset)).hex(),
        }
        for found, parts, bitstrings, salt, offset in cases
    ]


def fallback() -> Vectors:
    """Content, the dictionary that both sides have, and its fallback bytes."""
    words = b"The tower keeps what sessions share. "
    cases = [
        (b"", b""), (b"h\xc3\xa9\xff!", b""), (words * 9, b""), (words * 99, b""), (words + b"And more.", words * 3),
    ]
    found = []
    for content, dictionary in cases:
        row = {"content": content, "dictionary": dictionary, "bytes": Fallback(dictionary).compress(content)}
        found.append({name: data.hex() for name, data in row.items()})
    return found


def by_ppmd() -> Vectors:
    """Text, the past that both sides have, and its PPMd bytes."""
    words = b"The tower keeps what sessions share. "
    cases = [(b"", b""), (b"h\xc3\xa9\xff!", b""), (words * 9, b""), (words * 99, words), (words, b"?"), (b"!", words)]
    rows = [{"text": text, "past": past, "bytes": ppmd.encode(text, past)} for text, past in cases]
    return [{name: data.hex() for name, data in row.items()} for row in rows]


def range_coder() -> Vectors:
    """Symbols, each the cumulative frequency before it and its own frequency of 2^24, and their frame."""
    half, last = 1 << 23, TOTAL - 1
    rng = np.random.PCG64(5)
    many = [sorted((rng.random_raw(2) % (TOTAL - 1)).tolist()) for _ in range(40)]
    cases: dict[str, list[list[int]]] = {
        "no symbols": [], "one of two halves": [[half, half]], "the first of all, nearly certain": [[0, last]] * 50,
        "the last of all, rare: carries": [[last, 1]] * 7, "zeros at the end are part of the frame": [[0, 1]] * 6,
        "any": [[low, high - low + 1] for low, high in many],
    }
    found: Vectors = []
    for case, symbols in cases.items():
        encoder = RangeEncoder()
        for low, frequency in symbols:
            row = [part for part in (low, frequency, TOTAL - low - frequency) if part]
            encoder.encode(np.array([int(low > 0)], np.int32), np.array([row]))
        found.append({"case": case, "symbols": symbols, "bytes": encoder.finish().hex()})
    refused = {"case": "too few bytes for its words", "symbols": [[0, 1]] * 6, "bytes": "00" * 10, "refused": True}
    return [*found, refused]


SMALL = {"vocab": 256, "d": 8, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 4, "hidden": 12, "block": 64}
TOKENS, BEFORE = [200, 17, 130, 255, 3, 77, 128, 9, 31, 180] * 7, [5, 99, 201]


def weights_of(contract: int) -> Weights:
    """Return the small model of a contract."""
    return random_weights(11, memory=16, gated=contract == 2, **SMALL)  # type: ignore[arg-type]


def model(contract: int) -> dict[str, Any]:
    """Shape, each vector of four positions in one lane in the order of NUMERICS.md, and frames of a sequence."""
    weights = weights_of(contract)
    second, positions = Model(weights.shape.to_dict(), dict(weights.tensors)), list[dict[str, Any]]()
    t, memory, times, norm = second.t, second.blank(), second._times, partial(second._norm, gain=second.norm_gain)
    turned = (second.heads + second.key_heads) * second.head
    for place, (token, following) in enumerate(zip([0, *TOKENS[:3]], TOKENS[:4], strict=True)):
        x0 = clamp(rs(t["embed.w"][[token]] * t["embed.m"][token], 16), BIG)
        a = norm(x0, name="layer.0.norm_in")
        y = times("layer.0.qkv", a)
        qk = second._turned(clamp(y[:, :turned], (1 << 15) - 1).reshape(1, -1, second.head), np.array([place]))
        q = (clamp(rs(qk, 7), 127) if second.gated else second._norm(qk, second.head_gain))[:, : second.heads]
        x = second.run([token], [place], memory)
        k, v = memory[0][:, -1].astype(np.int64)
        o = second._attend(q, memory[0], t["layer.0.heat"])
        middle = clamp(x0 + times("layer.0.out", o), BIG)
        inner = norm(middle, name="layer.0.norm_mid")
        up = times("layer.0.up", inner)
        if second.gated:
            h = clamp(rs(t["table.act"][clamp(times("layer.0.gate", inner), 511) + 511] * clamp(up, 32767), 16), 127)
        else:
            h = rs(np.clip(up, 0, 255) ** 2, 8)
        steps = {"x of 1": x0[0], "a of 2.1": a[0], "y of 2.1": y[0], "q of 2.2": q[0], "k of 2.2": k, "v of 2.2": v}
        steps |= {"o of 2.3": o[0], "x of 2.4": middle[0], "h of 2.5": h[0], "x of 2.5": x[0]}
        steps["classes of 3"] = second.class_frequencies(x[0])
        steps["members of 4"] = second.member_frequencies(x[0], following // CLASS)
        row = {"input": token, "position": place, "class of 4": following // CLASS}
        positions.append(row | {name: array.tolist() for name, array in steps.items()})
    coder, frames = TokenCoder(TorchEngine(weights)), []
    for layout, before in ((None, []), (Layout(1, 64), []), (Layout(4, 8), []), (Layout(4, 8), BEFORE)):
        [frame] = coder.encode([np.array(TOKENS)], layouts=layout, contexts=[np.array(before, int)])
        named = [layout.lanes, layout.steps] if layout else None
        frames.append({"layout": named, "context": before, "bytes": frame.data.hex()})
    return {"shape": weights.shape.to_dict(), "positions": positions, "tokens": TOKENS, "frames": frames}


def containers_maker() -> ModuleType:
    """Return make.py of the golden containers, a writer of its own."""
    spec = importlib.util.spec_from_file_location("golden_containers", HERE.parent / "containers/make.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def containers() -> Vectors:
    """Sessions of some golden containers as they are stored, and the bytes that their content checks are of."""
    make = containers_maker()
    cases = {
        "good-every-kind": [*(make.CHAT, make.TEXT, make.IDS, make.CHAT_STORED, make.TEXT_STORED, make.IDS_STORED)],
        "good-extended": [make.LAYOUT, make.PATCHED, make.BOTH],
        "good-nine-copies": [make.NINE],
        "good-contexts": make.FOLLOWERS,
    }
    found = []
    for name, entries in cases.items():
        assert make.build(entries) == make.GOOD[name]
        rows = []
        for one in entries:
            row = {"coding": one.coding.hex(), "count": one.units, "frame": one.data.hex(), "copied": one.copied}
            check = make.check(one.coding, one.units, one.content)
            rows.append(row | {"step": one.step, "content": one.content.hex(), "content check": check})
        found.append({"file": f"{name}.pltz", "bytes": make.GOOD[name].hex(), "sessions": rows})
    return found


HI, YO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
LONG = "Where is\nmy bicycle, please?"
CHATS: dict[str, Any] = {
    "plain": {"messages": [HI, YO]},
    "all six voices": {"messages": [{"role": name, "content": name} for name in SPECIALS[1:5] + SPECIALS[10:12]]},
    "no messages": {"messages": []}, "a list": [HI, YO], "an empty list": [],
    "ShareGPT": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]},
    "role names of its own": {"conversations": [{"from": "user", "value": "Hi"}, {"from": "bot", "value": "Yo"}]},
    "another container": {"conversation": [HI, YO]}, "a list of ShareGPT": [{"from": "human", "value": "Hi"}],
    "a role that no special has": {"messages": [{"role": "narrator", "content": "Once"}]},
    "keys beside the messages": {"id": 7, "messages": [HI], "score": 2.5},
    "a head": {"system": "You are a helpful shop.", "messages": [HI]},
    "a head with tools": {
        "tools": [{"name": "look", "description": "Look up a thing, by name."}], "messages": [HI], "system": ""
    },
    "a mould": {"messages": [{"role": "tool", "content": "4\u00b0", "tool_call_id": "c1"}]},
    "a mould in its order": {"messages": [{"content": "Hi", "role": "user"}]},
    "a mould of parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "a mould of parts and more": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]
    },
    "a mould that comes again, and none": {
        "messages": [{**HI, "name": "a"}, {**HI, "name": "a"}, {**YO, "name": "a"}, {**HI, "name": "a"}, HI]
    },
    "calls of tools": {"messages": [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]},
    "a frame": [{"type": "user", "message": {"role": "user", "content": LONG}}],
    "a frame of several texts": {"messages": [{"role": "assistant", "content": [{"a": LONG}, {"b": LONG + " Now."}]}]},
    "escapes of a frame": [{"": LONG}, {"a": "", "b": {"": ""}, "c": {"": {"": 1}}, "d": LONG}],
    "one message alone": {"type": "event", "text": LONG},
    "any JSON": {"prompt": "1 + 1", "answer": 2, "list": [None, True, -1.5e-7, 1e300, ""]}, "a number": 3.25,
    "a lone surrogate": {"messages": [{"role": "user", "content": "\ud800 \U0001f600"}]},
}
REFUSED: dict[str, list[list[str]]] = {
    "text behind a whole chat": [["meta", "1"], ["user", "Hi"]], "a key twice": [["meta", '{"a":1,"a":2}']],
    "a number that no double holds": [["meta", "0.12345678901234567890"]],
    "a mould again that was never said": [["user", "Hi"], ["message", "[]"]],
    "a frame with more texts than places": [["user", "Hi"], ["user", "you"], ["message", '[{"a":""},2]']],
    "a frame with fewer texts than places": [["user", "Hi"], ["message", '[{"a":"","b":""},1]']],
    "a frame of more texts than voices": [["user", "Hi"], ["message", '[{"a":"","b":""},2]']],
    "an escape of nothing": [["user", "Hi"], ["message", '[{"a":"","b":{"":1}},1]']],
    "a mould with a place for the role alone": [["user", "Hi"], ["message", '[{"role":null}]']],
    "a head without a frame of the session": [["system", "Be"], ["meta", '[{"system":""},1]'], ["user", "Hi"]],
    "a head of another key": [["system", "Be"], ["meta", '[{"a":""},1]'], ["meta", '{"a":null,"messages":null}']],
    "no place for the messages": [["user", "Hi"], ["meta", '{"id":1}']],
    "a style of one key": [["sharegpt", '["a","b","b"]']],
    "a list with a container": [["list", '["a","role","content"]']],
    "two messages alone": [["list", "0"], ["user", "Hi"], ["user", "you"]], "the mark of a lane": [["lane", ""]],
}


def chats() -> Vectors:
    """Values, their segments, and their bytes as JSON; and segments that a reader refuses."""
    tokenizer, found = Bundle.load("nano").tokenizer, Vectors()
    for rule, value in CHATS.items():
        session = Session("chat", value)
        tokens = to_tokens(session, tokenizer)
        starts = np.flatnonzero(tokens < len(SPECIALS)).tolist()
        spans = zip(starts, [*starts[1:], len(tokens)], strict=False)
        texts = [(SPECIALS[tokens[a]], tokenizer.decode(tokens[a + 1 : b])) for a, b in spans]
        segments = [[name, text.decode("utf-8", "surrogatepass")] for name, text in texts]
        row = {"rule": rule, "segments": segments, "nano": tokens.tolist(), "value": value}
        row["stored"] = session.to_bytes().decode("utf-8", "surrogatepass")
        found.append(row | {"written": session.to_input_bytes().decode()})
    return [*found, *({"rule": rule, "segments": row, "refused": True} for rule, row in REFUSED.items())]


SPELT = {
    "a/b": ["\u00e9\u2028<&>\x7f\x01\t\"\\ \U0001f600", {}, [], {"c": None}],
    "": [[[True]], False, 1.0, -0.0, 1e16, 123456.789, 1e-5, 10**20],
}


def spellings() -> Vectors:
    """A value in each spelling."""
    return [{"spelling": number, "value": SPELT, "text": spelling.spell(SPELT, number)} for number in range(16)]


def decisions() -> Vectors:
    """Contexts by number, what is coded with them in a row, and the bytes of the code."""
    cases: dict[str, list[list[Any]]] = {
        "a bit often, then another": [["bit", 7, 1]] * 20 + [["bit", 7, 0]],
        "numbers": [["number", 1024, n] for n in (0, 1, 2, 6, 7, 63, 64, 1000, 1 << 20, (1 << 62) - 1, 3, 3)],
        "signed numbers": [["signed", 2048, n] for n in (0, -1, 1, -900, 900, -(1 << 40))],
        "bits without a context": [["raw", 5, 19], ["raw", 16, 65535], ["raw", 1, 0]],
        "zeros at the end are left out": [["bit", 1, 1]] * 3,
    }
    found: Vectors = []
    for case, rows in cases.items():
        writer, contexts = BitWriter(), dict[int, int]()
        for kind, where, value in rows:
            if kind == "raw":
                writer.raw(value, where)
            elif kind == "bit":
                writer.bit(contexts, where, value)
            else:
                getattr(writer, kind)(contexts, value, where)
        found.append({"case": case, "coded": rows, "bytes": writer.finish().hex()})
    return found


def patches() -> Vectors:
    """Draw the number of ids of a target, canonical ids, real ones, and the patch between them."""
    cases = [[10, 20, 30], [10, 21, 22, 30], [10, 20, 30, 299], [30], [20, 10, 23, 24, 30, 21, 22], [299] * 5]
    found: Vectors = []
    for real in cases:
        canonical = [10, 20, 30] if len(real) < 5 else [20, 10, 20, 30, 20]
        stored = patch.encode_edits([*patch.diff(canonical, real)])
        assert patch.apply_patch(canonical, stored, 300) == real
        found.append({"V": 300, "canonical": canonical, "ids": real, "patch": stored.hex()})
    literal = patch.encode_edits([patch.Edit(0, 0, [10, 21, 22, 30])]).hex()
    return [*found, {"V": 300, "canonical": [], "ids": [10, 21, 22, 30], "patch": literal}]


def boxes() -> Vectors:
    """A key, what is sealed, what it is bound to, and the box."""
    cases = [(b"", []), (b"The tower", [b"session"]), (bytes(40), [b"segment", bytes(16), b"\x01"])]
    found = []
    for number, (plain, about) in enumerate(cases):
        key = bytes(range(number, number + 32))
        row = {"key": key.hex(), "content": plain.hex(), "bound to": [one.hex() for one in about]}
        found.append(row | {"box": seal(key, plain, about).hex()})
    return found


def keys() -> Vectors:
    """The archive's own key file, the secrets that open it, and what it has: new, with two secrets, and changed."""
    archive = bytes(range(16))
    numbers = itertools.count(1)

    def random(size: int) -> bytes:
        return bytes([next(numbers)]) * size

    raw, phrase, last = Secret(b"sixteen bytes, no less", 0), Secret(b"correct horse", 1), Secret(bytes(range(16)), 0)
    first = RootKeys.first(random, archive, raw)
    both = first.adding(random, archive, phrase)
    found = []
    for root, secrets in ((first, [raw]), (both, [raw, phrase]), (both.changing(random, archive, last), [last])):
        row: dict[str, Any] = {"archive": archive.hex(), "generation": root.generation}
        row |= {"secrets": [secret.material.hex() for secret in secrets], "file": root.sealed(archive).encode().hex()}
        found.append(row | {"wrap keys": [key.hex() for key in root.wraps], "name key": root.names.hex()})
    return found


VECTORS: dict[str, Callable[[], Any]] = {
    "varints": integers, "columns": columns, "blocks": blocks, "fallback": fallback, "ppmd": by_ppmd,
    "range_coder": range_coder,
    "model": lambda: {str(contract): model(contract) for contract in (1, 2)}, "containers": containers,
    "chats": chats, "spellings": spellings, "decisions": decisions, "patches": patches, "boxes": boxes, "keys": keys,
}  # fmt: skip


def tensors(contract: int) -> bytes:
    """Return the weights of a small model as a safetensors file."""
    return save(dict(weights_of(contract).tensors))


def text_of(found: Any) -> str:
    """Return vectors as JSON in ASCII: a vector or a field per line."""
    if isinstance(found, dict):
        rows = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    else:
        rows = list(map(json.dumps, found))
    begin, end = "{}" if isinstance(found, dict) else "[]"
    return f"{begin}\n" + ",\n".join(rows) + f"\n{end}\n"


def main() -> None:
    """Make the vectors, and write them beside this file."""
    files = {f"{name}.json": text_of(make()).encode() for name, make in VECTORS.items()}
    files |= {f"model-{contract}.safetensors": tensors(contract) for contract in (1, 2)}
    for name, data in files.items():
        path = HERE / name
        if path.exists() and path.read_bytes() != data:
            raise SystemExit(f"{name} exists with other bytes: a changed byte is a new format version")
        path.write_bytes(data)


if __name__ == "__main__":
    main()

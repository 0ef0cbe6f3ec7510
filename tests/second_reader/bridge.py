"""The ids of another tokenizer, from bundle tokens and a patch, as models/FORMAT.md, "Bridge", describes it."""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from tests.second_reader.fields import Bits, refuse
from tests.second_reader.model import Vocabulary

SLOTS = (
    "<|begin_of_text|> <s> <bos> <|startoftext|> <\uff5cbegin▁of▁sentence\uff5c> [CLS]",
    "<|im_start|> <|start_header_id|> <start_of_turn> <|turn> [INST] <|start|> <\uff5cUser\uff5c>",
    "<|end_header_id|> [/INST] <|im_sep|> <|message|> <\uff5cAssistant\uff5c>",
    "<|im_end|> <|eot_id|> <end_of_turn> <turn|> <|end|> [SEP]",
    "<|end_of_text|> </s> <eos> <|endoftext|> <|return|> <\uff5cend▁of▁sentence\uff5c>",
)
UNKNOWN_SLOT, MANY = 5, 15
NOTHING: dict[str, Any] = {"Prepend": {"prepend": ""}, "ByteLevel": {"add_prefix_space": False}}
LATE = ("reserved", "unused", "placeholder", "extra_id")

Library = Callable[[str], list[int]]  # ids of a text
MakeLibrary = Callable[[str], Library]  # of a tokenizer.json; adds nothing around a text


class Patch(Bits):
    """The bits of a patch, from the highest on."""

    def __init__(self, data: bytes) -> None:
        self.left = "".join(f"{byte:08b}" for byte in data)

    def take(self, count: int) -> int:
        """Return a number of so many bits."""
        refuse(count > len(self.left), "a patch that ends too early")
        found, self.left = self.left[:count], self.left[count:]
        return int("0" + found, 2)

    def gamma(self) -> int:
        """Return a number of at least 1 in Elias' gamma code."""
        zeros = self.zeros(32)
        return 1 << zeros | self.take(zeros)

    def end(self) -> None:
        """Refuse more than the zeros that fill a byte."""
        refuse("1" in self.left or len(self.left) > 7, "bits behind a patch")


class Bridge:
    """A target's tokenizer. ``make``: its library."""

    def __init__(self, tokenizer: str, bundle: Vocabulary, make: MakeLibrary) -> None:
        about = json.loads(tokenizer)
        self._bundle, model = bundle, about["model"]
        listed = model["vocab"]
        self._vocab = {one[0]: n for n, one in enumerate(listed)} if isinstance(listed, list) else listed
        self._prefix: str = model.get("continuing_subword_prefix") or ""
        added = {entry["id"]: entry for entry in about["added_tokens"]}
        self._names: dict[int, str] = {n: name for name, n in self._vocab.items()}
        self._names |= {n: entry["content"] for n, entry in added.items()}
        self._size = max(self._names) + 1
        self._unknown = model.get("unk_id", self._vocab.get(model.get("unk_token")))
        self._marks = self._place({n for n, entry in added.items() if entry["special"]})
        self._wide = max(1, (max([*self._marks, MANY]) - MANY).bit_length() + 7 >> 3)
        about |= {"truncation": None, "padding": None, "post_processor": None}
        about["added_tokens"] = [entry for entry in about["added_tokens"] if not entry["special"]]
        about["model"] = model | ({"dropout": None} if "dropout" in model else {})
        steps = about.get("pre_tokenizer") or {}
        in_row = steps.get("type") == "Sequence" and len(steps["pretokenizers"]) >= 2
        self._ways = [make(_started(about, how)) for how in (0, 1, 1 if in_row else 2)]  # first, after a mark, unknown

    def _place(self, marks: set[int]) -> dict[int, int]:
        """Return the id of the mark in each slot."""
        found = {} if self._unknown is None else {UNKNOWN_SLOT: self._unknown}
        left = marks - {self._unknown}
        for slot, names in enumerate(SLOTS):
            if fits := [n for name in names.split() for n in sorted(left) if self._names[n] == name]:
                found[slot] = fits[0]
                left.discard(fits[0])
        order = sorted(left, key=lambda n: (any(word in self._names[n] for word in LATE), n))
        free = [slot for slot in range(MANY + len(order)) if slot >= MANY or slot not in found]
        return found | dict(zip(free, order, strict=False))

    def ids(self, tokens: Sequence[int], patch: bytes) -> list[int]:
        """Return the target's ids."""
        bits = Patch(patch)
        if not patch or not bits.take(1):
            canonical = self._canonical(tokens)
            return self._patched(canonical, bits) if patch else canonical
        found = [self._id(bits) for _ in range(bits.gamma())]
        bits.end()
        refuse(tokens, "a literal patch with tokens")
        return found

    def _canonical(self, tokens: Sequence[int]) -> list[int]:
        found, at = list[int](), 0
        while at < len(tokens):
            span = [*takewhile(lambda token: token not in self._bundle.special, tokens[at:])]
            at += len(span) or 1
            if span:
                way = 0 if not found else 2 if found[-1] == self._unknown else 1
                found += self._ways[way](self._bundle.spell(span).decode())
                continue
            name = self._bundle.special[tokens[at - 1]]
            slot = int(name[1:]) if name[0] == "x" else -1
            if slot == MANY:
                slot += int.from_bytes(self._bundle.spell(tokens[at : at + self._wide]), "big")
                at += self._wide
            refuse(slot not in self._marks, f"the special {name} among ids")
            found.append(self._marks[slot])
        return found

    def _id(self, bits: Patch) -> int:
        most = max(self._size, 2)
        width = (most - 1).bit_length()
        short = (1 << width) - most
        found = bits.take(width - 1)
        found = found if found < short else (found << 1 | bits.take(1)) - short
        refuse(found >= self._size, "an id beyond the target's")
        return found

    def _patched(self, canonical: list[int], bits: Patch) -> list[int]:
        low, found, at = bits.take(4), list[int](), 0
        refuse("1" not in bits.left, "a patch without an edit")
        while "1" in bits.left:
            gap = (bits.gamma() - 1) << low | bits.take(low)
            found += canonical[at : at + gap]
            at += gap
            if bits.take(1):
                drop, count = bits.gamma() - 1, bits.gamma() - 1
                found += [self._id(bits) for _ in range(count)]
            else:
                drop = bits.gamma()
                found += self._cut(canonical[at : at + drop], bits)
            at += drop
            refuse(at > len(canonical), "an edit beyond the canonical ids")
        bits.end()
        return found + canonical[at:]

    def _cut(self, dropped: list[int], bits: Patch) -> list[int]:
        letters = "".join(map(self._letters, dropped))
        refuse(not letters, "a split of nothing")
        found, piece = [], ""
        for place, letter in enumerate(letters, 1):
            piece += letter
            if place == len(letters) or bits.take(1):
                if self._prefix:
                    piece = piece[1:] if piece[0] == "\0" else self._prefix + piece
                refuse(piece not in self._vocab, "a piece that is no token")
                found.append(self._vocab[piece])
                piece = ""
        return found

    def _letters(self, number: int) -> str:
        name = self._names.get(number, "")
        if not self._prefix:
            return name
        return name.removeprefix(self._prefix) if name.startswith(self._prefix) else "\0" + name


def _started(tokenizer: dict[str, Any], how: int) -> str:
    """Return a tokenizer whose text before a span is 0: as it says, 1: that behind a mark, 2: nothing."""

    def changed(node: dict[str, Any]) -> dict[str, Any]:
        kind = node.get("type")
        if kind == "Metaspace" and (how == 2 or (how == 1 and node.get("prepend_scheme") == "first")):
            node["prepend_scheme"] = "never"
        return node | (NOTHING.get(str(kind), {}) if how == 2 else {})

    parts = {part: tokenizer.get(part) for part in ("normalizer", "pre_tokenizer")}
    return json.dumps(tokenizer | json.loads(json.dumps(parts), object_hook=changed))

"""The ids of another tokenizer, from bundle tokens and a patch, as models/FORMAT.md, "Bridge", describes it."""

import json
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from tests.second_reader.fields import Fields, refuse
from tests.second_reader.model import Vocabulary

MANY = 15  # marks with a slot of their own
LATE = ("reserved", "unused", "placeholder", "place\u2581holder", "extra_id")

Library = Callable[[str], list[int]]  # ids of a text
MakeLibrary = Callable[[str], Library]  # of a tokenizer.json; adds nothing around a text


class Bridge:
    """A target's tokenizer. ``make``: its library."""

    def __init__(self, tokenizer: str, bundle: Vocabulary, make: MakeLibrary) -> None:
        about = json.loads(tokenizer)
        self._bundle, model = bundle, about["model"]
        listed, added = model["vocab"], {entry["id"]: entry for entry in about["added_tokens"]}
        vocab = {one[0]: n for n, one in enumerate(listed)} if isinstance(listed, list) else listed
        names = {n: name for name, n in vocab.items()} | {n: entry["content"] for n, entry in added.items()}
        self._size, unknown = max(names) + 1, model.get("unk_id", vocab.get(model.get("unk_token")))
        marks = {n for n, entry in added.items() if entry["special"]} | ({unknown} - {None})
        self._marks = sorted(marks, key=lambda n: (any(word in names[n] for word in LATE), n))
        self._wide = max(1, max(0, len(marks) - MANY - 1).bit_length() + 7 >> 3)
        about |= {"truncation": None, "padding": None, "post_processor": None}
        about["added_tokens"] = [entry for entry in about["added_tokens"] if not entry["special"]]
        about["model"] = model | ({"dropout": None} if "dropout" in model else {})
        self._first, self._others = make(json.dumps(about)), make(_after_mark(about))

    def ids(self, tokens: Sequence[int], patch: bytes) -> list[int]:
        """Return the target's ids."""
        canonical, fields, found, at = self._canonical(tokens), Fields(patch), list[int](), 0
        while fields.at < len(patch):
            gap, drop, count = (fields.varint() for _ in range(3))
            refuse(at + gap + drop > len(canonical), "an edit beyond the canonical ids")
            found += canonical[at : at + gap] + [fields.varint() for _ in range(count)]
            at += gap + drop
        refuse(max(found, default=0) >= self._size, "an id beyond the target's")
        return found + canonical[at:]

    def _canonical(self, tokens: Sequence[int]) -> list[int]:
        found, at = list[int](), 0
        while at < len(tokens):
            span = [*takewhile(lambda token: token not in self._bundle.special, tokens[at:])]
            at += len(span) or 1
            if span:
                found += (self._others if found else self._first)(self._bundle.spell(span).decode())
                continue
            name = self._bundle.special[tokens[at - 1]]
            slot = int(name[1:]) if name[0] == "x" else -1
            if slot == MANY:
                slot += int.from_bytes(self._bundle.spell(tokens[at : at + self._wide]), "big")
                at += self._wide
            refuse(not 0 <= slot < len(self._marks), f"the special {name} among ids")
            found.append(self._marks[slot])
        return found


def _after_mark(tokenizer: dict[str, Any]) -> str:
    """Return a tokenizer of the spans that stand after a mark."""

    def changed(node: dict[str, Any]) -> dict[str, Any]:
        first = node.get("type") == "Metaspace" and node.get("prepend_scheme") == "first"
        return node | ({"prepend_scheme": "never"} if first else {})

    parts = {part: tokenizer.get(part) for part in ("normalizer", "pre_tokenizer")}
    return json.dumps(tokenizer | json.loads(json.dumps(parts), object_hook=changed))

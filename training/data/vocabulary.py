"""Tokenizers of new bundles: learnt from texts, or made of a target's; and the order of their ids.

Ids 0 to 31 are the specials, and the class of id i is i >> 7 (NUMERICS.md). The head codes a token in two
levels, class then member, so tokens that stand in the same contexts should share a class. `order_vocabulary`
permutes the ids by balanced bisection of output embeddings.

A student that shares its target's vocabulary can learn the target's probabilities token by token, and ids
frozen for that target need no patch. Four things change. The bundle's 32 specials come first. The target's
own specials go, since the bridge's escapes stand for them. Pieces that nothing can spell (`<|fill-N|>`) round
the size up to a multiple of 128, for the two-level head. Settings that would lose bytes (a normaliser, a
prefix space) go. If the target has one, ids of texts that it changes cost a patch.

Only byte-level BPE can do this (GPT-2, Llama 3, Qwen, SmolLM, ...). SentencePiece and WordPiece tokenizers
cannot spell every byte string in pieces of bytes and are refused, as are vocabularies over 65,536 ids. The
bundle's own tokenizer and the bridge serve those.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pltz.models import CLASS, SPECIALS, SPLIT, BundleTokenizer, byte_alphabet
from pltz.plt_codec import ModelError, UsageError

MAX_VOCABULARY = 1 << 16  # the contract's
INSTEAD = "train with the bundle's tokenizer instead, and the bridge"
_NAMES = [f"<|{name}|>" for name in SPECIALS]


def train_tokenizer(texts: list[str], vocab: int) -> Any:
    """Train a byte-level BPE of `vocab` ids, specials first, in the shape models/bundle/tokenizer.py expects.

    Raises:
        UsageError: there is too little text for so many ids.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    tok.train_from_iterator(texts, trainer)
    raw = json.loads(tok.to_str())
    bare = raw["model"]["vocab"]
    if len(bare) != vocab - len(SPECIALS):
        raise UsageError(f"expected {vocab - len(SPECIALS)} learned tokens, got {len(bare)}: give more text")
    shifted = {piece: i + len(SPECIALS) for piece, i in bare.items()}
    raw["model"]["vocab"] = {f"<|{name}|>": i for i, name in enumerate(SPECIALS)} | shifted
    raw["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(raw, ensure_ascii=False))


def from_target(tokenizer_json: bytes) -> bytes:
    """Return the JSON of a bundle tokenizer with the pieces of a target's tokenizer.json.

    Raises:
        ModelError: the target's tokenizer cannot become one.
    """
    try:
        tree: dict[str, Any] = json.loads(tokenizer_json)
        model = tree["model"]
        kind, vocab, merges = model["type"], model["vocab"], model["merges"]
        added = {token["content"]: bool(token.get("special")) for token in tree.get("added_tokens") or []}
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ModelError(f"expected a byte-level BPE tokenizer, found another kind ({exc!r}): {INSTEAD}") from exc
    if kind != "BPE" or not isinstance(vocab, dict) or not isinstance(merges, list) or model.get("byte_fallback"):
        raise ModelError(f"expected a byte-level BPE tokenizer, found {kind} without byte-level pieces: {INSTEAD}")
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ModelError(f"expected plain byte-level pieces, found word prefixes or suffixes: {INSTEAD}")
    # Added tokens stay only where a merge makes or takes them; ids go by the target's order.
    pairs = [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in merges]
    pairs = [pair for pair in pairs if "".join(pair) not in _NAMES]
    used = {part for pair in pairs for part in (*pair, "".join(pair))}
    alphabet = set(byte_alphabet())
    kept = [
        piece
        for piece, _ in sorted(vocab.items(), key=lambda item: item[1])
        if piece and set(piece) <= alphabet and piece not in _NAMES and (piece in used or piece not in added)
    ]
    # Every byte needs a piece of its own, or some text would have no ids.
    missing = alphabet - {piece for piece in kept if len(piece) == 1}
    if missing:
        raise ModelError(f"expected a piece for each of the 256 bytes, {len(missing)} are missing: {INSTEAD}")
    pieces = _filled([*_NAMES, *kept])
    if len(pieces) > MAX_VOCABULARY:
        raise ModelError(f"expected at most {MAX_VOCABULARY} ids, found {len(pieces)}: {INSTEAD}")
    # Nothing may change the text before it is cut: no normalizer, no added tokens, no space in front.
    made = {
        **tree,
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "added_tokens": [],
        "pre_tokenizer": _without_prefix_space(tree.get("pre_tokenizer")),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
            **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": pairs,
        },
    }
    data = json.dumps(made, ensure_ascii=False).encode()
    try:
        BundleTokenizer(data)
    except ModelError as exc:
        raise ModelError(f"the target's tokenizer does not give every text back ({exc}): {INSTEAD}") from exc
    return data


def _filled(pieces: list[str]) -> list[str]:
    """Return the pieces, filled up to a multiple of 128 with pieces that no text produces."""
    known, number = set(pieces), 0
    while len(pieces) % CLASS:
        name, number = f"<|fill-{number}|>", number + 1
        if name not in known:
            pieces.append(name)
    return pieces


def _without_prefix_space(node: Any) -> Any:
    """Return a pre-tokenizer that adds nothing to a text."""
    if isinstance(node, dict):
        changed = {key: _without_prefix_space(value) for key, value in node.items()}
        return changed | ({"add_prefix_space": False} if "add_prefix_space" in node else {})
    return [_without_prefix_space(item) for item in node] if isinstance(node, list) else node


def counterparts(bundle: BundleTokenizer, tokenizer_json: bytes) -> npt.NDArray[np.int64]:
    """Return the target's id of each bundle piece, (bundle ids,); -1 where it has none (specials, fillers)."""
    theirs = json.loads(tokenizer_json)["model"]["vocab"]
    mine = json.loads(bundle.json)["model"]["vocab"]
    theirs = theirs if isinstance(theirs, dict) else {}
    out = np.full(bundle.size, -1, np.int64)
    for piece, i in mine.items():
        if i >= len(SPECIALS):
            out[i] = theirs.get(piece, -1)
    return out


def covered(bundle: BundleTokenizer, tokenizer_json: bytes) -> bool:
    """Return whether the target has every piece that the bundle's tokenizer can produce.

    Only then can its probabilities be taken over.
    """
    pieces = json.loads(bundle.json)["model"]["vocab"]
    known = counterparts(bundle, tokenizer_json)
    return all(known[i] >= 0 for piece, i in pieces.items() if i >= len(SPECIALS) and not piece.startswith("<|fill-"))


def bisect_order(vectors: np.ndarray, leaf: int) -> np.ndarray:
    """Order rows so that consecutive groups of `leaf` rows are close, by recursive balanced 2-means.

    vectors: (n, d) float32, n a multiple of `leaf` times a power of two or close. Returns a permutation (n,).
    """

    def split(rows: np.ndarray) -> list[np.ndarray]:
        """Return the rows in groups, by bisection."""
        if len(rows) <= leaf:
            return [rows]
        x = vectors[rows]
        half = (len(rows) // leaf) // 2 * leaf
        _, _, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
        direction = vt[0]
        for _ in range(12):
            order = np.argsort(x @ direction, kind="stable")
            new = x[order[half:]].mean(0) - x[order[:half]].mean(0)
            new /= np.linalg.norm(new) + 1e-9
            if np.allclose(new, direction, atol=1e-4):
                break
            direction = new
        order = np.argsort(x @ direction, kind="stable")
        return split(rows[order[:half]]) + split(rows[order[half:]])

    return np.concatenate(split(np.arange(len(vectors))))


def order_vocabulary(folder: Path, vectors: np.ndarray, counts: np.ndarray, out: Path) -> None:
    """Permute the token ids of a prepared folder into classes; class 0 holds the specials and the rarest tokens.

    ``vectors``: (V, d). ``counts``: (V,) occurrences of each id.
    """
    size, n_special = len(vectors), len(SPECIALS)
    normal = np.arange(n_special, size)
    rarest = normal[np.argsort(counts[normal], kind="stable")[: CLASS - n_special]]
    rest = np.setdiff1d(normal, rarest)
    order = np.concatenate([np.arange(n_special), rarest, rest[bisect_order(vectors[rest].astype(np.float32), CLASS)]])
    new_id = np.empty(size, np.uint16)
    new_id[order] = np.arange(size, dtype=np.uint16)
    raw = json.loads((folder / "tokenizer.json").read_text())
    vocab = {piece: int(new_id[i]) for piece, i in raw["model"]["vocab"].items()}
    raw["model"]["vocab"] = dict(sorted(vocab.items(), key=lambda kv: kv[1]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.json").write_text(json.dumps(raw, ensure_ascii=False))
    for path in folder.glob("*.bin"):
        new_id[np.fromfile(path, np.uint16)].tofile(out / path.name)
    for path in [*folder.glob("*.npy"), folder / "sources.json"]:
        (out / path.name).write_bytes(path.read_bytes())

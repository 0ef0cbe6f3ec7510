"""Prepare training data: train the bundle tokenizer, turn sessions into one token stream, order the vocabulary.

Input: chat files ({"messages": [{"role", "content"}], "id"} per line, .jsonl or .jsonl.zst) and text files
([source, text] or {"id", "text"} per line). Output folder:

    tokenizer.json   byte-level BPE; ids 0..31 are specials, class of id i is i >> 7
    NAME.bin         uint16 token stream of all sessions, back to back
    NAME.offsets.npy int64 start of each session, length n + 1
    NAME.source.npy  uint8 source number of each session;  NAME.bytes.npy int64 content bytes of each session
    sources.json     names of the source numbers

The head codes a token in two levels, class then member (NUMERICS.md). So tokens that stand in the same
contexts should share a class. `python -m ...prepare order` permutes the ids by balanced bisection of the
output embeddings of a first, quickly trained model.

    python prepare.py tokenize --chat train.jsonl.zst --text text.jsonl.zst --out data --vocab 16384
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from pltz.plt_codec.errors import UsageError

SPECIALS = (
    ["lane", "system", "user", "assistant", "tool", "message", "meta", "sharegpt", "list", "text"]
    + ["developer", "function", "r12", "r13", "r14", "r15"]
    + [f"x{i}" for i in range(16)]
)
ROLE_ID = {"system": 1, "user": 2, "assistant": 3, "tool": 4, "developer": 10, "function": 11}
CLASS = 128  # tokens per class
SPLIT = (
    r"'(?:[sdmtSDMT]|ll|ve|re|LL|VE|RE)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_lines(path: str) -> Iterator[Any]:
    """Yield the JSON values of a .jsonl or .jsonl.zst file."""
    with open(path, "rb") as f:
        raw: Any = f
        if path.endswith(".zst"):
            raw = zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(
                f, read_across_frames=True
            )
        for line in io.TextIOWrapper(raw, encoding="utf8", newline="\n"):
            yield json.loads(line)


def read_sessions(chats: list[str], texts: list[str]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Yield (source, [(role id or -1 for plain text, content)])."""
    for path in chats:
        for r in read_lines(path):
            yield r["id"].rsplit("-", 1)[0], [(ROLE_ID[m["role"]], m["content"]) for m in r["messages"]]
    for path in texts:
        for r in read_lines(path):
            source, text = r if isinstance(r, list) else (r["id"].rsplit("-", 1)[0], r["text"])
            yield "text:" + source, [(-1, text)]


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


def tokenize(
    tok: Any,
    sessions: Iterator[tuple[str, list[tuple[int, str]]]],
    out: Path,
    name: str,
    sources: dict[str, int],
) -> None:
    """Write NAME.bin and its companions."""
    offsets, source, sizes, total = [0], [], [], 0
    with open(out / f"{name}.bin", "wb") as f:

        def flush(batch: list[tuple[str, list[tuple[int, str]]]]) -> None:
            """Write a batch of sessions."""
            nonlocal total
            encoded = iter(
                tok.encode_batch_fast([c for _, ms in batch for _, c in ms], add_special_tokens=False)
            )
            for src, messages in batch:
                parts = []
                for role, _ in messages:
                    ids = np.array(next(encoded).ids, np.uint16)
                    parts += [ids] if role < 0 else [np.array([role], np.uint16), ids]
                row = np.concatenate(parts)
                total += len(row)
                offsets.append(total)
                source.append(sources.setdefault(src, len(sources)))
                sizes.append(sum(len(c.encode()) for _, c in messages))
                f.write(row.tobytes())

        batch: list[tuple[str, list[tuple[int, str]]]] = []
        for s in sessions:
            batch.append(s)
            if len(batch) == 8192:
                flush(batch)
                batch = []
        flush(batch)
    np.save(out / f"{name}.offsets.npy", np.array(offsets, np.int64))
    np.save(out / f"{name}.source.npy", np.array(source, np.uint8))
    np.save(out / f"{name}.bytes.npy", np.array(sizes, np.int64))
    print(
        f"{name}: {len(source)} sessions, {total} tokens, {sum(sizes) / max(total, 1):.3f} bytes a token",
        flush=True,
    )


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
    order = np.concatenate(
        [np.arange(n_special), rarest, rest[bisect_order(vectors[rest].astype(np.float32), CLASS)]]
    )
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


def main() -> None:
    """Run the command line described at the top of this file."""
    p = argparse.ArgumentParser()
    p.add_argument("command", choices=["tokenize", "order"])
    p.add_argument("--chat", nargs="*", default=[])
    p.add_argument("--text", nargs="*", default=[])
    p.add_argument("--validation", nargs="*", default=[])
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--vocab", type=int, default=16384)
    p.add_argument("--tokenizer", help="use this tokenizer.json instead of training one")
    p.add_argument("--vectors", help="order: .npy of output embeddings, one row a token")
    p.add_argument("--folder", type=Path, help="order: prepared folder to permute")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.command == "order":
        stream = np.fromfile(a.folder / "train.bin", np.uint16)
        order_vocabulary(a.folder, np.load(a.vectors), np.bincount(stream, minlength=a.vocab), a.out)
        return
    from tokenizers import Tokenizer

    t0 = time.time()
    if a.tokenizer:
        tok = Tokenizer.from_file(a.tokenizer)
    else:
        keep: list[str] = []
        budget: dict[str, int] = {}
        for src, messages in read_sessions(
            a.chat, a.text
        ):  # at most 4 MB per source, so that none drowns the others
            for _, c in messages:
                if budget.get(src, 0) < 4_000_000:
                    budget[src] = budget.get(src, 0) + len(c)
                    keep.append(c)
        print(f"tokenizer sample: {sum(map(len, keep)) / 1e6:.0f} MB, {time.time() - t0:.0f} s", flush=True)
        tok = train_tokenizer(keep, a.vocab)
    given = Path(a.tokenizer).read_bytes() if a.tokenizer else tok.to_str().encode()
    (a.out / "tokenizer.json").write_bytes(
        given
    )  # a bundle's, byte for byte: training checks that it is that one
    print(f"tokenizer ready, {time.time() - t0:.0f} s", flush=True)
    sources: dict[str, int] = {}
    tokenize(tok, read_sessions(a.chat, a.text), a.out, "train", sources)
    tokenize(tok, read_sessions(a.validation, []), a.out, "val", sources)
    (a.out / "sources.json").write_text(json.dumps(sources))
    print(f"done, {time.time() - t0:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

"""``pltz demo``: freeze the sample sessions, decode them, thaw some, continue one, and print the figures."""

import json
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

import pltz
from pltz.archive.humanize import counted, size
from pltz.cli.bench.codec import corpus, measure
from pltz.cli.ui import options
from pltz.cli.ui.groups import Command
from pltz.cli.ui.output import Output, write_text
from pltz.cli.ui.progress import wanted
from pltz.cli.ui.table import pairs
from pltz.coding.partners import DEFAULT_TARGET
from pltz.plt_codec.errors import UsageError

if TYPE_CHECKING:
    from pltz.cli.bench.codec.corpus import SampleSession
    from pltz.cli.bench.codec.measure import CodecRun
    from pltz.coding.codec import Codec
    from pltz.models.target.target import Target

QUESTION = "Thank you. Which part of this matters most?"
ANSWER = 60  # tokens the target may write
REFERENCE = "Llama-3.1-8B"  # the size of its KV is shown for scale
REFERENCE_BYTES = 2 * 32 * 8 * 128 * 2  # of K and V per token: layers, heads, dimensions, bytes of bf16
WIDTH = 96  # characters of a printed line


@click.command(
    cls=Command,
    short_help="Freeze, decode, thaw and continue the sample sessions.",
    examples=["pltz demo", "pltz demo --sessions 20 -o sample.pltz", "pltz demo --json"],
)
@click.option(
    "--sessions",
    "count",
    type=click.IntRange(1, 200),
    default=200,
    show_default=True,
    metavar="N",
    help="Sessions to freeze.",
)
@options.count("--thaws", 8, "Sessions to thaw.")
@click.option("-o", "--output", metavar="OUT", help="Keep the .pltz file.  [default: not kept]")
@options.BUNDLE
@options.FORCE
@options.THREADS
@options.DEVICE
@options.PROGRESS
@options.JSON
def demo(
    count: int,
    thaws: int,
    output: str | None,
    bundle: str | None,
    force: bool,
    threads: int | None,
    device: str,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Freeze real chats, decode them back, thaw some into a model's KV cache and let it continue one.

    The demo needs only parts that ship with pltz: 200 sample sessions (each a bot's system prompt and a chat), the
    bundle mini and the target mini-llama. The target is a toy language model that shows that a thawed cache works.
    """
    from pltz.models.session.transcript import to_tokens_many
    from pltz.models.target.target import Target

    kept = Output(output, force=force) if output is not None else None
    records = list(corpus.read(None))[:count]
    codec = options.load_codec(bundle, device, threads)
    model = Target.load(DEFAULT_TARGET, device=device)
    run = measure.run(codec, [record.session for record in records], shown=wanted(progress))
    if kept is not None:
        kept.write([run.data])
    tokens = [len(ids) for ids in to_tokens_many([record.session for record in records], codec.bundle.tokenizer)]
    thawed = thaw_some(run, tokens, codec, model, thaws)
    talk = converse(run, tokens, codec, model)
    found = figures(records, run, sum(tokens), model, thawed)
    if as_json:
        write_text(json.dumps(found | {"conversation": talk.as_json()}))
    else:
        write_text(f"{talk.text()}\n\n{as_text(found, codec.bundle.id.hex())}")


def fitting(tokens: Sequence[int], model: "Target") -> list[int]:
    """Return the sessions, of so many tokens each, that fit the target with a question and its answer.

    Raises:
        UsageError: none fits.
    """
    room = (model.max_positions or 1 << 30) - 2 * ANSWER
    found = [i for i, count in enumerate(tokens) if count <= room]
    if not found:
        raise UsageError(f"none of these sessions fits {DEFAULT_TARGET}: raise --sessions")
    return found


def thaw_some(
    run: "CodecRun", tokens: Sequence[int], codec: "Codec", model: "Target", count: int
) -> "list[pltz.Thawed]":
    """Thaw ``count`` sessions, spread over the file, one after the other."""
    able = fitting(tokens, model)
    chosen = able[:: max(1, len(able) // count)][:count]
    return [pltz.thaw(run.data, model, i, bundle=codec) for i in chosen]


@dataclass(frozen=True)
class Talk:
    """A thawed conversation and what the target said next. Times in milliseconds."""

    session: int
    before: list[dict[str, Any]]
    question: str
    answer: str
    thaw_ms: float
    answer_ms: float

    def as_json(self) -> dict[str, Any]:
        """Return the new turns."""
        return {"session": self.session, "question": self.question, "answer": self.answer}

    def text(self) -> str:
        """Return the last turns and the new ones, wrapped."""
        turns = [(m["role"], m["content"]) for m in self.before[-2:]]
        lines = [f"Session {self.session}, thawed in {self.thaw_ms:.0f} ms; its last turns:", ""]
        lines += [turn(role, content) for role, content in turns]
        lines += ["", f"continued from the thawed cache ({self.answer_ms:.0f} ms; {DEFAULT_TARGET} is a toy):", ""]
        lines += [turn("user", self.question), turn("assistant", self.answer)]
        return "\n".join(lines)


def turn(role: str, content: str) -> str:
    """Return one turn, shortened to a few lines, with the role in front."""
    short = textwrap.shorten(content, 4 * WIDTH, placeholder=" ...")
    return textwrap.fill(short, WIDTH, initial_indent=f"  {role:>9}: ", subsequent_indent=" " * 13)


def converse(run: "CodecRun", tokens: Sequence[int], codec: "Codec", model: "Target") -> Talk:
    """Thaw a short conversation, ask one more question, and let the target answer from the same cache."""
    index = min(fitting(tokens, model), key=tokens.__getitem__)
    start = time.perf_counter()
    thawed = pltz.thaw(run.data, model, index, bundle=codec)
    middle = time.perf_counter()
    tokenizer = codec.bundle.tokenizer
    asked = [tokenizer.specials["user"], *tokenizer.encode(QUESTION.encode()), tokenizer.specials["assistant"]]
    ids = [*thawed.token_ids.tolist(), *map(int, asked)]
    cache, logits = model.prefill(ids, cache=thawed.cache)
    new = model.generate(cache, ids, ANSWER, logits=logits)
    said = [i for i in new if i not in set(tokenizer.specials.values())]
    end = time.perf_counter()
    session = codec.decompress(run.data, [index])[0]
    answer = tokenizer.decode(said).decode("utf-8", "replace").strip()
    return Talk(index, session.value["messages"], QUESTION, answer, 1e3 * (middle - start), 1e3 * (end - middle))


def figures(
    records: "Sequence[SampleSession]", run: "CodecRun", tokens: int, model: "Target", thawed: "Sequence[pltz.Thawed]"
) -> dict[str, Any]:
    """Return what the demo measured. ``tokens``: those of all sessions. Sizes are in bytes, times in milliseconds."""
    content = sum(record.content_bytes for record in records)
    frozen = len(run.data)
    stages = {stage: sum(t.timings[stage] for t in thawed) / len(thawed) for stage in thawed[0].timings}
    kv = {DEFAULT_TARGET: tokens * model.token_bytes, REFERENCE: tokens * REFERENCE_BYTES}
    return {
        "benchmark": "demo",
        "sessions": len(records),
        "content_bytes": content,
        "tokens": tokens,
        "frozen_bytes": frozen,
        "ratio": round(content / frozen, 3),
        "bits_per_byte": round(8 * frozen / content, 4),
        "bits_per_token": round(8 * frozen / tokens, 4),
        "kv_bytes": kv,
        "kv_ratio": {name: round(count / frozen, 1) for name, count in kv.items()},
        "encode_tokens_per_s": round(run.tokens / run.encode_s, 1),
        "decode_tokens_per_s": round(run.tokens / run.decode_s, 1),
        "thawed": len(thawed),
        "thawed_tokens": sum(len(t.token_ids) for t in thawed),
        "thaw_ms": {stage: round(ms, 2) for stage, ms in stages.items()},
    }


def as_text(found: dict[str, Any], bundle: str) -> str:
    """Return the figures as a table."""
    stages = ", ".join(f"{stage} {ms:,.1f}" for stage, ms in found["thaw_ms"].items())
    each = found["thawed_tokens"] / found["thawed"]
    rows = [
        (
            "sessions",
            f"{found['sessions']:,} of {counted(found['tokens'], 'token')}, all decoded back and compared equal",
        ),
        ("content", size(found["content_bytes"])),
        ("frozen", f"{size(found['frozen_bytes'])}, every byte of the file (bundle {bundle})"),
        ("", f"{found['bits_per_byte']:.3f} bits per byte, {found['bits_per_token']:.2f} bits per token"),
        ("content : frozen", f"{found['ratio']:.1f}"),
    ]
    for name, count in found["kv_bytes"].items():
        rows.append((f"KV on {name}", f"{size(count)}, {found['kv_ratio'][name]:,.0f} times the frozen bytes"))
    rows += [
        ("encode", f"{found['encode_tokens_per_s']:,.0f} tokens/s"),
        ("decode", f"{found['decode_tokens_per_s']:,.0f} tokens/s, all sessions side by side"),
        ("thaw", f"{found['thaw_ms']['total']:,.1f} ms per session of {each:,.0f} tokens, one at a time ({stages})"),
    ]
    return pairs(rows, indent="")

"""``pltz thaw``: rebuild a session's KV cache in a target, and let the target continue."""

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pltz.archive import counted, size
from pltz.cli import VERSION, ArchiveCommand, nonempty, one_meant, open_archive, options, pairs, place_given, write_text
from pltz.coding import DEFAULT_TARGET
from pltz.plt_codec import ContentError, ModelError, UsageError

if TYPE_CHECKING:
    from pltz.archive import Archive, Version, VersionName
    from pltz.kv.store.snapshots import Snapshots
    from pltz.kv.store.store import KVStore
    from pltz.kv.thaw.thawed import Thawed
    from pltz.models import Target


@click.command(
    cls=ArchiveCommand,
    short_help="Rebuild the KV cache of one session.",
    examples=[
        "pltz thaw chats.pltz --session 7",
        "pltz thaw chats.pltz --session 7 --continue 40",
        "pltz thaw -r /data/cold support/7 --tenant acme",
        "pltz thaw support/7 --hot /var/cache/pltz --hot-budget 50",
        "pltz thaw chats.pltz --session 0 --target ./my-model --any-target --json",
    ],
)
@click.argument("file", metavar="FILE|NAME")
@click.option("--session", "index", type=click.IntRange(min=0), metavar="I", help="Session I of FILE, not NAME.")
@click.option("--tenant", type=nonempty, metavar="TENANT", help="Tenant of session NAME.  [default: default]")
@VERSION
@click.option(
    "--hot",
    "folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Of an archive: keep KV in this folder, and reuse the KV that is there.",
)
@click.option(
    "--hot-budget",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    metavar="GB",
    help="Total size of the files in --hot DIR.",
)
@options.TARGET
@click.option("--any-target", is_flag=True, help="Allow a target the file was not frozen for.")
@click.option(
    "--continue", "more", type=click.IntRange(min=0), default=0, metavar="N", help="Let the target write N more tokens."
)
@options.THREADS
@options.DEVICE
@options.JSON
def thaw(
    file: str,
    index: int | None,
    tenant: str | None,
    number: "VersionName | None",
    folder: str | None,
    hot_budget: float,
    target: str | None,
    any_target: bool,
    more: int,
    threads: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Rebuild the KV cache of the session NAME of an archive, or with --session of one of FILE.

    The session is read, decoded, and prefilled into the target in one pass. FILE may be - for stdin, and NAME the
    beginning of a name with a * behind it where one session alone begins so. Without --target the session is thawed
    into mini-llama, the small target that ships with pltz. A file frozen for one target does not thaw into another
    unless --any-target is given.

    Of an agent's log the conversation that the agent had is prefilled, by the target's chat template: instructions,
    user, assistant, calls of tools and their results. A session of more tokens than the target has positions is
    refused, before anything is loaded where that is known.

    With --hot DIR the KV of an archive's session is kept in files, in blocks. Later thaws of the same session, or of
    one of its tenant with the same prompt, prefill only the new part. Files of a sealed archive are encrypted, and end
    with the next erasure in their tenant. Others hold KV and tokens in the clear. Files go when nobody used them for 30
    days.
    """
    from pltz.kv.thaw.file import thaw as thaw_file
    from pltz.kv.thaw.thawer import Thawer
    from pltz.models import Target

    if index is None:
        if os.path.isfile(file) and not place_given():
            raise UsageError(f"name the session of {file} to thaw: --session I")
        start = time.perf_counter()
        cold = open_archive(device=device, threads=threads)
        name = one_meant(cold, file, tenant or "default")
        version = cold.directory.version(name, tenant or "default", number)
        # Refuse a session that is too long before the target's weights are loaded.
        want_positions(cold, version, target or DEFAULT_TARGET)
        model = Target.load(target or DEFAULT_TARGET, device=device)
        hot = hot_store(folder, hot_budget, model)
        thawer = Thawer(cold, model, hot, any_target=any_target)
        load_ms = 1e3 * (time.perf_counter() - start)
        thawed = thawer.thaw(name, tenant or "default", number)
        result = Result.of(thawed, model, more, load_ms, None if hot is None else hot.stats().hit_tokens)
        result.tell(as_json)
        if hot is not None:
            close(hot)
        return
    if tenant is not None or number is not None or folder is not None or place_given():
        raise UsageError("--session is that of a file: --archive, --tenant, --version and --hot are of an archive")
    with options.open_reader(file) as reader:
        start = time.perf_counter()
        codec = options.load_codec_for(reader, device, threads)
        model = Target.load(target or DEFAULT_TARGET, device=device)
        load_ms = 1e3 * (time.perf_counter() - start)
        thawed = thaw_file(reader, model, index, bundle=codec, any_target=any_target)
    result = Result.of(thawed, model, more, load_ms)
    result.tell(as_json)


def want_positions(cold: "Archive", version: "Version", target: str) -> None:
    """Refuse a session of more tokens than a target has positions, where that is known before the model is loaded.

    It is known of token ids. An agent's log has at least the tokens of its messages, which only decoding tells. It is
    decoded for that where zstd coded it, in no time, or where it is so large that it will hardly fit, which is said
    before. Raises ContentError.
    """
    from pltz.models import positions_of, resolve, tokenizer_json_of

    folder = resolve(target)
    most = positions_of(folder)
    if most is None:
        return
    least = tokens_at_least(cold, version, most, tokenizer_json_of(folder))
    if least > most:
        raise ContentError(
            f"session {version.name!r} has {least:,} tokens or more, and the target {target} {most:,} positions: "
            "thaw it into a target with a longer context (--target)"
        )


def tokens_at_least(cold: "Archive", version: "Version", most: int, tokenizer_json: bytes) -> int:
    """Return a number of tokens that a session has at least for a target of so many positions; 0 where it may fit."""
    from tokenizers import Tokenizer

    from pltz.archive import method_of, tokens_of
    from pltz.datasets import messages_of
    from pltz.models import kind_of
    from pltz.plt_codec import is_bytewise

    reader = cold.parts.reader
    if kind_of(version.kind) == "ids":
        return tokens_of(reader, version)
    if not is_bytewise(version.tokenizer):
        return 0
    by_zstd = method_of(reader.record(version.leaf).context) == "zstd"
    content = tokens_of(reader, version)
    if not by_zstd and content > USUAL * most:
        click.echo(
            f"session {version.name!r} is a log of {size(content)}, and the target has {most:,} positions: its "
            "conversation will hardly fit, which decoding it tells",
            err=True,
        )
    if not by_zstd and content <= PER_TOKEN * most:
        return 0
    messages = messages_of(cold.sessions.read(version))
    texts = [message["content"] for message in messages or ()]
    found = Tokenizer.from_str(tokenizer_json.decode()).encode_batch_fast(texts, add_special_tokens=False)
    return sum(len(one.ids) for one in found)


def hot_store(folder: str | None, budget: float, model: "Target") -> "KVStore | Snapshots | None":
    """Return a store that keeps KV in files only, as memory does not outlive the command. ``budget`` is in GB.

    None without a folder. Of a target whose KV cannot be cut into blocks it keeps whole caches.
    """
    if folder is None:
        return None
    from pltz.kv.store.snapshots import Snapshots
    from pltz.kv.store.store import KVStore

    room = int(budget * 1e9)
    hot: KVStore | Snapshots
    try:
        hot = KVStore.open(model, disk_bytes=room, folder=folder, queue_bytes=room)
    except ModelError:
        hot = Snapshots(model, 0, room, folder=folder)
    hot.expire(MAX_AGE)
    return hot


def close(hot: "KVStore | Snapshots") -> None:
    """Wait until new KV is in its files, and say how much of it is not."""
    hot.close()
    stats = hot.stats()
    if stats.dropped:
        why = f" ({stats.failure})" if stats.failure else ""
        click.echo(
            f"{counted(stats.dropped, 'block')} of KV did not go into --hot DIR{why}. Later thaws compute it again. "
            "Free room on the disk, or raise --hot-budget",
            err=True,
        )


MAX_AGE = 30 * 86_400.0  # seconds that a file of KV stays unused
PER_TOKEN = 64  # bytes of a log per token of its conversation: three times as many as logs have in the mean
USUAL = 20  # the same that logs have in the mean: of 16 logs 3 to 20, and over 50 where little is said


@dataclass(frozen=True)
class Result:
    """The result of a thaw. Sizes are in bytes, times in milliseconds."""

    tokens: int
    kv_bytes: int
    timings: dict[str, float]
    continuation: str | None  # without the end token
    ended: bool  # the target ended its turn before N tokens
    hot_tokens: int | None
    left_out: str  # of a log, by its conversation

    @classmethod
    def of(
        cls, thawed: "Thawed", model: "Target", more: int, load_ms: float, hot_tokens: int | None = None
    ) -> "Result":
        """Let the target write ``more`` tokens and gather the figures. Loading is not part of a thaw."""
        from pltz.models import cache_bytes

        timings = {"load (once)": load_ms} | thawed.timings
        kv_bytes = cache_bytes(thawed.cache)
        text, ended = None, False
        if more:
            start = time.perf_counter()
            new = model.generate(thawed.cache, thawed.token_ids, more, logits=thawed.logits)
            timings["continue"] = 1e3 * (time.perf_counter() - start)
            ended = bool(new) and new[-1] in model.eos_ids
            text = model.decode(new[:-1] if ended else new)
        return cls(len(thawed.token_ids), kv_bytes, timings, text, ended, hot_tokens, thawed.left_out)

    def tell(self, as_json: bool) -> None:
        """Print the figures, and on stderr what was left out."""
        if self.left_out:
            click.echo(f"note: {self.left_out}", err=True)
        write_text(json.dumps(self.as_json()) if as_json else self.text())

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        timings = {stage.replace(" (once)", "") + "_ms": round(ms, 3) for stage, ms in self.timings.items()}
        return {
            "tokens": self.tokens,
            "kv_bytes": self.kv_bytes,
            **timings,
            "continuation": self.continuation,
            "ended": self.ended,
            "left_out": self.left_out or None,
            **({} if self.hot_tokens is None else {"hot_tokens": self.hot_tokens}),
        }

    def text(self) -> str:
        """Return the figures as text, with the continuation at the end."""
        rows = [("tokens", f"{self.tokens:,}"), ("KV", size(self.kv_bytes))]
        if self.hot_tokens is not None:
            rows.append(("hot", counted(self.hot_tokens, "token")))
        rows += [(stage, f"{ms:,.1f} ms") for stage, ms in self.timings.items()]
        return pairs(rows, indent="") + ("" if self.continuation is None else f"\n\n{self._says()}")

    def _says(self) -> str:
        """Return the continuation under a heading, or a line that says why there is none."""
        if not self.continuation:
            return "says nothing: it ends its turn at once" if self.ended else "says nothing"
        return f"says next{' and ends its turn' if self.ended else ''}:\n\n{self.continuation}"

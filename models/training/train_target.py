"""Train the embedded target: a small Llama in Hugging Face format, from a token file, in a given time.

The target exists to make demo and tests real: a chat model with KV, chat template and weights of its own,
small enough to ship (7.3 M parameters, 14.7 MB in bf16). It reads the same ids as the decoder bundle. Its
tokenizer is the bundle's, with the 32 specials turned into added special tokens of the same ids. Its chat
template writes the same as models/session/transcript.py: a role token, then the content, nothing between.

The whole token stream lies on the device (2 bytes per token). A batch is random windows of it, half of them
from the start of a session, because a served chat starts there. Most are --length tokens long. From 60 % of
the time on, every second batch holds windows of --long-length, so that late positions are not foreign.
AdamW's learning rate warms up, then falls linearly to zero. Both go by the clock: the run ends when --seconds
are over, on any machine. Compiling comes before the clock starts.

Usage, on one GPU (a CPU does for a smoke test):

    python -m pltz.models.training.train_target DATA --out models/targets/mini-llama \\
        --tokenizer bundle_tokenizer.json --seconds 150

DATA holds train.bin (uint16 little-endian, sessions one after another) and train.offsets.npy (int64, the
start of each session and the end of the last). It may hold val.bin. This file imports nothing of pltz, so it
can also be copied to a bare training machine and run as a script.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

SPECIALS = 32  # ids 0..31 of the bundle's vocabulary
END_IDS = list(range(12))  # every structural special ends an assistant's turn; ids 12..31 are reserved or escapes
WARMUP = 0.02  # share of the time
LONG_FROM = 0.6  # share of the time after which every second batch is of long windows
EVAL_EVERY = 30.0  # seconds

# The template writes the messages of a chat in the plain style of models/session/transcript.py: a role token and the
# text. If the message has other keys or another order of keys, <|message|> and a list of the message without role and
# text follow. A message without a text or with another role is <|message|> and the message. In two cases it differs:
# transcript.py writes other roles as <|user|> with a note, and transformers hides a null content (and doubles a
# reasoning) before a template sees them.
CHAT_TEMPLATE = """
{%- for m in messages -%}
{%- set c = m['content'] -%}
{%- set parted = c is iterable and c is not string and c is not mapping and c | length > 0 and c[0] is mapping
    and c[0].keys() | list == ['type', 'text'] and c[0]['type'] == 'text' and c[0]['text'] is string -%}
{%- if m['role'] in ROLES and (c is string or parted) -%}
{{- '<|' + m['role'] + '|>' + (c[0]['text'] if parted else c) -}}
{%- set plain = c is string and (m.keys() | list)[:2] == ['role', 'content'] -%}
{%- set hollow = [{'type': 'text', 'text': none}] + c[1:] if parted else none -%}
{%- set ns = namespace(mould=[]) -%}
{%- for key, value in m.items() -%}
{%- if key not in ['role', 'content'] -%}
{%- set ns.mould = ns.mould + [[key, value]] -%}
{%- elif not plain -%}
{%- set ns.mould = ns.mould + [[key, hollow if key == 'content' else none]] -%}
{%- endif -%}
{%- endfor -%}
{%- if ns.mould -%}{{- '<|message|>' + [dict(ns.mould)] | tojson(separators=(',', ':')) -}}{%- endif -%}
{%- else -%}
{{- '<|message|>' + m | tojson(separators=(',', ':')) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
""".strip().replace("ROLES", "['system', 'user', 'assistant', 'tool', 'developer', 'function']")


class Stream:
    """A token stream on the device, and windows of it.

    Raises:
        SystemExit: a token is outside the vocabulary, or there are none.
    """

    def __init__(self, path: Path, offsets: Path | None, vocab: int, device: torch.device) -> None:
        tokens = np.memmap(path, dtype="<u2", mode="r")
        if tokens.size == 0 or int(tokens.max()) >= vocab:
            raise SystemExit(
                f"expected tokens below {vocab} in {path}, found {tokens.size} tokens, some above"
            )
        # Ids are below 2^15 (checked with the arguments), so the signed type, which torch can index, holds them.
        self.tokens = torch.from_numpy(tokens.astype(np.int16)).to(device)
        starts = np.zeros(1, np.int64) if offsets is None else np.load(offsets)[:-1]
        self.starts = torch.from_numpy(starts.astype(np.int64)).to(device)

    def windows(self, count: int, length: int, rng: torch.Generator) -> torch.Tensor:
        """Return ids (count, length + 1): the first half from starts of sessions, the others from anywhere."""
        device, last = self.tokens.device, len(self.tokens) - length - 1
        anywhere = torch.randint(0, last + 1, (count,), generator=rng, device=device)
        session = self.starts[torch.randint(0, len(self.starts), (count,), generator=rng, device=device)]
        from_start = torch.arange(count, device=device) < count // 2
        at = torch.where(from_start, session.clamp(max=last), anywhere)
        return self.tokens[at[:, None] + torch.arange(length + 1, device=device)].long()


def causal_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # (B, heads, T, D)
    key: torch.Tensor,  # (B, kv heads, T, D)
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention (B, T, heads, D) for training: always causal, never a mask.

    transformers hands its sdpa attention a T x T mask while torch.compile traces, which rules out the flash
    kernel.
    """
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


def build_model(args: argparse.Namespace) -> LlamaForCausalLM:
    """Return a model of random weights in the shape of the arguments."""
    AttentionInterface.register("pltz_causal", causal_attention)
    config_class: Any = LlamaConfig  # its hints leave out arguments that every config takes
    config = config_class(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=args.positions,  # rope theta 10000 is the default
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="pltz_causal",
    )
    return LlamaForCausalLM(config)


def optimizer_of(model: torch.nn.Module, rate: float, fused: bool) -> torch.optim.AdamW:
    """Return AdamW with weight decay on the matrices alone."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=fused)


def rate_at(share: float) -> float:
    """Return the learning rate as a share of its peak, when this share of the time has passed."""
    return min(share / WARMUP, 1.0) * max(0.0, 1.0 - max(share - WARMUP, 0.0) / (1.0 - WARMUP))


class Trainer:
    """The model, its data and the clock."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.gpu = self.device.type == "cuda"
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        model: Any = build_model(args)  # its hints hide nn.Module.to
        self.model = model.to(self.device).train()
        offsets = args.data / "train.offsets.npy"
        self.train = Stream(args.data / "train.bin", offsets, args.vocab, self.device)
        val = args.data / "val.bin"
        self.val = Stream(val, None, args.vocab, self.device) if val.is_file() else None
        self.rng = torch.Generator(self.device).manual_seed(args.seed)
        self.optimizer = optimizer_of(self.model, args.rate, fused=self.gpu)
        self.loss_of: Callable[[torch.Tensor], torch.Tensor] = self.plain_loss
        self.lengths = [args.length, *([args.long_length] if args.long_length else [])]

    def plain_loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the mean nats per token of ids (B, T + 1)."""
        logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits  # (B, T, V)
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def batch(self, length: int) -> torch.Tensor:
        """Return a batch of windows, (B, length + 1)."""
        return self.train.windows(max(1, self.args.batch_tokens // length), length, self.rng)

    def forward(self, length: int) -> torch.Tensor:
        """Return the loss of a fresh batch; matrix products in bf16 on a GPU, the weights stay float32."""
        batch = self.batch(length)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.gpu):
            return self.loss_of(batch)

    def compile(self) -> None:
        """Compile for both lengths; go on without, if this machine cannot."""
        started = time.monotonic()
        # One graph per length: a graph of dynamic shape, which a second length would bring, is slower.
        self.loss_of = torch.compile(self.plain_loss, dynamic=False)
        try:
            for length in self.lengths:
                self.forward(length).backward()
        except (RuntimeError, OSError, ImportError) as exc:  # no C compiler, no triton, an unknown operation
            print(f"not compiled: {type(exc).__name__}: {str(exc)[:300]}", flush=True)
            self.loss_of = self.plain_loss
        self.optimizer.zero_grad(set_to_none=True)
        print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)

    def step(self, length: int, rate: float) -> torch.Tensor:
        """Run one step on a batch of windows of this length, and return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.forward(length)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> float | None:
        """Return mean nats per token on at most 64 windows of the validation stream, always the same; None
        without one."""
        length = self.args.length
        if self.val is None or len(self.val.tokens) <= length:
            return None
        at = torch.linspace(0, len(self.val.tokens) - length - 1, 64, dtype=torch.float64)
        losses = []
        for start in sorted({int(i) for i in at.tolist()}):
            window = self.val.tokens[start : start + length + 1].long()[None]
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.gpu):
                losses.append(float(self.plain_loss(window)))
        return sum(losses) / len(losses)

    def run(self) -> dict[str, Any]:
        """Train until the time is over, and return the record of the run.

        Raises:
            SystemExit: the loss is not finite.
        """
        args, steps, tokens = self.args, 0, 0
        started = logged = evaluated = time.monotonic()
        mean, logged_tokens = torch.zeros((), device=self.device), 0
        while (share := (time.monotonic() - started) / args.seconds) < 1.0:
            length = self.lengths[-1] if share > LONG_FROM and steps % 2 else args.length
            loss = self.step(length, args.rate * rate_at(share))
            mean = loss if steps == 0 else mean.lerp(loss, 0.05)
            steps += 1
            tokens += max(1, args.batch_tokens // length) * length
            if steps % 8 == 0 and self.gpu:
                torch.cuda.synchronize()  # the clock decides, so the queue of the device must stay short
            now = time.monotonic()
            if now - logged >= args.log_every:
                speed = (tokens - logged_tokens) / (now - logged)
                print(
                    f"{now - started:6.0f} s  step {steps}  loss {float(mean):.4f}  {speed:,.0f} tokens/s",
                    flush=True,
                )
                logged, logged_tokens = now, tokens
            if now - evaluated >= EVAL_EVERY and self.val is not None:
                print(f"{now - started:6.0f} s  val loss {self.evaluate():.4f}", flush=True)
                evaluated = time.monotonic()
        if not math.isfinite(float(mean)):
            raise SystemExit(f"expected a finite loss, found {float(mean)}: nothing saved, lower --rate")
        self.model.to(torch.bfloat16)  # the last figure is of the weights that are saved
        val = self.evaluate()
        print(f"end: step {steps}, {tokens:,} tokens, loss {float(mean):.4f}, val loss {val}", flush=True)
        return {"steps": steps, "tokens": tokens, "train_loss": round(float(mean), 4), "val_loss": val}


def target_tokenizer(bundle: dict[str, Any]) -> dict[str, Any]:
    """Return the bundle's tokenizer.json with its specials as added special tokens of the same ids.

    The bundle keeps them out of text's reach; a target needs them in reach of its chat template.
    """
    pieces = {i: piece for piece, i in bundle["model"]["vocab"].items() if i < SPECIALS}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": pieces[i], **flags} for i in range(SPECIALS)]
    return {**bundle, "added_tokens": added}


def write_tokenizer(bundle_json: Path, out: Path, positions: int) -> None:
    """Write tokenizer.json and tokenizer_config.json of the target, from the bundle's tokenizer."""
    tokenizer = target_tokenizer(json.loads(bundle_json.read_bytes()))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }
    _write_json(out / "tokenizer.json", tokenizer, indent=None)
    _write_json(out / "tokenizer_config.json", settings)


def save(model: Any, record: dict[str, Any], args: argparse.Namespace) -> None:
    """Write the target: config, weights in bf16 safetensors, generation config, tokenizer, record of the run."""
    args.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)  # safetensors writes it for its owner alone
    _write_json(args.out / "generation_config.json", {"do_sample": False, "eos_token_id": END_IDS})
    if args.tokenizer is not None:
        write_tokenizer(args.tokenizer, args.out, args.positions)
    _write_json(args.out / "training.json", record)


def _write_json(path: Path, value: dict[str, Any], indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the arguments."""
    parser = argparse.ArgumentParser(description="Train a small Llama from a token file, in a given time.")
    parser.add_argument(
        "data", type=Path, help="folder with train.bin, train.offsets.npy and perhaps val.bin"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the target")
    parser.add_argument("--tokenizer", type=Path, help="the bundle's tokenizer.json")
    parser.add_argument("--seconds", type=float, default=150.0, help="training time, after compiling")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--intermediate", type=int, default=768)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=16384, help="rows of the embedding, at most 32768")
    parser.add_argument("--positions", type=int, default=8192, help="max_position_embeddings")
    parser.add_argument("--length", type=int, default=1024, help="tokens a window")
    parser.add_argument("--long-length", type=int, default=8192, help="tokens a long window, 0 for none")
    parser.add_argument("--batch-tokens", type=int, default=65536, help="tokens a batch")
    parser.add_argument("--rate", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=None, help="default: on a GPU"
    )
    parser.add_argument("--log-every", type=float, default=10.0, help="seconds")
    args = parser.parse_args(argv)
    for name in ("train.bin", "train.offsets.npy"):
        if not (args.data / name).is_file():
            parser.error(f"expected {name} in {args.data}, found none")
    if args.tokenizer is not None and not args.tokenizer.is_file():
        parser.error(f"expected a tokenizer.json, found no file {args.tokenizer}")
    if not 0 < args.vocab <= 32768:
        parser.error(f"expected a vocabulary of at most 32768, found {args.vocab}")
    if max(args.length, args.long_length) > args.positions:
        parser.error(f"expected windows of at most {args.positions} tokens (--positions)")
    longest = max(args.length, args.long_length) + 1
    if (args.data / "train.bin").stat().st_size // 2 < longest:
        parser.error(f"expected at least {longest} tokens in train.bin: a shorter --length, --long-length 0")
    if not math.isfinite(args.seconds) or args.seconds <= 0:
        parser.error(f"expected a time above 0, found {args.seconds}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described at the top of this file."""
    args = parse(argv)
    trainer = Trainer(args)
    count = sum(p.numel() for p in trainer.model.parameters())
    print(f"{count:,} parameters, {len(trainer.train.tokens):,} training tokens, {args.device}", flush=True)
    if args.compile if args.compile is not None else trainer.gpu:
        trainer.compile()
    settings = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}  # paths are of this machine
    record = {
        "parameters": count,
        "train_tokens": len(trainer.train.tokens),
        **trainer.run(),
        "settings": settings,
    }
    save(trainer.model, record, args)
    print(f"saved {args.out}", flush=True)


if __name__ == "__main__":
    main()

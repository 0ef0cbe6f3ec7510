"""The tokenizer files of a target that reads a bundle's ids.

Its tokenizer is the bundle's, with the 32 specials turned into added special tokens of the same ids. Its chat
template writes the same as models/session/transcript.py: a role token, then the content, nothing between.
`mini-llama` is such a target.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIALS = 32  # ids 0..31 of the bundle's vocabulary

# The template writes the messages of a chat in the plain style of models/session/transcript.py: a role token and the
# text. If the message has other keys or another order of keys, <|message|> and a list of the message without role and
# text follow. A message without a text or with another role is <|message|> and the message. In three cases it differs:
# transcript.py writes other roles as <|user|> with a note and a list that comes again as [], and transformers hides a
# null content (and doubles a reasoning) before a template sees them.
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


def _write_json(path: Path, value: dict[str, Any], indent: int | None = 2) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")

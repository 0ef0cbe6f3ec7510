"""ReplyText: ids of a reply to text, piece by piece, up to a stop string. Also the ids that a turn of a chat adds.

A piece never ends inside of a character, and never shows the beginning of a stop string that may follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pltz.plt_codec import ContentError

if TYPE_CHECKING:
    from pltz.models import Target

BROKEN = "\ufffd"  # the end of a character whose other bytes are still to come
LONGEST = 16  # ids after which a piece is shown although it does not decode
FORMER = "pltz former question", "pltz former answer"


class ReplyText:
    """The text of a reply. ``ended``: a stop string was met; what follows is not shown."""

    def __init__(self, target: Target, stops: Sequence[str] = ()) -> None:
        self._target, self._stops = target, stops
        self._ids: list[int] = []
        self._shown = 0  # ids of `_ids` whose text was given
        self._held = ""
        self.ended = False

    def add(self, one: int) -> str:
        """Return the text that an id adds. Ids that end a reply, and special ones, have none."""
        if self.ended or one in self._target.eos_ids:
            return ""
        self._ids.append(one)
        before, whole = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        if whole.endswith(BROKEN) and len(self._ids) - self._shown < LONGEST:
            return ""
        # the last ids shown stay, since an id may look otherwise at the beginning of a text
        self._ids, self._shown = self._ids[self._shown :], len(self._ids) - self._shown
        return self._cut(whole[len(before) :])

    def rest(self) -> str:
        """Return what was held back, at the end of a reply."""
        if self.ended:
            return ""
        new = self._decode(self._ids)[len(self._decode(self._ids[: self._shown])) :]
        self._shown = len(self._ids)
        found = self._cut(new)
        held, self._held = self._held, ""
        return found + ("" if self.ended else held)

    def _decode(self, ids: Sequence[int]) -> str:
        found = self._target.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(found)

    def _cut(self, new: str) -> str:
        """Return the text to show now, up to a stop string."""
        text = self._held + new
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.ended, self._held = True, ""
            return text[: min(places)]
        held = max((n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def chat_ids(
    target: Target,
    messages: Sequence[dict[str, Any]],
    before: Sequence[int],
    tools: Sequence[dict[str, Any]] = (),
    system: str = "",
) -> list[int]:
    """Return the ids that messages add after ``before``, the ids of a chat up to a reply; all ids where it is empty.

    After a reply they are what the template writes after a former answer. ``tools``, ``system``: that a chat begins
    with, or that ``before`` began with.

    Raises ContentError where the template writes nothing there, where it writes no tools, and where the chat began
    without them; and the errors of `Target.render`.
    """
    head = [{"role": "system", "content": system}] if system else []
    written = "\n".join(_head_lines(target, (), tools)) if tools else ""
    if not all(tool["function"]["name"] in written for tool in tools):
        raise ContentError("this model's chat template writes no tools: leave them out")
    if not len(before):
        chat = {"messages": [*head, *messages], "tools": list(tools) or None}
        return target.render(chat, add_generation_prompt=True)
    if tools or system:
        begun = target.tokenizer.decode(list(before), clean_up_tokenization_spaces=False)
        heads, whole = [head] if system else [[], [{"role": "system", "content": FORMER[1]}]], set(begun.splitlines())
        if not any(all(line in begun for line in _head_lines(target, one, tools) - whole) for one in heads):
            raise ContentError("this session began with other instructions or tools: leave these out, or begin anew")
    former = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), FORMER, strict=True)]
    text = _written(target, [*former, *messages], tools, add_generation_prompt=True)
    _, found, rest = text.partition(FORMER[1])
    if not found:
        raise ContentError('this chat template does not continue a chat: send all messages, with "append": false')
    ids = target.tokenize(rest)
    return ids[1:] if before[-1] in target.eos_ids and ids[:1] == [before[-1]] else ids


def _head_lines(target: Target, head: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> set[str]:
    """Return the lines that tools and instructions add before the first message of a chat. Raises ContentError."""
    user = {"role": "user", "content": FORMER[0]}
    texts = _written(target, [*head, user], tools), _written(target, [user], ())
    own, bare = ({line.strip() for line in text.partition(FORMER[0])[0].splitlines()} for text in texts)
    return {line for line in own - bare if FORMER[1] not in line}


def _written(target: Target, chat: list[dict[str, Any]], tools: Sequence[dict[str, Any]], **options: Any) -> str:
    """Return a chat as the template writes it. Raises ContentError."""
    if not getattr(target.tokenizer, "chat_template", None):
        raise ContentError("this model has no chat template: use completions")
    try:
        text = target.tokenizer.apply_chat_template(chat, tools=list(tools) or None, tokenize=False, **options)
    except Exception as exc:  # a template can raise any error of its author or of jinja
        raise ContentError(f"the target's chat template refuses these messages ({exc})") from exc
    return str(text)


def prompt_ids(target: Target, prompt: str | Sequence[int]) -> list[int]:
    """Return the ids of a prompt. Raises ContentError."""
    return target.tokenize(prompt) if isinstance(prompt, str) else [int(one) for one in prompt]

"""Answer: replies in the forms of OpenAI's API, as one JSON object or as server-sent events.

    answer = Answer(chat, "mini-llama", target, replies)
    answer.stream(usage=True)                      # events
    async for _ in answer.pieces(): ...            # or all of it,
    answer.whole()                                 # then the object
    answer.close()                                 # in any case
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pltz.plt_codec import PltzError
from pltz.serving.server.errors import Refused, failure
from pltz.serving.server.service import Done, Piece, Reply
from pltz.serving.server.sessions import PATIENCE
from pltz.serving.server.tools import CallReader

if TYPE_CHECKING:
    from pltz.models import Target

BROKEN = "\ufffd"  # a part of a character


class Answer:
    """The replies to one request. ``chat``: of a chat completion. ``model``: its name. ``tools``: their names."""

    def __init__(
        self, chat: bool, model: str, target: Target, replies: Sequence[Reply], tools: Collection[str] = ()
    ) -> None:
        self._chat, self._target, self._replies = chat, target, replies
        self._pieces: list[list[Piece]] = [[] for _ in replies]
        self._readers = [CallReader(tools) for _ in replies]
        self._calls: list[list[dict[str, Any]]] = [[] for _ in replies]
        self._shown = [0] * len(replies)  # characters of each that were told of
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    async def pieces(self) -> AsyncIterator[tuple[int, Piece | Done]]:
        """Yield what the replies bring, with their numbers, as it comes, and an empty piece in a second without any.

        Raises what ended one early.
        """
        left, waited = len(self._replies), 0.0
        while left:
            try:
                number, found = await asyncio.wait_for(self._replies[0].out.get(), 1.0)
            except TimeoutError:
                # a turn ended, and the journal is not written
                waited = waited + 1 if any(one.turn.end and not one.done for one in self._replies) else 0.0
                if waited >= PATIENCE:
                    raise Refused(503, "this turn is not durable yet: ask for the session's tokens later") from None
                yield 0, Piece("")
                continue
            if isinstance(found, PltzError):
                raise found
            if isinstance(found, Piece):
                found = replace(found, text=self._readers[number].add(found.text))
                self._pieces[number].append(found)
            else:
                left -= 1
                text, self._calls[number] = self._readers[number].end()
                if text:
                    self._pieces[number].append(Piece(text))
                    yield number, Piece(text)
                if self._calls[number] and found.reason == "stop":
                    found = self._replies[number].done = replace(found, reason="tool_calls")
            yield number, found

    def close(self) -> None:
        """Cancel what still runs."""
        for reply in self._replies:
            reply.cancel()

    def whole(self) -> dict[str, Any]:
        """Return the answer in one piece, once `pieces` has ended."""
        choices = []
        for number, (pieces, reply) in enumerate(zip(self._pieces, self._replies, strict=True)):
            text = "".join(piece.text for piece in pieces)
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if self._calls[number]:
                message |= {"content": text or None, "tool_calls": self._calls[number]}
            said = {"message": message} if self._chat else {"text": text}
            told = self._told(number, pieces)
            assert reply.done is not None
            choices.append({"index": number, **said, "logprobs": told, "finish_reason": reply.done.reason})
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self._usage()} | self._session()

    async def stream(self, usage: bool) -> AsyncIterator[bytes]:
        """Yield server-sent events: pieces of text, the end of a durable turn, and [DONE]. Or an error, and no end."""
        if self._chat:
            for number in range(len(self._replies)):
                yield self._event(number, {"role": "assistant", "content": ""})
        try:
            async for number, found in self.pieces():
                if isinstance(found, Done):
                    for index, call in enumerate(self._calls[number]):
                        yield self._event(number, {"tool_calls": [{"index": index, **call}]})
                    yield self._event(number, {}, reason=found.reason, more=self._session())
                elif found.text or found.tokens:
                    yield self._event(number, {"content": found.text}, self._told(number, [found]))
                else:
                    yield b": waiting\n\n"
        except PltzError as exc:
            yield b"data: " + json.dumps(failure(exc)).encode() + b"\n\n"
            return
        if usage:
            yield self._line({"choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _told(self, number: int, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """Return the likelihoods in pieces of a reply, as the API gives them; None where they are not asked for."""
        if self._replies[number].turn.sampling.top is None:
            return None
        tokens = [one for piece in pieces for one in piece.tokens]
        if self._chat:
            return {
                "content": [
                    self._token(one, found.logprob)
                    | {"top_logprobs": [self._token(other, logprob) for other, logprob in found.top]}
                    for one, found in tokens
                ],
                "refusal": None,
            }
        offsets = []
        for piece in pieces:
            at, self._shown[number] = self._shown[number], self._shown[number] + len(piece.text)
            for one, _ in piece.tokens:
                offsets.append(min(at, self._shown[number]))
                at += len(self._word(one)) if self._whole(one) else 0
        return {
            "tokens": [self._word(one) for one, _ in tokens],
            "token_logprobs": [found.logprob for _, found in tokens],
            "top_logprobs": [{self._word(other): logprob for other, logprob in found.top} for _, found in tokens],
            "text_offset": offsets,
        }

    def _token(self, one: int, logprob: float) -> dict[str, Any]:
        word = self._word(one)
        return {"token": word, "logprob": logprob, "bytes": list(word.encode()) if self._whole(one) else None}

    def _word(self, one: int) -> str:
        """Return the text of a token, or its number where it is a part of a character."""
        return self._decoded(one) if self._whole(one) else f"token_id:{one}"

    def _whole(self, one: int) -> bool:
        return BROKEN not in self._decoded(one)

    def _decoded(self, one: int) -> str:
        return str(self._target.tokenizer.decode([one], clean_up_tokenization_spaces=False))

    def _event(
        self,
        number: int,
        delta: dict[str, Any],
        told: dict[str, Any] | None = None,
        *,
        reason: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> bytes:
        said: dict[str, Any] = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        choice = {"index": number, **said, "logprobs": told, "finish_reason": reason}
        return self._line({"choices": [choice], **(more or {})})

    def _line(self, fields: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return b"data: " + json.dumps({**self._head, "object": kind, **fields}).encode() + b"\n\n"

    def _usage(self) -> dict[str, Any]:
        done = [reply.done for reply in self._replies if reply.done is not None]
        new, given = sum(one.new_tokens for one in done), done[0].prompt_tokens
        cached = done[0].cached
        found = {"cached_tokens": sum(cached.values()), "cached_from": cached}
        return {
            "prompt_tokens": given, "completion_tokens": new, "total_tokens": given + new,
            "prompt_tokens_details": found,
        }  # fmt: skip

    def _session(self) -> dict[str, Any]:
        done = self._replies[0].done
        return {} if done is None or done.session is None else {"session": done.session}

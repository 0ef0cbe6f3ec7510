"""A session becomes bundle tokens and comes back equal; common chats cost no more than their text."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from pltz.models.bundle.tokenizer import SPECIALS, BundleTokenizer
from pltz.models.session import transcript
from pltz.models.session.session import Session
from pltz.models.session.transcript import conversation_ids, from_tokens, refuse_opaque, to_tokens
from pltz.plt_codec.errors import ContentError, CorruptError, OpaqueContentError, TokenizerMismatch
from tests.examples import examples
from tests.models.session.test_json_value import scalars

GOLDEN = Path(__file__).parents[2] / "golden" / "vectors"
strings = st.text(st.characters(exclude_categories=()), max_size=12)
prose = st.builds("{} and \n{} more words".format, strings, strings)  # a text that a frame lifts out
json_values = st.recursive(
    scalars | prose,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=8,
)

# Values that look like chats in every way that has a form of its own, and in ways that nearly have one.
role_names = st.sampled_from(
    ["system", "user", "assistant", "tool", "developer", "function", "human", "gpt", "bot", "narrator", ""]
)
part = st.fixed_dictionaries({"type": st.just("text"), "text": strings | st.none()})
contents = strings | st.none() | st.lists(part | json_values, max_size=3) | json_values
keys = st.sampled_from(["role", "content", "from", "value", "name", "tool_calls", "tool_call_id"])
plain = st.fixed_dictionaries({"role": role_names, "content": contents})
gpt = st.fixed_dictionaries({"from": role_names, "value": contents})
odd = st.dictionaries(keys, role_names | contents, max_size=4)
carrying = st.tuples(plain | gpt, odd).map(lambda both: {**both[1], **both[0]})
carrying_after = st.tuples(plain | gpt, odd).map(lambda both: {**both[0], **both[1]})
message = plain | gpt | odd | carrying | carrying_after
conversation = st.lists(message, max_size=4) | st.lists(plain, max_size=4) | st.lists(gpt, max_size=4)
containers = st.sampled_from(["messages", "conversations", "conversation", "id"])
beside = containers | st.sampled_from(["system", "tools", "instructions"])
whole = st.dictionaries(beside, conversation | json_values | prose, max_size=4)
chats = whole | conversation | st.lists(message | json_values, max_size=3)


def _text_only(value: Any) -> bool:
    try:
        refuse_opaque(Session("chat", value))
    except OpaqueContentError:
        return False
    return True


@settings(max_examples=examples(300))
@given(value=chats.filter(_text_only))
def test_every_chat_comes_back(tiny_tokenizer: BundleTokenizer, value: Any) -> None:
    session = Session("chat", value)
    tokens = to_tokens(session, tiny_tokenizer)
    assert tokens.dtype == np.int32 and from_tokens("chat", tokens, tiny_tokenizer) == session


def test_ids_are_themselves(tiny_tokenizer: BundleTokenizer) -> None:
    session = Session("ids", [0, 31, 32, 1023])
    assert to_tokens(session, tiny_tokenizer).tolist() == [0, 31, 32, 1023]
    assert from_tokens("ids", [0, 31, 32, 1023], tiny_tokenizer) == session
    with pytest.raises(TokenizerMismatch, match=r"0\.\.1023, found 1024"):
        to_tokens(Session("ids", [1024]), tiny_tokenizer)


def shown(tokens: Iterable[int], tokenizer: BundleTokenizer) -> str:
    """Tokens as text with specials by name."""
    pieces = [f"<|{SPECIALS[i]}|>".encode() if i < len(SPECIALS) else tokenizer.pieces[i] for i in tokens]
    return b"".join(pieces).decode("utf-8", "surrogateescape")


HI = {"role": "user", "content": "Hi"}
FORMS: list[tuple[Any, str]] = [  # beside those of tests/golden/vectors/chats.json
    (
        {"system": "You sell bells.\n", "conversations": []},
        '<|sharegpt|><|system|>You sell bells.\n<|meta|>[{"system":""},1]<|meta|>{"system":null,"conversations":null}',
    ),
    ({"system": "You sell bells", "messages": [HI]}, '<|user|>Hi<|meta|>{"system":"You sell bells","messages":null}'),
    ({"messages": [], "id": 1}, '<|meta|>{"messages":[],"id":1}'),
    ({"conversations": [], "id": 1}, '<|sharegpt|><|meta|>{"conversations":null,"id":1}'),
    ({"messages": ["a"]}, '<|meta|>{"messages":["a"]}'),
]


@pytest.mark.parametrize("value, form", FORMS, ids=[form[:40] for _, form in FORMS])
def test_each_form(tiny_tokenizer: BundleTokenizer, value: Any, form: str) -> None:
    tokens = to_tokens(Session("chat", value), tiny_tokenizer)
    assert shown(tokens.tolist(), tiny_tokenizer) == form


def test_conversation_ids_leave_style_head_and_meta_out(tiny_tokenizer: BundleTokenizer) -> None:
    for vector in json.loads((GOLDEN / "chats.json").read_text("utf8")):
        if "value" in vector:
            tokens = to_tokens(Session("chat", vector["value"]), tiny_tokenizer)
            names = [name for name, _ in vector["segments"]]
            starts = [*np.flatnonzero(tokens < len(SPECIALS)), len(tokens)]
            begin = int(names[:1] in (["list"], ["sharegpt"]))
            begin = names.index("meta") + 1 if "meta" in names[:-1] else begin  # after the head
            end = len(names) - (names[-1:] == ["meta"])
            assert conversation_ids(tokens).tolist() == tokens[starts[begin] : starts[end]].tolist(), vector["rule"]


MOULDED = [
    {"role": "user", "content": "a", "name": None},
    {"role": "user", "content": "b"},
    {"role": "user", "content": "c", "name": None},  # again, of the same special
    {"role": "user", "content": "d", "name": None},  # as usual
    {"content": "e", "role": "assistant"},
    {"content": "f", "role": "assistant"},
    {"role": "assistant", "content": "g"},
    {"content": "h", "role": "tool"},  # as the assistant's before
    {"role": "user", "content": "i", "name": 1},
    {"role": "user", "content": "j", "name": True},
    {"role": "user", "content": "k", "name": None},
]
MOULDED_FORMS = (
    '<|user|>a<|message|>[{"name":null}]', "<|user|>b", "<|user|>c<|message|>[]", "<|user|>d",
    '<|assistant|>e<|message|>[{"content":null,"role":null}]', "<|assistant|>f<|message|>[]",
    "<|assistant|>g<|message|>[{}]", "<|tool|>h<|message|>[]", '<|user|>i<|message|>[{"name":1}]',
    '<|user|>j<|message|>[{"name":true}]', "<|user|>k",
)


@pytest.mark.parametrize("item", [{}, {"a": 1}])
def test_many_objects_that_say_nothing_are_one_segment(
    tiny_tokenizer: BundleTokenizer, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "MANY", 20)
    for many, said in ((20, []), (21, []), (21, [{"role": "user", "content": "Hi"}])):
        session = Session("chat", [item] * many + said)
        tokens = to_tokens(session, tiny_tokenizer)
        assert from_tokens("chat", tokens, tiny_tokenizer) == session
        assert (SPECIALS[tokens[0]] == "meta") == (many > 20 and not said)


def test_a_mould_that_comes_again_is_said_once(tiny_tokenizer: BundleTokenizer) -> None:
    session = Session("chat", {"messages": MOULDED})
    tokens = to_tokens(session, tiny_tokenizer)
    assert shown(tokens.tolist(), tiny_tokenizer) == "".join(MOULDED_FORMS)
    assert from_tokens("chat", tokens, tiny_tokenizer) == session
    for count in range(len(MOULDED)):  # what is said depends on the messages before alone
        part = to_tokens(Session("chat", {"messages": MOULDED[:count]}), tiny_tokenizer)
        assert part.tolist() == tokens[: len(part)].tolist()


def test_few_tokens_never_become_much_json(tiny_tokenizer: BundleTokenizer) -> None:
    mould = {"pad": "x" * 5000}
    session = Session("chat", [{"role": "user", "content": "a", **mould} for _ in range(400)])
    tokens = to_tokens(session, tiny_tokenizer)
    assert from_tokens("chat", tokens, tiny_tokenizer) == session
    said = shown(tokens.tolist(), tiny_tokenizer).count("x" * 5000)
    assert 400 / 5 - 5 < said < 400 / 5 + 1  # the first, and one for each four that are not
    part = to_tokens(Session("chat", session.value[:200]), tiny_tokenizer)
    assert part.tolist() == tokens[: len(part)].tolist()
    row = [("user", b"a"), ("message", b'[{"pad":"%s"}]' % (b"x" * 5000)), ("user", b"b"), ("message", b"[]")]
    with pytest.raises(CorruptError, match="moulds"):
        from_tokens("chat", built(tiny_tokenizer, *row, *[("user", b"")] * 400), tiny_tokenizer)


few = st.sampled_from([{}, {"name": None}, {"name": 1}, {"name": True}, {"parts": [[]]}])
again = st.builds(
    lambda role, beside, first: {**beside, **role} if first else {**role, **beside},
    st.sampled_from([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]), few, st.booleans(),
) | st.just({"role": "user", "content": [{"type": "text", "text": "two words and\nmore of them"}], "n": 1})


@settings(max_examples=examples(300))
@given(messages=st.lists(again, max_size=8))
def test_moulds_that_come_again_come_back(tiny_tokenizer: BundleTokenizer, messages: list[Any]) -> None:
    session = Session("chat", messages)
    back = from_tokens("chat", to_tokens(session, tiny_tokenizer), tiny_tokenizer)
    assert back == session
    lists = [message["parts"] for message in back.value if "parts" in message]
    assert len({id(found) for found in lists}) == len(lists)  # no two messages share a value


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "image", "video_url", "document"])
def test_an_opaque_part_is_refused_by_name(tiny_tokenizer: BundleTokenizer, kind: str) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:..."}}]
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": parts}]
    with pytest.raises(OpaqueContentError, match=rf'message 2 .* "{kind}".*--keep-opaque'):
        to_tokens(Session("chat", {"messages": messages}), tiny_tokenizer)
    with pytest.raises(OpaqueContentError, match="message 2"):
        to_tokens(Session("chat", messages), tiny_tokenizer)
    result = [{"role": "user", "content": [{"type": "tool_result", "content": parts}]}]
    with pytest.raises(OpaqueContentError, match="message 1"):
        to_tokens(Session("chat", {"messages": result}), tiny_tokenizer)


@pytest.mark.parametrize(
    "value",
    [{"messages": [{"role": "user", "content": float("nan")}]}, ({"role": "user"},), {1: 2}, object()],
)
def test_what_is_not_json_is_refused(tiny_tokenizer: BundleTokenizer, value: Any) -> None:
    with pytest.raises(ContentError):
        to_tokens(Session("chat", value), tiny_tokenizer)


def built(tokenizer: BundleTokenizer, *segments: tuple[str, bytes]) -> list[int]:
    """Tokens of segments given as special name and text."""
    ids: list[int] = []
    for name, text in segments:
        ids += [tokenizer.specials[name], *tokenizer.encode(text).tolist()]
    return ids


CALL = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": 'grep -n "a b" *.py\n', "": None}}
EVENT = {
    "type": "assistant", "uuid": "9ff29d57", "note": "",
    "message": {"role": "assistant", "content": [{"type": "text", "text": 'He said "hello" to me.\nTwice.'}, CALL]},
}


REQUEST = {
    "system": [{"type": "text", "text": 'He said "hello" to me.\nTwice.', "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"name": "", "description": 'grep -n "a b" *.py\n', "input_schema": {"type": "object", "": {"": ""}}}],
}


@pytest.mark.parametrize(
    "value", [[EVENT, EVENT], {"messages": [EVENT["message"]]}, EVENT, {"": EVENT, "a": {"": ""}}, REQUEST]
)
def test_texts_deep_in_a_session_are_coded_as_text(tiny_tokenizer: BundleTokenizer, value: Any) -> None:
    session = Session("chat", value)
    tokens = to_tokens(session, tiny_tokenizer)
    assert from_tokens("chat", tokens, tiny_tokenizer) == session
    text = tiny_tokenizer.decode(tokens[tokens >= len(SPECIALS)])
    assert b'He said "hello" to me.\nTwice.' in text and b'grep -n "a b" *.py\n' in text
    assert b'\\"' not in text and b"\\n" not in text


DAMAGED = {  # defect, beside those of the vectors -> segments, each a special and its text
    "an escape": "user a | x3",
    "text special": "text a",
    "style in the middle": "user a | list",
    "meta with a place taken": 'user a | meta {"messages":[]}',
    "meta not an object": "user a | meta []",
    "meta after a list": 'list | meta {"messages":null}',
    "meta not JSON": "meta {",
    "message not JSON": "message hello",
    "message a number": "message 1",
    "mould without a message": "message [{}]",
    "mould after a mould": "user a | message [{}] | message [{}]",
    "mould again without a message": "user a | message [{}] | message []",
    "mould of two": "user a | message [{},{}]",
    "mould without a role": 'user a | message [{"content":null}]',
    "mould without a text": 'user a | message [{"role":null,"content":"b"}]',
    "mould with a strange role": 'user a | message [{"role":1,"content":null}]',
    "style not a list": "sharegpt {}",
    "style too short": 'sharegpt ["a","b"]',
    "style too long": 'sharegpt ["a","b","c",{},1]',
    "style without a container": 'sharegpt [null,"b","c"]',
    "style with strange names": 'list [null,"b","c",{"user":1}]',
    "style with names a list": 'list [null,"b","c",[]]',
    "frame without texts": 'message [{"a":""},1]',
    "frame of no texts": "user a | message [{},0]",
    "frame with true for a number": 'user a | message [{"a":""},true]',
    "frame that is a list": 'user a | message [[""],1]',
    "frame that is an escape": 'user a | message [{"":""},1]',
    "frame over a message": 'user a | message {} | user b | message [{"a":"","b":""},2]',
    "head that is no list": 'system a | meta {"system":""} | meta {"system":null,"messages":null}',
    "head without texts": 'meta [{"system":[]},0] | meta {"system":null,"messages":null}',
    "head of fewer texts": 'system a | system b | meta [{"system":""},1] | meta {"system":null,"messages":null}',
    "head over a message": 'message {} | system a | meta [{"system":""},1] | meta {"system":null,"messages":null}',
    "head without a place": 'system a | meta [{"system":""},1] | meta {"messages":null}',
    "head with a place taken": 'system a | meta [{"system":""},1] | meta {"system":"b","messages":null}',
    "head of a list": 'list | system a | meta [{"system":""},1] | user b',
    "two heads": 'system a | meta [{"system":""},1] | user a | meta [{"tools":""},1]'
    ' | meta {"system":null,"tools":null,"messages":null}',
    "alone without a message": "list 0",
}


@pytest.mark.parametrize("defect", [*DAMAGED, "meta too deep", "not UTF-8"])
def test_tokens_with_this_defect_are_refused(tiny_tokenizer: BundleTokenizer, defect: str) -> None:
    rows = [part.partition(" ") for part in DAMAGED.get(defect, "").split(" | ")]
    odd = {"meta too deep": ("meta", b"[" * 5000), "not UTF-8": ("user", b"\xff")}
    segments = [odd[defect]] if defect in odd else [(name, text.encode()) for name, _, text in rows]
    with pytest.raises(CorruptError):
        from_tokens("chat", built(tiny_tokenizer, *segments), tiny_tokenizer)


def test_text_before_the_first_special_is_refused(tiny_tokenizer: BundleTokenizer) -> None:
    ids = [*tiny_tokenizer.encode(b"a").tolist(), tiny_tokenizer.specials["user"]]
    for damaged in (ids, ids[:1]):
        with pytest.raises(CorruptError, match="begin with a special"):
            from_tokens("chat", damaged, tiny_tokenizer)
    with pytest.raises(CorruptError):
        from_tokens("text", ids, tiny_tokenizer)


fragments = st.sampled_from([
    b"", b"hi", b"{}", b"[{}]", b"[]", b'[{"name":null}]', b'{"messages":null}',
    b'{"system":null,"messages":null}', b'[{"system":""},1]', b'[null,"role","content"]', b'["a","b","c",{}]',
    b"\xff",
])


@settings(max_examples=examples(300))
@given(segments=st.lists(st.tuples(st.sampled_from(SPECIALS), fragments | st.binary(max_size=4)), max_size=4))
def test_segments_are_a_session_or_corrupt(tiny_tokenizer: BundleTokenizer, segments: list[tuple[str, bytes]]) -> None:
    try:
        session = from_tokens("chat", built(tiny_tokenizer, *segments), tiny_tokenizer)
    except CorruptError:
        return
    again = to_tokens(session, tiny_tokenizer)  # not always the same tokens, always the same session
    assert from_tokens("chat", again, tiny_tokenizer) == session

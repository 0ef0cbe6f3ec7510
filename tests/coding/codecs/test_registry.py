"""The registry of codecs: it looks up by context, derives codecs from those at hand, and registers none by itself."""

from dataclasses import replace

import numpy as np

from pltz.archive.catalog.chain import NOTHING
from pltz.archive.format.ids import TENANT
from pltz.archive.format.record import Context
from pltz.coding.codecs.bundle_codecs import CodecRegistry
from pltz.coding.codecs.codec import BytesCodec, Coded, Identity, IdsCodec, Plain
from pltz.plt_codec.container.frame import TOWER, Method
from tests.archive.kit import ZlibCodec


def context_of(codec: ZlibCodec | BytesCodec | IdsCodec) -> Context:
    return Context(
        domain_kind=TENANT, domain=bytes(16), domain_name="acme", tokenizer=codec.tokenizer, bundle=codec.bundle_id,
        method=codec.method,
    )


def test_a_context_finds_the_codec_that_decodes_it() -> None:
    alone, tower, plain = ZlibCodec(), ZlibCodec(1, b"zlib with tower."), BytesCodec()
    codecs = CodecRegistry([alone, tower, plain])
    assert codecs.for_context(context_of(alone)) is alone
    assert codecs.for_context(context_of(tower), TOWER) is codecs.for_context(context_of(tower), TOWER | 4) is tower
    assert codecs.for_context(context_of(plain)) is plain
    assert codecs.for_context(context_of(alone), TOWER) is None, "it never codes after a tower"
    assert codecs.for_context(replace(context_of(alone), method=Method.LOG)) is None


def test_looking_up_registers_nothing() -> None:
    codecs = CodecRegistry([ZlibCodec()])
    context = context_of(IdsCodec(b"t" * 16))
    found = codecs.for_context(context)
    assert isinstance(found, IdsCodec) and codecs.for_context(context) is found is codecs.for_ids(b"t" * 16)
    assert len(codecs) == 1
    data = found.encode([Plain(np.arange(9), NOTHING)])[0]
    assert found.decode([Coded(data, 9, NOTHING)])[0].tolist() == [*range(9)]


def test_what_was_not_there_is_looked_for_again_once_a_codec_is_registered() -> None:
    codecs, late = CodecRegistry(), ZlibCodec()
    assert codecs.for_context(context_of(late)) is None
    codecs.register(late)
    assert codecs.for_context(context_of(late)) is late


def test_what_is_not_registered_is_made_once() -> None:
    codecs, asked, late = CodecRegistry(), list[bytes](), ZlibCodec()

    def make(context: Identity) -> ZlibCodec:
        asked.append(context.bundle)
        return late

    codecs.make = make
    assert codecs.for_context(context_of(late)) is codecs.for_context(context_of(late)) is late
    assert codecs.for_context(replace(context_of(late), method=Method.LOG)) is None, "of another method"
    assert asked == [late.bundle_id] * 2 and not codecs

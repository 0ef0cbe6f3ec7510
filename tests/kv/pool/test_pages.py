"""Pages: what a row holds, and how much is lost."""

import pytest
import torch

from pltz.kv.pool.page_format import PageFormat
from pltz.plt_codec.errors import UsageError
from tests.kv.pool.pages import HEADS, LAYERS, form, random_kv


@pytest.mark.parametrize(("kind", "most"), [("raw", 0.0), ("q8", 0.02), ("q4", 0.2)])
def test_rows_come_back_within_the_error_of_their_kind(kind: str, most: float) -> None:
    pages, kv = form(kind), random_kv(50)
    first, rows = pages.sinks, pages.pack(kv, 0)
    assert (pages.unpack(rows, 0) - kv)[:, :, :, first:].square().mean().sqrt() <= most
    for layer in range(LAYERS):
        one = pages.unpack_layer(layer, {name: part[layer : layer + 1] for name, part in rows.items()})
        assert torch.equal(one[0], pages.unpack(rows, 0)[layer])


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_a_row_depends_on_its_token_and_position_alone(kind: str) -> None:
    pages, kv = form(kind), random_kv(40)
    whole, part = pages.pack(kv, 0), pages.pack(kv[:, :, :, 17:29], 17)
    for name, rows in part.items():
        assert torch.equal(rows, whole[name][:, 17:29])


def test_the_centre_takes_a_key_bias_away() -> None:
    """Without it the scale has to reach over the bias."""
    pages, kv = form("q4"), random_kv(80, bias=30.0)
    bare = PageFormat("q4", LAYERS, HEADS, 32, torch.float32, pages.rotary, torch.zeros(LAYERS, 2, HEADS, 32))
    assert pages.centre is not None
    fit = PageFormat("q4", LAYERS, HEADS, 32, torch.float32, pages.rotary, 10 * pages.centre)
    with_centre, without = (float((f.unpack(f.pack(kv, 0), 0) - kv)[:, :, :, 4:].square().mean()) for f in (fit, bare))
    assert 20 * with_centre < without


def test_what_pages_cannot_hold_is_refused() -> None:
    kv = random_kv(8)
    with pytest.raises(UsageError, match="not finite"):
        form("q4").pack(kv * float("inf"), 0)
    with pytest.raises(UsageError, match="too large"):
        form("q8").pack(kv * 1e9, 0)
    with pytest.raises(UsageError, match="heads of 32"):
        form("q4").pack(kv[..., :16], 0)
    with pytest.raises(UsageError, match="power of two"):
        form("q4", 20, 8)
    with pytest.raises(UsageError, match="kind"):
        form("q5")

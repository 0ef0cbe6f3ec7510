"""LLM sessions, frozen to about a kilobyte and thawed bit for bit.

    import pltz

    data = pltz.compress("chats.jsonl")          # bytes of a .pltz file, every session decoded back and compared
    sessions = pltz.decompress(data)             # value for value
    with pltz.open("chats.pltz") as file:        # single sessions, without the others
        print(len(file), file[7].value)
    thawed = pltz.thaw("chats.pltz", "mini-llama", 7)   # the target's KV cache, after one prefill

    cold = pltz.Archive.open("/data/cold", create=True)
    cold.put("chat-7", {"messages": [...]}, tenant="acme")
    cold.get("chat-7", tenant="acme").value

Names are loaded when they are first used: ``import pltz`` costs no torch and no numpy. `__init__.pyi` lists them.
"""

from __future__ import annotations

from typing import Any

from pltz.plt_codec.offer import offer

_offered, _names = offer(__file__)


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pltz")
    return __dir__() if name == "__all__" else _offered(name)


def __dir__() -> list[str]:
    """Return the public names, and nothing else."""
    return sorted([*_names(), "__version__"])

"""Bundles, sessions and targets. `__init__.pyi` lists what the room offers."""

from pltz.plt_codec.offer import offer

__getattr__, __dir__ = offer(__file__)

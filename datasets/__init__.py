"""Sample sessions that ship with pltz, and loaders for common formats. `__init__.pyi` lists what it offers."""

from pltz.plt_codec.offer import offer

__getattr__, __dir__ = offer(__file__)

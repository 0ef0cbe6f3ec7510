"""The codec: integer models, range coder, container and engines. `__init__.pyi` lists what it offers."""

from pltz.plt_codec.offer import offer

__getattr__, __dir__ = offer(__file__)

"""The command line: one file per command. `__init__.pyi` lists what commands of other rooms may use."""

from pltz.plt_codec.offer import offer

__getattr__, __dir__ = offer(__file__)

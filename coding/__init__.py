"""Coding: sessions to coded frames and back, every frame decoded before it is acknowledged."""

from pltz.plt_codec.offer import offer

__getattr__, __dir__ = offer(__file__)

"""Logs of coding agents as columns, opaque bits and text."""

from pltz.coding.log.compiled import folders

__path__[:0] = folders()

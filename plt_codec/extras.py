"""Extras: packages that an install of pltz may lack, and the error that names the extra to install.

The plain install codes sessions, keeps archives and reads both. It has neither torch nor transformers, which weigh
gigabytes:

    pltz           put, get, ls, verify, compress, decompress
    pltz[thaw]     + torch, transformers, constriction: a session's KV, rebuilt by a target model; the reference engine
    pltz[train]    + torch, transformers: bundles of one's own
"""

from __future__ import annotations

import importlib.util

from pltz.plt_codec.errors import UsageError


def need(extra: str, purpose: str, *packages: str) -> None:
    """Check that packages are installed, and import none of them.

    Args:
        extra: the extra of pltz that brings them.
        purpose: what needs them, as the subject of the message.
        packages: import names.

    Raises UsageError.

    >>> need("thaw", "a thaw", "sys")
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{purpose} needs {' and '.join(missing)}, not installed here: pip install 'pltz[{extra}]'")

"""Settings of the vLLM connector: ``kv_connector_extra_config``, checked by name and type when vLLM starts.

This module does not import vLLM.

    settings = VllmSettings.parse({"journal": "/var/lib/pltz/journal", "archive": "/data/cold"})

    journal         directory of the hook's journal (required)
    archive         where a worker puts sessions at once; without it they stay in the journal
                    until ``pltz hook drain``
    key_file        file with the key of a sealed archive; or
    key_command     shell command that prints that key; or
    passphrase_env  name of the environment variable that holds its passphrase
    tokenizer       tokenizer.json of the model; default: the one of the model, a folder or a hub name
    target          fingerprint of the weights, 32 hex digits; default: of the model; "" for none
    tenant          of requests that name none ("default")
    unnamed         true: archive requests without a session name under their request id

All fields of `settings.HookSettings` (``journal_bytes``, ``flush_seconds``, ``nice`` and so on) may be added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pltz.archive import MAX_NAME, SALTED
from pltz.plt_codec import UsageError
from pltz.serving.eviction.checked import Word, check, checked
from pltz.serving.eviction.settings import HookSettings

if TYPE_CHECKING:
    from pltz.archive import KeySource

WHERE = "kv_connector_extra_config"
KEYS = ("key_file", "key_command", "passphrase_env")


@dataclass(frozen=True)
class VllmSettings:
    """The settings of a connector (see the top of this file). ``hook``: settings of the hook itself.

    Raises UsageError for a value out of range or of another type.
    """

    journal: Word
    archive: Word | None = None
    key_file: Word | None = None
    key_command: Word | None = None
    passphrase_env: Word | None = None
    tokenizer: Word | None = None
    target: str | None = None
    tenant: Word = "default"
    unnamed: bool = False
    hook: HookSettings = field(default_factory=HookSettings)

    def __post_init__(self) -> None:
        check(self)
        if SALTED in self.tenant or len(self.tenant.encode("utf-8", "surrogatepass")) > MAX_NAME:
            raise UsageError(f"expected a tenant of at most {MAX_NAME} bytes without {SALTED}")
        if self.target and not re.fullmatch("[0-9a-fA-F]{32}", self.target):
            raise UsageError(f"expected 32 hex digits as target, found {self.target!r}")
        given = [name for name in KEYS if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"expected one of {', '.join(KEYS)}, found {' and '.join(given)}")
        if given and self.archive is None:
            raise UsageError(f"{given[0]} opens an archive, and none is named: add archive, or leave it out")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> VllmSettings:
        """Read the settings. Raises UsageError that names an unknown key, a wrong type or a bad value."""
        of_hook = {one.name for one in fields(HookSettings)}
        if "hook" in given:
            raise UsageError(f"{WHERE}: the hook's settings stand beside the others, not below 'hook'")
        hook = checked(HookSettings, {name: given[name] for name in given.keys() & of_hook}, WHERE)
        return checked(cls, {name: given[name] for name in given.keys() - of_hook} | {"hook": hook}, WHERE)

    def secret(self) -> KeySource | None:
        """Return the secret that opens the archive, or None where no setting gives a key.

        Raises UsageError.
        """
        from pltz.archive import Secret

        return Secret.chosen(**{name: getattr(self, name) for name in KEYS})

"""Settings of the vLLM connector: ``kv_connector_extra_config``, checked by name and type when vLLM starts.

This module does not import vLLM.

    settings = VllmSettings.parse({"journal": "/var/lib/pltz/journal", "archive": "/data/cold"})

    journal         directory of the hook's journal (required)
    archive         where a worker puts sessions at once; without it they stay in the journal
                    until ``pltz hook drain``
    key_file        file with the key of a sealed archive; or
    key_command     shell command that prints that key; or
    passphrase_env  name of the environment variable that holds its passphrase
    worker          "process", "thread" or "none"; default "process" where an archive is named
    tokenizer       tokenizer.json of the model; default: the one of the model, a folder or a hub name
    target          fingerprint of the weights, 32 hex digits; default: of the model; "" for none
    tenant          of requests that name none ("default")
    unnamed         true: archive requests without a session name under their request id

All fields of `settings.HookSettings` (``journal_bytes``, ``flush_seconds``, ``nice`` and so on) may be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pltz.archive.format.ids import SALTED
from pltz.archive.format.record import MAX_NAME
from pltz.plt_codec.errors import UsageError
from pltz.serving.eviction.settings import WORKERS, HookSettings, WorkerKind, check_fingerprint, check_type

if TYPE_CHECKING:
    from pltz.archive.encryption.keys import Secret

WHERE = "kv_connector_extra_config"
KEYS = ("key_file", "key_command", "passphrase_env")


@dataclass(frozen=True)
class VllmSettings:
    """The settings of a connector (see the top of this file). ``hook``: settings of the hook itself.

    Raises UsageError for a value out of range or of another type.
    """

    journal: str
    archive: str | None = None
    key_file: str | None = None
    key_command: str | None = None
    passphrase_env: str | None = None
    worker: WorkerKind | None = None
    tokenizer: str | None = None
    target: str | None = None
    tenant: str = "default"
    unnamed: bool = False
    hook: HookSettings = field(default_factory=HookSettings)

    def __post_init__(self) -> None:
        check_type("unnamed", self.unnamed, bool)
        for name in ("journal", "tenant", "archive", "tokenizer", "worker", "target", *KEYS):
            value = getattr(self, name)
            if value is None and name not in ("journal", "tenant"):
                continue
            check_type(name, value, str)
            if not value and name != "target":
                raise UsageError(
                    f"expected {name} as a word, found an empty one: leave it out, or fill it in"
                )
        if SALTED in self.tenant or len(self.tenant.encode("utf-8", "surrogatepass")) > MAX_NAME:
            raise UsageError(f"expected a tenant of at most {MAX_NAME} bytes without {SALTED}")
        if self.worker not in (None, *WORKERS):
            raise UsageError(f"expected worker as {', '.join(WORKERS)}, found {self.worker!r}")
        if self.target:
            check_fingerprint("target", self.target)
        given = [name for name in KEYS if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"expected one of {', '.join(KEYS)}, found {' and '.join(given)}")
        if given and self.archive is None:
            raise UsageError(f"{given[0]} opens an archive, and none is named: add archive, or leave it out")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> VllmSettings:
        """Read the settings. Raises UsageError that names an unknown key, a wrong type or a bad value."""
        own = {one.name for one in fields(cls)} - {"hook"}
        hook = {one.name for one in fields(HookSettings)}
        try:
            if unknown := sorted(map(str, given.keys() - own - hook)):
                raise UsageError(f"expected {', '.join(sorted(own | hook))}, found {unknown[0]!r}")
            if "journal" not in given:
                raise UsageError('name a directory for the journal: {"journal": ...}')
            chosen = HookSettings(**{name: given[name] for name in hook & given.keys()})
            return cls(**{name: given[name] for name in own & given.keys()}, hook=chosen)
        except UsageError as exc:
            raise UsageError(f"{WHERE}: {exc}") from exc

    def secret(self) -> Secret | None:
        """Return the secret that opens the archive, or None where no setting gives a key.

        Raises UsageError.
        """
        from pltz.archive.encryption.keys import Secret

        return Secret.chosen(**{name: getattr(self, name) for name in KEYS})

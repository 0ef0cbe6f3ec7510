"""The names that cli offers to the rooms above the core and to everybody else, each from its home."""

from pltz.cli.archive.files import content_of as content_of, files_of as files_of
from pltz.cli.archive.shared import (
    DRY_RUN as DRY_RUN,
    REDACT as REDACT,
    TENANT as TENANT,
    VERSION as VERSION,
    one_meant as one_meant,
    open_archive as open_archive,
    redactor as redactor,
)
from pltz.cli.bench import machine as machine
from pltz.cli.bench.codec import compressors as compressors, corpus as corpus
from pltz.cli.bench.codec.command import figures as figures
from pltz.cli.bench.shared import DATA as DATA, TARGET as TARGET
from pltz.cli.ui import options as options
from pltz.cli.ui.archive_options import (
    ArchiveCommand as ArchiveCommand,
    archive_key as archive_key,
    archive_place as archive_place,
    archive_secret as archive_secret,
    place_given as place_given,
)
from pltz.cli.ui.groups import Command as Command, LazyGroup as LazyGroup, OrderedGroup as OrderedGroup
from pltz.cli.ui.options import (
    BUNDLE as BUNDLE,
    JSON as JSON,
    THREADS as THREADS,
    Decorator as Decorator,
    nonempty as nonempty,
    size as size,
    together as together,
)
from pltz.cli.ui.output import printable as printable, write_text as write_text
from pltz.cli.ui.progress import Progress as Progress, wanted as wanted
from pltz.cli.ui.session_input import content_alone as content_alone, left_out as left_out
from pltz.cli.ui.table import pairs as pairs, render as render

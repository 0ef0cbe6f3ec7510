"""The names that datasets offers to the rooms above the core and to everybody else, each from its home."""

from pltz.datasets.byte_input import ByteInput as ByteInput, Readable as Readable, TooLong as TooLong
from pltz.datasets.conversation import (
    Conversation as Conversation,
    ConversationTurn as ConversationTurn,
    conversation_of as conversation_of,
    conversations_of as conversations_of,
    left_out as left_out,
    messages_of as messages_of,
    rendered as rendered,
    seen_by as seen_by,
)
from pltz.datasets.dropped import tags_of as tags_of, without as without
from pltz.datasets.file_forms import suffix_in as suffix_in, suffix_of as suffix_of
from pltz.datasets.file_names import stem_of as stem_of
from pltz.datasets.file_walk import EXCLUDE as EXCLUDE, WalkedFile as WalkedFile, walk as walk
from pltz.datasets.input_format import HEAD as HEAD, ReadOptions as ReadOptions
from pltz.datasets.json_files import first_events as first_events
from pltz.datasets.loaders import (
    FORMATS as FORMATS,
    Format as Format,
    load as load,
    recognise as recognise,
    recognise_files as recognise_files,
    sample_path as sample_path,
    sample_sessions as sample_sessions,
)
from pltz.datasets.log_lines import tags_of_odd as tags_of_odd
from pltz.datasets.named_sessions import NamedSession as NamedSession, named as named
from pltz.datasets.pages import (
    as_html as as_html,
    as_markdown as as_markdown,
    clean as clean,
    lines_of as lines_of,
    when as when,
)
from pltz.datasets.secrets import Redactor as Redactor
from pltz.datasets.session_columns import (
    bytes_of as bytes_of,
    moment as moment,
    name_of as name_of,
    name_sessions as name_sessions,
)

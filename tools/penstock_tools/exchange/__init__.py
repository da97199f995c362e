"""Messages to files and back: NDJSON, CSV, Parquet, Arrow; every field, in bounded memory, without duplicates.

Uses only the public methods of a `Store`; the content of a message never decides how it is read back.

In reading order: `rows` (a message as a row, and back), `text_files` (what a file's name says; NDJSON and CSV),
`arrow_files` (Parquet and Arrow; the only one that needs an extra), `exporting` (which messages, to a file), `progress`
(how far a source was stored), `importing` (the rows of a source or a file, each once).
"""

from penstock_tools.exchange.exporting import (
    ExportSummary,
    Selection,
    export_messages,
    export_stream,
)
from penstock_tools.exchange.importing import (
    Hooks,
    ImportOptions,
    ImportSummary,
    import_file,
    import_stream,
)
from penstock_tools.exchange.rows import ASSIGNED_ANEW, COLUMNS
from penstock_tools.exchange.text_files import FORMATS

__all__ = [
    "ASSIGNED_ANEW",
    "COLUMNS",
    "FORMATS",
    "ExportSummary",
    "Hooks",
    "ImportOptions",
    "ImportSummary",
    "Selection",
    "export_messages",
    "export_stream",
    "import_file",
    "import_stream",
]

"""Messages to files and back: NDJSON, CSV, Parquet, Arrow; every field, in bounded memory, without duplicates.

Uses only the public methods of a `Store`; the content of a message never decides how it is read back.

In reading order: `rows` (a message as a row, and back), `formats` (what a file's name says), `text_files` (NDJSON and
CSV), `arrow_files` (Parquet and Arrow; the only one that needs an extra), `selection` (which messages), `exporting` (to a
file), `source_file` (a file to import), `progress` (how far a source was stored), `loading` (the rows of a source, each once),
`importing` (from a file).
"""

from penstock.exchange.exporting import ExportSummary, export_messages, export_stream
from penstock.exchange.formats import FORMATS
from penstock.exchange.importing import (
    Hooks,
    ImportOptions,
    ImportSummary,
    import_file,
    import_stream,
)
from penstock.exchange.rows import ASSIGNED_ANEW, COLUMNS
from penstock.exchange.selection import Selection

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

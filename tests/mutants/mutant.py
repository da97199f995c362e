"""One small change of a source file, by position, so that the rest of the file stays as it is."""

from typing import NamedTuple


class Edit(NamedTuple):
    """Bytes `start` to `end` of a file become `text`; `operator` names the kind of change."""

    start: int
    end: int
    text: str
    operator: str


class Mutant(NamedTuple):
    """A file with one edit.

    Attributes:
        path: of the file, below the root.
        edit: what is changed.
        lines: first and last line of the statement it is part of, without the body: running one of them runs it.
        is_in_function: whether that runs when a function is called, and not once at import.
    """

    path: str
    edit: Edit
    lines: tuple[int, int]
    is_in_function: bool

    def apply(self, source: bytes) -> bytes:
        """Return the file's bytes with the change."""
        return source[: self.edit.start] + self.edit.text.encode() + source[self.edit.end :]

    def line(self, source: bytes) -> int:
        """Return the number of the line where the change begins, from 1 on."""
        return source.count(b"\n", 0, self.edit.start) + 1

    def change(self, source: bytes) -> tuple[str, str]:
        """Return the changed lines before and after, each without the white space round it."""
        first = source.rfind(b"\n", 0, self.edit.start) + 1
        last = source.find(b"\n", self.edit.end)
        last = len(source) if last < 0 else last
        before = source[first:last]
        after = (
            source[first : self.edit.start] + self.edit.text.encode() + source[self.edit.end : last]
        )
        return _plain(before), _plain(after)


def _plain(lines: bytes) -> str:
    return "\n".join(line.strip() for line in lines.decode().splitlines())

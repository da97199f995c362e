"""The entries of a broker's file in memory, and when they are saved: at once, or later by a background thread."""

import threading
from collections.abc import Callable, Mapping

from penstock.errors import BusyError
from penstock_messaging.configuration.broker_files import BrokerFile


class ConfigTable:
    """Named entries, each a JSON object of a broker. Safe from any thread, and from signal handlers.

    The lock that is held while the file is written is another one than that of the entries: a put that creates a topic
    never waits for the disk. An entry is replaced, never changed.

    Attributes:
        entries: the entries by name.
        before_saving: called before entries of `set_later` are written.
    """

    def __init__(self, file: BrokerFile, before_saving: Callable[[], None] = lambda: None) -> None:
        self.file = file
        self.before_saving = before_saving
        self.entries: dict[str, object] = {}
        self._version = self._saved = 0
        # A signal handler may use the table while the code that it interrupted holds a lock.
        self._guard = threading.RLock()
        self._saving = threading.RLock()
        self._is_saving = False

    def load(self) -> None:
        """Read all entries from the file."""
        self.entries = self.file.load()

    @property
    def is_changed(self) -> bool:
        """Whether entries differ from the file."""
        return self._version != self._saved

    def set_later(self, name: str, entry: Mapping[str, object]) -> None:
        """Add or replace an entry in memory; it is on disk after `save`."""
        with self._guard:
            self.entries[name] = entry
            self._version += 1

    def set_now(self, name: str, entry: Mapping[str, object] | None) -> None:
        """Add or replace an entry, or remove it (None), durably; raises, with nothing changed, if that fails."""
        with self._saving:
            self._refuse_within()
            with self._guard:
                entries, version = dict(self.entries), self._version
            if entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
            self._write(entries, version)
            with self._guard:
                if entry is None:
                    self.entries.pop(name, None)
                else:
                    self.entries[name] = entry

    def save(self) -> None:
        """Write the file if entries differ from it.

        Does nothing while a signal handler has interrupted a saving of the same thread: that one is under way.
        """
        with self._saving:
            if self._is_saving or not self.is_changed or self.file.problem is not None:
                return
            with self._guard:
                entries, version = dict(self.entries), self._version
            self._write(entries, version)

    def _write(self, entries: Mapping[str, object], version: int) -> None:
        self._is_saving = True
        try:
            if version != self._saved:
                self.before_saving()
            self.file.save(entries)
        finally:
            self._is_saving = False
        self._saved = version

    def _refuse_within(self) -> None:
        if self._is_saving:
            raise BusyError(f"a change of {self.file.path} that this thread interrupted has been under way",
                0)  # fmt: skip

"""Rows of any source, each once: what is noted, what is compared with the log, and how rows are grouped."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

from penstock import Message
from penstock.errors import ImportFileError, MessageError
from penstock.exchange.loading import Loader, LoadOptions, LoadRow
from penstock.exchange.rows import Put


def row(number: int, body: bytes, facts: str = "") -> LoadRow:
    put = None if body == b"!" else Put(Message("t", body, queue=-1 if body == b"?" else 0), None)
    error = MessageError("no") if put is None else None
    return LoadRow(number, f"row {number}", put, error, body, facts)


def rows_of(bodies: str) -> Callable[[], Iterator[LoadRow]]:
    return lambda: iter([row(n, body.encode()) for n, body in enumerate(bodies, 1)])


def load(store: Any, path: Path, bodies: str, **options: Any) -> tuple[int, int]:
    """Return how many rows earlier loads processed, and how many this one did."""
    given = LoadOptions(**{"identity": "x", "skip_bad": True, **options})
    loader = Loader(store, io.BytesIO(), str(path), given)
    loader.load(rows_of(bodies))
    return loader.before.rows, loader.reached.rows - loader.before.rows


def bodies(store: Any) -> str:
    return "".join(m.body.decode() for m in store.scan("t"))


def test_a_digest_depends_on_each_row_and_their_order(open_small: OpenStore) -> None:
    digests = set()
    with open_small() as store:
        for name, rows in enumerate([
            [("a", "")], [("b", "")], [("ab", "")], [("a", ""), ("b", "")], [("b", ""), ("a", "")], [("a", ""), ("", "b")],
            [("a", ""), ("b", ""), ("", "")], [("a", "x")], [("", "\udc80")], [],
        ]):  # fmt: skip
            made = [row(n, body.encode(), facts) for n, (body, facts) in enumerate(rows, 1)]
            loader = Loader(store, io.BytesIO(), str(name), LoadOptions(identity=0))
            loader.load(made.__iter__)
            digests.add(loader.reached.digest)
    assert len(digests) == 10


@pytest.mark.parametrize("done", ["", "a", "ab", "a!b", "!?a", "a?b!", "?"])
def test_after_a_kill_the_rows_that_are_stored_are_not_stored_again(
    open_small: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: str
) -> None:
    """Also behind rows that are refused before they come to the store, or by the store."""

    def kill(_row: LoadRow) -> None:
        raise KeyboardInterrupt

    with open_small() as store:
        with monkeypatch.context() as patch:
            # The last note was written before the first row.
            patch.setattr(Loader, "_stop", lambda *_: None)
            if done:
                with pytest.raises(KeyboardInterrupt):
                    load(store, tmp_path / "x", done, on_batch=kill)
            else:
                patch.setattr(Loader, "_end", lambda _: None)
                load(store, tmp_path / "x", "")
        whole = done + "c?!d"
        before, now = load(store, tmp_path / "x", whole)
        assert before + now == len(whole)
        # Refused rows behind the last that is stored are processed again.
        assert before == len(done.rstrip("!?"))
        assert bodies(store) == whole.replace("!", "").replace("?", "")
        assert load(store, tmp_path / "x", whole) == (len(whole), 0)


def test_an_interrupted_source_that_changed_is_refused_and_a_whole_one_is_another(
    open_small: OpenStore, tmp_path: Path
) -> None:
    with open_small() as store:
        with pytest.raises(ImportFileError, match="row 3: no"):
            load(store, tmp_path / "x", "ab!", skip_bad=False)
        for changed in ("a", "ba!", "", "xb!"):
            with pytest.raises(ImportFileError, match="has changed"):
                load(store, tmp_path / "x", changed)
        assert bodies(store) == "ab"
        assert load(store, tmp_path / "x", "abcd") == (2, 2)
        assert load(store, tmp_path / "x", "abcde") == (4, 1)
        assert load(store, tmp_path / "x", "abc") == (0, 3)
        assert load(store, tmp_path / "x", "abc", restart=True) == (0, 3)
        assert load(store, tmp_path / "x", "abc", identity="y") == (0, 3)
        assert load(store, tmp_path / "y", "abc") == (0, 3)
        assert bodies(store) == "abcde" + "abc" * 4


def test_standard_input_is_not_noted_even_if_it_is_a_file(open_small: OpenStore) -> None:
    with open_small() as store:
        for _ in range(2):
            loader = Loader(store, io.BytesIO(), "-", LoadOptions(identity=0))
            loader.load(rows_of("ab"))
            assert not loader.is_noted
        assert bodies(store) == "abab"
        assert not (store.path / "penstock" / "loads").exists()


def test_a_failed_put_is_not_noted_as_exact(
    open_small: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt between storing rows and counting them leaves the older note, and the log says the rest."""
    with open_small() as store:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Loader, "_count", _interrupted)
            load(store, tmp_path / "x", "abc")
        assert bodies(store) == "abc"
        assert load(store, tmp_path / "x", "abcd") == (3, 1)
        assert bodies(store) == "abcd"


def _interrupted(*_: object, **_given: object) -> None:
    raise KeyboardInterrupt

"""Wrong types and wrong values for every argument of every public call: only Penstock's own errors, and no harm.

The calls are found by introspection: whatever `penstock` and `penstock.staged` export, the methods of `Store`, the
settings of every section and strategy. A new call, argument or setting is tried without a change here; an argument
without a default needs a valid value in `valid_value`.
"""

import ast
import inspect
import itertools
import math
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, get_args

import attrs
import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import _kernel, staged
from penstock.config.model import SECTIONS, Config
from penstock.config.sources import build_config, gather
from penstock.errors import ArgumentError, PenstockError, StoreClosedError
from penstock.message import Message, StoredMessage
from penstock.plugins.registry import load_registry
from penstock.store.lowlevel import LowLevelStore
from penstock.store.store import Store
from penstock.testing import ManualWorkers, open_store

KERNEL_TYPES = ast.parse(Path(str(_kernel.__file__)).with_name("_kernel.pyi").read_text())
TABLE = pa.table({"topic": ["orders"], "body": [b"x"]})


def junk() -> list[Any]:
    """Return values of every kind; new ones for each call, since some can be used once."""
    return [
        None, True, 0, -1, 1 << 70, -(1 << 70), 10**400, -(10**400), 10**5000, Fraction(10**400), Decimal("nan"), Decimal(10**400), 1.5, math.nan, math.inf, "", "x", "\0", "\ud800", "earliest", b"", b"x",
        [], [1], ["x"], [None], {}, {"a": 1}, {1: "a"}, (), set(), datetime(2026, 11, 23), datetime.now(UTC), datetime.min,
        datetime.max.replace(tzinfo=UTC), Path("x"), np.int64(3), np.array([1, 2]), np.nan, iter([]), iter([1]),
        ValueError("x"), len, int, object(),
    ]  # fmt: skip


class Call(NamedTuple):
    """A public call: its name, what is called, its parameters, and valid values of those that are required."""

    name: str
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]

    def valid(self) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments with which the call succeeds."""
        given: list[Any] = []
        named: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if parameter.default is not parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
                continue
            if parameter.kind is parameter.KEYWORD_ONLY:
                named[name] = valid_value(name)
            else:
                given.append(valid_value(name))
        return given, named

    def with_value(self, name: str, value: object) -> Callable[[], Any]:
        """Return the call with one argument replaced."""
        given, named = self.valid()
        place = list(self.parameters).index(name)
        if place < len(given):
            given[place] = value
        else:
            named[name] = value
        return lambda: self.function(*given, **named)


def valid_value(name: str) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "path": lambda: "new", "paths": lambda: "new", "topic": lambda: "orders", "topics": lambda: "orders",
        "body": lambda: b"x", "group": lambda: "g", "offset": lambda: 0, "log_offset": lambda: 0, "key": lambda: "k",
        "message_id": lambda: "7F00000100002A9F0000000000000000", "time": lambda: 0, "queue": lambda: 0,
        "messages": lambda: [Message("orders", b"x", queue=0)], "message": lambda: Message("orders", b"x", queue=0), "copies": list, "table": lambda: TABLE, "spans": list, "start": lambda: 0,
        "stop": lambda: 1, "count": lambda: 1, "first_mark": lambda: 1 << 62, "most": lambda: 1, "batch": object, "receipt": object,
        "keys": lambda: pa.array(["k"]), "name": lambda: "messaging", "moves": lambda: {("g", "orders", 0): (None, 0)}, "encoding": lambda: staged.encoding_for("new", environ={}),
    }  # fmt: skip
    assert name in made, f"{name} is an argument without a default: give it a valid value here"
    return made[name]()


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a call without `self`; those of the compiled kernel from its file of types, options one by one."""
    try:
        found = dict(inspect.signature(function).parameters)
    except ValueError:
        found = dict(_kernel_parameters(function))
    found.pop("self", None)
    for options in [each for each in found.values() if each.kind is each.VAR_KEYWORD]:
        for name in [
            name for kind in get_args(options.annotation) for name in kind.__annotations__
        ]:
            # `submit` documents that it disregards `wait`.
            if (function.__name__, name) != ("submit", "wait"):
                found[name] = options.replace(name=name, kind=options.KEYWORD_ONLY, default=...)
    return found


def _kernel_parameters(function: Any) -> Iterator[tuple[str, inspect.Parameter]]:
    name = function.__name__
    owner = getattr(function, "__objclass__", None) or type(getattr(function, "__self__", function))
    names = {name, *(each.__name__ for each in inspect.getmro(owner))}
    for cls in (node for node in KERNEL_TYPES.body if isinstance(node, ast.ClassDef)):
        for method in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
            if cls.name in names and method.name == ("__init__" if cls.name == name else name):
                arguments = method.args
                kinds = inspect.Parameter
                first = len(arguments.args) - len(arguments.defaults)
                for at, each in enumerate(arguments.args):
                    default = kinds.empty if at < first else ...
                    yield each.arg, kinds(each.arg, kinds.POSITIONAL_OR_KEYWORD, default=default)
                for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
                    default = kinds.empty if value is None else ...
                    yield each.arg, kinds(each.arg, kinds.KEYWORD_ONLY, default=default)
                return
    raise AssertionError(f"{function} is not in _kernel.pyi")


def functions_of(module: types.ModuleType) -> list[str]:
    return [name for name in module.__all__ if inspect.isfunction(getattr(module, name))]


STORE_CALLS = [
    name
    for name in dir(LowLevelStore)
    if not name.startswith("_")
    and callable(getattr(LowLevelStore, name))
    and name not in ("close", "leave")
]
FUNCTIONS = [(module, name) for module in (penstock, staged) for name in functions_of(module)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("misuse")


@pytest.fixture(autouse=True)
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test: some of the values are paths."""
    monkeypatch.chdir(root)


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[Store]:
    """A store for all calls of this module; at the end nothing of what was in it has changed."""
    made = open_store(root / "store", spawn=ManualWorkers())
    for number in range(20):
        made.put("orders", b"%d" % number, queue=number % 2, tag="t", keys=[f"k{number}"])
    made.commit_offset("g", "orders", 0, offset=1)
    before = [bytes(message.record) for message in made.scan("orders")]
    yield made
    assert [
        message.record for message in itertools.islice(made.scan("orders"), len(before))
    ] == before
    assert [finding for finding in made.verify(deep=True) if not finding.is_note] == []
    made.close()
    with open_store(root / "store", spawn=ManualWorkers()) as again:
        assert again.recovery is not None
        assert again.recovery.state == "clean"


def outcome(call: Callable[[], Any]) -> PenstockError | None:
    """Return the error of a call, None if it succeeds; an answer that is read later is read a little."""
    try:
        answer = call()
        if isinstance(answer, Iterator | pa.RecordBatchReader):
            list(itertools.islice(answer, 2))
        elif isinstance(answer, Store | penstock.FollowedStore):
            answer.close()
    except PenstockError as error:
        return error
    return None


def is_function_for_function(call: Call, name: str, value: object) -> bool:
    """Return whether an argument that is called got something to call: its failures are the caller's."""
    default = call.parameters[name].default
    return callable(value) and (callable(default) or name == "spawn")


def try_all(call: Call) -> None:
    for name, parameter in call.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for value in junk():
            if is_function_for_function(call, name, value):
                continue
            try:
                error = outcome(call.with_value(name, value))
            except Exception as raw:
                raise AssertionError(f"{call.name}({name}={value!r}) raises {raw!r}") from raw
            if error is not None:
                assert str(error).strip(), f"{call.name}({name}={value!r}) says nothing"
                assert not isinstance(error, ArgumentError) or call.name.endswith(error.call)
            # Whatever it is, it is no object without any meaning.
            assert type(value) is not object or error is not None, (
                f"{call.name}({name}=object()) is accepted"
            )


@pytest.mark.parametrize("name", STORE_CALLS)
def test_a_call_of_a_store_takes_junk_for_no_argument(store: Store, name: str) -> None:
    function = getattr(store.lowlevel, name)
    try_all(Call(name, function, parameters_of(function)))


@pytest.mark.parametrize(
    ("module", "name"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_function_takes_junk_for_no_argument(module: types.ModuleType, name: str) -> None:
    function = getattr(module, name)
    try_all(Call(name, function, parameters_of(function)))


def test_what_open_several_returns_takes_junk_for_no_path() -> None:
    opened = penstock.open_several(environ={})
    try_all(Call("open", opened, parameters_of(opened)))


def test_a_message_takes_junk_and_the_store_refuses_it(store: Store) -> None:
    function = lambda *given, **named: store.put_many([Message(*given, **named)])  # noqa: E731 - a call like others
    try_all(Call("Message", function, parameters_of(Message)))


def test_an_encoder_takes_junk_for_no_table() -> None:
    encoder = staged.Encoder(staged.encoding_for("new", environ={}))
    try_all(Call("encode", encoder.encode, parameters_of(encoder.encode)))


def test_a_closed_store_says_so_before_anything_else(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", spawn=ManualWorkers()) as closed:
        closed.put("orders", b"x", queue=0)
    for name in STORE_CALLS:
        function = getattr(closed.lowlevel, name)
        given, named = Call(name, function, parameters_of(function)).valid()
        with pytest.raises(StoreClosedError):
            list(function(*given, **named))


def test_a_call_without_its_arguments_names_itself(store: Store) -> None:
    for name in STORE_CALLS:
        function = getattr(store.lowlevel, name)
        required = [
            each
            for each, parameter in parameters_of(function).items()
            if parameter.default is inspect.Parameter.empty
        ]
        if required:
            with pytest.raises(TypeError, match=rf"{name}\(\) (missing|takes)"):
                function()


REGISTRY = load_registry()
SETTINGS = [key for key, _, _ in Config(options={
    (kind, name): strategies.get(name).Options()
    for kind, strategies in REGISTRY.sets().items() for name in strategies.names()
}).items()]  # fmt: skip


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_takes_junk_or_refuses_it_by_its_name(key: str) -> None:
    section, _, name = key.rpartition(".")
    for value in junk():
        error = None
        try:
            build_config(gather(None, {}, {key: value}), REGISTRY)
        except PenstockError as refused:
            error = refused
        except Exception as raw:
            raise AssertionError(f"{key} = {value!r} raises {raw!r}") from raw
        text = "" if error is None else str(error)
        assert error is None or (name in text and section.partition(".")[0] in text), text
        assert error is not None or type(value) is not object, f"{key} = object() is accepted"


def test_no_setting_is_left_out() -> None:
    known = {
        f"{name}.{field.name}"
        for name, section in SECTIONS.items()
        for field in attrs.fields(section)
    }
    assert known < set(SETTINGS)
    assert {"flush.sync.timeout_ms", "retention.age.delete_when"} < set(SETTINGS)


def named(function: Callable[..., Any], wrong: str) -> object:
    return function("none", **{wrong: 1})


def test_a_setting_of_another_name_is_refused_with_the_nearest_one() -> None:
    for wrong, right in (
        ("read_onyl", "read_only"), ("flsh", "flush"), ("flush.sync.timeout", "flush.sync.timeout_ms"),
    ):  # fmt: skip
        with pytest.raises(
            penstock.ConfigError, match=f"no setting {wrong} .*did you mean {right}"
        ):
            named(penstock.open, wrong)
    with pytest.raises(penstock.ConfigError, match="did you mean apply"):
        named(penstock.repair, "aply")
    assert not Path("none").exists()


def test_a_stored_message_takes_bytes_of_a_record_only() -> None:
    for value in junk():
        with pytest.raises((PenstockError, TypeError, ValueError)):
            StoredMessage(value)

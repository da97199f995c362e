"""Imports go downwards only: a folder imports those above it in `ORDER`; each outside package has its place."""

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "core" / "penstock"
TOOLS = ROOT / "tools" / "penstock_tools"
# Folders and single modules of the kernel and the tools, lowest first. What stands in one line does not import each other.
ORDER = [
    "escape _kernel kernel",
    "errors",
    "message files",
    "format",
    "runtime",
    "contracts",
    "batch findings plugins",
    "config",
    "log",
    "durability",
    "retention read write dispatch",
    "recovery",
    "integrity",
    "store",
    "repairs segmentwise staged exchange aio",
    "__init__ rescue",
    "testing",
    "matrix",
    "cli",
    "__main__",
]
RANK = {name: rank for rank, line in enumerate(ORDER) for name in line.split()}
LEVELS_MAX, ROOMS_MAX, MODULES_MAX = 16, 32, 10

SYSTEM = {"os", "mmap", "fcntl", "ctypes", "shutil", "tempfile", "socket"}
PRINTING = {"cli", "testing", "matrix"}
# `kernel` loads the compiled object before anything else of ours is there.
MAY_TOUCH_SYSTEM = {"kernel", "files", *PRINTING}
# `os.environ`, `os.PathLike` and the encoding of paths; the type of what `File.map` returns.
NAMES_OF_SYSTEM = {
    "format/arguments.py": "os",
    "store/open.py": "os",
    "store/following.py": "os",
    "segmentwise/checkup.py": "os",
    "log/segment.py": "mmap",
}
# pyarrow is an extra, and slow to import: elsewhere it is imported for types only.
ARROW = {
    "format/arrow_schema.py",
    "read/to_arrow.py",
    "write/from_arrow.py",
    "exchange/arrow_files.py",
}
# Time is handed in as a `Clock`, threads as a `SpawnWorker`; so a test can own both.
OF_RUNTIME = {"threading.Thread", "time.sleep", "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"}  # fmt: skip


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the syntax of a module, flat, from the module itself on."""
    return [*ast.walk(ast.parse(path.read_text()))]


@functools.cache
def imports(path: Path) -> set[str]:
    """Return the full names of what a module imports, `TYPE_CHECKING` and functions included."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def for_types_only(path: Path) -> set[str]:
    """Return what a module imports under `if TYPE_CHECKING`."""
    names: set[str] = set()
    for node in nodes(path):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import):
                    names |= {alias.name for alias in inner.names}
    return names  # fmt: skip


def room_of(path: Path) -> str:
    """Return the folder of a module, or its own name where it lies beside the folders."""
    return place_of(path).split("/")[0].removesuffix(".py")


def place_of(path: Path) -> str:
    """Return the path of a module below its package."""
    return str(path.relative_to(TOOLS if path.is_relative_to(TOOLS) else KERNEL))


def imported_room(name: str) -> str | None:
    """Return the room that an imported name lies in; None if it is in neither the kernel nor the tools."""
    root, *rest = name.split(".")
    if root not in ("penstock", "penstock_tools") or not rest:
        return None
    return rest[0] if rest[0] in RANK else "__init__"


def each(
    paths: Iterable[Path], found: Callable[[Path], Iterable[Found]]
) -> Iterator[tuple[Path, Found]]:
    """Yield each path with each thing that is found in it."""
    return ((path, thing) for path in paths for thing in found(path))


PATHS = sorted([*KERNEL.rglob("*.py"), *TOOLS.rglob("*.py")])


@functools.cache
def house() -> dict[str, set[str]]:
    """Return of each room those that it imports."""
    found: dict[str, set[str]] = {}
    for path in PATHS:
        others = {*map(imported_room, imports(path))} - {room_of(path)}
        found.setdefault(room_of(path), set()).update(filter(None, others))
    return found


def test_a_folder_imports_what_is_below_it() -> None:
    for path, name in each(PATHS, imports):
        room, other = room_of(path), imported_room(name)
        assert room in RANK, f"{room} is not in ORDER: put it there"
        # `penstock.repair`, and the command of `python -m penstock`.
        if path.is_relative_to(KERNEL) and room not in {"__init__", "__main__"}:
            assert not name.startswith("penstock_tools"), f"{place_of(path)} imports {name}"
        # The demo shows the pipeline; it asks for it only where Spark is wanted.
        if path.name != "demo.py":
            root = name.split(".")[0]
            assert root == "penstock_tools" or not root.startswith(("penstock_", "pyspark")), f"{place_of(path)} imports {name}"  # fmt: skip
        if other is not None and other != room:
            assert RANK[other] < RANK[room], f"{place_of(path)} imports {other}, which is not below it"  # fmt: skip


def test_an_outside_package_has_its_place() -> None:
    for path, name in each(PATHS, lambda path: imports(path) - for_types_only(path)):
        place, room, root = place_of(path), room_of(path), name.split(".")[0]
        if root in SYSTEM and room not in MAY_TOUCH_SYSTEM:
            assert NAMES_OF_SYSTEM.get(place) == root, f"{place} imports {root}: only files/ may"
        if root == "pyarrow":
            assert place in ARROW or room == "cli", f"{place} imports pyarrow"
        if root == "pluggy":
            assert room == "plugins", f"{place} imports pluggy"


def test_clocks_sleeps_and_threads_are_in_runtime() -> None:
    for path in PATHS:
        if room_of(path) not in {"runtime", *PRINTING}:
            used = {ast.unparse(n) for n in nodes(path) if isinstance(n, ast.Attribute)}
            assert not used & OF_RUNTIME, place_of(path)


def test_the_house_is_small_and_has_no_circle() -> None:
    """The longest chain of imports, counted in rooms; a circle would make it endless."""
    depths: dict[str, int] = {}

    def depth(room: str, above: tuple[str, ...] = ()) -> int:
        assert room not in above, f"a circle: {' -> '.join((*above, room))}"
        if room not in depths:
            depths[room] = 1 + max((depth(other, (*above, room)) for other in house().get(room, ())), default=0)  # fmt: skip
        return depths[room]

    rooms = set(house()).union(*house().values())
    assert max(map(depth, rooms)) <= LEVELS_MAX, sorted(depths.items(), key=lambda item: item[1])
    # The compiled kernel is C; the folder beside it holds its sources.
    assert len(rooms - {"_kernel"}) <= ROOMS_MAX
    assert len(list(KERNEL.glob("*.py"))) <= MODULES_MAX


def check_docstrings(root: Path) -> None:
    """Refuse a folder below `root` whose docstring does not name each of its files."""
    for folder in {path.parent for path in root.rglob("*.py")} - {root}:
        about = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        named = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
        missing = {name for name in named if f"`{name}`" not in about}
        assert not missing, f"{folder.name}/__init__.py does not name {sorted(missing)}"


def test_every_folder_says_its_rule_and_its_files_in_reading_order() -> None:
    check_docstrings(KERNEL)
    check_docstrings(TOOLS)


PLUGINS = sorted((ROOT / "plugins").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
# What plugins may use: the same for those that come with Penstock and for any other.
FOR_PLUGINS = {"__init__", "contracts", "errors", "escape", "files", "format", "testing", "cli"}


def test_a_plugin_imports_what_is_public_and_itself() -> None:
    for path, name in each(PLUGINS, imports):
        own, root = path.relative_to(ROOT).parts[2], name.split(".")[0]
        if path.is_relative_to(ROOT / "plugins"):
            assert not root.startswith("penstock_") or root in (own, "penstock_tools"), (
                f"{path.name} imports {root}"
            )
            if root == "mmap" and path.parent.name == "penstock_alloc":
                continue  # the type of what `File.map` and `Files.memory` return
            if (root, path.name) == ("socket", "line.py"):
                continue  # a follower's connection is no file
            assert root not in SYSTEM, f"{path.name} imports {root}: files come in from outside"
        room = imported_room(name)
        assert room is None or room in FOR_PLUGINS, f"{path.name} imports {name}"


# What the pipeline may build on, besides the names of `penstock` itself.
PUBLIC = FOR_PLUGINS - {"testing"} | {"staged", "segmentwise"}
SPARK = ROOT / "pipeline" / "penstock_spark"
PIPELINE = sorted((ROOT / "pipeline").rglob("*.py"))
SPARK_PATHS = [path for path in PIPELINE if path.is_relative_to(SPARK)]
# As `ORDER`, for the pipeline. `cli` imports a job only by its name, when it is run.
SPARK_ORDER = [
    "arrow errors option_parser java remote_files",
    "stores",
    "export_folder",
    "sink archive",
    "source",
    "__init__ cli",
    "jobs",
    "plugin",
]
SPARK_RANK = {name: rank for rank, line in enumerate(SPARK_ORDER) for name in line.split()}
# Spark calls these. All others import pyspark within a function, if at all: it is an extra, and slow to import.
IMPORT_PYSPARK = {"source/source.py", "sink/writer.py"}
SPARK_MODULES = {
    ".".join(path.relative_to(SPARK.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SPARK_PATHS
}


def spark_imports(path: Path) -> set[str]:
    """Return the modules of the pipeline that one imports, functions included."""
    found = set()
    for name in imports(path):
        if name.split(".")[0] == SPARK.name:
            found.add(name if name in SPARK_MODULES else name.rpartition(".")[0])
    return found


def test_the_pipeline_uses_the_public_face() -> None:
    for path, name in each(PIPELINE, imports):
        room = imported_room(name)
        assert room is None or room in PUBLIC, f"{path.name} imports {name}"


def test_a_folder_of_the_pipeline_imports_what_is_below_it() -> None:
    for path, module in each(SPARK_PATHS, spark_imports):
        room = path.relative_to(SPARK).parts[0].removesuffix(".py")
        assert room in SPARK_RANK, f"{room} is not in SPARK_ORDER: put it there"
        assert module in SPARK_MODULES, f"{path.name} imports {module}, which is not there"
        other = module.split(".")[1] if "." in module else "__init__"
        if other != room:
            assert SPARK_RANK[other] < SPARK_RANK[room], f"{room} imports {other}, which is not below it"  # fmt: skip


def test_the_pipeline_has_no_circle() -> None:
    graph = {module: spark_imports(path) for module, path in SPARK_MODULES.items()}
    # Raises CycleError, which names the modules.
    assert len(list(TopologicalSorter(graph).static_order())) == len(SPARK_MODULES)


def test_pyspark_is_imported_where_spark_calls() -> None:
    others = [path for path in SPARK_PATHS if str(path.relative_to(SPARK)) not in IMPORT_PYSPARK]
    for path, node in each(others, lambda path: ast.parse(path.read_text()).body):
        if isinstance(node, ast.ImportFrom):
            assert not str(node.module).startswith("pyspark"), f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.Import):
            assert not any(a.name.startswith("pyspark") for a in node.names), f"{path.name}:{node.lineno}"  # fmt: skip


def test_every_folder_of_the_pipeline_says_its_rule_and_its_files_in_reading_order() -> None:
    check_docstrings(SPARK)

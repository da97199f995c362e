"""Imports go downwards only; each outside package has its place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "core" / "penstock"
# Lowest first; a module may import what stands in a line above its own, or to its left within it.
LAYERS = [
    "escape errors lazy kernel _kernel",
    "clock lockfile file volume blocks files javatext properties message names rocketmqjson geometry arrowschema",
    "record validity texts columns matching batch condensed findings foreign contracts indexing",
    "hookspecs registry profiles config brokerconf",
    "segment log fetch spans scan lives survivors batches tail lanes handover commitlog logview",
    "checkpoint progress sidefolder waking manifest ranges witness offsettable offsets written deletions worker digests bitflip sealing scrub upkeep",
    "copies readback discover syncthread flushing dispatch recovery admission retention forecast space soundwalk nearest looking marks storeview verify verifying mendedlog planning rebuilding mending",
    "visibility encode arrow arrow_in stagedfile closing engine putting columnar lookup reader store",
    "choosing opening repairing reindexing several staged segmentwise",
    "__init__ rescue",
    "matrix testing cli __main__",
]
ORDER = {name: rank for rank, line in enumerate(LAYERS) for name in line.split()}
WITHIN = {name: place for line in LAYERS for place, name in enumerate(line.split())}
# Inside these two lines the order is that of the words; `reader` reaches `arrow` only when it is asked.
SYSTEM = {"os", "mmap", "fcntl", "ctypes", "shutil", "tempfile", "socket"}
# `kernel` loads an object out of a zip before anything else of ours is there.
MAY_TOUCH_SYSTEM = {"kernel", "file", "files", "lockfile", "volume", "cli", "testing", "matrix"}
# `os.environ` and `os.PathLike` only.
READS_ENVIRONMENT = {"opening", "several", "segmentwise", "cli"}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def layer_of(path: Path) -> str:
    return path.relative_to(KERNEL).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", sorted(KERNEL.rglob("*.py")), ids=lambda p: str(p.relative_to(KERNEL))
)
def test_kernel_imports_go_down(path: Path) -> None:
    layer = layer_of(path)
    assert layer in ORDER, f"{layer} is in no layer: put it into LAYERS"
    for name in imports(path):
        root, *rest = name.split(".")
        # The demo shows the pipeline; it asks for it only where Spark is wanted.
        if path.name != "demo.py":
            assert not root.startswith(("penstock_", "pyspark")), f"{layer} imports {root}"
        if root in SYSTEM:
            if layer == "segment" and root == "mmap":
                continue  # the type of what `File.map` returns
            assert layer in MAY_TOUCH_SYSTEM | READS_ENVIRONMENT, (
                f"{layer} imports {root}: only files.py may"
            )
        if root == "pyarrow":
            assert layer in {
                "arrow",
                "arrowschema",
                "pairs_in",
                "arrow_in",
                "cli",
                "columnar",
                "store",
                "staged",
            }, f"{layer} imports pyarrow"
        if root == "penstock" and rest and rest[0] in ORDER and rest[0] != layer:
            assert ORDER[rest[0]] <= ORDER[layer], f"{layer} imports {rest[0]}, which lies above it"
            if ORDER[rest[0]] == ORDER[layer]:
                assert WITHIN[rest[0]] < WITHIN[layer], f"{layer} imports {rest[0]}, to its right"


PLUGINS = sorted((ROOT / "plugins").rglob("*.py"))


@pytest.mark.parametrize("path", PLUGINS, ids=lambda p: str(p.relative_to(ROOT / "plugins")))
def test_a_plugin_imports_the_kernel_and_itself_only(path: Path) -> None:
    own = path.relative_to(ROOT / "plugins").parts[1]
    for name in imports(path):
        root = name.split(".")[0]
        assert not root.startswith("penstock_") or root == own, f"{path.name} imports {root}"
        if root == "mmap" and path.parent.name == "penstock_alloc":
            continue  # the type of what `File.map` and `Files.memory` return
        assert root not in SYSTEM, f"{path.name} imports {root}: files come in from outside"


# What others may build on, besides the names of `penstock` itself.
PUBLIC = {"errors", "escape", "contracts", "files", "staged", "segmentwise", "cli"}
PIPELINE = sorted((ROOT / "pipeline").rglob("*.py"))


@pytest.mark.parametrize("path", PIPELINE, ids=lambda p: p.name)
def test_the_pipeline_uses_the_public_face(path: Path) -> None:
    for name in imports(path):
        root, *rest = name.split(".")
        if root == "penstock" and rest:
            assert rest[0] in PUBLIC, f"{path.name} imports {name}"

"""House rules that no linter checks."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    [ROOT / "hatch_build.py"]
    + [
        path
        for place in ("core", "tools", "plugins", "pipeline", "bench")
        for path in (ROOT / place).rglob("*.py")
    ]
)
FUNCTION_LINES_MAX = 50
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "compile"}
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle"}
# It tries whether the attributes of its own errors can be pickled, and reads no pickle from outside.
PICKLES = Path("core/penstock/errors.py")


def test_shipped_code_keeps_the_rules() -> None:
    for path in SHIPPED:
        text, place = path.read_text(), path.relative_to(ROOT)
        tree = ast.parse(text)
        assert ast.get_docstring(tree), f"{place}: every module says what it owns"
        assert not re.search(r"\b(TODO|FIXME|XXX)\b", text), place
        for node in ast.walk(tree):
            check(node, place)


def check(node: ast.AST, place: Path) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        assert lines <= FUNCTION_LINES_MAX, f"{place}: {node.name} has {lines} lines"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        assert node.func.id not in FORBIDDEN_CALLS, f"{place}:{node.lineno} calls {node.func.id}"
    if isinstance(node, ast.Import | ast.ImportFrom):
        named = (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
        allowed = {"pickle"} if place == PICKLES else set()
        assert not FORBIDDEN_IMPORTS & {name.split(".")[0] for name in named} - allowed, place
    if isinstance(node, ast.keyword) and node.arg == "shell":
        pytest.fail(f"{place}:{node.value.lineno} may use a shell")


def test_a_public_method_says_what_it_does_or_overrides_one_that_does() -> None:
    trees = [ast.parse(path.read_text()) for path in SHIPPED]
    classes: dict[str, list[ast.ClassDef]] = {}
    for node in (each for tree in trees for each in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, []).append(node)

    def says(cls: ast.ClassDef, name: str) -> bool:
        own = [m for m in cls.body if isinstance(m, FUNCTIONS) and m.name == name]
        return any(map(ast.get_docstring, own)) or any(
            says(base, name) for named in bases(cls) for base in classes.get(named, ())
        )

    silent = [
        f"{cls.name}.{method.name}"
        for tree in trees
        for cls in tree.body
        if isinstance(cls, ast.ClassDef) and not cls.name.startswith("_")
        for method in cls.body
        if isinstance(method, FUNCTIONS) and not method.name.startswith("_")
        if not says(cls, method.name)
    ]
    assert not silent


def bases(cls: ast.ClassDef) -> list[str]:
    return [ast.unparse(each).partition("[")[0].rpartition(".")[2] for each in cls.bases]


def test_importing_penstock_loads_no_extra() -> None:
    import subprocess  # noqa: PLC0415 - one test needs a fresh interpreter
    import sys  # noqa: PLC0415

    code = "import sys, penstock; print(sorted({'pyarrow','rich','click','pyspark','pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

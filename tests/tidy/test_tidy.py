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
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "compile"}
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle"}
# It tries whether the attributes of its own errors can be pickled, and reads no pickle from outside.
PICKLES = ROOT / "core/penstock/errors.py"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT)))
def test_shipped_code_keeps_the_rules(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "every module says what it owns"
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, f"line {node.lineno} calls {node.func.id}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            allowed = {"pickle"} if path == PICKLES else set()
            assert not FORBIDDEN_IMPORTS & {name.split(".")[0] for name in named} - allowed
        if isinstance(node, ast.keyword) and node.arg == "shell":
            pytest.fail(f"line {node.value.lineno} may use a shell")


def test_importing_penstock_loads_no_extra() -> None:
    import subprocess  # noqa: PLC0415 - one test needs a fresh interpreter
    import sys  # noqa: PLC0415

    code = "import sys, penstock; print(sorted({'pyarrow','rich','click','pyspark','pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

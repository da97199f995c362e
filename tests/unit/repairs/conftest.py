"""A store with every kind of file, and a copy of it for each test."""

import shutil
from pathlib import Path

import pytest
from tests.unit.integrity.test_verification import make
from tests.unit.repairs.test_repair import Bodies, bodies


@pytest.fixture(scope="package")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("repairs") / "s")


@pytest.fixture(scope="package")
def sound(made: Path) -> Bodies:
    return bodies(made)


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "s", copy_function=shutil.copy2)
    return tmp_path / "s"

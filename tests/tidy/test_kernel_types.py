"""What `_kernel.pyi` says of the compiled kernel is what it has: no type checker looks into an object."""

import ast
from pathlib import Path

import penstock._kernel as kernel

STUB = Path(__file__).parents[2] / "core" / "penstock" / "_kernel.pyi"


def names_in(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Return the public names that are defined in a stub or a class of it, each with its own body."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node.body if isinstance(node, ast.ClassDef) else []
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = []
    return {name: inside for name, inside in found.items() if not name.startswith("_")}


def of_kernel(owner: object) -> set[str]:
    """Return the public names of the kernel or of a class of it, without what it has imported or inherited."""
    return {
        name
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and getattr(value, "__module__", kernel.__name__) in {kernel.__name__, None}
        and not isinstance(value, type(ast))
    }


def test_the_types_name_what_the_kernel_has_and_nothing_else() -> None:
    stub = names_in(ast.parse(STUB.read_text()).body)
    assert set(stub) == of_kernel(kernel)
    for name, inside in stub.items():
        value = getattr(kernel, name)
        if isinstance(value, type):
            assert set(names_in(inside)) == of_kernel(value), name

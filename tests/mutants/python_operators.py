"""Every small change of a Python module that its tests should notice.

The tree says where, the text is replaced at that place. Nothing is changed in docstrings, annotations, decorators,
assertions, f-strings, calls that log or warn, `if TYPE_CHECKING`, and functions that only show a value. Nor are the
numbers of a module's constants: most are limits of what is done at once, and nobody sees a limit that is one more.
"""

import ast
import re
from collections.abc import Callable, Iterator

from tests.mutants.mutant import Edit, Mutant

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: (r"<", "<="),
    ast.LtE: (r"<=", "<"),
    ast.Gt: (r">", ">="),
    ast.GtE: (r">=", ">"),
    ast.Eq: (r"==", "!="),
    ast.NotEq: (r"!=", "=="),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: (r"-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.FloorDiv: (r"//", "*"),
    ast.Mod: (r"%", "//"),
    ast.BitAnd: (r"&", "|"),
    ast.BitOr: (r"\|", "&"),
    ast.LShift: (r"<<", ">>"),
    ast.RShift: (r">>", "<<"),
}
# What is never a number: `+` joins these, and a change of it fails at once whatever is tested.
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set)
_BOOLEAN = (ast.Compare, ast.BoolOp)
_TELLING = {"log", "_log", "logger", "_logger", "logging", "warnings"}
_SHOWING = {"__repr__", "__str__", "__rich_repr__"}
_MAKING = {"__init__", "__attrs_post_init__", "__new__"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list"}


class _Module:
    """A module's text and where its lines begin, in bytes, as the tree counts."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.start(node) : self.end(node)].decode()

    def replaced(self, node: ast.expr | ast.stmt, text: str, operator: str) -> Edit:
        return Edit(self.start(node), self.end(node), text, operator)

    def between(
        self, left: ast.expr, right: ast.expr, pattern: str, text: str, operator: str
    ) -> Iterator[Edit]:
        """Yield the change of an operator's sign between two operands; none where a comment is between them."""
        first, last = self.end(left), self.start(right)
        gap = self.source[first:last].decode()
        found = re.search(pattern, gap)
        if found and "#" not in gap:
            yield Edit(first + found.start(), first + found.end(), text, operator)


def _compare(module: _Module, node: ast.Compare) -> Iterator[Edit]:
    operands = [node.left, *node.comparators]
    for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
        pattern, text = _COMPARISONS[type(sign)]
        yield from module.between(left, right, pattern, text, "comparison")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, _TEXTS) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _arithmetic(module: _Module, node: ast.BinOp) -> Iterator[Edit]:
    if type(node.op) in _ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
        pattern, text = _ARITHMETIC[type(node.op)]
        yield from module.between(node.left, node.right, pattern, text, "arithmetic")


def _boolean(module: _Module, node: ast.BoolOp) -> Iterator[Edit]:
    word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values, node.values[1:], strict=False):
        yield from module.between(left, right, rf"\b{word}\b", other, "boolean")


def _negation(module: _Module, node: ast.UnaryOp) -> Iterator[Edit]:
    if isinstance(node.op, ast.Not):
        yield module.replaced(node, f"({module.text(node.operand)})", "not removed")


def _constant(module: _Module, node: ast.Constant) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield module.replaced(node, str(not node.value), "constant")
    elif isinstance(node.value, int):
        yield module.replaced(node, str(node.value + 1), "constant")


def _call(module: _Module, node: ast.Expr) -> Iterator[Edit]:
    if isinstance(node.value, ast.Call | ast.Await):
        yield module.replaced(node, "pass", "statement removed")


def _assignment(module: _Module, node: ast.Assign) -> Iterator[Edit]:
    if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
        yield module.replaced(node, "pass", "statement removed")


def _augmented(module: _Module, node: ast.AugAssign) -> Iterator[Edit]:
    yield module.replaced(node, "pass", "statement removed")


def _return(module: _Module, node: ast.Return) -> Iterator[Edit]:
    value = node.value
    if value is None or (isinstance(value, ast.Constant) and not isinstance(value.value, str)):
        return
    if isinstance(value, _BOOLEAN):
        yield module.replaced(value, f"not ({module.text(value)})", "return value")
    elif isinstance(value, ast.BinOp):
        yield module.replaced(value, "0", "return value")
    elif not isinstance(value, ast.UnaryOp):
        yield module.replaced(value, "None", "return value")


def _negated(module: _Module, test: ast.expr) -> Iterator[Edit]:
    """Yield the negation of a condition, unless another operator has it: that of `not`, or of one `==`."""
    is_else = isinstance(test, ast.Compare) and isinstance(
        test.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
    )
    if not is_else and not isinstance(test, ast.UnaryOp | ast.Constant):
        yield module.replaced(test, f"not ({module.text(test)})", "condition negated")


def _if(module: _Module, node: ast.If) -> Iterator[Edit]:
    yield from _negated(module, node.test)
    yield module.replaced(node.test, "True", "condition true")


def _test(module: _Module, node: ast.While | ast.IfExp) -> Iterator[Edit]:
    yield from _negated(module, node.test)


def _filter(module: _Module, node: ast.comprehension) -> Iterator[Edit]:
    for test in node.ifs:
        yield from _negated(module, test)


def _raise(module: _Module, node: ast.Raise) -> Iterator[Edit]:
    yield module.replaced(node, "pass", "raise removed")


def _break(module: _Module, node: ast.Break) -> Iterator[Edit]:
    yield module.replaced(node, "continue", "break")


def _continue(module: _Module, node: ast.Continue) -> Iterator[Edit]:
    yield module.replaced(node, "break", "continue")


def _slice(module: _Module, node: ast.Slice) -> Iterator[Edit]:
    for bound in (node.lower, node.upper):
        if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
            yield module.replaced(bound, f"({module.text(bound)}) + 1", "slice")


OPERATORS: dict[type[ast.AST], Callable[..., Iterator[Edit]]] = {
    ast.Compare: _compare,
    ast.BinOp: _arithmetic,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _negation,
    ast.Constant: _constant,
    ast.Expr: _call,
    ast.Assign: _assignment,
    ast.AugAssign: _augmented,
    ast.Return: _return,
    ast.If: _if,
    ast.While: _test,
    ast.IfExp: _test,
    ast.comprehension: _filter,
    ast.Raise: _raise,
    ast.Break: _break,
    ast.Continue: _continue,
    ast.Slice: _slice,
}


def _tells(node: ast.AST) -> bool:
    """Tell whether a node is a call that logs or warns."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in _TELLING
    )


def _is_skipped(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name in _SHOWING
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Expr):
        return _tells(node.value)
    if isinstance(node, ast.Assign):
        return _is_limit(node)
    return isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom) or _tells(
        node
    )


def _is_limit(node: ast.Assign) -> bool:
    """Tell whether an assignment names numbers in capitals."""
    names = [
        name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
    ]
    return (
        all(name.id.isupper() for name in names)
        and bool(names)
        and not any(
            isinstance(each, ast.Constant) and isinstance(each.value, bool)
            for each in ast.walk(node.value)
        )
    )


def _own_lines(node: ast.stmt) -> tuple[int, int]:
    """Return first and last line of a statement, without the body it may have."""
    assert node.end_lineno is not None
    body = getattr(node, "body", None)
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return first, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno


class _Walk:
    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._module = path, _Module(source)

    def below(self, node: ast.AST, lines: tuple[int, int], function: str) -> Iterator[Mutant]:
        """Yield the mutants of a node and of all below it; `function` is "" at import."""
        if _is_skipped(node):
            return
        if isinstance(node, ast.stmt):
            lines = _own_lines(node)
        # Without its first assignment an attribute is missing: any test at all finds that.
        if not (isinstance(node, ast.Assign) and (not function or function in _MAKING)):
            for edit in OPERATORS.get(type(node), _nothing)(self._module, node):
                yield Mutant(self._path, edit, lines, bool(function))
        for field, value in ast.iter_fields(node):
            # Defaults are made at import, and count for who calls the function.
            inner = _function_of(node) or function if field in {"args", "body"} else function
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in _SKIPPED_FIELDS:
                    yield from self.below(child, lines, inner)


def _function_of(node: ast.AST) -> str:
    """Return the name of the function that a node is; "" for any other."""
    if isinstance(node, ast.Lambda):
        return "lambda"
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""


def _nothing(module: _Module, node: ast.AST) -> Iterator[Edit]:
    return iter(())


def python_mutants(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a module, in the order of their places."""
    found = _Walk(path, source).below(ast.parse(source), (1, 1), "")
    return sorted(found, key=lambda mutant: mutant.edit)


def is_valid(mutant: Mutant, source: bytes) -> bool:
    """Tell whether the changed module is Python, and another program than the original."""
    try:
        changed = ast.parse(mutant.apply(source))
        compile(changed, mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))

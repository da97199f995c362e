"""Every small change of the compiled kernel that its tests should notice: Cython (`.pyx`, `.pxi`) and C (`.h`).

There is no tree: tokens are changed in a copy of the text in which comments, strings and docstrings are blank. So some
changes do not compile; these are no mutants, and the next one of the sample is taken instead.
"""

import re
from collections.abc import Iterator

from tests.mutants.mutant import Edit, Mutant

_C_BLANKS = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_CYTHON_BLANKS = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
# Signs stand between blanks in this code; casts, pointers and generic types do not.
_COMMON_TOKENS = {
    r"(?<= )<(?= )": ("<=", "comparison"),
    r"(?<= )<=(?= )": ("<", "comparison"),
    r"(?<= )>(?= )": (">=", "comparison"),
    r"(?<= )>=(?= )": (">", "comparison"),
    r"(?<= )==(?= )": ("!=", "comparison"),
    r"(?<= )!=(?= )": ("==", "comparison"),
    r"(?<= )\+(?= )": ("-", "arithmetic"),
    r"(?<= )-(?= )": ("+", "arithmetic"),
    r"(?<= )\+=(?= )": ("-=", "arithmetic"),
    r"(?<= )-=(?= )": ("+=", "arithmetic"),
    r"(?<= )&(?= )": ("|", "arithmetic"),
    r"(?<= )\|(?= )": ("&", "arithmetic"),
    r"(?<= )<<(?= )": (">>", "arithmetic"),
    r"(?<= )>>(?= )": ("<<", "arithmetic"),
    r"\bbreak\b": ("continue", "break"),
    r"\bcontinue\b": ("break", "continue"),
}
_C_TOKENS = {
    r"(?<= )&&(?= )": ("||", "boolean"),
    r"(?<= )\|\|(?= )": ("&&", "boolean"),
    r"(?<=\w)\+\+": ("--", "arithmetic"),
    r"(?<=[( ])!(?=[\w(])": ("", "not removed"),
}
_CYTHON_TOKENS = {
    r"\band\b": ("or", "boolean"),
    r"\bor\b": ("and", "boolean"),
    r"\bis not\b": ("is", "comparison"),
    r"\bis\b(?! not\b)": ("is not", "comparison"),
    r"(?<!is )\bnot (?!in\b)": ("", "not removed"),
    r"\bTrue\b": ("False", "constant"),
    r"\bFalse\b": ("True", "constant"),
}
_NUMBER = re.compile(r"(?<![\w.])(0x[0-9a-fA-F]+|\d[\d_]*)(?=[uUlL]*\b)(?![.\d])")
# The size of an array in its declaration, and what is no code of ours.
_DECLARED_SIZE = re.compile(r"^\s*(?:cdef |static |const )*\w[\w *]*\s\*?\w+\[[^\]=]+\](?:,.*)?;?$")
# As in the module's constants: see `python_operators`.
_LIMIT = re.compile(r"^\s*[A-Z][A-Z_0-9]+ = .*,?$")
_SKIPPED_LINE = re.compile(
    r"^\s*(?:#|cdef extern|cimport|from |import |include |assert\b|_Static_assert|ctypedef|typedef|@)"
)

_C_STATEMENT = re.compile(
    r"^(?P<indent>\s*)(?P<code>(?:[\w.\[\]>-]+\([^;{}]*\)|\*?[\w.\[\]>()-]+ (?:[-+|&]|<<|>>)?= [^;{}]*|[\w.\[\]>-]+\+\+));\s*$"
)
_CYTHON_STATEMENT = re.compile(
    r"^(?P<indent>\s+)(?P<code>(?!return\b|raise\b|def\b|if\b|for\b|while\b|with\b|cdef\b|elif\b|assert\b|del\b)"
    r"(?:[\w.\[\]]+\(.*\)|[\w.\[\]]+ [-+|&]= .*|\w[\w.]*[.\[][\w.\[\]]* = .*))\s*$"
)
_C_IF = re.compile(r"^\s*(?:\} else |else )?(?:if|while) \((?P<test>.*)\)(?: \{)?\s*$")
_CYTHON_IF = re.compile(r"^\s*(?:if|elif|while) (?P<test>.*):\s*$")
_C_RETURN = re.compile(r"^\s*return (?P<value>[^;]+);\s*$")
_CYTHON_RETURN = re.compile(r"^\s*return (?P<value>.+?)\s*$")
_CYTHON_RAISE = re.compile(r"^\s*(?P<code>raise .+?)\s*$")
_NOTHING = {"0", "None", "False", "NULL"}
_IS_TRUTH = re.compile(r" (?:[<>]=?|[=!]=|&&|\|\||and|or|is|in) |^(?:not |!)")


def blanked(text: str, *, is_c: bool) -> str:
    """Return the text with comments, strings and docstrings blank, each of the same length."""
    pattern = _C_BLANKS if is_c else _CYTHON_BLANKS
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _is_balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _tokens(line: str, *, is_c: bool) -> Iterator[Edit]:
    """Yield changes of single tokens; positions are of characters in the line."""
    tokens = _COMMON_TOKENS | (_C_TOKENS if is_c else _CYTHON_TOKENS)
    for pattern, (text, operator) in tokens.items():
        for found in re.finditer(pattern, line):
            yield Edit(found.start(), found.end(), text, operator)
    if not (_DECLARED_SIZE.match(line) or _LIMIT.match(line)):
        for found in _NUMBER.finditer(line):
            yield Edit(found.start(), found.end(1), str(int(found[1], 0) + 1), "constant")


def _c_statements(line: str) -> Iterator[Edit]:
    found = _C_STATEMENT.match(line)
    if found and _is_balanced(found["code"]):
        yield Edit(*found.span("code"), "", "statement removed")
    found = _C_IF.match(line)
    if found and _is_balanced(found["test"]) and not found["test"].startswith("!"):
        yield Edit(*found.span("test"), f"!({found['test']})", "condition negated")
    found = _C_RETURN.match(line)
    if found and _is_balanced(found["value"]) and found["value"] not in _NOTHING:
        value = found["value"]
        text = f"!({value})" if _IS_TRUTH.search(value) else "0"
        yield Edit(*found.span("value"), text, "return value")


def _cython_statements(line: str) -> Iterator[Edit]:
    found = _CYTHON_STATEMENT.match(line)
    if found and _is_balanced(found["code"]):
        yield Edit(*found.span("code"), "pass", "statement removed")
    found = _CYTHON_IF.match(line)
    if found and _is_balanced(found["test"]) and not found["test"].startswith("not "):
        yield Edit(*found.span("test"), f"not ({found['test']})", "condition negated")
    found = _CYTHON_RETURN.match(line)
    if found and _is_balanced(found["value"]) and found["value"] not in _NOTHING:
        value = found["value"]
        text = f"not ({value})" if _IS_TRUTH.search(value) else "0"
        yield Edit(*found.span("value"), text, "return value")
    found = _CYTHON_RAISE.match(line)
    if found and _is_balanced(found["code"]):
        yield Edit(*found.span("code"), "pass", "raise removed")


def kernel_mutants(path: str, source: bytes) -> list[Mutant]:
    """Return every change of a part of the kernel, in the order of their places; some do not compile."""
    text, is_c = source.decode(), path.endswith(".h")
    lines = text.splitlines(keepends=True)
    plain = blanked(text, is_c=is_c).splitlines(keepends=True)
    found: list[Mutant] = []
    start = 0
    for number, (line, code) in enumerate(zip(lines, plain, strict=True), 1):
        if code.strip() and not _SKIPPED_LINE.match(code):
            changes = _changes(code.rstrip(), is_c=is_c)
            found += [_placed(path, number, line, start, edit) for edit in changes]
        start += len(line.encode())
    return sorted(set(found), key=lambda mutant: mutant.edit)


def _changes(code: str, *, is_c: bool) -> Iterator[Edit]:
    yield from _tokens(code, is_c=is_c)
    yield from _c_statements(code) if is_c else _cython_statements(code)


def _placed(path: str, number: int, line: str, start: int, edit: Edit) -> Mutant:
    """Return a change of a line as one of the file: texts that were blank come back, positions count bytes."""
    first, last = (start + len(line[:at].encode()) for at in (edit.start, edit.end))
    text = edit.text
    for wrapped in ("!({})", "not ({})"):
        head, tail = wrapped.split("{}")
        if text.startswith(head) and text.endswith(tail):
            text = head + line[edit.start : edit.end] + tail
    return Mutant(path, Edit(first, last, text, edit.operator), (number, number), True)

"""What is changed in a source, what is left alone, and that a seed gives the same sample; see `tests.mutants`."""

import itertools
from pathlib import Path

import pytest
from tests.mutants.areas import AREAS, files_by_area, is_kernel
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.kernel_operators import blanked, kernel_mutants
from tests.mutants.line_map import Test as Noted
from tests.mutants.mutant import Mutant
from tests.mutants.python_operators import is_valid, python_mutants
from tests.mutants.results import Outcome, Result, append_result, misses, read_results, table
from tests.mutants.running import batches
from tests.mutants.sampling import draw, mutants_of, read


def changes(source: str) -> set[str]:
    """Return the changed lines that the mutants of a module have."""
    data = source.encode()
    return {mutant.change(data)[1] for mutant in python_mutants("m.py", data)}


def kernel_changes(source: str, path: str = "k.pxi") -> set[str]:
    """Return those of a part of the kernel."""
    data = source.encode()
    return {mutant.change(data)[1] for mutant in kernel_mutants(path, data)}


def in_function(*lines: str) -> str:
    return "def f():\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = (a) <= (b)", {"x = (a) < (b)"}),
        ("x = a > b >= c", {"x = a >= b >= c", "x = a > b > c"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a + b", {"x = a - b"}),
        ("x = a - b", {"x = a + b"}),
        ("x = a * b", {"x = a // b"}),
        ("x = a // b", {"x = a * b"}),
        ("x = a & b | c", {"x = a | b | c", "x = a & b & c"}),
        ("x = a << b", {"x = a >> b"}),
        ("x = a and b and c", {"x = a or b and c", "x = a and b or c"}),
        ("x = not a", {"x = (a)"}),
        ("x = 0x10", {"x = 17"}),
        ("x = True", {"x = False"}),
        ("close(a)", {"pass"}),
        ("await close(a)", {"pass"}),
        ("self.a = b", {"pass"}),
        ("a += b", {"pass"}),
        ("return a", {"return None"}),
        ("return a < b", {"return a <= b", "return not (a < b)"}),
        ("return a - b", {"return a + b", "return 0"}),
        ("raise", {"pass"}),
        ("x = a[b:c]", {"x = a[(b) + 1:c]", "x = a[b:(c) + 1]"}),
        ("x = a[1:]", {"x = a[2:]"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if not (c)]"}),
        ("x = a if b else c", {"x = a if not (b) else c"}),
    ],
)
def test_an_operator_changes_a_line(line: str, expected: set[str]) -> None:
    found = changes(in_function(line).replace("def", "async def" if "await" in line else "def"))
    assert found == expected


def test_conditions_and_loops_are_changed() -> None:
    source = in_function("while a:", "    if b:", "        break", "    continue")
    assert changes(source) == {"while not (a):", "if not (b):", "if True:", "continue", "break"}


@pytest.mark.parametrize(
    "source",
    [
        '"""Say 1 + 1 < 3."""\n',
        in_function('"""Return 1 < 2."""'),
        in_function("assert a < 1"),
        in_function('logger.warning("%d", 1 + b)'),
        in_function('warnings.warn("a", stacklevel=2)'),
        in_function('x = f"{a + 1}"'),
        in_function('x = "a" + b'),
        "_MOST, LEAST = 1 << 20, 7\n",
        "x: Literal[1]\n",
        "def f(a: Literal[1]) -> Literal[2]:\n    ...\n",
        "@frozen(slots=True)\nclass A:\n    pass\n",
        "if TYPE_CHECKING:\n    x = 1\n",
        "class A:\n    def __repr__(self):\n        return a\n",
        "class A:\n    def __init__(self):\n        self.a = b\n",
        "x = (a  # is a < b\n    + b)\n",
    ],
)
def test_what_no_test_should_notice_is_left_alone(source: str) -> None:
    assert not changes(source)


def test_positions_count_characters_of_any_width() -> None:
    source = 'name = "größe → 1 < 2"; flag = ä <b\nflag = "→", ä<= b\n'.encode()
    found = [mutant.apply(source).decode() for mutant in python_mutants("m.py", source)]
    assert found == [
        'name = "größe → 1 < 2"; flag = ä <=b\nflag = "→", ä<= b\n',
        'name = "größe → 1 < 2"; flag = ä <b\nflag = "→", ä< b\n',
    ]


def test_a_mutant_knows_its_line_its_statement_and_when_it_runs() -> None:
    source = (
        b"@g\ndef f(a=1):\n    if (\n        a < 2\n    ):\n        g(\n            a\n        )\n"
    )
    found = {m.change(source): (m.line(source), m.lines, m.is_in_function) for m in python_mutants("m.py", source)}  # fmt: skip
    assert found["def f(a=1):", "def f(a=2):"] == (2, (1, 2), True)
    assert found["a < 2", "a <= 2"] == (4, (3, 5), True)
    assert found["g(\na\n)", "pass"] == (6, (6, 8), True)
    assert [m.is_in_function for m in python_mutants("m.py", b"class A:\n    b = 1\n")] == [False]


def test_a_change_that_is_no_python_or_the_same_program_is_not_valid() -> None:
    source = b"def f():\n    try:\n        pass\n    finally:\n        return g(1)\n"
    one = python_mutants("m.py", source)[-1]
    assert is_valid(one, source)
    assert not is_valid(one._replace(edit=one.edit._replace(text="(")), source)
    assert not is_valid(one._replace(edit=one.edit._replace(text="0x1")), source)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if a < b:", {"if a <= b:", "if not (a < b):"}),
        ("x = a + b - c", {"x = a - b - c", "x = a + b + c"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x = a"}),
        ("x = a is not NULL", {"x = a is NULL"}),
        ("self.a = 7", {"self.a = 8", "pass"}),
        ("self.a += b", {"self.a -= b", "pass"}),
        ("memset(a)", {"pass"}),
        ("return a", {"return 0"}),
        ("return a > b", {"return a >= b", "return not (a > b)"}),
        ('raise ValueError("1 < 2")', {"pass"}),
        ("cdef int x[4]", set()),
        ('x = a["1 + 1 < 2"]  # 1 < 2, not 3', set()),
        ("from a import b", set()),
        ("x = <int64_t *>a", set()),
    ],
)
def test_an_operator_changes_a_line_of_cython(line: str, expected: set[str]) -> None:
    assert kernel_changes(in_function(line)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if (a < b)", {"if (a <= b)", "if (!(a < b))"}),
        ("} else if (!a) {", {"} else if (a) {"}),
        ("x = a && b;", {"x = a || b;", ";"}),
        ("g->a += b;", {"g->a -= b;", ";"}),
        ("memcpy(a, b, n);", {";"}),
        ("return a;", {"return 0;"}),
        ("return a == b;", {"return a != b;", "return !(a == b);"}),
        ("n++;", {"n--;", ";"}),
        ("x = 0x4;", {"x = 5;", ";"}),
        ("int a[16], b;", set()),
        ("int64_t *p; /* 1 < 2 */ // 3", set()),
        ("#define A 1", set()),
        ("MARK_BYTES = 512,", set()),
    ],
)
def test_an_operator_changes_a_line_of_c(line: str, expected: set[str]) -> None:
    assert kernel_changes(f"    {line}\n", "k.h") == expected


def test_comments_and_texts_of_the_kernel_are_blank() -> None:
    cython = '"""One\n1 < 2."""\nx = "#" + b\'a\'  # 3\n'
    plain = blanked(cython, is_c=False)
    assert len(plain) == len(cython)
    assert plain.split() == ["x", "=", "+", "b"]
    c = 'a = "/*"; /* b\n < */ c = \'"\'; // d\n'
    assert blanked(c, is_c=True).split() == ["a", "=", ";", "c", "=", ";"]


def test_texts_in_a_changed_line_of_the_kernel_are_kept() -> None:
    assert 'if not (a != b"\\x02"):' in kernel_changes(in_function('if a != b"\\x02":'))


def test_a_seed_gives_the_same_sample_and_a_larger_one_begins_with_it() -> None:
    first, again, other = (list(itertools.islice(draw(s, "*/gate.*"), 40)) for s in (7, 7, 8))
    assert first == again
    assert first != other
    assert list(itertools.islice(draw(7, "*/gate.*"), 20)) == first[:20]


def test_a_sample_has_every_area_and_its_share_of_the_kernel() -> None:
    found = list(itertools.islice(draw(7), 50))
    assert {drawn.area for drawn in found} == set(AREAS)
    assert sum(is_kernel(drawn.mutant.path) for drawn in found) == 10
    assert all(d.mutant.path.endswith(".h") for d in itertools.islice(draw(7, "*.h"), 20))


def test_each_file_is_of_one_area() -> None:
    found = [path for paths in files_by_area().values() for path in paths]
    assert len(found) == len(set(found))


def test_a_glob_that_names_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names no file"):
        files_by_area(tmp_path)


def test_the_quickest_case_of_each_test_comes_first_and_no_test_twice() -> None:
    tests = [Noted(f"a.py::test_many[{n}]", 0.001 * n) for n in range(20)]
    tests += [Noted("b.py::test_one", 0.5), Noted("c.py::test_slow", 30.0), Noted("d.py::test_never", 900.0)]  # fmt: skip
    found = [[test.name for test in batch] for batch in batches(tests, "log/a.py")]
    assert {"a.py::test_many[0]", "b.py::test_one"} <= set(found[0])
    assert "c.py::test_slow" not in found[0]
    near = [*tests, Noted("tests/log/e.py::test_near", 0.9)]
    assert next(batches(near, "log/a.py"))[0].name == "tests/log/e.py::test_near"
    flat = [name for batch in found for name in batch]
    assert len(flat) == len(set(flat))
    assert "c.py::test_slow" in flat
    assert "d.py::test_never" not in flat
    assert list(batches(tests[-1:], "log/a.py")) == [tests[-1:]]


def test_results_are_read_back_and_one_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.ndjson"
    result = Result("log", "a.py", 3, "comparison", "a < b", "a <= b", Outcome.SURVIVED, start=9)
    append_result(path, result)
    append_result(path, result._replace(outcome=Outcome.KILLED))
    with path.open("a") as file:
        file.write('{"area": "lo')
    assert list(read_results(path).values()) == [result._replace(outcome=Outcome.KILLED)]


def test_the_goals_count_what_was_killed_and_what_is_called_equivalent() -> None:
    result = Result("log", "a.py", 3, "comparison", "a < b", "a <= b", Outcome.KILLED)
    killed = [result] * 92 + [result._replace(outcome=Outcome.INVALID)] * 50
    survived = [result._replace(outcome=Outcome.SURVIVED)]
    equivalent = [result._replace(outcome=Outcome.EQUIVALENT)]
    assert misses(killed + equivalent * 3 + survived * 5) == []
    assert len(misses(killed + survived * 9)) == 1
    assert len(misses(killed + equivalent * 8)) == 1
    assert misses([]) == ["no mutant was tested"]
    assert " 100 " in table(killed + survived * 8).splitlines()[-1]


def test_each_equivalent_mutant_is_one_that_is_made() -> None:
    made: dict[str, set[tuple[str, str]]] = {}
    for entry in EQUIVALENT:
        if entry.path not in made:
            source = read(entry.path)
            made[entry.path] = {mutant.change(source) for mutant in mutants_of(entry.path)}
        assert (entry.before, entry.after) in made[entry.path], entry
        assert entry.reason.endswith("."), entry


def test_a_mutant_is_applied_at_its_place_only() -> None:
    source = "ä = 1\nb = 1\n".encode()
    found: list[Mutant] = python_mutants("m.py", source)
    assert [mutant.apply(source).decode() for mutant in found] == [
        "ä = 2\nb = 1\n",
        "ä = 1\nb = 2\n",
    ]

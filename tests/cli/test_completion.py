"""Completion as a shell asks for it, and in the real shells where they are installed."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lanes import need_program

import penstock

SHELLS = ("bash", "zsh", "fish")
HOSTILE = (
    "$(touch owned)",
    "a;b",
    "back`tick",
    'quo"te',
    "new\nline",
    "sp ace",
    "\x1b[2J",
    "-dash",
    "a\u202eb",
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a store, with a command `penstock` in `bin`, and with names that a shell would interpret."""
    with penstock.open(tmp_path / "data", environ={}, geometry={"segment_bytes": 65536}) as store:
        for topic in ("orders", "order-lines", "payments"):
            store.put(topic, b"x", queue=0)
        store.commit_offset("billing", "orders", 0, offset=1)
        store.commit_offset("shipping", "orders", 0, offset=1)
    for name in HOSTILE:
        (tmp_path / "data" / "consumequeue" / name / "0").mkdir(parents=True)
    offsets = tmp_path / "data" / "config" / "consumerOffset.json"
    table = json.loads(offsets.read_text())
    table["offsetTable"] |= {f"orders@{name}": {"0": 1} for name in HOSTILE}
    offsets.write_text(json.dumps(table))
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "penstock"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock "$@"\n')
    command.chmod(0o755)
    return tmp_path


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "HOME": str(place)}


def asked(place: Path, shell: str, line: str) -> set[str]:
    """Return the completions of the last word of a line, by the protocol between a shell's script and the command."""
    words = line.split(" ")
    said = {"COMP_WORDS": line, "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1)}
    done = subprocess.run(
        [str(place / "bin" / "penstock")], cwd=place, capture_output=True, text=True, check=False,
        env={**environment(place), **said, "_PENSTOCK_COMPLETE": f"{shell}_complete"},
    )  # fmt: skip
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    if shell == "zsh":
        return {
            value for kind, value in zip(lines[::3], lines[1::3], strict=False) if kind == "plain"
        }
    return {
        line.removeprefix("plain,").partition("\t")[0]
        for line in lines
        if line.startswith("plain,")
    }


CASES = {
    "penstock re": {"read", "repair", "replica", "retain"},
    "penstock sp": {"spark"},
    "penstock stat --s": {"--space"},
    "penstock read data ": {"orders", "order-lines", "payments"},
    "penstock read data ord": {"orders", "order-lines"},
    "penstock find data pay": {"payments"},
    "penstock tail none ": set(),
    "penstock groups data --group ": {"billing", "shipping"},
    "penstock groups data --group s": {"shipping"},
    "penstock groups reset data s": {"shipping"},
    "penstock groups reset data billing --topic pay": {"payments"},
    "penstock topic delete data ord": {"orders", "order-lines"},
    "penstock dlq show data ": set(),
    "penstock completion ": set(SHELLS),
    "penstock spark re": {"reindex", "replay"},
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", CASES)
def test_the_command_answers_a_shell(line: str, shell: str, place: Path) -> None:
    found = asked(place, shell, line)
    assert CASES[line] <= found
    if "data" in line or "none" in line:
        assert found == CASES[line]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed_and_calls_the_command(shell: str, place: Path) -> None:
    done = subprocess.run(
        [str(place / "bin" / "penstock"), "completion", shell],
        capture_output=True, text=True, check=True, env=environment(place),
    )  # fmt: skip
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in done.stdout
    assert "penstock" in done.stdout


# What the shells themselves are asked.
SOME = ["penstock re", "penstock read data ord", "penstock groups data --group "]
BASH = """
eval "$(penstock completion bash)"
COMP_WORDS=({words}) COMP_CWORD={at} COMPREPLY=()
_penstock_completion penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = """
penstock completion fish | source
complete --do-complete "{line}"
"""
# zsh completes only at a prompt, so it runs at a terminal of its own.
ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; autoload -Uz compinit; compinit -D -u; zstyle ':completion:*' list-colors ''; setopt no_list_ambiguous"
zpty -w z 'eval "$(penstock completion zsh)"; LISTMAX=1000; COLUMNS=200; print re""ady'
out=""
until [[ $out == *ready* ]]; do zpty -r z part || break; out+=$part; done
zpty -w -n z "{line}"$'\\t'$'\\t'
out=""
integer tries=0
while (( tries++ < 400 )); do
  if zpty -r -t z part; then out+=$part; tries=0; [[ {seen} ]] && break; else read -t 0.05 -k 1 < /dev/zero 2>/dev/null; sleep 0.05; fi
done
print -r -- $out
zpty -d z
"""


@pytest.mark.parametrize("line", SOME)
def test_bash_completes(line: str, place: Path) -> None:
    words = line.split(" ")
    script = BASH.format(words=" ".join(map(shlex.quote, words)), at=len(words) - 1)
    done = subprocess.run(
        [need_program("bash", "SHELLS"), "--norc", "-c", script],
        cwd=place, capture_output=True, text=True, check=True, env=environment(place),
    )  # fmt: skip
    assert set(done.stdout.split()) == CASES[line]
    assert not (place / "owned").exists()


@pytest.mark.night
@pytest.mark.parametrize("line", SOME)
def test_fish_completes(line: str, place: Path) -> None:
    done = subprocess.run(
        [need_program("fish", "SHELLS"), "--no-config", "-c", FISH.format(line=line)],
        cwd=place, capture_output=True, text=True, check=True, env=environment(place),
    )  # fmt: skip
    assert {row.partition("\t")[0] for row in done.stdout.splitlines()} == CASES[line]


@pytest.mark.night
@pytest.mark.parametrize("line", SOME)
def test_zsh_completes(line: str, place: Path) -> None:
    seen = " && ".join(f"$out == *{name}*" for name in sorted(CASES[line]))
    done = subprocess.run(
        [need_program("zsh", "SHELLS"), "-f", "-c", ZSH.format(line=line, seen=seen)],
        cwd=place, capture_output=True, text=True, check=False, env={**environment(place), "TERM": "dumb"},
    )  # fmt: skip
    for name in CASES[line]:
        assert name in done.stdout, (done.stdout, done.stderr)
    assert "owned" not in done.stdout

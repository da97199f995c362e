"""What every error means as an exit code, and an interrupt that waits for the end of a step."""

import signal

import click
import pytest

from penstock import errors
from penstock.cli import root
from penstock.cli.root import code_of, interrupts_wait, run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreClosedError(), 4), (errors.TopicError("t", "no"), 2), (errors.ConfigError("no"), 2),
        (errors.OffsetError(1, 2, 3), 1), (errors.StoreFailedError("no", 0), 5), (errors.BusyError("x", 1), 4),
        (errors.PluginError("no"), 2), (errors.QueueHeldError("g", "t", 0, "process 1"), 3), (OSError("no"), 4), (errors.PenstockError("no"), 2),
    ],
)  # fmt: skip
def test_an_error_has_its_exit_code_and_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def verb() -> None:
        raise error

    assert code_of(error) == code
    assert run([], verb) == code
    assert capsys.readouterr().err.startswith("penstock: ")


def test_what_is_raised_on_purpose_has_a_code_whatever_it_is() -> None:
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.PenstockError):
            assert any(issubclass(cls, kind) for kind, _ in root._CODES)


def test_usage_an_interrupt_and_a_closed_pipe_have_codes_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for raised, code in ((KeyboardInterrupt(), 130), (BrokenPipeError(), 141), (click.UsageError("a\x1b"), 2)):  # fmt: skip

        @click.command()
        def verb(raised: BaseException = raised) -> None:
            raise raised

        assert run([], verb) == code
    assert "a\\x1b" in capsys.readouterr().err
    assert run(["none-such"]) == 2


def test_a_verbs_number_is_the_exit_code_and_nothing_is_fine() -> None:
    @click.command()
    def no() -> int:
        return 1

    @click.command()
    def fine() -> None:
        pass

    assert (run([], no), run([], fine)) == (1, 0)


def test_every_module_of_the_verbs_is_a_command() -> None:
    context = click.Context(root.cli)
    for name in root.own_verbs():
        command = root.cli.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_an_interrupt_waits_for_the_end_of_the_step() -> None:
    before = signal.getsignal(signal.SIGINT)
    done = list[int]()
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is before

"""The hooks: each said in a sentence, called by the registry, and a misspelt one found."""

import inspect

import pluggy
import pytest

from penstock.plugins import hookspecs
from penstock.plugins.hookspecs import PROJECT, hookimpl

HOOKS = {name: value for name, value in vars(hookspecs).items() if name.startswith("penstock_")}


def manager() -> pluggy.PluginManager:
    made = pluggy.PluginManager(PROJECT)
    made.add_hookspecs(hookspecs)
    return made


def test_every_hook_begins_with_the_projects_name_and_says_what_it_is_for() -> None:
    assert len(HOOKS) > 5
    for name, hook in HOOKS.items():
        assert inspect.getdoc(hook), name
        assert hasattr(manager().hook, name)


def test_an_implementation_may_leave_arguments_out_and_may_not_add_any() -> None:
    class Few:
        @hookimpl
        def penstock_segment_sealed(self, base_offset: int) -> int:
            return base_offset

    class Many:
        @hookimpl
        def penstock_segment_sealed(self, base_offset: int, colour: str) -> None:
            pass

    made = manager()
    made.register(Few())
    assert made.hook.penstock_segment_sealed(path="p", base_offset=7, size=1) == [7]
    with pytest.raises(pluggy.PluginValidationError, match="colour"):
        made.register(Many())


def test_a_misspelt_hook_is_found() -> None:
    class Wrong:
        @hookimpl
        def penstock_segment_seald(self) -> None:
            pass

    made = manager()
    made.register(Wrong())
    with pytest.raises(pluggy.PluginValidationError, match="seald"):
        made.check_pending()

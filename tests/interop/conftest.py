"""The JVMs for these tests."""

from tests.interop.jvms import *  # noqa: F403 - pytest finds the fixtures by their names

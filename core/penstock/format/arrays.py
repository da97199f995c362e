"""numpy, imported at its first use, and the types of arrays that several modules name.

Importing numpy takes more processor time than everything else that `penstock stat` does, which needs none of it.
Modules that are loaded with a store take `np` from here; what they compute at import must not touch it.
"""

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

__all__ = ["Bools", "Bytes", "Int32s", "Int64s", "RowType", "Structs", "np"]

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bools = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.uint8]
    Int32s = npt.NDArray[np.int32]
    Int64s = npt.NDArray[np.int64]
    Structs = npt.NDArray[np.void]
else:

    class _Numpy:
        """Stands for the module; a name that was used once is an attribute from then on."""

        def __getattr__(self, name: str) -> Any:
            import numpy  # noqa: PLC0415 - the purpose of this module

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _Numpy()
    Bools = Bytes = Int32s = Int64s = Structs = Any


class RowType:
    """The type of rows with named fields, made at its first use. numpy takes it as a type.

    `dtype` is ten times as fast in a function that numpy spends under a microsecond in.
    """

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    @cached_property
    def dtype(self) -> "np.dtype[Any]":
        """The type itself."""
        return np.dtype(self._fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(name for name, _ in self._fields)

    @property
    def itemsize(self) -> int:
        """The size of a row in bytes."""
        # Without numpy: modules check it against the format when they are imported.
        return sum(int(re.sub(r"\D", "", kind)) for _, kind in self._fields)

    def __getitem__(self, name: str) -> "np.dtype[Any]":
        return self.dtype[name]

"""An entry's metadata: an immutable dict, because readers share it."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["NO_METADATA", "Metadata"]


class Metadata(dict[str, str]):
    """An immutable mapping that equals its dict. TypeError for every change. `dict(…)` makes a copy that can be
    changed."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("an entry's metadata cannot be changed: change a copy, dict(entry.metadata)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Metadata], tuple[dict[str, str]]]:
        return Metadata, (dict(self),)

    def __copy__(self) -> Metadata:
        return self

    def __deepcopy__(self, memo: object) -> Metadata:
        return self

    def copy(self) -> dict[str, str]:
        """A copy that may be changed."""
        return dict(self)


NO_METADATA = Metadata()

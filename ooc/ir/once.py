"""Ops that are made again are the same objects."""

from __future__ import annotations

from typing import Any

from ooc.cache import Cache

_known: Cache[Any] = Cache(1024)  # ops by what they were made of, and by themselves


class Once(type):
    """Metaclass of ops: what is made again of the same arguments is the same object, while it is remembered.

    So what follows from an op alone (operands, folds, the maps of its stages) is worked out once, and comparing ops that
    were met before is comparing objects.
    """

    def __call__(cls, *args: Any, **named: Any) -> Any:
        frozen = tuple([tuple(a) if type(a) is list else a for a in args])
        key = (cls, frozen, tuple(named.items()), tuple(map(type, frozen)), tuple(map(type, named.values())))
        try:
            op = _known.get(key)
        except TypeError:  # an argument that is no size: refused, or turned into one
            return super().__call__(*args, **named)
        if op is None:
            new = super().__call__(*args, **named)
            op = _known.keep(key, _known.keep(new, new))
        return op

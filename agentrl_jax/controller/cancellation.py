"""Cancelling a group from outside while its episodes still make records, and errors that keep their own type."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class CancelSwitch:
    """Cancels all scopes opened under it, and those still to come. Trips once and for all.

    A cancel scope may be entered by one task only; the episodes of a group are several.
    """

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._is_tripped = False

    @property
    def is_tripped(self) -> bool:
        return self._is_tripped

    def trip(self) -> None:
        """Cancel everything under this switch."""
        self._is_tripped = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def scope(self) -> Iterator[trio.CancelScope]:
        """A cancel scope that this switch cancels; `cancelled_caught` then says whether it did."""
        with trio.CancelScope() as scope:
            if self._is_tripped:
                scope.cancel()
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Raise the only exception in a nursery's (nested) exception group as itself, with its traceback.

    Several exceptions that happened at once stay a group.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group:
            raise
        context = error.__context__
        try:
            raise error
        finally:
            error.__context__ = context  # or the group that contains it would become its context

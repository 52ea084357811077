"""What cannot leave its process: it holds memory, threads or addresses of this one."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from gramary.errors import UnsupportedError


class ProcessBound:
    """Cannot be pickled or copied, and says what to do instead.

    So a worker started by spawn or forkserver is never handed one, and a copy never uses what its
    original has given back.
    """

    __slots__ = ()

    # What to do instead, as the end of a sentence.
    remedy: ClassVar[str]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise UnsupportedError(
            f"a {type(self).__name__} can be neither pickled nor copied: {self.remedy}"
        )


__all__ = ["ProcessBound"]

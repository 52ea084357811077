"""The pool of native threads is as large as it was asked to be, or the asking fails."""

import pytest
from children import run_child

from gramary.errors import SettingsError
from gramary.native import _core
from gramary.native.threads import require_num_threads

PROGRAM = """
from gramary.native import _core
from gramary.native.threads import require_num_threads
require_num_threads(3)
print(_core.shared_num_threads())
"""


def test_the_first_use_decides() -> None:
    assert run_child(PROGRAM).stdout == "3\n"


@pytest.mark.behaviour(13)
def test_another_number_later_is_an_error() -> None:
    """Behaviour 13: a number of threads that cannot be had is refused, not ignored."""
    actual = _core.shared_num_threads()
    require_num_threads(0)
    require_num_threads(actual)
    with pytest.raises(SettingsError, match=f"the process has {actual} native threads"):
        require_num_threads(actual + 1)

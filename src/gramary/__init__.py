"""gramary: the runtime for hashed n-gram embedding tables in language-model serving.

A name is imported when it is first asked for: torch takes seconds, and the command has to know what
an interrupt means before it imports anything.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from gramary import errors, pipeline, ple
    from gramary.batch import Batch
    from gramary.layer import PLELayer, PLEState
    from gramary.model.codecs import Codec
    from gramary.model.hashing import HashSpec
    from gramary.offload import Connector, RowServer, Ticket
    from gramary.ops.hash import ngram_ids
    from gramary.placement.plan import Placement, plan_placement
    from gramary.settings import Settings
    from gramary.slots import SlotPool
    from gramary.table import Table

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Codec",
    "Connector",
    "HashSpec",
    "PLELayer",
    "PLEState",
    "Placement",
    "RowServer",
    "Settings",
    "SlotPool",
    "Table",
    "Ticket",
    "__version__",
    "errors",
    "ngram_ids",
    "pipeline",
    "plan_placement",
    "ple",
]

# The module that has each name; a name that is not here is a module itself.
_MODULES = {
    "Batch": "gramary.batch",
    "Codec": "gramary.model.codecs",
    "Connector": "gramary.offload",
    "HashSpec": "gramary.model.hashing",
    "PLELayer": "gramary.layer",
    "PLEState": "gramary.layer",
    "Placement": "gramary.placement.plan",
    "RowServer": "gramary.offload",
    "Settings": "gramary.settings",
    "SlotPool": "gramary.slots",
    "Table": "gramary.table",
    "Ticket": "gramary.offload",
    "ngram_ids": "gramary.ops.hash",
    "plan_placement": "gramary.placement.plan",
}


def __getattr__(name: str) -> object:
    """Imports a public name (PEP 562)."""
    if name in _MODULES:
        value: object = getattr(importlib.import_module(_MODULES[name]), name)
    elif name in __all__:
        value = importlib.import_module(f"gramary.{name}")
    else:
        raise AttributeError(f"module 'gramary' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names, also those that were not asked for yet."""
    return sorted(__all__)

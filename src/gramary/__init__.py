"""gramary: the runtime for hashed n-gram embedding tables in language-model serving."""

from gramary import errors, pipeline, ple
from gramary.batch import Batch
from gramary.hashing import HashSpec
from gramary.layer import PLELayer
from gramary.offload import Connector
from gramary.ops.hash import ngram_ids
from gramary.placement import Placement, plan_placement
from gramary.settings import Settings
from gramary.slots import SlotPool
from gramary.table import Table

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Connector",
    "HashSpec",
    "PLELayer",
    "Placement",
    "Settings",
    "SlotPool",
    "Table",
    "__version__",
    "errors",
    "ngram_ids",
    "pipeline",
    "plan_placement",
    "ple",
]

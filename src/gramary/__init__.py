"""gramary: the runtime for hashed n-gram embedding tables in language-model serving."""

from gramary import errors, ple
from gramary.batch import Batch
from gramary.hashing import HashSpec
from gramary.ops.hash import ngram_ids
from gramary.slots import SlotPool

__version__ = "0.1.0"

__all__ = ["Batch", "HashSpec", "SlotPool", "__version__", "errors", "ngram_ids", "ple"]

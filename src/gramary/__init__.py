"""gramary: the runtime for hashed n-gram embedding tables in language-model serving."""

from gramary import errors

__version__ = "0.1.0"

__all__ = ["__version__", "errors"]

"""gramary inside other frameworks; one module each, imported only where it is used."""

__all__: list[str] = []

"""Rows in place before the layer asks: an engine's requests and the service that answers them."""

__all__: list[str] = []

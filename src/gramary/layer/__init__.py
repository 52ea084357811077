"""The PLE layer as a module for engines: rows, gate, convolution, and an explicit state."""

from gramary.layer.geometry import PLEGeometry
from gramary.layer.module import PLELayer
from gramary.layer.state import PLEState

__all__ = ["PLEGeometry", "PLELayer", "PLEState"]

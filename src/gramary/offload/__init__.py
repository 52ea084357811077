"""Rows in place before the layer asks: an engine's requests and the service that answers them."""

from gramary.offload.connector import Connector
from gramary.offload.service.server import RowServer
from gramary.offload.ticket import Ticket

__all__ = ["Connector", "RowServer", "Ticket"]

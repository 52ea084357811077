"""Sizes of a PLE layer, from a model's configuration."""

from __future__ import annotations

import dataclasses
import math

from gramary.errors import ConfigError
from gramary.model.config import Fields, read_config
from gramary.model.hashing import HashSpec
from gramary.ops.gate_conv import RANGES


@dataclasses.dataclass(frozen=True)
class PLEGeometry:
    """Sizes of one PLE layer.

    Attributes:
        spec: its table's hash.
        streams: residual streams S (`hc_count`).
        hidden_size: width H of one stream.
        kernel_size: taps K of the convolution (`ple_conv_kernel_size`).
        eps: epsilon of the norms (`rms_norm_eps`).

    Raises:
        ConfigError: a field is out of the range that the operations are made for.
    """

    spec: HashSpec
    streams: int
    hidden_size: int
    kernel_size: int
    eps: float

    def __post_init__(self) -> None:
        sizes = {
            "streams": ("hc_count", self.streams),
            "hidden_size": ("hidden_size", self.hidden_size),
            "kernel_size": ("ple_conv_kernel_size", self.kernel_size),
            "dilation": ("ngram_size", self.dilation),
        }
        for size, (field, value) in sizes.items():
            low, high = RANGES[size]
            if not low <= value <= high:
                raise ConfigError(f"{field}: expected an integer from {low} to {high}, got {value}")

    @classmethod
    def from_config(cls, config: object, table_index: int = 0) -> PLEGeometry:
        """Returns the sizes of one PLE module of a model.

        Args:
            config: as `HashSpec.from_config` takes it.
            table_index: which table, counting `ple_layer_ids` sorted and without repeats.

        Raises:
            ConfigError: a field is missing or wrong.
            ArgumentError: the model has no table with this `table_index`.
        """
        spec = HashSpec.from_config(config, table_index)
        fields = read_config(config)
        with fields.as_origin():
            return cls(
                spec=spec,
                streams=fields.integer("hc_count"),
                hidden_size=fields.integer("hidden_size"),
                kernel_size=fields.integer("ple_conv_kernel_size"),
                eps=_eps(fields),
            )

    @property
    def channels(self) -> int:
        """Channels C of the convolution: streams * hidden_size."""
        return self.streams * self.hidden_size

    @property
    def dilation(self) -> int:
        """Positions between two taps: the n-gram size."""
        return self.spec.ngram_size

    @property
    def state_length(self) -> int:
        """Columns of a window that the next token needs."""
        return self.dilation * (self.kernel_size - 1)


def _eps(fields: Fields) -> float:
    eps = fields.get("rms_norm_eps")
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < math.inf:
        raise fields.error("rms_norm_eps", "a number of 0 or more", eps)
    return float(eps)

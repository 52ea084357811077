"""Pipeline parallelism: which stages own PLE layers, decided from the decoder layers they run.

A stage runs the decoder layers start_layer to end_layer-1, counted from 0. Only a stage that owns a
PLE layer opens its table, and makes a connector; the others need neither.

    owned = ple_layers_of_stage(config, start_layer, end_layer)
    tables = [Table.open(path, table_index=index) for index in owned]
    connector = Connector(tables, max_tokens=max_tokens) if tables else None
"""

from __future__ import annotations

from collections.abc import Sequence

from gramary.arguments import require_integer
from gramary.errors import ArgumentError
from gramary.model.config import read_config
from gramary.model.hashing import ple_layer_ids


def ple_layers_of_stage(config: object, start_layer: int, end_layer: int) -> tuple[int, ...]:
    """Returns the `table_index` of each PLE layer that a pipeline stage owns, in layer order.

    Args:
        config: as for `HashSpec.from_config`.
        start_layer: first decoder layer of the stage, counted from 0.
        end_layer: one past its last; equal to start_layer for a stage without layers.

    Returns:
        Values of `table_index` for `Table.open` and `HashSpec.from_config`; empty where the stage
        needs no table.

    Raises:
        ArgumentError: the layers are not a range of the model's.
        ConfigError: a file cannot be read, or a field is missing or wrong.
    """
    num_layers = read_config(config).integer("num_hidden_layers")
    bounds = (start_layer, end_layer)
    start_layer, end_layer = _checked_range("start_layer, end_layer", bounds, num_layers)
    # `ple_layer_ids` counts decoder layers from 1.
    return tuple(
        table_index
        for table_index, one_based in enumerate(ple_layer_ids(config))
        if start_layer <= one_based - 1 < end_layer
    )


def stages_of_ple_layers(
    config: object, layer_ranges: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """Returns the pipeline stage that owns each PLE layer, by `table_index`.

    Args:
        config: as for `HashSpec.from_config`.
        layer_ranges: (start_layer, end_layer) of every stage, in the stages' order; together they
            are the model's layers, each once.

    Raises:
        ArgumentError: a range is wrong, or they leave a layer out or run one twice.
        ConfigError: a file cannot be read, or a field is missing or wrong.
    """
    num_layers = read_config(config).integer("num_hidden_layers")
    if not isinstance(layer_ranges, (list, tuple)):
        raise ArgumentError(
            f"layer_ranges: expected a list of (start_layer, end_layer), got {layer_ranges!r}"
        )
    next_layer = 0
    owners: dict[int, int] = {}
    for stage, bounds in enumerate(layer_ranges):
        name = f"layer_ranges[{stage}]"
        start_layer, end_layer = _checked_range(name, bounds, num_layers)
        if start_layer != next_layer:
            raise ArgumentError(
                f"{name}: expected to begin with layer {next_layer}, behind the stage before, "
                f"got {tuple(bounds)}"
            )
        next_layer = end_layer
        owners |= dict.fromkeys(ple_layers_of_stage(config, start_layer, end_layer), stage)
    if next_layer != num_layers:
        raise ArgumentError(
            f"layer_ranges: expected all {num_layers} layers (num_hidden_layers), got the first "
            f"{next_layer}"
        )
    return tuple(owners[table_index] for table_index in sorted(owners))


def _checked_range(name: str, bounds: Sequence[int], num_layers: int) -> tuple[int, int]:
    """Returns the first layer and one past the last as ints."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ArgumentError(
            f"{name}: expected two integers, the first layer and one past the last, got {bounds!r}"
        )
    start_layer, end_layer = (require_integer(name, bound) for bound in bounds)
    if not 0 <= start_layer <= end_layer <= num_layers:
        raise ArgumentError(
            f"{name}: expected 0 <= start_layer <= end_layer <= {num_layers} (num_hidden_layers), "
            f"got {start_layer} and {end_layer}"
        )
    return start_layer, end_layer


__all__ = ["ple_layers_of_stage", "stages_of_ple_layers"]

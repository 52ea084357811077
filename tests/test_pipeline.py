"""Which pipeline stage owns which PLE layer."""

import itertools

import numpy as np
import pytest
import torch

from gramary import HashSpec
from gramary.errors import ArgumentError, ConfigError
from gramary.pipeline import ple_layers_of_stage, stages_of_ple_layers


def config(*ple_layer_ids: int, num_layers: int = 6) -> dict[str, object]:
    return {"num_hidden_layers": num_layers, "ple_layer_ids": list(ple_layer_ids)}


def test_layer_ids_count_from_one_and_stages_from_zero() -> None:
    """Layer id 2 is decoder layer 1: the first stage's last layer here, and not the second's."""
    assert ple_layers_of_stage(config(2), 0, 2) == (0,)
    assert ple_layers_of_stage(config(2), 2, 6) == ()
    assert ple_layers_of_stage(config(3), 0, 2) == ()
    assert ple_layers_of_stage(config(3), 2, 6) == (0,)


def test_indices_are_those_that_tables_are_opened_by() -> None:
    """Dense, over the sorted layer ids without repeats, as HashSpec counts."""
    layers = {
        "vocab_size": 97, "hidden_size": 64, "ngram_size": 3, "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "eos_token_id": 5,
        **config(6, 2, 2, 4),
    }  # fmt: skip
    (index,) = ple_layers_of_stage(layers, 3, 5)
    assert index == 1
    assert HashSpec.from_config(layers, index).decoder_layer == 3


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_every_cut_gives_every_layer_one_owner(num_stages: int) -> None:
    """All ways to cut six layers, empty stages too: owners are where the layers are."""
    layers = config(1, 3, 6)
    for cuts in itertools.combinations_with_replacement(range(7), num_stages - 1):
        bounds = list(itertools.pairwise([0, *cuts, 6]))
        owners = stages_of_ple_layers(layers, bounds)
        assert len(owners) == 3
        for table_index, stage in enumerate(owners):
            assert table_index in ple_layers_of_stage(layers, *bounds[stage])
            start, end = bounds[stage]
            assert start <= (0, 2, 5)[table_index] < end
        owned = [ple_layers_of_stage(layers, *pair) for pair in bounds]
        assert sorted(itertools.chain(*owned)) == [0, 1, 2]


def test_a_model_without_ple_layers_has_no_owner() -> None:
    assert stages_of_ple_layers({"num_hidden_layers": 4}, [(0, 4)]) == ()
    assert ple_layers_of_stage({"num_hidden_layers": 4}, 0, 4) == ()


@pytest.mark.parametrize("bounds", [(-1, 2), (3, 2), (0, 7), (0.0, 2), (True, 2), (None, 2)])
def test_wrong_ranges_of_a_stage_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match=r"start_layer, end_layer: expected .* got"):
        ple_layers_of_stage(config(2), *bounds)


@pytest.mark.parametrize(("bounds", "message"), [
    ([(0, 2), (3, 6)], r"layer_ranges\[1\]: expected to begin with layer 2"),
    ([(0, 2), (1, 6)], r"layer_ranges\[1\]: expected to begin with layer 2"),
    ([(2, 6), (0, 2)], r"layer_ranges\[0\]: expected to begin with layer 0"),
    ([(0, 2), (2, 5)], r"expected all 6 layers \(num_hidden_layers\), got the first 5"),
    ([], "got the first 0"),
    ([(0, 2), (2, 9)], r"layer_ranges\[1\]: expected 0 <= start_layer"),
    ([(0, 6, 1)], r"layer_ranges\[0\]: expected two integers"),
    ([6], r"layer_ranges\[0\]: expected two integers"),
    ([(0, 2), (2, 6.0)], r"layer_ranges\[1\]: expected an integer, got 6\.0"),
    (None, "layer_ranges: expected a list"), (6, "layer_ranges: expected a list"),
    (iter([(0, 6)]), "layer_ranges: expected a list"), ({(0, 6)}, "layer_ranges: expected a list"),
])  # fmt: skip
def test_ranges_that_are_not_the_model_are_refused(bounds: list[object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stages_of_ple_layers(config(2), bounds)


def test_integers_of_any_kind_are_layers() -> None:
    """As an engine cuts its layers: numbers of NumPy and torch."""
    cut = [(np.int64(0), torch.tensor(2)), [torch.tensor(2), np.int32(6)]]
    assert stages_of_ple_layers(config(2), cut) == (0,)
    assert ple_layers_of_stage(config(2), *cut[0]) == (0,)


def test_a_configuration_without_a_number_of_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers: expected an integer"):
        ple_layers_of_stage({"ple_layer_ids": [2]}, 0, 2)

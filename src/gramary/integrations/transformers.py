"""Qwen4-Exp models of Hugging Face transformers whose n-gram rows are gramary's.

    from gramary.integrations.transformers import load

    with load("model/", placement="host=4GiB,disk") as model:
        model.generate(...)

`from_pretrained` builds the model on the meta device, where its n-gram embeddings cost nothing. A
subclass of the model's own class (`model_class`) replaces them at the end of its constructor, so
that the table's tensors are never asked for; everything else (other weights, hashing of tokens,
masks, caches, `generate`) stays transformers' own. The tables are those of the very files that
transformers takes the weights from (`weight_files`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gramary.errors import ArgumentError, ConfigError, DependencyError
from gramary.files.checkpoint import describe_tables
from gramary.files.layout import TableSource
from gramary.files.source import open_source
from gramary.integrations.execution_device import execution_device
from gramary.integrations.load_options import refuse_options, require_folder
from gramary.integrations.model_class import ple_layers, require_tables, with_tables
from gramary.integrations.model_tables import ModelTables, close_all
from gramary.integrations.weight_files import find_files
from gramary.model.config import read_config
from gramary.process.descriptor_limit import naming_shortage
from gramary.settings import Settings
from gramary.table import Table

MIN_TRANSFORMERS = (5, 24)


@naming_shortage("load the model")
def load(
    path: str | os.PathLike[str],
    *,
    placement: str = "host",
    prefill_early_request: bool = True,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
    **from_pretrained: Any,
) -> Any:
    """Returns a ready model whose n-gram tables are opened by gramary, never an `nn.Embedding`.

    The class is the one that the configuration names: `Qwen4ExpForCausalLM` (text only) or
    `Qwen4ExpForConditionalGeneration`. The result is an instance of it with, in addition,
    `model.tables` (by dense index of the PLE layer), `model.close()` and use as a context
    manager; a collected model closes its tables. `save_pretrained` saves an adapter, and refuses
    to save the model without its rows.

    Args:
        path: the model's folder (a hub snapshot's folder will do): config.json and safetensors.
        placement: where rows go, see `gramary.Table.open`; each PLE layer's table has its own
            budgets.
        prefill_early_request: with `generate(prefill_chunk_size=...)`, request a chunk's rows
            while the chunk before computes; `model.early_request_stats()` tells.
        settings: options of the tables; None reads the environment.
        progress: called with (bytes read, bytes in all) while a table's rows are loaded.
        **from_pretrained: passed to transformers' `from_pretrained`: its own words (dtype,
            device_map, variant, subfolder, config, ...) and fields of the configuration. The rows
            are those of the files that it reads.

    Returns:
        The model in evaluation mode. Rows are read in the model's dtype, on the device on which
        the PLE layer runs that they feed; with `output_loading_info=True`, a pair of the model and
        that dict.

    Raises:
        DependencyError: transformers is missing or too old.
        ArgumentError: `path` is no model's folder, or an option of `from_pretrained` is none, or
            would read the whole table into memory, or weights that no table goes with.
        ConfigError: the configuration is not that of a Qwen4-Exp model with PLE layers.
        CheckpointError: the files hold no table, or a wrong one.
        UnsupportedError: the weights are in other files than safetensors.
        PlacementError: the placement does not parse, or cannot hold a table.
    """
    transformers = _import_transformers()
    refuse_options(from_pretrained)
    folder = require_folder(path, from_pretrained.get("subfolder") or "")
    model_class, config = _choose_class(transformers, folder, from_pretrained)
    # A wrong table is found before minutes of loading, not after them.
    describe_tables(find_files(folder, from_pretrained, config), config)
    if not isinstance(from_pretrained.get("config"), str | os.PathLike | None):
        from_pretrained["config"] = config
    loaded = with_tables(model_class).from_pretrained(Path(path).expanduser(), **from_pretrained)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    open_tables(
        model,
        placement=placement,
        prefill_early_request=prefill_early_request,
        settings=settings,
        progress=progress,
    )
    return loaded


def open_tables(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    placement: str,
    prefill_early_request: bool = True,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Opens the tables of a loaded model at another placement; its earlier ones are closed.

    Each table is opened on the device on which the PLE layer runs that it feeds. When one fails,
    all are closed.

    Args:
        model: a model of `load`.
        path: a pack of its table, or another folder that holds the same; None is the files it was
            loaded from.
        placement: where rows go.
        prefill_early_request: as for `load`.
        settings: options of the tables; None reads the environment.
        progress: called with (bytes read, bytes in all) while a table's rows are loaded.

    Raises:
        ArgumentError: `path` holds the rows of another model.
        GramaryError: as `gramary.Table.open`.
    """
    tables: list[Table] = []
    layers = ple_layers(model)
    try:
        for source, ple in zip(_sources(model, path), layers, strict=True):
            tables.append(
                Table.from_source(
                    source,
                    placement=placement,
                    device=execution_device(model, ple.key_proj),
                    settings=settings,
                    progress=progress,
                )
            )
    except BaseException:
        close_all(tables)
        model.close()
        raise
    shared = ModelTables(tables, prefill_early_request=prefill_early_request, settings=settings)
    for table_index, ple in enumerate(layers):
        ple.ple_embedding.ngram_embedding.attach(shared, table_index)


def _sources(model: Any, path: str | os.PathLike[str] | None) -> tuple[TableSource, ...]:
    """Returns where a model's tables lie, by dense index of the PLE layer."""
    own: tuple[TableSource, ...] = model.table_sources
    if path is None:
        return own
    others = tuple(open_source(path, table_index) for table_index in range(len(own)))
    for source, other in zip(own, others, strict=True):
        packed = other.details.get("source_model_id")
        if source.model_id not in (other.model_id, packed):
            raise ArgumentError(
                f"path: expected the rows that belong to the weights of {source.path}, got other "
                f"rows in {other.path}; load the model that they belong to"
            )
    return others


def _choose_class(transformers: Any, folder: Path, options: Mapping[str, Any]) -> tuple[type, Any]:
    """Returns the model class that a configuration names, and the configuration it takes."""
    config = _read_config(transformers, folder, options)
    text_class = transformers.Qwen4ExpForCausalLM
    full_class = transformers.Qwen4ExpForConditionalGeneration
    if config.model_type not in ("qwen4_exp", "qwen4_exp_text"):
        raise ConfigError(
            "config.model_type: expected 'qwen4_exp' or 'qwen4_exp_text', got "
            f"{config.model_type!r}; other models have no such table"
        )
    architecture = (config.architectures or [""])[0]
    is_full = config.model_type == "qwen4_exp" and architecture != text_class.__name__
    return (full_class, config) if is_full else (text_class, config.get_text_config())


def _read_config(transformers: Any, folder: Path, options: Mapping[str, Any]) -> Any:
    """Returns the configuration given by `config`, or the folder's."""
    config = options.get("config")
    if config is None:
        # What is wrong with it is said in words.
        read_config(folder)
        return transformers.AutoConfig.from_pretrained(folder)
    if isinstance(config, str | os.PathLike):
        subfolder = options.get("subfolder") or ""
        return transformers.AutoConfig.from_pretrained(config, subfolder=subfolder)
    if not isinstance(config, transformers.PreTrainedConfig):
        raise ArgumentError(
            f"config: expected a configuration of transformers or a path, got {config!r}"
        )
    require_tables(config)
    return config


def _import_transformers() -> Any:
    remedy = "pip install 'gramary[transformers]'"
    try:
        import transformers
    except ImportError as error:
        raise DependencyError(
            f"gramary.integrations.transformers needs transformers: {remedy}"
        ) from error
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < MIN_TRANSFORMERS:
        raise DependencyError(
            f"gramary.integrations.transformers needs transformers 5.24 or newer, found "
            f"{transformers.__version__}: {remedy}"
        )
    return transformers

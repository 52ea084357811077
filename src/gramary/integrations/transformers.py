"""Qwen4-Exp models of Hugging Face transformers whose n-gram rows are gramary's.

    from gramary.integrations.transformers import load

    with load("model/", placement="host=4GiB,disk") as model:
        model.generate(...)

`from_pretrained` builds the model on the meta device, where its n-gram embeddings cost nothing. A
subclass of the model's own class replaces them at the end of its constructor, so that the table's
tensors are never asked for; everything else (other weights, hashing of tokens, masks, caches,
`generate`) stays transformers' own.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from gramary.errors import ArgumentError, ConfigError, DependencyError, UnsupportedError
from gramary.integrations.model_tables import ModelTables, close_all
from gramary.integrations.prompt_chunks import chunks_of_generate
from gramary.integrations.table_embedding import TableEmbedding, refuse_pickling
from gramary.settings import Settings
from gramary.source import find_sources
from gramary.table import Table

MIN_TRANSFORMERS = (5, 24)

# The table's tensors: its shards, scales and block scales, under any prefix.
_TABLE_TENSORS = r"\.ple_embedding\.ngram_embedding\."


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
    manager; a collected model closes its tables. `save_pretrained` is refused.

    Args:
        path: the model's folder (a hub snapshot's folder will do): config.json and safetensors.
        placement: where rows go, see `gramary.Table.open`; each PLE layer's table has its own
            budgets.
        prefill_early_request: with `generate(prefill_chunk_size=...)`, request a chunk's rows
            while the chunk before computes; `model.early_request_stats()` tells.
        settings: options of the tables; None reads the environment.
        progress: called with (bytes read, bytes in all) while a table's rows are loaded.
        **from_pretrained: passed to transformers' `from_pretrained` (dtype, device_map, ...).

    Returns:
        The model in evaluation mode. Rows are read in the model's dtype, on the device of the
        PLE layer they feed; with `output_loading_info=True`, a pair of the model and that dict.

    Raises:
        DependencyError: transformers is missing or too old.
        ArgumentError: `path` is no folder, or an option of `from_pretrained` would read the whole
            table into memory.
        ConfigError: the configuration is not that of a Qwen4-Exp model.
        CheckpointError: the files hold no table, or a wrong one.
        PlacementError: the placement does not parse, or cannot hold a table.
    """
    transformers = _import_transformers()
    folder = _require_folder(path)
    _refuse_options(from_pretrained)
    config = from_pretrained.pop("config", None)
    if config is None:
        config = transformers.AutoConfig.from_pretrained(folder)
    model_class, config = _choose_class(transformers, config)
    # A wrong table is found before minutes of loading, not after them.
    find_sources(folder)
    loaded = _with_tables(model_class).from_pretrained(folder, config=config, **from_pretrained)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    open_tables(
        model,
        folder,
        placement=placement,
        prefill_early_request=prefill_early_request,
        settings=settings,
        progress=progress,
    )
    return loaded


def open_tables(
    model: Any,
    path: str | os.PathLike[str],
    *,
    placement: str,
    prefill_early_request: bool = True,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Opens the tables of a loaded model at another placement; its earlier ones are closed.

    Each table is opened on the device of the PLE layer it feeds. When one fails, all are closed.

    Args:
        model: a model of `load`.
        path: the folder it was loaded from.
        placement: where rows go.
        prefill_early_request: as for `load`.
        settings: options of the tables; None reads the environment.
        progress: called with (bytes read, bytes in all) while a table's rows are loaded.

    Raises:
        GramaryError: as `gramary.Table.open`.
    """
    tables: list[Table] = []
    layers = _ple_layers(model)
    for layer, ple in enumerate(layers):
        try:
            table = Table.open(
                path,
                placement=placement,
                device=ple.key_proj.weight.device,
                layer=layer,
                settings=settings,
                progress=progress,
            )
        except BaseException:
            close_all(tables)
            model.close()
            raise
        tables.append(table)
    shared = ModelTables(tables, prefill_early_request=prefill_early_request, settings=settings)
    for layer, ple in enumerate(layers):
        ple.ple_embedding.ngram_embedding.attach(shared, layer)


class TableModelMixin:
    """What a model with gramary tables has beyond its transformers class."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        # The transformers class comes next in the method resolution order.
        super().__init__(config, *arguments, **options)  # type: ignore[call-arg]
        for ple in _ple_layers(self):
            rows = ple.ple_embedding.ngram_embedding
            ple.ple_embedding.ngram_embedding = TableEmbedding(
                rows.num_embeddings, rows.embedding_dim
            )

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, by dense index of their PLE layer."""
        return tuple(ple.ple_embedding.ngram_embedding.table for ple in _ple_layers(self))

    def early_request_stats(self) -> dict[str, Any]:
        """Returns how `generate` read its prompts, see `ModelTables.stats`."""
        return self._shared.stats()

    @property
    def _shared(self) -> ModelTables:
        """The tables and what requests their rows; raises ClosedError where there are none."""
        embedding: TableEmbedding = _ple_layers(self)[0].ple_embedding.ngram_embedding
        return embedding.require_shared()

    def _prefill(
        self, input_ids: Any, generation_config: Any, model_kwargs: Any, *rest: Any, **options: Any
    ) -> Any:
        """Reads the prompt as transformers does, its chunks' rows requested ahead where it can.

        Source: `GenerationMixin._prefill` of transformers 5.24 (generation/utils.py).
        """
        shared, layer = self._shared, _ple_layers(self)[0]
        arguments = (input_ids, generation_config, model_kwargs, *rest)
        read = functools.partial(super()._prefill, *arguments, **options)  # type: ignore[misc]
        reason = shared.why_not_early(generation_config.prefill_chunk_size)
        # Without a cache, transformers refuses chunks itself.
        if reason is not None or model_kwargs.get("cache") is None:
            with shared.looked_up(reason or "no cache"):
                return read()
        with shared.requested_early(
            lambda: chunks_of_generate(
                shared.tables[0].spec, layer.ple_embedding.layer_idx, *arguments[:3]
            )
        ):
            return read()

    def close(self) -> None:
        """Closes the tables; the model can compute no more. More calls do nothing."""
        for ple in _ple_layers(self):
            ple.ple_embedding.ngram_embedding.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, object]) -> Any:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        refuse_pickling()

    def save_pretrained(self, save_directory: str | os.PathLike[str], **_options: Any) -> None:
        """Refuses: the n-gram rows are not in the model, so a saved folder would lack them.

        Raises:
            UnsupportedError: always; says what to do instead.
        """
        raise UnsupportedError(
            f"save_pretrained({os.fspath(save_directory)!r}): this model's n-gram rows lie outside "
            "of it and would be missing. To save all of it, load it with transformers' own "
            "from_pretrained. To save changed weights, write model.state_dict() with "
            "safetensors.torch.save_file and keep the original folder for the table"
        )


def _ple_layers(model: Any) -> list[Any]:
    """Returns the PLE layers of a model, ordered by dense index."""
    found = [m for m in model.modules() if type(m).__name__ == "Qwen4ExpTextPLELayer"]
    return sorted(found, key=lambda ple: ple.ple_embedding.ple_layer_index)


@functools.cache
def _with_tables(model_class: Any) -> Any:
    """Returns a subclass of the same name, whose constructor drops the n-gram embeddings."""
    ignored = [*(model_class._keys_to_ignore_on_load_unexpected or ()), _TABLE_TENSORS]
    members = {
        "_keys_to_ignore_on_load_unexpected": ignored,
        "__module__": __name__,
        "__doc__": model_class.__doc__,
    }
    return type(model_class.__name__, (TableModelMixin, model_class), members)


def _choose_class(transformers: Any, config: Any) -> tuple[type, Any]:
    """Returns the model class that a configuration names, and the configuration it takes."""
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


def _refuse_options(options: dict[str, Any]) -> None:
    if options.get("disable_mmap"):
        raise ArgumentError(
            "disable_mmap: would read every file, the table's too, into memory; leave it out"
        )
    if "state_dict" in options:
        raise ArgumentError("state_dict: weights are read from the folder; leave it out")


def _require_folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ArgumentError(
            f"path: expected a model's folder, got {os.fspath(path)!r}; a model on the hub is "
            "downloaded first: `hf download NAME` prints its folder"
        )
    return folder


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

"""The transformers class of a model, with gramary's tables in place of its n-gram embeddings."""

from __future__ import annotations

import copy
import functools
import os
from typing import Any, NoReturn

from gramary.errors import ArgumentError, ConfigError, UnsupportedError
from gramary.files.layout import TableSource
from gramary.integrations.model_tables import ModelTables
from gramary.integrations.prompt_chunks import chunks_of_generate
from gramary.integrations.table_embedding import TableEmbedding, refuse_pickling
from gramary.integrations.weight_files import tables_read
from gramary.table import Table

# The table's tensors: its shards, scales and block scales, under any prefix.
_TABLE_TENSORS = r"\.ple_embedding\.ngram_embedding\."


class TableModelMixin:
    """What a model with gramary tables has beyond its transformers class."""

    # What the tables were found to be in the files that the weights came from.
    table_sources: tuple[TableSource, ...] = ()

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        # What reached the constructor is no word of from_pretrained and no field of the
        # configuration; the model's own classes take nothing else.
        if options:
            raise ArgumentError(
                f"{', '.join(options)}: expected words of transformers' from_pretrained, or fields "
                "of the configuration where config= is no object; change that object instead"
            )
        require_tables(config)
        # The transformers class comes next in the method resolution order.
        super().__init__(config, *arguments)  # type: ignore[call-arg]
        for ple in ple_layers(self):
            rows = ple.ple_embedding.ngram_embedding
            ple.ple_embedding.ngram_embedding = TableEmbedding(
                rows.num_embeddings, rows.embedding_dim
            )

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, by dense index of their PLE layer."""
        return tuple(ple.ple_embedding.ngram_embedding.table for ple in ple_layers(self))

    def early_request_stats(self) -> dict[str, Any]:
        """Returns how `generate` read its prompts, see `ModelTables.stats`."""
        return self._shared.stats()

    @property
    def _shared(self) -> ModelTables:
        """The tables and what requests their rows; raises ClosedError where there are none."""
        embedding: TableEmbedding = ple_layers(self)[0].ple_embedding.ngram_embedding
        return embedding.require_shared()

    @classmethod
    def _load_pretrained_model(
        cls,
        model: Any,
        state_dict: Any,
        checkpoint_files: Any,
        load_config: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        """Reads the weights as transformers does, once the tables were found in the same files.

        Source: `PreTrainedModel._load_pretrained_model` of transformers 5.24 (modeling_utils.py).
        """
        # An adapter's weights come the same way, later.
        if not model.table_sources:
            model.table_sources = tables_read(model, state_dict, checkpoint_files, load_config)
        return super()._load_pretrained_model(  # type: ignore[misc]
            model, state_dict, checkpoint_files, load_config, *rest, **options
        )

    def _load_and_finalize_distributed_pretrained_model(
        self, folder: Any, *_rest: Any, **_options: Any
    ) -> NoReturn:
        """Refuses a checkpoint in the files of several ranks, which hold no whole table."""
        raise UnsupportedError(
            f"{folder}: holds a checkpoint of save_pretrained(distributed_checkpoint=True), in "
            "which no table is found; save it without that word"
        )

    def _prefill(
        self, input_ids: Any, generation_config: Any, model_kwargs: Any, *rest: Any, **options: Any
    ) -> Any:
        """Reads the prompt as transformers does, its chunks' rows requested ahead where it can.

        Source: `GenerationMixin._prefill` of transformers 5.24 (generation/utils.py).
        """
        shared, layer = self._shared, ple_layers(self)[0]
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
        for ple in ple_layers(self):
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

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], *arguments: Any, **options: Any
    ) -> Any:
        """Saves the model's adapter as transformers does; refuses to save the model itself.

        Raises:
            UnsupportedError: the model has no adapter, or would be saved with it: a saved folder
                would lack the n-gram rows, which are not in the model. The message says what to do
                instead.
        """
        is_adapter = getattr(self, "_hf_peft_config_loaded", False)
        if is_adapter and not options.get("distributed_checkpoint"):
            return super().save_pretrained(  # type: ignore[misc]
                save_directory, *arguments, **options
            )
        raise UnsupportedError(
            f"save_pretrained({os.fspath(save_directory)!r}): this model's n-gram rows lie outside "
            "of it and would be missing. To save all of it, load it with transformers' own "
            "from_pretrained. To save changed weights, write model.state_dict() with "
            "safetensors.torch.save_file and keep the original folder for the table. An adapter "
            "put on with model.add_adapter can be saved"
        )


def ple_layers(model: Any) -> list[Any]:
    """Returns the PLE layers of a model, ordered by dense index."""
    found = [m for m in model.modules() if type(m).__name__ == "Qwen4ExpTextPLELayer"]
    return sorted(found, key=lambda ple: ple.ple_embedding.ple_layer_index)


@functools.cache
def with_tables(model_class: Any) -> Any:
    """Returns a subclass of the same name, whose constructor drops the n-gram embeddings."""
    ignored = [*(model_class._keys_to_ignore_on_load_unexpected or ()), _TABLE_TENSORS]
    members = {
        "_keys_to_ignore_on_load_unexpected": ignored,
        # By this transformers tells its own classes, for which alone it renames files' tensors.
        "__module__": model_class.__module__,
        "__doc__": model_class.__doc__,
    }
    return type(model_class.__name__, (TableModelMixin, model_class), members)


def require_tables(config: Any) -> None:
    """Raises ConfigError for a configuration without PLE layers."""
    if not config.get_text_config().ple_layer_ids:
        raise ConfigError(
            "config.ple_layer_ids: expected at least one layer with an n-gram table, got none; to "
            "run the model without its table, load it with transformers' own from_pretrained"
        )


__all__ = ["TableModelMixin", "ple_layers", "require_tables", "with_tables"]

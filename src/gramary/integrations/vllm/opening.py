"""Opening a stage's tables: which files, which placement, which connector."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger

from gramary.errors import ArgumentError
from gramary.files.layout import TableSource
from gramary.files.source import open_source
from gramary.integrations.vllm.budget import kv_bytes
from gramary.integrations.vllm.feed import RowFeed
from gramary.integrations.vllm.options import Options
from gramary.integrations.vllm.weights import check_hash
from gramary.offload import Connector
from gramary.settings import Settings
from gramary.table import Table

if TYPE_CHECKING:
    from gramary.integrations.vllm.rows import PLERows

logger = init_logger("vllm.gramary")

# The step that runs, the one requested meanwhile, and one whose forward is still queued.
NUM_SLOTS = 3


def open_feed(
    vllm_config: Any, options: Options, layers: Sequence[PLERows], device: torch.device
) -> RowFeed:
    """Returns what fetches the rows of a stage's PLE layers, ready.

    Args:
        vllm_config: the engine's configuration.
        options: how gramary serves it.
        layers: the stage's, in their order.
        device: of the forwards.

    Raises:
        GramaryError: the files or the placement are wrong, or memory is missing.
    """
    settings = _settings(vllm_config, options)
    tables: dict[int, Table] = {}
    try:
        for layer in layers:
            tables[layer.table_index] = _open_table(vllm_config, options, layer, device, settings)
        connector = Connector(
            list(tables.values()),
            max_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
            num_slots=NUM_SLOTS,
            worker="process" if options.worker == "process" else "thread",
            prefill_early_request=options.prefill_early_request,
            settings=settings,
        )
    except BaseException:
        for table in tables.values():
            table.close()
        raise
    return RowFeed(tables, connector, verifies=options.verify_early)


def _settings(vllm_config: Any, options: Options) -> Settings:
    """Returns the environment's settings, with what the engine knows of its ranks."""
    parallel = vllm_config.parallel_config
    known: dict[str, Any] = {
        # Each of them holds rows of its own.
        "local_ranks": parallel.tensor_parallel_size * max(1, parallel.data_parallel_size_local)
    }
    if options.num_threads is not None:
        known["num_threads"] = options.num_threads
    return Settings.from_env(**known)


def _open_table(
    vllm_config: Any, options: Options, layer: PLERows, device: torch.device, settings: Settings
) -> Table:
    source = find_source(vllm_config.model_config, options, layer.table_index)
    check_hash(layer.hash_numbers, source.spec)
    source = with_rounding(source, options.rounding, vllm_config.model_config.dtype)
    table = Table.from_source(
        source,
        placement=options.placement,
        device=device,
        kv_bytes=kv_bytes(vllm_config, options, device),
        settings=settings,
    )
    logger.info("gramary: rows of table %d from %s: %s", layer.table_index, source.path, table)
    for line in table.placement.report():
        logger.info("gramary: %s", line)
    return table


def find_source(model_config: Any, options: Options, table_index: int) -> TableSource:
    """Returns the table in the files that vLLM loads the weights from, or in those named.

    Raises:
        ArgumentError: the model's files are not in a folder.
        GramaryError: they are wrong.
    """
    if options.table is not None:
        return open_source(options.table, table_index)
    model = model_config.model_weights or model_config.model
    if not os.path.isdir(model):
        model = _snapshot(model, model_config.revision)
    return open_source(model, table_index)


def _snapshot(model: str, revision: str | None) -> str:
    """Returns the folder in the hub's cache that vLLM downloaded the model to."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return snapshot_download(model, revision=revision, local_files_only=True)
    except (LocalEntryNotFoundError, HfHubHTTPError, ValueError) as error:
        raise ArgumentError(
            f"gramary: the files of the model {model!r} are not in a folder of this machine; "
            f'download it, or name a folder or pack by "table": {error}'
        ) from error


def with_rounding(source: TableSource, rounding: str, dtype: torch.dtype) -> TableSource:
    """Returns the table with its fp8 scale rounded as an engine rounds it.

    vLLM multiplies codes and scale in the activations' dtype, which equals one rounding of their
    exact product once the scale is of that dtype. The scale of nvfp4 it keeps in float32.

    Source: vLLM 0.33.0, `Qwen4ExpPLEFp8EmbeddingMethod.dequantize`.
    """
    codec = source.codec
    if rounding != "vllm" or codec.name != "fp8" or codec.scale is None:
        return source
    scale = torch.tensor(codec.scale, dtype=torch.float32, device="cpu").to(dtype).item()
    return dataclasses.replace(source, codec=dataclasses.replace(codec, scale=scale))


__all__ = ["find_source", "open_feed", "with_rounding"]

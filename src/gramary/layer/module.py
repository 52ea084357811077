"""PLELayer: what a decoder layer adds to its residual streams, as a module."""

from __future__ import annotations

import os
from typing import Any, Self

import torch
from torch import nn

from gramary.arguments import require_type
from gramary.errors import ArgumentError
from gramary.layer.batch import LayerBatch
from gramary.layer.geometry import PLEGeometry
from gramary.layer.state import PLEState
from gramary.layer.weights import read_weights
from gramary.ops.gate_conv import DTYPES
from gramary.process.descriptor_limit import naming_shortage
from gramary.table import Table


class NormWeight(nn.Module):
    """The weight of a grouped RMS norm, applied as 1 + weight by the fused operation."""

    def __init__(self, channels: int, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, **options), requires_grad=False)


class PLELayer(nn.Module):
    """The per-layer embedding of one decoder layer: rows of a table, gated and convolved.

    Parameters are named as in the model's checkpoint, so a state dict loads without its
    `ple_embedding.*` entries, which are the table's. The arithmetic is that of
    `gramary.ops.reference.gate_conv`, in the layer's dtype under autocast too. For inference: no
    gradient flows.

    Each call binds its tensors anew; an engine that captures CUDA graphs plans and binds
    `gramary.ple` on static buffers itself, with this module's weights.

    Args:
        config: a configuration as `HashSpec.from_config` takes it, or a `PLEGeometry`.
        table_index: which table, counting `ple_layer_ids` sorted and without repeats.
        table: where rows come from; None where every call brings its own.
        device: of the parameters; None is the table's, or the CPU.
        dtype: of parameters and activations: bfloat16, float16 or float32.

    Raises:
        ConfigError: the configuration gives no valid geometry.
        ArgumentError: the table is that of another layer, or on another device, or the
            dtype is another one.

    Source: `Qwen4ExpTextPLELayer` in transformers 5.24, models/qwen4_exp/modeling_qwen4_exp.py.
    """

    def __init__(
        self,
        config: object,
        table_index: int = 0,
        *,
        table: Table | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        is_geometry = isinstance(config, PLEGeometry)
        geometry = config if is_geometry else PLEGeometry.from_config(config, table_index)
        assert isinstance(geometry, PLEGeometry)
        self.geometry = geometry
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype: expected bfloat16, float16 or float32, got {dtype!r}")
        if table is not None:
            require_type("table", table, Table)
        device = torch.device(device or (table.device if table is not None else "cpu"))
        self.table = table
        self._owns_table = False
        channels, hidden_size = geometry.channels, geometry.hidden_size
        embed_dim = geometry.spec.embed_dim
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.key_proj = nn.Linear(embed_dim, channels, bias=False, **options)
        self.value_proj = nn.Linear(embed_dim, hidden_size, bias=False, **options)
        self.norm_key = NormWeight(channels, **options)
        self.norm_query = NormWeight(channels, **options)
        self.norm_conv = NormWeight(channels, **options)
        self.conv1d = nn.Conv1d(
            channels,
            channels,
            geometry.kernel_size,
            groups=channels,
            dilation=geometry.dilation,
            bias=False,
            **options,
        )
        self.requires_grad_(False)
        if table is not None:
            self._check_table(table)

    @classmethod
    @naming_shortage("read the layer's weights")
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        table_index: int | None = None,
        table: Table | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **open_options: Any,
    ) -> PLELayer:
        """Returns a PLE layer with the weights of a model's folder.

        Args:
            path: the folder.
            table_index: which table, and its layer (see `HashSpec`); None is the first
                (`Table.open` asks for it where there are several).
            table: an open table of this layer, which stays the caller's; None opens one, which
                `close` closes.
            device: as for `PLELayer`.
            dtype: None is the key projection's own.
            **open_options: for `Table.open`, such as `placement`.

        Raises:
            CheckpointError: the files are wrong; ConfigError: the configuration is.
            ArgumentError: options for `Table.open` beside an open table.
        """
        if table is not None and open_options:
            raise ArgumentError(
                f"{', '.join(open_options)}: expected no options for Table.open beside an open "
                "table"
            )
        geometry = PLEGeometry.from_config(path, table_index or 0)
        weights = read_weights(path, geometry.spec.decoder_layer)
        dtype = dtype or weights["key_proj.weight"].dtype
        opened = table or Table.open(path, table_index=table_index, device=device, **open_options)
        try:
            module = cls(geometry, table=opened, device=device, dtype=dtype)
            module.load_state_dict(weights)
        except BaseException:
            if table is None:
                opened.close()
            raise
        module._owns_table = table is None
        return module

    def close(self) -> None:
        """Closes the table that `from_checkpoint` opened, for copies of the layer too.

        A table that the caller passed stays open. More calls do nothing.
        """
        if self._owns_table and self.table is not None:
            self.table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.key_proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of parameters and activations."""
        return self.key_proj.weight.dtype

    def new_state(self, num_requests: int, *, max_speculative_tokens: int = 0) -> PLEState:
        """Returns the state of fresh requests; drafts up to that number can be rejected at once.

        Raises:
            ArgumentError: a number is none, or out of its range.
        """
        return PLEState.fresh(
            self.geometry,
            num_requests,
            max_speculative_tokens=max_speculative_tokens,
            device=self.device,
            dtype=self.dtype,
        )

    @torch.no_grad()
    def forward(
        self,
        hidden_states: torch.Tensor,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor | None = None,
        *,
        state: PLEState | None = None,
        rows: torch.Tensor | None = None,
        add_residual: bool = False,
    ) -> torch.Tensor:
        """Returns the contribution to the residual streams, or their sum.

        Args:
            hidden_states: D [T, C] (or [B, T, C] without query_start_loc), the residual streams.
            token_ids: int32 or int64 [T] (or [B, T]), the tokens they stand for.
            query_start_loc: int32 [R+1], bounds of the requests in a flat batch; tokens behind
                the last are padding. None: one request a row of [B, T], none with holes.
            state: of these requests, in this order; it is taken on past this batch. None: all
                begin here, and their windows are dropped.
            rows: D [T, embed_dim], the tokens' rows as `Table.embed` or a connector gives them;
                None takes them from the layer's table.
            add_residual: return hidden_states + contribution.

        Returns:
            A new tensor like hidden_states; on CUDA valid on the current stream.

        Raises:
            ArgumentError: a shape, dtype or device is wrong, or there is no table and no rows.
            TokenError, RowReadError: as `Table.embed`.
            SlotError: an earlier forward over this state was broken off and may have overwritten a
                window that this one needs.
        """
        self._check_batch(hidden_states, token_ids, query_start_loc)
        tokens = token_ids.flatten()
        # Of a flat batch nobody knows, without reading the device, how long its requests are.
        longest = token_ids.shape[1] if query_start_loc is None else None
        if query_start_loc is None:
            steps = torch.arange(len(token_ids) + 1, dtype=torch.int32, device=tokens.device)
            query_start_loc = steps * token_ids.shape[1]
        num_requests = query_start_loc.shape[0] - 1
        if tokens.shape[0] == 0 or num_requests == 0:
            return hidden_states.clone() if add_residual else torch.zeros_like(hidden_states)
        kept = self.new_state(num_requests) if state is None else state
        require_type("state", kept, PLEState)
        if kept.num_requests != num_requests:
            raise ArgumentError(
                f"state: expected one of {num_requests} requests, got {kept.num_requests}"
            )
        if rows is None:
            rows = self._embed(tokens, query_start_loc, kept.history())
        self._check_tensor("rows", rows, (tokens.shape[0], self.geometry.spec.embed_dim))
        geometry = self.geometry
        key, value = self._project(rows)
        batch = LayerBatch(
            geometry=geometry,
            residual=hidden_states.reshape(-1, geometry.streams, geometry.hidden_size),
            key=key.view(-1, geometry.streams, geometry.hidden_size),
            value=value,
            query_start_loc=query_start_loc,
            state=kept,
            longest=longest,
        )
        out = batch.run(
            k_norm_weight=self.norm_key.weight,
            q_norm_weight=self.norm_query.weight,
            u_norm_weight=self.norm_conv.weight,
            conv_weight=self.conv1d.weight.squeeze(1),
            add_residual=add_residual,
        )
        if state is not None:
            state.advance(tokens, query_start_loc)
        return out.reshape(hidden_states.shape)

    def _project(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns keys and values of rows, in the layer's dtype under autocast too."""
        with torch.autocast(rows.device.type, enabled=False):
            return self.key_proj(rows), self.value_proj(rows)

    def _embed(
        self, token_ids: torch.Tensor, query_start_loc: torch.Tensor, history: torch.Tensor
    ) -> torch.Tensor:
        if self.table is None:
            raise ArgumentError("rows: expected the tokens' rows, for this layer has no table")
        return self.table.embed(token_ids, query_start_loc, history, dtype=self.dtype)

    def _check_batch(
        self,
        hidden_states: torch.Tensor,
        token_ids: torch.Tensor,
        query_start_loc: torch.Tensor | None,
    ) -> None:
        """Raises ArgumentError where the shapes do not go together."""
        given = {"hidden_states": hidden_states, "token_ids": token_ids}
        if query_start_loc is not None:
            given["query_start_loc"] = query_start_loc
        for name, tensor in given.items():
            require_type(name, tensor, torch.Tensor)
        is_flat = query_start_loc is not None
        if token_ids.ndim != (1 if is_flat else 2):
            expected = "[T] with" if is_flat else "[B, T] without"
            raise ArgumentError(
                f"token_ids: expected shape {expected} query_start_loc, got {list(token_ids.shape)}"
            )
        self._check_tensor(
            "hidden_states", hidden_states, (*token_ids.shape, self.geometry.channels)
        )
        for name, tensor in given.items():
            if tensor.device != self.device:
                raise ArgumentError(f"{name}: expected one on {self.device}, got {tensor.device}")

    def _check_tensor(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        require_type(name, tensor, torch.Tensor)
        expected = (self.dtype, list(shape), self.device)
        got = (tensor.dtype, list(tensor.shape), tensor.device)
        if got != expected:
            raise ArgumentError(
                f"{name}: expected {expected[0]} {expected[1]} on {expected[2]}, "
                f"got {got[0]} {got[1]} on {got[2]}"
            )

    def _check_table(self, table: Table) -> None:
        if table.spec != self.geometry.spec:
            raise ArgumentError(f"table: expected one of {self.geometry.spec}, got {table.spec}")
        if table.device != self.device:
            raise ArgumentError(f"table: expected one on {self.device}, got {table.device}")

    def extra_repr(self) -> str:
        """Sizes, for `print`."""
        g = self.geometry
        sizes = f"streams={g.streams}, hidden_size={g.hidden_size}"
        return f"{sizes}, decoder_layer={g.spec.decoder_layer}"

"""The state of the requests of one PLE layer: windows and tokens, both addressed by position."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gramary.arguments import require_integer
from gramary.errors import ArgumentError, SlotError
from gramary.layer.geometry import PLEGeometry
from gramary.layer.window_memory import require_window_memory
from gramary.ops.gate_conv import RANGES


class PLEState:
    """Where some requests are in their streams, and what their next tokens need of the past.

    Position p of a request has its normed column in column p mod state_capacity of the request's
    slot, and its token in column p mod W of the request's row of tokens. So nothing is ever
    shifted, and `rewind` only sets the position: drafts are rejected by it.

    Attributes:
        conv_state: D [slots, state_capacity, C], the pool that the windows lie in.
        slots: int64 [R], the requests' slots.
        positions: int64 [R], position of each request's next token.
        tokens: int64 [R, W], the newest tokens; W = history_length + 1 + max_speculative_tokens.

    Args:
        geometry: the layer's sizes.
        conv_state: see above; max_speculative_tokens is what its capacity has room for.
        slots: int64 [R], distinct.
        positions: int64 [R], 0 for a fresh request.
        history: int32 or int64 [R, history_length], the tokens before each position, oldest
            first, EOS where missing; None is all missing.

    Raises:
        ArgumentError: a tensor has the wrong shape, dtype or device.
        SlotError: on the CPU, a slot is not in the pool or another request's, or a position is
            below 0 (on CUDA they are not read).
    """

    def __init__(
        self,
        geometry: PLEGeometry,
        conv_state: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        history: torch.Tensor | None = None,
    ) -> None:
        self.geometry = geometry
        self.conv_state = conv_state
        self.slots = slots
        self.positions = positions
        self.max_speculative_tokens = conv_state.shape[1] - geometry.state_length - 1
        self._check()
        width = geometry.spec.history_length + 1 + self.max_speculative_tokens
        self.tokens = positions.new_full((slots.shape[0], width), geometry.spec.eos_token_id)
        # Bounds of a rewind: where the request was begun here, and one past the highest run.
        self._base = positions.clone()
        self._highest = positions.clone()
        # Whether a run was begun that `advance` did not hear of: it may have written windows.
        self._is_running = False
        if history is not None:
            self._fill(history)

    def __repr__(self) -> str:
        """Returns the sizes in one line; nothing on the device is read."""
        pool = self.conv_state
        return (
            f"<gramary.PLEState: {self.slots.shape[0]} requests, up to "
            f"{self.max_speculative_tokens} drafts, {pool.shape[0]} slots of {pool.dtype} on "
            f"{pool.device}>"
        )

    @classmethod
    def fresh(
        cls,
        geometry: PLEGeometry,
        num_requests: int,
        *,
        max_speculative_tokens: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> PLEState:
        """Returns the state of new requests, with a pool of their own.

        Args:
            geometry: the layer's sizes.
            num_requests: R.
            max_speculative_tokens: drafts that one `rewind` may reject.
            device: where the pool lies.
            dtype: the layer's dtype.

        Raises:
            ArgumentError: a number is none, or out of the range of `ops.gate_conv.RANGES`.
            CapacityError: the windows need more memory than is free; nothing was taken.
        """
        num_requests = require_integer("num_requests", num_requests, 0)
        max_speculative_tokens = require_integer(
            "max_speculative_tokens", max_speculative_tokens, *RANGES["max_speculative_tokens"]
        )
        capacity = geometry.state_length + max_speculative_tokens + 1
        window_bytes = capacity * geometry.channels * dtype.itemsize
        require_window_memory(num_requests, window_bytes, torch.device(device))
        # No position below 0 is ever read, so a pool needs no zeros.
        pool = torch.empty(num_requests, capacity, geometry.channels, device=device, dtype=dtype)
        slots = torch.arange(num_requests, device=device)
        return cls(geometry, pool, slots, torch.zeros_like(slots))

    @property
    def num_requests(self) -> int:
        """R."""
        return self.slots.shape[0]

    def history(self) -> torch.Tensor:
        """Returns int64 [R, history_length], the tokens before each position, oldest first.

        Positions below 0 are EOS.
        """
        length, width = self.geometry.spec.history_length, self.tokens.shape[1]
        past = self.positions.unsqueeze(1) + torch.arange(-length, 0, device=self.slots.device)
        tokens = self.tokens.gather(1, past.remainder(width))
        return tokens.masked_fill(past < 0, self.geometry.spec.eos_token_id)

    def begin_run(
        self, query_start_loc: torch.Tensor, num_tokens: int
    ) -> tuple[torch.Tensor, bool]:
        """Takes note, before a batch is run, of how far it writes windows.

        A run that is broken off, by an interrupt say, leaves the requests where they were, as if
        its tokens had been rejected: they can be run again where a rewind could go that far.

        Args:
            query_start_loc: int32 [R+1].
            num_tokens: tokens of the batch, padding included.

        Returns:
            What was known before, for `refuse_run`.

        Raises:
            ArgumentError: query_start_loc has not R+1 elements, or, on the CPU, does not begin with
                0, falls, or leaves the batch.
            SlotError: an earlier run was broken off and may have overwritten a request's window.
        """
        self._check_batch(query_start_loc, num_tokens)
        if self._is_running:
            self._require_windows()
        before = self._highest, self._is_running
        ends = self.positions + query_start_loc.long().diff()
        self._highest, self._is_running = torch.maximum(self._highest, ends), True
        return before

    def refuse_run(self, before: tuple[torch.Tensor, bool]) -> None:
        """Forgets a run that was refused before it wrote anything."""
        self._highest, self._is_running = before

    def advance(self, token_ids: torch.Tensor, query_start_loc: torch.Tensor) -> None:
        """Takes note of a batch that was run; reads nothing back from the device.

        Args:
            token_ids: int32 or int64 [T], padding behind query_start_loc[-1] included.
            query_start_loc: int32 [R+1].

        Raises:
            ArgumentError: as `begin_run`; nothing was noted.
        """
        self._check_batch(query_start_loc, token_ids.shape[0])
        bounds = query_start_loc.long()
        token = torch.arange(token_ids.shape[0], device=token_ids.device)
        owner = torch.searchsorted(bounds[1:], token, right=True)
        is_padding = owner >= self.num_requests
        owner = owner.clamp_max(max(self.num_requests - 1, 0))
        width = self.tokens.shape[1]
        is_old = bounds[owner + 1] - token > width
        target = owner * width + (self.positions[owner] + token - bounds[owner]).remainder(width)
        # Padding and tokens that newer ones replace go to one spare element.
        spare = self.tokens.numel()
        ring = torch.cat([self.tokens.flatten(), self.tokens.new_zeros(1)])
        ring[target.masked_fill(is_padding | is_old, spare)] = token_ids.long()
        tokens, positions = ring[:spare].view_as(self.tokens), self.positions + bounds.diff()
        highest = torch.maximum(self._highest, positions)
        # Nothing is called between these: an interrupt finds all of them old, or all new.
        self.tokens, self.positions, self._highest, self._is_running = (
            tokens, positions, highest, False,
        )  # fmt: skip

    def rewind(self, positions: torch.Tensor | Sequence[int]) -> None:
        """Rejects each request's tokens from a position on.

        Let E be one past the highest position run since the request began here at P: the new
        position lies from max(P, E - (max_speculative_tokens + 1)) to the present one.

        Args:
            positions: int64 [R] on the state's device, or R numbers.

        Raises:
            ArgumentError: it is not one position a request.
            SlotError: on the CPU, a position is out of these bounds (on CUDA it is not read).
        """
        target = torch.as_tensor(positions, dtype=torch.int64, device=self.slots.device)
        if target.shape != self.positions.shape:
            raise ArgumentError(
                f"positions: expected shape [{self.num_requests}], got {list(target.shape)}"
            )
        if target.device.type == "cpu":
            self._check_bounds(target)
        self.positions = target.clone()

    def _lowest(self) -> torch.Tensor:
        """Returns the lowest position of each request whose window is intact, int64 [R]."""
        return torch.maximum(self._base, self._highest - (self.max_speculative_tokens + 1))

    def _require_windows(self) -> None:
        """Raises SlotError where a run that was broken off may have overwritten a window."""
        for request in (self.positions < self._lowest()).nonzero().flatten().tolist():
            raise SlotError(
                f"state: expected the window of request {request} at position "
                f"{int(self.positions[request])}, but a run of its tokens up to position "
                f"{int(self._highest[request])} was broken off and may have overwritten it; begin "
                "its requests again with new_state(), or from a restored window"
            )

    def _check_bounds(self, target: torch.Tensor) -> None:
        lowest = self._lowest()
        for request in ((target < lowest) | (target > self.positions)).nonzero().flatten().tolist():
            raise SlotError(
                f"positions[{request}]: expected a position from {int(lowest[request])} to "
                f"{int(self.positions[request])}, got {int(target[request])}; the state was made "
                f"for max_speculative_tokens = {self.max_speculative_tokens}"
            )

    def _check_batch(self, query_start_loc: torch.Tensor, num_tokens: int) -> None:
        """Raises ArgumentError where a batch's bounds are not those of these requests."""
        if query_start_loc.shape != (self.num_requests + 1,):
            raise ArgumentError(
                f"query_start_loc: expected shape [{self.num_requests + 1}], got "
                f"{list(query_start_loc.shape)}"
            )
        if query_start_loc.device.type != "cpu":
            return
        is_falling = bool((query_start_loc[1:] < query_start_loc[:-1]).any())
        if int(query_start_loc[0]) != 0 or is_falling or int(query_start_loc[-1]) > num_tokens:
            raise ArgumentError(
                f"query_start_loc: expected bounds that begin with 0, never fall and stay within "
                f"{num_tokens} tokens, got {query_start_loc[:16].tolist()}"
            )

    def _fill(self, history: torch.Tensor) -> None:
        """Puts the tokens before each position into their columns."""
        length = self.geometry.spec.history_length
        if history.shape != (self.num_requests, length):
            raise ArgumentError(
                f"history: expected shape [{self.num_requests}, {length}], "
                f"got {list(history.shape)}"
            )
        past = self.positions.unsqueeze(1) + torch.arange(-length, 0, device=self.slots.device)
        columns = past.remainder(self.tokens.shape[1])
        self.tokens.scatter_(1, columns, history.to(self.tokens))

    def _check(self) -> None:
        """Raises ArgumentError where the tensors do not fit each other or the geometry."""
        pool, geometry = self.conv_state, self.geometry
        if pool.ndim != 3 or self.max_speculative_tokens < 0 or pool.shape[2] != geometry.channels:
            raise ArgumentError(
                f"conv_state: expected shape [slots, at least {geometry.state_length + 1}, "
                f"{geometry.channels}], got {list(pool.shape)}"
            )
        for name, tensor in (("slots", self.slots), ("positions", self.positions)):
            if tensor.dtype != torch.int64 or tensor.ndim != 1 or tensor.device != pool.device:
                raise ArgumentError(
                    f"{name}: expected int64 [R] on {pool.device}, got {tensor.dtype} "
                    f"{list(tensor.shape)} on {tensor.device}"
                )
        if self.slots.shape != self.positions.shape:
            raise ArgumentError(
                f"positions: expected shape {list(self.slots.shape)} like slots, "
                f"got {list(self.positions.shape)}"
            )
        if pool.device.type == "cpu":
            self._check_numbers()

    def _check_numbers(self) -> None:
        """Raises SlotError where a request has no slot or position, or two have one slot."""
        num_slots, taken = self.conv_state.shape[0], set[int]()
        pairs = zip(self.slots.tolist(), self.positions.tolist(), strict=True)
        for request, (slot, position) in enumerate(pairs):
            if not 0 <= slot < num_slots or slot in taken:
                raise SlotError(
                    f"slots[{request}]: expected a slot from 0 to {num_slots - 1} that no other "
                    f"request has, got {slot}"
                )
            taken.add(slot)
            if position < 0:
                raise SlotError(f"positions[{request}]: expected 0 or more, got {position}")

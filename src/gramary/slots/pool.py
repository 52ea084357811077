"""SlotPool: the host's book of the window slots of one layer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import torch

from gramary.arguments import require_integer, require_type
from gramary.errors import ArgumentError, SlotError
from gramary.ops.gate_conv import Caps, ExportStatus
from gramary.ple import from_chronological, to_chronological
from gramary.ple.checks import check_pool
from gramary.slots.blob import WindowBlob
from gramary.slots.records import CheckpointState, Tenure, WindowCheckpoint, token_history


class SlotPool:
    """Hands out window slots, checks what the host knows, keeps windows for prefix reuse.

    Call order of a request: `acquire` or `restore`, then before each run `advance`, at last
    `release`. Of a window checkpoint: `checkpoint` (its slot and offset go to
    `ple.export_checkpoint`), then, once the status was read and the batch's rows were good,
    `commit`; `restore` any number of times; `discard`. A slot belongs to one request or one
    checkpoint until it is given back, so no export is ever sent to a live slot.

    Windows are copied on the current stream of the pool's device. Not thread-safe: one scheduler
    owns a pool.

    Args:
        caps: geometry; all plans over the pool share its max_speculative_tokens.
        conv_state: D [slots, state_capacity, channels], as `ple.bind` takes it.
        history_length: tokens that a history holds (ngram_size - 1).
        model_id: identity of the model; a window of another one is refused.
        protected: slots never to be handed out (an engine's null block).

    Raises:
        ArgumentError: conv_state does not fit the caps, or a protected slot lies outside it; in
            every method, an argument is of the wrong type.
    """

    def __init__(
        self,
        caps: Caps,
        conv_state: torch.Tensor,
        *,
        history_length: int,
        model_id: str,
        protected: Iterable[int] = (),
    ) -> None:
        require_type("caps", caps, Caps)
        check_pool(caps, conv_state)
        require_type("model_id", model_id, str)
        self.caps = caps
        self.conv_state = conv_state
        self.history_length = require_integer("history_length", history_length, 0)
        self.model_id = model_id
        self._protected = frozenset(require_integer("protected", slot) for slot in protected)
        outside = [slot for slot in self._protected if not 0 <= slot < conv_state.shape[0]]
        if outside:
            raise ArgumentError(
                f"protected: expected slots from 0 to {conv_state.shape[0] - 1}, got {outside[0]}"
            )
        # A heap: the lowest free slot is handed out, so that runs repeat.
        self._free = [s for s in range(conv_state.shape[0]) if s not in self._protected]
        self._live: dict[int, Tenure] = {}
        self._checkpoints: dict[int, WindowCheckpoint] = {}

    @property
    def num_free(self) -> int:
        """Slots that can be handed out."""
        return len(self._free)

    @property
    def live_slots(self) -> tuple[int, ...]:
        """Slots held by requests, ascending."""
        return tuple(sorted(self._live))

    # Requests

    def acquire(self) -> int:
        """Returns a slot for a request that starts at position 0.

        Raises:
            SlotError: no slot is free.
        """
        return self._hand_out(Tenure.at(0))

    def release(self, slot: int) -> None:
        """Takes a request's slot back; its window is gone.

        Raises:
            SlotError: no request holds the slot.
        """
        slot = require_integer("slot", slot)
        self._tenure(slot)
        del self._live[slot]
        heapq.heappush(self._free, slot)

    def advance(self, slot: int, start: int, num_tokens: int) -> None:
        """Takes note that a run puts `num_tokens` tokens from position `start` on into a slot.

        A start below the end of the last run rejects the tokens from there on. Let E be one past
        the highest position run since the request was started, or restored at P: the start lies
        from max(P, E - (max_speculative_tokens + 1)) to the end of the last run.

        Raises:
            SlotError: no request holds the slot, or the start is out of these bounds.
        """
        start = require_integer("start", start)
        num_tokens = require_integer("num_tokens", num_tokens)
        if num_tokens < 0:
            raise SlotError(f"num_tokens: expected 0 or more, got {num_tokens}")
        tenure = self._tenure(slot)
        tenure.check(slot, start, self.caps.max_speculative_tokens)
        tenure.advance(start, num_tokens)

    def fork(self, slot: int, position: int) -> int:
        """Returns a new request's slot with a copy of the window at `position`.

        Args:
            slot: a request's slot.
            position: where the two part, within the bounds of a start (see `advance`).

        Raises:
            SlotError: no request holds the slot, the position is out of bounds, or no slot is
                free.
        """
        position = require_integer("position", position)
        tenure = self._tenure(slot)
        tenure.check(slot, position, self.caps.max_speculative_tokens)
        # The copy holds the same columns and so may roll back as far; what lies beyond is stale.
        target = self._hand_out(Tenure(tenure.base, tenure.highest, position, position))
        self.conv_state[target].copy_(self.conv_state[slot])
        return target

    # Window checkpoints

    def checkpoint(self, slot: int, position: int, history: Sequence[int]) -> WindowCheckpoint:
        """Returns a pending checkpoint, to be written by `ple.export_checkpoint`.

        Args:
            slot: the slot of a request whose newest noted run goes over the position.
            position: tokens of the prefix.
            history: its last history_length tokens, oldest first (EOS where missing).

        Raises:
            SlotError: no request holds the slot, the run does not reach the position, the
                history has another length, or no slot is free.
        """
        position = require_integer("position", position)
        tenure = self._tenure(slot)
        if not tenure.start < position <= tenure.end:
            raise SlotError(
                f"position: expected one that the newest run in slot {slot} reaches (above "
                f"{tenure.start}, at most {tenure.end}), got {position}; note the run with "
                "advance() first, or take a snapshot()"
            )
        kept = self._keep(position, history, CheckpointState.PENDING)
        kept.offset = position - tenure.start
        return kept

    def commit(self, checkpoint: WindowCheckpoint, status: int) -> bool:
        """Publishes a checkpoint whose export was read as WRITTEN; otherwise frees its slot.

        Commit only where the rows of the exporting batch were good; `discard` it if not.

        Args:
            checkpoint: a pending one.
            status: its `ple.ExportStatus`, read from the device.

        Returns:
            Whether the checkpoint can be restored from now on.

        Raises:
            SlotError: the checkpoint is not pending in this pool, or the status is none.
        """
        self._expect(checkpoint, CheckpointState.PENDING)
        status = require_integer("status", status)
        known = [int(member) for member in ExportStatus]
        if status not in known:
            raise SlotError(f"status: expected an ExportStatus ({known}), got {status}")
        if status != ExportStatus.WRITTEN:
            self.discard(checkpoint)
            return False
        checkpoint.state = CheckpointState.COMMITTED
        return True

    def discard(self, checkpoint: WindowCheckpoint) -> None:
        """Frees the slot of a pending or committed checkpoint.

        Raises:
            SlotError: it was discarded already, or belongs to another pool.
        """
        self._expect(checkpoint, CheckpointState.PENDING, CheckpointState.COMMITTED)
        checkpoint.state = CheckpointState.DISCARDED
        del self._checkpoints[checkpoint.slot]
        heapq.heappush(self._free, checkpoint.slot)

    def restore(self, checkpoint: WindowCheckpoint, position: int, history: Sequence[int]) -> int:
        """Returns a new request's slot that goes on behind a checkpoint's prefix.

        Args:
            checkpoint: a committed one; it stays.
            position: tokens of the request's prefix; must be the checkpoint's.
            history: the request's last history_length tokens; must be the checkpoint's.

        Raises:
            SlotError: the checkpoint is not committed, it is of another prefix, or no slot is
                free.
        """
        self._expect(checkpoint, CheckpointState.COMMITTED)
        position, tokens = require_integer("position", position), token_history(history)
        if (position, tokens) != (checkpoint.position, checkpoint.history):
            raise SlotError(
                f"checkpoint: expected position {position} and history {list(tokens)}, got one "
                f"of position {checkpoint.position} and history {list(checkpoint.history)}; "
                "look prefixes up by all their tokens"
            )
        target = self._hand_out(Tenure.at(position))
        self.conv_state[target].copy_(self.conv_state[checkpoint.slot])
        return target

    def snapshot(self, slot: int, position: int, history: Sequence[int]) -> WindowCheckpoint:
        """Returns a committed checkpoint of a request's own window, as after `position` tokens.

        Raises:
            SlotError: no request holds the slot, the position is out of the bounds of a start,
                the history has another length, or no slot is free.
        """
        position = require_integer("position", position)
        self._tenure(slot).check(slot, position, self.caps.max_speculative_tokens)
        kept = self._keep(position, history, CheckpointState.COMMITTED)
        window = to_chronological(self.conv_state[slot], position, self.caps.state_length)
        self._write(kept, window)
        return kept

    # Blobs

    def export_blob(self, checkpoint: WindowCheckpoint) -> bytes:
        """Returns a committed checkpoint as a blob (layout: `gramary.slots.blob`).

        Reads the device. The blob fits every pool of the same model, whatever its number of
        drafts.

        Raises:
            SlotError: the checkpoint is not committed in this pool.
        """
        self._expect(checkpoint, CheckpointState.COMMITTED)
        source = self.conv_state[checkpoint.slot]
        window = to_chronological(source, checkpoint.position, self.caps.state_length).cpu()
        history = checkpoint.history
        return WindowBlob(window, checkpoint.position, history, self.model_id).to_bytes()

    def import_blob(self, blob: bytes | bytearray | memoryview) -> WindowCheckpoint:
        """Returns a committed checkpoint made of another pool's blob.

        Raises:
            SlotError: the blob is malformed or altered, of another model, dtype or geometry, or
                no slot is free.
        """
        parsed = WindowBlob.from_bytes(blob)
        caps = self.caps
        for what, expected, got in (
            ("model", self.model_id, parsed.model_id),
            ("dtype", caps.dtype, parsed.window.dtype),
            ("window", [caps.state_length, caps.channels], list(parsed.window.shape)),
        ):
            if expected != got:
                raise SlotError(
                    f"blob: expected {what} {expected}, got {got}; both sides must serve one model"
                )
        kept = self._keep(parsed.position, parsed.history, CheckpointState.COMMITTED)
        self._write(kept, parsed.window.to(self.conv_state.device))
        return kept

    def check_integrity(self) -> None:
        """Raises SlotError where the book contradicts itself or a committed window was run over.

        Reads the device: behind a committed window's state_length columns there are zeros.
        """
        held = [*self._free, *self._live, *self._checkpoints, *self._protected]
        if sorted(held) != list(range(self.conv_state.shape[0])):
            raise SlotError(f"pool: expected every slot in exactly one place, got {sorted(held)}")
        for slot, tenure in self._live.items():
            if not 0 <= tenure.base <= tenure.end <= tenure.highest:
                raise SlotError(f"slot {slot}: expected base <= end <= highest, got {tenure}")
        for slot, kept in self._checkpoints.items():
            if kept.slot != slot or kept.state is CheckpointState.DISCARDED:
                raise SlotError(f"slot {slot}: expected its own checkpoint, got {kept}")
            if kept.state is CheckpointState.COMMITTED and self._behind_window(kept).any():
                raise SlotError(
                    f"slot {slot}: a run wrote into a committed checkpoint; runs take slots of "
                    "acquire(), fork() or restore() only"
                )

    def _behind_window(self, kept: WindowCheckpoint) -> torch.Tensor:
        """Returns the columns that no position of a checkpoint's window lies in."""
        caps = self.caps
        rest = range(kept.position, kept.position + caps.max_decode_tokens)
        return self.conv_state[kept.slot, [p % caps.state_capacity for p in rest]]

    def _write(self, kept: WindowCheckpoint, window: torch.Tensor) -> None:
        """Writes a window given oldest first into a checkpoint's slot."""
        columns = from_chronological(window, kept.position, self.caps.state_capacity)
        self.conv_state[kept.slot].copy_(columns)

    def _keep(
        self, position: int, history: Sequence[int], state: CheckpointState
    ) -> WindowCheckpoint:
        """Takes a free slot for a checkpoint."""
        tokens = token_history(history)
        if len(tokens) != self.history_length:
            raise SlotError(
                f"history: expected the last {self.history_length} tokens before position "
                f"{position} (EOS where missing), got {len(tokens)}"
            )
        if position < 0:
            raise SlotError(f"position: expected 0 or more, got {position}")
        kept = WindowCheckpoint(self._take_free(), position, tokens, state=state)
        self._checkpoints[kept.slot] = kept
        return kept

    def _hand_out(self, tenure: Tenure) -> int:
        slot = self._take_free()
        self._live[slot] = tenure
        return slot

    def _take_free(self) -> int:
        if not self._free:
            raise SlotError(
                f"pool: no slot of {self.conv_state.shape[0]} is free ({len(self._live)} requests, "
                f"{len(self._checkpoints)} checkpoints, {len(self._protected)} protected); "
                "release a request or discard a checkpoint"
            )
        return heapq.heappop(self._free)

    def _tenure(self, slot: int) -> Tenure:
        """Returns the record of a request's slot, or raises SlotError."""
        slot = require_integer("slot", slot)
        if slot not in self._live:
            holder = "a checkpoint" if slot in self._checkpoints else "nobody"
            raise SlotError(
                f"slot {slot}: expected a request's slot, but {holder} holds it; take one with "
                "acquire(), fork() or restore()"
            )
        return self._live[slot]

    def _expect(self, checkpoint: WindowCheckpoint, *states: CheckpointState) -> None:
        """Raises SlotError where a checkpoint is not this pool's, or in none of these states."""
        require_type("checkpoint", checkpoint, WindowCheckpoint)
        is_ours = self._checkpoints.get(checkpoint.slot) is checkpoint
        if not is_ours and checkpoint.state is not CheckpointState.DISCARDED:
            raise SlotError(
                "checkpoint: expected one of this pool; use export_blob() and import_blob()"
            )
        if checkpoint.state not in states:
            wanted = " or ".join(state.value for state in states)
            remedy = {
                CheckpointState.PENDING: "read its status and commit() it",
                CheckpointState.COMMITTED: "it was committed before",
                CheckpointState.DISCARDED: "its slot may hold another window; make a new one",
            }[checkpoint.state]
            raise SlotError(
                f"checkpoint of slot {checkpoint.slot}: expected {wanted}, got "
                f"{checkpoint.state.value}; {remedy}"
            )

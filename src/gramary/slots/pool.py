"""SlotPool: the host's book of the window slots of one layer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from gramary.arguments import require_integer, require_type
from gramary.errors import ArgumentError, SlotError
from gramary.ops.gate_conv import Caps, ExportStatus
from gramary.ple import from_chronological, to_chronological
from gramary.ple.checks import check_pool
from gramary.process.bound import ProcessBound
from gramary.slots.blob import WindowBlob
from gramary.slots.records import (
    MAX_POSITION,
    CheckpointState,
    Tenure,
    WindowCheckpoint,
    token_history,
)

Holder = TypeVar("Holder", Tenure, WindowCheckpoint)


class SlotPool(ProcessBound):
    """Hands out window slots, checks what the host knows, keeps windows for prefix reuse.

    Call order of a request: `acquire` or `restore`, then before each run `advance`, at last
    `release`. Of a window checkpoint: `checkpoint` (its slot and offset go to
    `ple.export_checkpoint`), then, once the status was read and the batch's rows were good,
    `commit`; `restore` any number of times; `discard`. A slot belongs to one request or one
    checkpoint until it is given back, so no export is ever sent to a live slot.

    A call that raises has changed nothing, and one that is interrupted holds no slot. Windows are
    copied on the current stream of the pool's device. Not thread-safe: one scheduler owns a pool.

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

    remedy = (
        "plans are bound to its windows, and not to a copy's; move a window with export_blob() and "
        "import_blob()"
    )

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
        # The one record of who holds a slot; what is not here is free. One store takes a slot, one
        # deletion frees it, so that no interrupt finds it half taken.
        self._held: dict[int, Tenure | WindowCheckpoint] = {}
        # A heap of every free slot, perhaps with some that are held: the lowest free slot is handed
        # out, so that runs repeat.
        self._candidates = [s for s in range(conv_state.shape[0]) if s not in self._protected]

    def __repr__(self) -> str:
        """Returns how its slots are used, in one line."""
        num_live = len(self.live_slots)
        return (
            f"<gramary.SlotPool: {num_live} live, {len(self._held) - num_live} checkpoints, "
            f"{self.num_free} free, {len(self._protected)} protected>"
        )

    @property
    def num_free(self) -> int:
        """Slots that can be handed out."""
        return int(self.conv_state.shape[0]) - len(self._protected) - len(self._held)

    @property
    def live_slots(self) -> tuple[int, ...]:
        """Slots held by requests, ascending."""
        return tuple(sorted(s for s, holder in self._held.items() if isinstance(holder, Tenure)))

    # Requests

    def acquire(self) -> int:
        """Returns a slot for a request that starts at position 0.

        Raises:
            SlotError: no slot is free.
        """
        return self._hand_out(Tenure.at(self._free_slot(), 0)).slot

    def release(self, slot: int) -> None:
        """Takes a request's slot back; its window is gone.

        Raises:
            SlotError: no request holds the slot.
        """
        self._free(self._tenure(slot).slot)

    def advance(self, slot: int, start: int, num_tokens: int) -> None:
        """Takes note that a run puts `num_tokens` tokens from position `start` on into a slot.

        A start below the end of the last run rejects the tokens from there on. Let E be one past
        the highest position run since the request was started, or restored at P: the start lies
        from max(P, E - (max_speculative_tokens + 1)) to the end of the last run.

        Raises:
            SlotError: no request holds the slot, the start is out of these bounds, or the run goes
                beyond the last position that there is, 2**63 - 1.
        """
        start = require_integer("start", start)
        num_tokens = require_integer("num_tokens", num_tokens)
        tenure = self._tenure(slot)
        tenure.check(start, self.caps.max_speculative_tokens)
        if not 0 <= num_tokens <= MAX_POSITION - start:
            raise SlotError(
                f"num_tokens: expected 0 to {MAX_POSITION - start} (positions are 64-bit "
                f"integers), got {num_tokens}"
            )
        self._held[tenure.slot] = tenure.advanced(start, num_tokens)

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
        tenure.check(position, self.caps.max_speculative_tokens)
        # The copy holds the same columns and so may roll back as far; what lies beyond is stale.
        fork = Tenure(self._free_slot(), tenure.base, tenure.highest, position, position)
        return self._hand_out(fork, self.conv_state[tenure.slot]).slot

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
        kept = self._make_checkpoint(position, history, CheckpointState.PENDING)
        kept.offset = position - tenure.start
        return self._hand_out(kept)

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
        self._free(checkpoint.slot)
        checkpoint.state = CheckpointState.DISCARDED

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
        warm = Tenure.at(self._free_slot(), position)
        return self._hand_out(warm, self.conv_state[checkpoint.slot]).slot

    def snapshot(self, slot: int, position: int, history: Sequence[int]) -> WindowCheckpoint:
        """Returns a committed checkpoint of a request's own window, as after `position` tokens.

        Raises:
            SlotError: no request holds the slot, the position is out of the bounds of a start,
                the history has another length, or no slot is free.
        """
        position = require_integer("position", position)
        tenure = self._tenure(slot)
        tenure.check(position, self.caps.max_speculative_tokens)
        kept = self._make_checkpoint(position, history, CheckpointState.COMMITTED)
        source = self.conv_state[tenure.slot]
        return self._hand_out(
            kept, self._columns(to_chronological(source, position, self.caps.state_length), kept)
        )

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
        kept = self._make_checkpoint(parsed.position, parsed.history, CheckpointState.COMMITTED)
        window = parsed.window.to(self.conv_state.device)
        return self._hand_out(kept, self._columns(window, kept))

    def check_integrity(self) -> None:
        """Raises SlotError where the book contradicts itself or a committed window was run over.

        Reads the device: behind a committed window's state_length columns there are zeros.
        """
        num_slots = self.conv_state.shape[0]
        free = set(range(num_slots)) - self._protected - set(self._held)
        if not free <= set(self._candidates) or not set(self._held) <= set(range(num_slots)):
            raise SlotError(
                f"pool: expected every slot of {num_slots} to be held or free, got "
                f"{sorted(self._held)} and {sorted(self._candidates)}"
            )
        for slot, holder in self._held.items():
            if holder.slot != slot or slot in self._protected:
                raise SlotError(f"slot {slot}: expected its own holder, got {holder}")
            if isinstance(holder, Tenure):
                if not 0 <= holder.base <= holder.end <= holder.highest:
                    raise SlotError(f"slot {slot}: expected base <= end <= highest, got {holder}")
                continue
            if holder.state is CheckpointState.DISCARDED:
                raise SlotError(f"slot {slot}: expected a checkpoint that is kept, got {holder}")
            if holder.state is CheckpointState.COMMITTED and self._behind_window(holder).any():
                raise SlotError(
                    f"slot {slot}: a run wrote into a committed checkpoint; runs take slots of "
                    "acquire(), fork() or restore() only"
                )

    def _behind_window(self, kept: WindowCheckpoint) -> torch.Tensor:
        """Returns the columns that no position of a checkpoint's window lies in."""
        caps = self.caps
        rest = range(kept.position, kept.position + caps.max_decode_tokens)
        return self.conv_state[kept.slot, [p % caps.state_capacity for p in rest]]

    def _columns(self, window: torch.Tensor, kept: WindowCheckpoint) -> torch.Tensor:
        """Returns a slot's content for a checkpoint's window, given oldest first."""
        return from_chronological(window, kept.position, self.caps.state_capacity)

    def _make_checkpoint(
        self, position: int, history: Sequence[int], state: CheckpointState
    ) -> WindowCheckpoint:
        """Returns a checkpoint for the next free slot, which it does not hold yet."""
        tokens = token_history(history)
        if len(tokens) != self.history_length:
            raise SlotError(
                f"history: expected the last {self.history_length} tokens before position "
                f"{position} (EOS where missing), got {len(tokens)}"
            )
        return WindowCheckpoint(self._free_slot(), position, tokens, state=state)

    def _free_slot(self) -> int:
        """Returns the lowest free slot, which stays free until it is handed out."""
        while self._candidates and self._candidates[0] in self._held:
            heapq.heappop(self._candidates)
        if not self._candidates:
            num_requests = len(self.live_slots)
            raise SlotError(
                f"pool: no slot of {self.conv_state.shape[0]} is free ({num_requests} requests, "
                f"{len(self._held) - num_requests} checkpoints, {len(self._protected)} protected); "
                "release a request or discard a checkpoint"
            )
        return self._candidates[0]

    def _hand_out(self, holder: Holder, window: torch.Tensor | None = None) -> Holder:
        """Gives a free slot, once it has its window, to its holder; the last step of a call."""
        try:
            if window is not None:
                self.conv_state[holder.slot].copy_(window)
            self._held[holder.slot] = holder
            # It is the first of them.
            heapq.heappop(self._candidates)
            return holder
        except BaseException:
            # The caller never heard of the slot, so nobody else could give it back.
            self._free(holder.slot)
            raise

    def _free(self, slot: int) -> None:
        """Frees a slot; more calls do nothing."""
        heapq.heappush(self._candidates, slot)
        self._held.pop(slot, None)

    def _tenure(self, slot: int) -> Tenure:
        """Returns the record of a request's slot, or raises SlotError."""
        slot = require_integer("slot", slot)
        holder = self._held.get(slot)
        if not isinstance(holder, Tenure):
            what = "nothing" if holder is None else "a checkpoint"
            raise SlotError(
                f"slot {slot}: expected a request's slot, but {what} holds it; take one with "
                "acquire(), fork() or restore()"
            )
        return holder

    def _expect(self, checkpoint: WindowCheckpoint, *states: CheckpointState) -> None:
        """Raises SlotError where a checkpoint is not this pool's, or in none of these states."""
        require_type("checkpoint", checkpoint, WindowCheckpoint)
        is_ours = self._held.get(checkpoint.slot) is checkpoint
        if not is_ours and checkpoint.state is not CheckpointState.DISCARDED:
            raise SlotError(
                "checkpoint: expected one that this pool keeps; move another pool's with "
                "export_blob() and import_blob(), and make a new one of a discarded one"
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

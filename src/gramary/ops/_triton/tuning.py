"""How the work of a plan is cut into blocks: measured choices, one place for all of them."""

from __future__ import annotations

import dataclasses

from gramary.ops.gate_conv import Caps


@dataclasses.dataclass(frozen=True)
class Launch:
    """Warps of a program, programs, the kernel's block sizes, and options of the compiler."""

    num_warps: int
    grid: int
    constants: dict[str, int]
    options: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Block sizes and warps of the kernels of one plan.

    Attributes:
        step_block: channels in one block of a row in a decode step; a power of two, as all here.
        step_warps: warps of its programs.
        step_registers: most registers of its threads, or None.
        gate_tokens: tokens that a program of the gates has at a time.
        gate_share: tokens that it has in all, when the batch is as large as planned.
        gate_block: channels in one block of a row.
        gate_warps: warps of its programs.
        conv_channels: channels along which a chain of tokens is walked.
        conv_tokens: tokens of a chain.
        conv_unroll: tokens loaded before the first of them is computed.
        conv_warps: warps of its programs.
        head_channels: channels of a program that has a request's head and window.
        head_warps: warps of its programs.
        export_channels: channels of a program that writes a checkpoint's columns.
        export_columns: columns it writes.
        export_warps: warps of its programs.
    """

    step_block: int
    step_warps: int
    step_registers: int | None
    gate_tokens: int
    gate_share: int
    gate_block: int
    gate_warps: int
    conv_channels: int
    conv_tokens: int
    conv_unroll: int
    conv_warps: int
    head_channels: int
    head_warps: int
    export_channels: int
    export_columns: int
    export_warps: int

    def launches(self, caps: Caps) -> dict[str, Launch]:
        """Returns how each kernel of a plan is launched, by the kernel's name."""
        S, H = caps.streams, caps.hidden_size
        rows = caps.max_seqs * S
        conv_programs = ceil_div(caps.max_tokens, self.conv_tokens * caps.dilation) * caps.dilation
        head_programs = rows * caps.dilation
        columns = ceil_div(caps.state_capacity, self.export_columns)
        return {
            "step_kernel": Launch(
                self.step_warps,
                rows,
                {"BH": self.step_block, "NB": ceil_div(H, self.step_block)},
                {} if self.step_registers is None else {"maxnreg": self.step_registers},
            ),
            "gate_kernel": Launch(
                self.gate_warps,
                ceil_div(caps.max_tokens, self.gate_share) * S,
                {
                    "BT": self.gate_tokens,
                    "BH": self.gate_block,
                    "NB": ceil_div(H, self.gate_block),
                },
            ),
            "conv_kernel": Launch(
                self.conv_warps,
                conv_programs * S * ceil_div(H, self.conv_channels),
                {"BC": self.conv_channels, "WALK": self.conv_tokens, "UNROLL": self.conv_unroll},
            ),
            "head_kernel": Launch(
                self.head_warps,
                head_programs * ceil_div(H, self.head_channels),
                {"BC": self.head_channels},
            ),
            "export_kernel": Launch(
                self.export_warps,
                rows * columns * ceil_div(H, self.export_channels),
                {"BC": self.export_channels, "BQ": self.export_columns, "BE": 256},
            ),
        }

    @classmethod
    def of(cls, caps: Caps) -> Tuning:
        """Returns the choices for a plan: the best of a sweep over [4, 2560] on an H200."""
        H = caps.hidden_size
        has_drafts = caps.max_speculative_tokens > 0
        is_large = caps.max_tokens >= 4096
        step_warps = min(power_of_two(ceil_div(H, 384)), 32)
        conv_channels = block_of(H, 256 if is_large else 512)
        tuning = cls(
            # Drafts keep the weights of a row in registers from one to the next.
            step_block=max((64 if has_drafts else 128) * step_warps, 128),
            step_warps=step_warps,
            step_registers=128 if has_drafts and step_warps <= 16 else None,
            gate_tokens=1,
            gate_share=16 if is_large else 4,
            gate_block=block_of(H, 512),
            gate_warps=min(power_of_two(ceil_div(H, 1280)), 16),
            conv_channels=conv_channels,
            conv_tokens=32 if is_large else 8,
            conv_unroll=8 if is_large else 4,
            conv_warps=2,
            head_channels=128,
            head_warps=1,
            export_channels=block_of(H, 256),
            export_columns=min(16, power_of_two(caps.state_capacity)),
            export_warps=4,
        )
        return tuning.few_programs() if caps.device.type == "cpu" else tuning

    def few_programs(self) -> Tuning:
        """Returns choices for Triton's interpreter, which runs one program after another."""
        return dataclasses.replace(
            self, gate_tokens=16, gate_share=16, conv_tokens=16, conv_unroll=1
        )


def ceil_div(size: int, block: int) -> int:
    """Returns how many blocks cover `size`."""
    return -(-size // block)


def block_of(size: int, most: int) -> int:
    """Returns the power of two from 128 to `most` whose blocks cover `size` well.

    That is the largest that wastes an eighth or less, else the least wasteful; 2560 gives 512.
    """
    powers = [1 << bits for bits in range(7, most.bit_length())]
    waste = {power: ceil_div(size, power) * power - size for power in powers}
    good = [power for power in powers if 8 * waste[power] <= size]
    return max(good) if good else min(powers, key=lambda power: (waste[power], -power))


def power_of_two(size: int) -> int:
    """Returns the least power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()

"""How the work of a plan is cut into blocks: measured choices, one place for all of them."""

from __future__ import annotations

import dataclasses

from gramary.ops.gate_conv import Caps


@dataclasses.dataclass(frozen=True)
class Launch:
    """Warps of a program, programs, and the block sizes that the kernel is compiled for."""

    num_warps: int
    grid: int
    constants: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Block sizes and warps of the kernels of one plan.

    Attributes:
        step_block: channels in one block of a row in a decode step; a power of two, as all here.
        step_warps: warps of its programs.
        gate_tokens: tokens that a program of the gates has at a time.
        gate_stride: tokens that it has in all.
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
    gate_tokens: int
    gate_stride: int
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
            ),
            "gate_kernel": Launch(
                self.gate_warps,
                ceil_div(caps.max_tokens, self.gate_stride) * S,
                {
                    "BT": self.gate_tokens,
                    "STRIDE": self.gate_stride,
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
        """Returns the choices for a plan."""
        H = caps.hidden_size
        conv_channels = block_of(H, 512)
        is_interpreted = caps.device.type == "cpu"
        return cls(
            step_block=max(128, 1 << (H - 1).bit_length()),
            step_warps=warps_of(1 << (H - 1).bit_length(), most=32),
            gate_tokens=16 if is_interpreted else 1,
            gate_stride=16 if is_interpreted else 4,
            gate_block=block_of(H, 512),
            gate_warps=warps_of(block_of(H, 512), most=2),
            conv_channels=conv_channels,
            conv_tokens=16 if caps.max_tokens >= 4096 or is_interpreted else 4,
            conv_unroll=1 if is_interpreted else 4,
            conv_warps=warps_of(conv_channels, most=2),
            head_channels=conv_channels,
            head_warps=warps_of(conv_channels, most=2),
            export_channels=block_of(H, 256),
            export_columns=min(16, 1 << (caps.state_capacity - 1).bit_length()),
            export_warps=4,
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


def warps_of(block: int, *, most: int) -> int:
    """Returns the warps at which a thread has 8 elements of a block, from 1 to `most`."""
    return min(max(block // 256, 1), most)

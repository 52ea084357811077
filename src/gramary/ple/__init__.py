"""State operations of a PLE layer: declare the caps, plan, bind once, run many times.

    plan = ple.plan(ple.Caps(...))          # compiles everything, says how much scratch
    binding = ple.bind(plan, ...)           # checks every tensor once
    ple.run(binding, eps=1e-6)              # one batch; metadata are read on the device
    ple.export_checkpoint(binding, ...)     # windows from inside that batch

Windows are addressed by position: a slot holds `state_capacity` columns and position p lies in
column p mod state_capacity. Nothing is ever shifted; a fresh request starts at position 0, and
rejecting drafts is starting the next run at a smaller position.
"""

from gramary.ops.gate_conv import Binding, Caps, ExportStatus, Plan
from gramary.ple.operations import bind, export_checkpoint, plan, run
from gramary.ple.windows import from_chronological, to_chronological

__all__ = [
    "Binding",
    "Caps",
    "ExportStatus",
    "Plan",
    "bind",
    "export_checkpoint",
    "from_chronological",
    "plan",
    "run",
    "to_chronological",
]

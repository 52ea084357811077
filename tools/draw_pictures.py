"""Draws docs/pictures/*.svg from the receipts in benchmarks/results/; needs matplotlib.

    python -m tools.draw_pictures

Each picture says which receipt it is of; a test compares that with the receipt that is there.
"""

from __future__ import annotations

from benchmarks.machine import RESULTS, ROOT
from benchmarks.pictures import draw_receipt
from benchmarks.receipts import schema as receipts

# Receipts with a batch size, or with tiers, in their cases.
DRAWN = (
    "embed_gpu",
    "gpu_host_path",
    "gpu_state",
    "embed_cpu",
    "state_cpu",
    "end_to_end",
    "end_to_end_gpu",
)


def main() -> None:
    """Draws what has a receipt."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for name in DRAWN:
        path = RESULTS / f"{name}.json"
        if path.is_file():
            draw_receipt(receipts.read(path), folder / f"{name}.svg")
            print(f"docs/pictures/{name}.svg")


if __name__ == "__main__":
    main()

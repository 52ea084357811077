"""A table that is handed to another process: how it is opened there, and where it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gramary.errors import CheckpointError, UnsupportedError
from gramary.files.layout import TableSource
from gramary.files.source import open_source
from gramary.placement.plan import Placement


@dataclasses.dataclass(frozen=True)
class OpenRecipe:
    """How a table was opened, to open it again in a process that was handed its pickle.

    Attributes:
        path: absolute path of the model's folder or pack.
        table_index: which table of the folder.
        model_id: identity of the rows that were found there.
        options: the arguments of `Table.from_source`, but for `progress`.
    """

    path: str
    table_index: int | None
    model_id: str
    options: Mapping[str, Any]

    def find(self) -> TableSource:
        """Returns where the rows lie now.

        Raises:
            CheckpointError: other rows lie there.
            GramaryError: as `open_source`.
        """
        source = open_source(self.path, self.table_index)
        if source.model_id != self.model_id:
            raise CheckpointError(
                f"{self.path}: expected the rows of the table that was pickled, got other rows; "
                "open the table with Table.open(path) where it is used"
            )
        return source


def require_reopenable(recipe: OpenRecipe | None, placement: Placement | None) -> OpenRecipe:
    """Returns the recipe of a table that costs no memory where it is opened again.

    Args:
        recipe: of the table; None where it was not opened by a path.
        placement: where its rows are; None where nothing is planned yet.

    Raises:
        UnsupportedError: it was loaded in another way, or its rows lie in this process's memory,
            so that a second process would need as much again.
    """
    if recipe is None or placement is None:
        raise UnsupportedError(
            "a Table that was not opened by Table.open(path) cannot be pickled: its rows would not "
            "be in the pickle; open it where it is used"
        )
    is_shared = recipe.options["share"] is not None
    on_disk, shared = placement.extent("disk"), placement.extent("host") if is_shared else None
    held = [extent for extent in placement.filled if extent not in (on_disk, shared)]
    if held:
        tiers = " and ".join(extent.tier for extent in held)
        num_bytes = sum(extent.nbytes for extent in held)
        raise UnsupportedError(
            f"a Table with {num_bytes} bytes of rows in {tiers} memory cannot be pickled: each "
            "process would take as many again; open it where it is used with Table.open(path), "
            'share the host rows (share="name"), or use placement="disk"'
        )
    return recipe


__all__ = ["OpenRecipe", "require_reopenable"]

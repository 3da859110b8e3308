"""A step beyond the space of a backbone, as the numbers of the hardware that span it may be wrong.

Spaces hold what the target's registers, vectors and caches allow. Where these are told too small, the best candidate
lies at the edge of the space, and one that is twice as large in some respect is better still; where they are told
right, it is worse, and the search has lost three candidates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm_dyn.schedules.matmul_kernel import MatmulTile
from tvm_dyn.schedules.matmul_packed import PackedTile

_HIGHEST = 28


def stretched(tile: Any) -> list[Any]:
    """Tiles twice as wide, high or long; none for kinds whose sizes data layouts or windows dictate."""
    if isinstance(tile, PackedTile):
        higher = tuple(dict.fromkeys([*tile.heights, *(min(h + tile.heights[-1], _HIGHEST) for h in tile.heights)]))
        return [
            replace(tile, lanes=2 * tile.lanes),
            replace(tile, heights=higher),
            replace(tile, block_rows=2 * tile.block_rows),
        ]
    if isinstance(tile, MatmulTile):
        higher = (min(2 * tile.rows[0], _HIGHEST), *tile.rows)
        return [
            replace(tile, lanes=2 * tile.lanes),
            replace(tile, rows=tuple(dict.fromkeys(higher)), block_rows=2 * tile.block_rows),
        ]
    return []

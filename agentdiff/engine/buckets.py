"""Few shapes of passes, as a value: what is compiled for a shape meets it again."""

from __future__ import annotations

from dataclasses import dataclass

from agentdiff.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Round the shape of every pass up; what is added is hidden by the mask and read by nobody.

    Rows and new positions go up to the next power of two. Cached columns go up to a multiple of `columns` or, where
    there are many, of a sixteenth of the next power of two: beyond 2,048 positions a prefix is at most an eighth
    longer, and one of 32,768 has met 49 shapes on its way.
    """

    columns: int = 128

    def __post_init__(self) -> None:
        if self.columns < 1:
            raise ConfigurationError(f"`columns` must be positive, got {self.columns!r}")

    def fit(self, rows: int, width: int, columns: int) -> tuple[int, int, int]:
        """Rows, new positions and cached columns of the bucket that a pass falls in."""
        unit = max(self.columns, next_power(columns) // 16)
        return next_power(rows), next_power(width), -(-columns // unit) * unit


def next_power(count: int) -> int:
    """The next power of two; 1 for nothing."""
    return 1 << max(0, count - 1).bit_length()

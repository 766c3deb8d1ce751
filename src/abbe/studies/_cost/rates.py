"""How fast a machine is at the pieces of a study, and the resulting seconds for a shape and a length."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...models import Shape
from ...runs.window import rows_at_once

# Of the measures without compiled kernels, which are for the CPU: counted with torch's dispatcher, as a test repeats.
TRAFFIC = 9200.0, 1436.0  # bytes read and written per query, key and head: plain, and per number of a vector
OPERATIONS = 2600.0, 1275.0  # of torch per block of queries of a layer: plain, and per head
_LAUNCH = 1e-5  # seconds of one operation on a device, however small
_IN_A_LAYER = 30.0  # operations of a pass


@dataclass(frozen=True)
class Rates:
    """Fixed seconds per layer, however short the window, and rates of everything that grows with it.

    Attributes:
        layer: seconds per layer of a pass.
        matrix: operations per second of matrix products.
        attention: operations per second of attention.
        memory: bytes per second.
        measured_block: seconds of the measures per block of queries of a layer.
        measured_query: seconds of the measures per query and head.
        measured_key: seconds of the measures per query, key and head.
        source: where the numbers come from.
    """

    layer: float
    matrix: float
    attention: float
    memory: float
    measured_block: float
    measured_query: float
    measured_key: float
    source: str

    def of_pass(self, shape: Shape, length: float, size: int) -> float:
        """Seconds of a pass: reading the weights or multiplying with them, whichever is slower, and attention."""
        matrices = max(shape.operations(length) / self.matrix, shape.parameters * size / self.memory)
        return shape.layers * self.layer + matrices + shape.attention(length) / self.attention

    def of_measures(self, shape: Shape, length: float, queries: int | None) -> float:
        """Seconds of measuring this many queries of a window (None: all) in all layers."""
        rows = min(queries or length, length)
        per_row = shape.heads * (self.measured_query + length * self.measured_key)
        return shape.layers * (blocks(shape, length, queries) * self.measured_block + rows * per_row)


def blocks(shape: Shape, length: float, queries: int | None) -> int:
    return math.ceil(min(queries or length, length) / rows_at_once(shape.heads, round(length)))


def rates_given(flops: float, bandwidth: float, shape: Shape) -> Rates:
    """For a described device: memory bandwidth and the launch of operations bound the measures."""
    return Rates(
        layer=_IN_A_LAYER * _LAUNCH,
        matrix=flops,
        attention=flops,
        memory=bandwidth,
        measured_block=(OPERATIONS[0] + OPERATIONS[1] * shape.heads) * _LAUNCH,
        measured_query=0.0,
        measured_key=(TRAFFIC[0] + TRAFFIC[1] * shape.head_width) / bandwidth,
        source="given",
    )

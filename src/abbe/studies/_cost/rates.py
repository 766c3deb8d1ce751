"""How fast a machine is at what a study is made of, and the seconds that follow for a shape and a length."""

from __future__ import annotations

from dataclasses import dataclass

from ...models import Shape

# Of the measures on a device without compiled kernels, counted with torch's dispatcher (a test counts again).
TRAFFIC = 900.0  # bytes read and written per query, key and head
OPERATIONS = 400.0  # of torch, per block of a layer
LAUNCH = 1e-5  # seconds of one operation, however small; a pass has some 30 in a layer
_IN_A_LAYER = 30


@dataclass(frozen=True)
class Rates:
    """Seconds of what every layer takes, however short the window, and the rates of what grows with it.

    Attributes:
        layer: seconds per layer of a pass.
        matrix: operations per second of matrix products.
        attention: operations per second of attention.
        memory: bytes per second.
        measured_layer: seconds of the measures per layer.
        measured_query: seconds of the measures per query and head.
        measured_key: seconds of the measures per query, key and head.
        source: where the numbers come from.
    """

    layer: float
    matrix: float
    attention: float
    memory: float
    measured_layer: float
    measured_query: float
    measured_key: float
    source: str

    def of_pass(self, shape: Shape, length: float, size: int) -> float:
        """Seconds of a pass: reading the weights or multiplying with them, whichever takes longer, and attention."""
        matrices = max(shape.operations(length) / self.matrix, shape.parameters * size / self.memory)
        return shape.layers * self.layer + matrices + shape.attention(length) / self.attention

    def of_measures(self, shape: Shape, length: float, queries: int | None) -> float:
        """Seconds of measuring so many queries of a window in all layers; None for all."""
        rows = min(queries or length, length) * shape.heads
        a_row = self.measured_query + length * self.measured_key
        return shape.layers * (self.measured_layer + rows * a_row)


def rates_given(flops: float, bandwidth: float) -> Rates:
    """Of a device that is known by what it sustains: the measures are bound by its memory."""
    return Rates(
        layer=_IN_A_LAYER * LAUNCH,
        matrix=flops,
        attention=flops,
        memory=bandwidth,
        measured_layer=OPERATIONS * LAUNCH,
        measured_query=0.0,
        measured_key=TRAFFIC / bandwidth,
        source=f"given: {flops:.3g} operations and {bandwidth:.3g} bytes per second",
    )

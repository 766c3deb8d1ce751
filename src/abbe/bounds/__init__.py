"""What can be proved about attention weights: pure, batched, differentiable functions of tensors.

Each docstring gives the statement, its assumptions, whether it is tight, its source, and what high and low mean.
Names that end in `_paper` are the forms of arXiv 2508.17821 where ours differ; some of them are false, as
`abbe verify` shows. `catalogue()` lists every statement with its status.
"""

from ._catalogue import *
from ._checks import *
from ._distance import *
from ._gradient import *
from ._separability import *
from ._weights import *

__all__ = [name for name in tuple(globals()) if not name.startswith("_")]

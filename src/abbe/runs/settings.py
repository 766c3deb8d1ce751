"""The checked settings of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from .._arguments import between, is_whole, plain, positive, several, shown, whole, window_lengths
from .._errors import AbbeError
from ..measures import DEFAULT_GRID, USUAL_SIZE, checked_grid
from ..normalizers import Normalizer, normalizer

Vectors = Literal["embedding", "hidden", "value", "output"]
LENGTHS = (64, 256, 1024)
REPORT_LENGTHS = (64, 128, 256, 512, 1024)
REPORT_TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0)
MOST_RESAMPLES = 1_000_000  # all are drawn at once: more would fill the memory without any benefit


@dataclass(frozen=True)
class Settings:
    """Everything that determines the numbers, apart from model and text."""

    lengths: tuple[int, ...]
    windows: int
    queries: int | None = None  # None: all
    sizes: tuple[int, ...] = DEFAULT_GRID
    vectors: Vectors = "value"
    normalizer: str | None = None  # None: the model's own
    temperatures: tuple[float, ...] = ()
    seed: int = 0
    level: float = 0.95
    resamples: int = 1000
    steps: tuple[float, ...] = ()  # of finite differences, at every temperature
    expected: bool = False  # also the proved bounds on the mean distance of random sets
    more_than: int = 0  # leave out queries that see at most this many keys
    readings: bool = False  # critical N under every reading of "expected" and of the test

    def __post_init__(self) -> None:
        """Checked here alone, numbers of numpy and torch and single values included; the windows check the lengths."""
        if self.vectors not in get_args(Vectors):
            raise AbbeError(f"vectors is {self.vectors!r}, but must be one of {', '.join(get_args(Vectors))}")
        given: Any = self.normalizer
        if given is not None:
            if not isinstance(given, str | Normalizer):
                wanted = "a spec such as 'entmax:alpha=1.5', or a Normalizer"
                raise AbbeError(f"normalizer is {shown(given)}, but must be {wanted}")
            normalizer(str(given))
        checked = {
            "lengths": window_lengths(self.lengths),
            "windows": whole("windows", self.windows),
            "queries": count_of_queries(self.queries),
            "normalizer": None if given is None else str(given),
            "sizes": checked_grid(several("sizes", self.sizes)),
            "temperatures": positive("temperatures", self.temperatures),
            "steps": positive("steps", self.steps),
            "seed": checked_seed(self.seed),
            "level": between("level", self.level, 0, 1, example=0.95),
            "resamples": whole("resamples", self.resamples, least=1, most=MOST_RESAMPLES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def reads_rows(self) -> bool:
        """Whether a measure beyond the usual ones needs the rows themselves."""
        return bool(self.steps) or self.expected or self.readings

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self) | {"queries": self.queries or "all"}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """The inverse of `as_json`."""
        lists = {key: tuple(value) for key, value in content.items() if isinstance(value, list)}
        return cls(**{**content, **lists, "queries": count_of_queries(content["queries"])})


def plain_settings(settings: Any) -> dict[str, Any]:
    """A dataclass as it returns from JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}


def settings_for(context: int | None, *, lengths: Any, sizes: Any = None, **others: Any) -> Settings:
    """Fill in what depends on the model: windows of 64, 256 and 1024 tokens, as far as they fit its context."""
    if lengths is None:
        lengths = [length for length in LENGTHS if context is None or length <= context] or [context or LENGTHS[0]]
    return Settings(lengths=lengths, sizes=DEFAULT_GRID if sizes is None else sizes, **others)


def window_settings(length: int, windows: int, queries: int, seed: int, level: float, resamples: int) -> Settings:
    """Settings of a study that reads losses and sets of the usual size from windows of one length."""
    return Settings((length,), windows, queries, (USUAL_SIZE,), seed=seed, level=level, resamples=resamples)


def count_of_queries(queries: int | str | None) -> int | None:
    """Queries per window; None for "all"."""
    if queries is None or (isinstance(queries, str) and queries == "all"):
        return None
    return whole("queries", queries, least=1, other=", or 'all'")


def checked_seed(seed: int) -> int:
    value = plain(seed)
    if not is_whole(value) or not 0 <= value < 2**63:
        raise AbbeError(f"seed is {shown(seed)}, but must be a whole number from 0 to 2**63 - 1")
    return int(value)

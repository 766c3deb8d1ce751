"""Training, validation and test text: a half and two quarters that never mix; the test text is opened once."""

from __future__ import annotations

from dataclasses import dataclass

from ..._errors import AbbeError
from ...measures import enough_windows
from ...models import LoadedModel, Text, Windows
from ...runs.inputs import windows_for
from .settings import LENGTH, RETRIEVAL, LiftSettings

_LEAST_LENGTH = 128
_LONGER = 4  # times the length: for retrieval the loss is judged there as well
_LONGEST_WORD = 200  # characters
TRAINING, VALIDATION, TEST = "training", "validation", "test"
_ENDS = {TRAINING: 0.5, VALIDATION: 0.75, TEST: 1.0}  # of the text, as shares of its characters
_ADVICE = "the text is cut into a half, a quarter and a quarter; give more text or a smaller length"
_SEEDS = {TRAINING: 0, VALIDATION: 1, TEST: 2}  # added to three times the seed: no two parts draw the same windows


@dataclass(frozen=True)
class TextPart:
    """One of the three parts; `start` is its offset in the whole text, in characters."""

    name: str
    text: Text
    start: int
    seed: int


class Sealed:
    """The test text: it cannot be read before it is opened, and it opens once."""

    def __init__(self, part: TextPart) -> None:
        self._part: TextPart | None = part
        self.start = part.start

    def open(self) -> TextPart:
        if self._part is None:
            raise AbbeError("the test text was read already: it can be read only once")
        part, self._part = self._part, None
        return part


def cut(text: Text, seed: int) -> dict[str, TextPart]:
    """Half of the text, a quarter and a quarter, cut at spaces."""
    parts: dict[str, TextPart] = {}
    start = 0
    for name, share in _ENDS.items():
        end = _space_after(text.content, round(share * len(text.content)))
        content = Text(f"{text.name}, {name} text", text.content[start:end])
        parts[name] = TextPart(name, content, start, 3 * seed + _SEEDS[name])
        start = end
    return parts


def _space_after(content: str, place: int) -> int:
    """The next space, or the place itself if none is near."""
    near = range(place, min(len(content), place + _LONGEST_WORD))
    return next((at for at in near if content[at].isspace()), place)


def usual_length(model: LoadedModel, text: Text, windows: int) -> int:
    """512 tokens, or the context; halved for a short text until the validation text has room for all windows."""
    length = min(LENGTH, model.context or LENGTH)
    content = cut(text, 0)[VALIDATION].text.content
    if len(content) > 32 * length * windows or not callable(model.tokenizer):
        return length
    tokens = len(model.tokenizer(content, truncation=False, padding=False, verbose=False)["input_ids"])
    while length > _LEAST_LENGTH and tokens < windows * length:
        length //= 2
    return length


def judged_lengths(
    model: LoadedModel, validation: TextPart, settings: LiftSettings
) -> tuple[tuple[int, ...], list[str]]:
    """Lengths at which the loss is judged, and a line for each that is left out.

    A temperature that depends on the visible keys may spare short windows, so retrieval is judged on long ones, too.
    The validation text is as long as the test text, which stays sealed, so it shows which lengths fit.
    """
    if settings.goal != RETRIEVAL:
        return (settings.length,), []
    lengths, left_out = [settings.length], []
    # At the longest pass key, too: a loss over rows that a plan leaves unchanged would say nothing.
    for longer in sorted(n for n in {_LONGER * settings.length, *settings.lengths[-1:]} if n > settings.length):
        if why := _no_room(model, validation, settings, longer):
            left_out.append(f"the loss is not judged at {longer:,} tokens, because {why}")
        else:
            lengths.append(longer)
    return tuple(lengths), left_out


def _no_room(model: LoadedModel, validation: TextPart, settings: LiftSettings, length: int) -> str:
    """Why there are too few windows of this length; "" if there are enough."""
    if model.context is not None and length > model.context:
        return f"the model's context is {model.context:,} tokens"
    needed = enough_windows(settings.level)
    room = len(longer_windows(model, validation, settings, length))
    why = f"{validation.text.name}, which is as long as the test text, has room for {room} windows of {needed} needed"
    return why if room < needed else ""


def longer_windows(model: LoadedModel, part: TextPart, settings: LiftSettings, length: int) -> Windows:
    """Windows of a length that may not fit; too few to judge on make the rule fail, since it names the length."""
    try:
        return windows_for(model, part.text, (length,), settings.windows, part.seed)
    except AbbeError as error:  # not one fits
        return Windows([], {length: str(error)})


def windows_of(model: LoadedModel, part: TextPart, settings: LiftSettings) -> Windows:
    """Twice as many for training; refused if the part is too short for its purpose."""
    count = settings.windows * (2 if part.name == TRAINING else 1)
    # Too few windows to judge on are no reason to throw the search away: the rule then says so.
    needed = min(settings.windows, enough_windows(settings.level)) if part.name == VALIDATION else 1
    try:
        windows = windows_for(model, part.text, (settings.length,), count, part.seed)
    except AbbeError as error:
        raise AbbeError(f"{error} ({_ADVICE})") from None
    if len(windows) < needed:
        raise AbbeError(
            f"{part.text.name} has room for {len(windows)} windows of {settings.length} tokens, and {needed} are "
            f"needed: {_ADVICE}"
        )
    return windows

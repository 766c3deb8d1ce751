"""abbe lift"""

from __future__ import annotations

from typing import Annotated

from .._options import measured, numbers, with_option
from .._study import Asked, Measured, study

EXAMPLES = (
    "abbe lift",
    "abbe lift smollm2 --text book.txt --max-loss 0.5% --budget 30m --out lifted",
    "abbe lift smollm2 --text book.txt --goal loss --with softmax --with entmax:alpha=1.25,learn=false",
    "abbe lift smollm2 --text book.txt --goal retrieval --lengths 2048,4096,7900 --max-loss 0.2% --budget 3h",
)


@study(json="Print verdict, plan, judged table, scan, plans and manifest as JSON.", named_by="goal")
def lift(
    *,
    asked: Asked,
    goal: Annotated[
        str, measured("sparse: exact zeros at little loss; loss: a lower loss; retrieval: pass keys in long texts.")
    ] = "sparse",
    max_loss: Annotated[str, measured("Relative rise of the loss that is allowed, such as 0.5%.")] = "0.5%",
    budget: Annotated[str, measured("Time for the search, such as 90s, 20m or 2h, or none.")] = "20m",
    normalizers: Annotated[
        list[str] | None,
        with_option("A normalizer to try; may be repeated. Without one: a short list for the goal."),
    ] = None,
    length: Annotated[int | None, measured("Window length in tokens; 512, or what context and text allow.")] = None,
    windows: Annotated[int, measured("Windows to choose on and to judge on; twice as many to fit on.")] = 12,
    steps: Annotated[int, measured("Steps of tuning in the last round; the same steps, the same result.")] = 48,
    lengths: Annotated[str | None, measured("Lengths of the pass keys of --goal retrieval, such as 512,1024.")] = None,
    prompts: Annotated[int, measured("Prompts of each kind, length and depth.")] = 4,
) -> Measured:
    """Search for layers that do better with another normalizer, and judge one plan once, on text it has not seen."""
    from ...studies import lift as run_lift

    result = run_lift(
        asked.model, asked.text, goal=goal, max_loss=max_loss, budget=None if budget == "none" else budget,
        normalizers=normalizers, length=length, windows=windows, steps=steps,
        lengths=numbers("--lengths", lengths, int), prompts=prompts, **asked.shared,
    )  # fmt: skip
    return Measured(result, (f"plan: {result.file}",))

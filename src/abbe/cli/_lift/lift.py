"""abbe lift"""

from __future__ import annotations

from typing import Annotated

from .._options import numbers, setting, with_option
from .._study import AnyResult, Subject, study

EXAMPLES = (
    "abbe lift",
    "abbe lift smollm2 --text book.txt --max-loss 0.5% --budget 30m --out lifted",
    "abbe lift smollm2 --text book.txt --goal loss --with softmax --with entmax:alpha=1.25",
    "abbe lift smollm2 --text book.txt --goal retrieval --lengths 2048,4096,7900 --max-loss 0.2% --budget 3h",
)


@study(json="Print verdict, plan, judged table, scan, plans and manifest as JSON.", named_by="goal", file="plan")
def lift(
    *,
    subject: Subject,
    goal: Annotated[
        str, setting("sparse: exact zeros at little loss; loss: a lower loss; retrieval: pass keys in long texts.")
    ] = "sparse",
    max_loss: Annotated[
        str, setting("Largest rise of the loss over the model and over softmax tuned the same way.")
    ] = "0.5%",
    budget: Annotated[str, setting("Time limit of the search, such as 90s, 20m or 2h, or none.")] = "20m",
    normalizers: Annotated[
        list[str] | None,
        with_option("A normalizer to try; may be repeated. Without one, a short list that depends on the goal."),
    ] = None,
    length: Annotated[int | None, setting("Tokens per window; 512, or less for a short context or text.")] = None,
    windows: Annotated[int, setting("Windows to choose on and windows to judge on; twice as many to fit on.")] = 12,
    steps: Annotated[int, setting("Tuning steps in the last round.")] = 48,
    lengths: Annotated[str | None, setting("Text lengths of --goal retrieval in tokens, such as 512,1024.")] = None,
    prompts: Annotated[int, setting("Prompts per kind, length and depth.")] = 4,
) -> AnyResult:
    """Search for layers that do better with another normalizer, and judge one plan once, on text it has not seen."""
    from ... import studies

    return studies.lift(
        subject.model, subject.text, goal=goal, max_loss=max_loss, budget=None if budget == "none" else budget,
        normalizers=normalizers, length=length, windows=windows, steps=steps,
        lengths=numbers("--lengths", lengths, int), prompts=prompts, **subject.shared,
    )  # fmt: skip

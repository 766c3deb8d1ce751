"""A search with made-up numbers: two layers under two candidates."""

from __future__ import annotations

from pathlib import Path

from abbe.studies import Lift
from abbe.words.finding import Finding

JUDGED = {"loss": 3.0, "zeros": 0.0, "active": 128.0, "effective_tokens": 12.0, "lists": 0.1, "sentences": 0.8}


def made_up(goal: str = "sparse") -> Lift:
    """Two layers under two candidates; a plan and a mixed one, the first tuned and judged."""
    spec = "entmax:alpha=1.5"
    scan = [
        {"layers": str(layer), "first": layer, "last": layer, "normalizer": one, "harm": harm, "gain": 0.5,
         "zeros": 0.9, "effective_tokens": 5.0, "effective_tokens_baseline": 8.0, "sensitivity_ratio": 0.5}
        for one, harms in ((spec, (0.012, -0.004)), ("topk:k=4", (0.002, None)))
        for layer, harm in enumerate(harms)
    ]  # fmt: skip
    plans = [
        {"plan": plan, "layers": 2, "steps": steps, "loss": 3.1, "rise": 0.003, "rise_low": 0.001, "rise_high": 0.004,
         "gain": 0.7, "zeros": 0.7, "active": 30.0, "effective_tokens": 9.0, "chosen": chosen}
        for plan, steps, chosen in ((f"layers.0-1={spec}", 8, True), (f"layers.0={spec}; layers.1=topk:k=4", 0, False))
    ]  # fmt: skip
    rise = {"rise": 0.0021, "rise_low": -0.0009, "rise_high": 0.0049}
    rise |= {"lists_gain": 0.12, "lists_gain_low": 0.06, "lists_gain_high": 0.14, "sentences_gain": 0.0}
    table = [{"contender": "baseline"} | JUDGED | {"time_ratio": 1.0, "seconds": 0.1}]
    table.append({"contender": "plan"} | JUDGED | {"zeros": 0.74, "time_ratio": 1.2, "seconds": 0.12} | rise)
    keys = [
        {"contender": name, "length": 256, "depth": depth, "prompts": 4, "right": 0.25, "right_low": 0.0,
         "right_high": 0.6, "log_probability": -7.5}
        for name in ("baseline", "plan") for depth in (0.0, 1.0)
    ] if goal == "retrieval" else []  # fmt: skip
    manifest = {
        "model": {"name": "made-up", "source": "made-up"}, "text": {"name": "book.txt"}, "skipped": [],
        "settings": {"goal": goal, "max_loss": 0.005, "steps": 8, "seed": 3, "length": 64},
        "loss_lengths": [64, 256] if goal == "retrieval" else [64],
        "call": {"absent": [], "arguments": {
            "model": "/home/u/made-up", "text": ["book.txt"], "normalizers": [spec, "topk:k=4"], "queries": 8,
            "lengths": [64, 256], "budget": None, "max_loss": "0.5%",
        }},
    }  # fmt: skip
    if goal == "retrieval":
        for row, more in zip(table, ({}, {"longer_rise": 0.001, "longer_rise_low": 0.0, "longer_rise_high": 0.002}),
                             strict=True):  # fmt: skip
            row |= {"longer_loss": 2.5, "pass_keys": 0.5} | more
    frames = {"table": table, "scan": scan, "plans": plans, "keys": keys}
    tables = {name: Lift.frame(name).of(rows) for name, rows in frames.items()}
    said = (Finding("lifted", "Lifted: it is so.", "the rule"),)
    plan, file = f"layers.0-1={spec}", Path("lifted/plan.safetensors")
    return Lift(lifted=True, plan=plan, **tables, findings=said, manifest=manifest, file=file)

"""The model card and the small table of facts that come with the embedded model; every number is from its run."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from evaluation import bits_per_byte, nats_per_token
from export import FILES, sha256

FACTS, CARD = "facts.json", "MODEL_CARD.md"
NAMES = {"model": "this model", "five_gram": "5-gram", "unigram": "unigram"}
BARS = "▁▂▃▄▅▆▇█"


def write_card(out: Path, figure: Path, recipe: dict[str, Any], measured: dict[str, Any], note: str | None) -> None:
    """facts.json, the loss curve and MODEL_CARD.md."""
    facts = small_facts(recipe, measured)
    (out / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    draw_curve(recipe["curve"], figure)
    hashes = {name: sha256(out / name) for name in (*FILES, FACTS)}
    picture = Path(os.path.relpath(figure, out)).as_posix()
    (out / CARD).write_text(model_card(recipe, measured, hashes, picture, note), encoding="utf-8")


def small_facts(recipe: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """What the loaded model says about itself."""
    held_out = measured["held_out"]
    return {
        "layers": recipe["layers"],
        "heads": recipe["heads"],
        "parameters": measured["parameters"],
        "books": len(measured["books"]),
        "training_bytes": measured["training_bytes"],
        "tokens_seen": recipe["tokens_seen"],
        "held_out_bits_per_byte": round(bits_per_byte(held_out, "model"), 4),
        "five_gram_bits_per_byte": round(bits_per_byte(held_out, "five_gram"), 4),
    }


def model_card(
    recipe: dict[str, Any], measured: dict[str, Any], hashes: dict[str, str], picture: str, note: str | None
) -> str:
    sections = [
        introduction(recipe, measured),
        use_and_limits(),
        held_out(recipe, measured),
        attention(measured),
        data(recipe, measured),
        architecture(recipe, measured),
        training(recipe, measured, picture, note),
        again(recipe, hashes),
    ]
    return "\n\n".join(sections) + "\n"


def introduction(recipe: dict[str, Any], measured: dict[str, Any]) -> str:
    bits = bits_per_byte(measured["held_out"], "model")
    return "# The embedded model of abbe\n\n" + paragraph(
        f"A GPT-2 of {recipe['layers']} layers x {recipe['heads']} heads with {measured['parameters']:,} parameters, "
        f"trained from scratch on {len(measured['books'])} public-domain texts. It needs {bits:.3f} bits per byte of "
        'text that it has not seen. `abbe.load("embedded")` loads it, without a network.'
    )


def use_and_limits() -> str:
    use = paragraph(
        "A model to study attention on, small enough for every test and example; how far its heads have learned to "
        "attend is measured below. It is not made to write text, to answer questions or to be trained further."
    )
    limits = (
        "- Its English is that of the books below: old, literary, with much of the Bible and of drama.\n"
        "- It carries whatever those books say and how they say it, prejudices included.\n"
        "- Its heads are those of a small model; what they show need not hold for large ones.\n"
        "- Weights and tokenizer: Apache-2.0. The texts are in the public domain and are not part of the package."
    )
    return f"## Use, limits, licence\n\n{use}\n\n{limits}"


def held_out(recipe: dict[str, Any], measured: dict[str, Any]) -> str:
    names, whole = list(NAMES), measured["held_out"]
    head = ["", *(f"{NAMES[name]}, {unit}" for name in names for unit in ("nats/token", "bits/byte"))]
    overall = [
        [where, *(f"{value(row, name):.3f}" for name in names for value in (nats_per_token, bits_per_byte))]
        for where, row in (("all held-out text", whole), ("sample essay", measured["sample"]))
    ]
    books = [
        [row["name"], f"{row['held_out_bytes']:,}", *(f"{bits_per_byte(row, name):.3f}" for name in names[:2])]
        for row in measured["books"]
    ]
    how = paragraph(
        f"The last {100 * recipe['held_out_share']:g} % of every text, {whole['held_out_bytes']:,} bytes in "
        f"{whole['tokens']:,} tokens, measured with the files as they are (float16 weights, computed in float32). "
        f"Every token is scored once, in windows of {recipe['context']} tokens that begin every "
        f"{recipe['context'] // 2}. The 5-gram (interpolated modified Kneser-Ney) and the unigram counted the training "
        "parts and score the same tokens. The sample essay comes with abbe and is no training text."
    )
    shared = paragraph(
        f"{100 * measured['repeated_passages']:.2f} % of the held-out passages of ten words also stand somewhere in "
        "the training parts. By text, in bits per byte:"
    )
    by_text = table(["text", "bytes", "this model", "5-gram"], books)
    return f"## Text that it has not seen\n\n{how}\n\n{table(head, overall)}\n\n{shared}\n\n{by_text}"


def attention(measured: dict[str, Any]) -> str:
    how = paragraph(
        "Induction: mean weight on the token after the earlier occurrence of the query's token, in random tokens that "
        "come twice; no text can have taught these. Previous token: mean weight on the token before, in the sample "
        f"essay. A uniform head would have {chance(measured, 'induction')} and {chance(measured, 'previous_token')}."
    )
    trained = paragraph(f"The trained model {measured['learned']}.")
    untrained = paragraph(f"The same network before its first step {measured['untrained_learned']}.")
    tables = [
        f"{pattern.replace('_', ' ').capitalize()}, {when}:\n\n{head_table(measured[key], pattern)}"
        for when, key in (("trained", "patterns"), ("before the first step", "untrained_patterns"))
        for pattern in ("induction", "previous_token")
    ]
    parts = ["## What the heads look at", how, trained, untrained, best_heads(measured["patterns"]), *tables]
    return "\n\n".join(parts)


def chance(measured: dict[str, Any], pattern: str) -> str:
    return f"{measured['patterns'][f'{pattern}_chance'].mean():.4f}"


def best_heads(patterns: pl.DataFrame) -> str:
    rows = []
    for pattern in ("induction", "previous_token", "first_token", "same_token"):
        best = patterns.sort(pattern, descending=True)[:3].iter_rows(named=True)
        heads = [f"layer {row['layer']} head {row['head']}: {row[pattern]:.3f}" for row in best]
        rows.append([pattern.replace("_", " "), *heads, f"{patterns[f'{pattern}_chance'].mean():.4f}"])
    return table(["pattern", "best head", "second", "third", "chance"], rows)


def head_table(patterns: pl.DataFrame, pattern: str) -> str:
    layers = patterns.partition_by("layer", maintain_order=True)
    rows = [[str(layer["layer"][0]), *(f"{score:.3f}" for score in layer[pattern])] for layer in layers]
    return table(["layer", *(f"head {head}" for head in layers[0]["head"])], rows)


def data(recipe: dict[str, Any], measured: dict[str, Any]) -> str:
    rows = [[row["name"], f"{row['bytes']:,}", row["sha256"][:12]] for row in measured["books"]]
    tokens = measured["held_out"]
    how = paragraph(
        f"The last {100 * recipe['held_out_share']:g} % of every text, cut at a line, is held out: neither network, "
        "tokenizer nor counts have seen it. Half of the rows of a batch show the texts as they are, half with the "
        f"lines of prose joined to paragraphs. Byte-level byte-pair tokens, {recipe['vocabulary']:,} of them, learned "
        "from the training parts; any text can be written with them. One token is "
        f"{tokens['held_out_bytes'] / tokens['tokens']:.2f} bytes of held-out text."
    )
    return f"## Data and tokenizer\n\n{how}\n\n{table(['text', 'bytes', 'sha256 begins'], rows)}"


def architecture(recipe: dict[str, Any], measured: dict[str, Any]) -> str:
    rows = [
        ["kind", "GPT-2: layer norm before each part, output layer tied to the embedding"],
        ["positions", "learned; sinusoids before the first step"],
        ["layers x heads", f"{recipe['layers']} x {recipe['heads']}"],
        ["width", str(recipe["width"])],
        ["context", f"{recipe['context']} tokens"],
        ["parameters", f"{measured['parameters']:,}"],
    ]
    return f"## Architecture\n\n{table(['', ''], rows)}"


def training(recipe: dict[str, Any], measured: dict[str, Any], picture: str, note: str | None) -> str:
    curve = recipe["curve"]
    rows = [
        [f"{point['step']:g}", f"{point['training']:.3f}", f"{point['validation']:.3f}"]
        for number, point in enumerate(curve)
        if number % max(1, len(curve) // 15) == 0 or number == len(curve) - 1
    ]
    rounds = recipe["tokens_seen"] / measured["training_tokens"]
    how = paragraph(
        f"{recipe['steps']:,} steps of {recipe['batch']:,} tokens: {recipe['tokens_seen']:,} tokens, {rounds:.1f} "
        f"times the training text, in {recipe['seconds'] / 3600:.2f} hours on two cores{f' ({note})' if note else ''}. "
        f"Seed {recipe['seed']}. {window_lengths(recipe)} {recipe['optimizer']}"
    )
    repeats = paragraph(
        f"In {shares(recipe)} a passage of the window comes twice, so that looking back pays early. The "
        "induction scores above are measured on random tokens, which are no passage of any text."
    )
    validation = [point["validation"] for point in curve]
    loss = paragraph(
        f"Validation loss, in nats per token over {recipe['validation_windows']} windows of {recipe['context']} tokens "
        f"from the first step on, from {validation[0]:.3f} to {validation[-1]:.3f}: `{sparkline(validation)}`"
    )
    drawn = f"![loss curve]({picture})\n\n{table(['step', 'training', 'validation'], rows)}"
    return f"## Training\n\n{how}\n\n{repeats}\n\n{loss}\n\n{drawn}"


def window_lengths(recipe: dict[str, Any]) -> str:
    return f"Windows of {', '.join(stages_of(recipe, 'length', '{} tokens'))}."


def shares(recipe: dict[str, Any]) -> str:
    return f"{', '.join(stages_of(recipe, 'repeated', '{:.1%} of the rows'))},"


def stages_of(recipe: dict[str, Any], what: str, form: str) -> list[str]:
    """One number of the stages, where it changes."""
    changes: list[str] = []
    last = None
    for stage in recipe["stages"]:
        if stage["first"] < recipe["steps"] and stage[what] != last:
            last = stage[what]
            changes.append(f"{form.format(last)} from step {stage['first']}")
    return changes


def again(recipe: dict[str, Any], hashes: dict[str, str]) -> str:
    rows = [[name, f"`{digest}`"] for name, digest in hashes.items()]
    return (
        "## Making it again\n\n"
        "With a folder that holds the texts above:\n\n"
        f"    python scripts/train_embedded.py --texts FOLDER --steps {recipe['steps']}\n\n"
        f"{table(['file', 'sha256'], rows)}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def sparkline(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    span = high - low or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values)


def draw_curve(curve: Sequence[dict[str, float]], path: Path) -> None:
    import altair as alt

    rows = [
        {"step": point["step"], "loss": point[kind], "kind": kind}
        for point in curve
        for kind in ("training", "validation")
    ]
    colour = alt.Color("kind:N", title=None).scale(domain=["training", "validation"], range=["#c2571a", "#1f6fb4"])
    chart = alt.Chart(alt.InlineData(values=rows)).mark_line(strokeWidth=2).encode(
        alt.X("step:Q", title="step").axis(grid=False),
        alt.Y("loss:Q", title="nats per token").scale(zero=False),
        colour,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    title = alt.TitleParams("Training of the embedded model", anchor="start")
    chart.properties(width=520, height=280, title=title, padding=5).configure_view(stroke=None).save(str(path))

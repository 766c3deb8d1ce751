"""abbe eval on lm-evaluation-harness itself: its scores are those of a plain loop, of every kind of task."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models
import torch
import yaml
from torch import Tensor

import abbe
from abbe.measures import interval_ends, resampled_counts
from abbe.models import LoadedModel, wrap

lm_eval = pytest.importorskip("lm_eval")
huggingface = pytest.importorskip("lm_eval.models.huggingface")
managers = pytest.importorskip("lm_eval.tasks")

PLAN = "sparsemax"  # continuous: another order of sums moves it little
NOUNS = ("house", "river", "stone", "garden", "letter", "winter", "mother", "captain")
CHOICES = [
    {
        "question": f"The {noun} was",
        "choices": [f"the {noun}", "a very old man who said nothing", f"the {NOUNS[i - 1]} of the house"],
        "gold": i % 3,
    }
    for i, noun in enumerate(NOUNS)
]
PROSE = [
    {"text": " ".join(f"The {NOUNS[(i + k) % 8]} and the {NOUNS[k % 8]} were old." for k in range(9))} for i in range(7)
]
LAST = [{"start": f"He went to the {noun}, and saw", "end": " the man"} for noun in NOUNS]
COPY = [{"start": f"{noun} {noun} {noun}", "end": noun} for noun in NOUNS]
MEAN = {"aggregation": "mean", "higher_is_better": True}
TASKS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "choices": (CHOICES, {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc", **MEAN}, {"metric": "acc_norm", **MEAN}],
    }),
    "prose": (PROSE, {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "text",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    }),
    "last": (LAST, {
        "output_type": "loglikelihood", "doc_to_text": "start", "doc_to_target": "end", "target_delimiter": "",
        "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                        {"metric": "acc", **MEAN}],
    }),
    "copy": (COPY, {
        "output_type": "generate_until", "doc_to_text": "start", "doc_to_target": "end",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 5, "do_sample": False},
        "metric_list": [{"metric": "exact_match", **MEAN}],
    }),
}  # fmt: skip


def write(folder: Path, name: str, documents: list[Any], more: dict[str, Any]) -> None:
    """A task of lm-eval with its data."""
    folder.mkdir(exist_ok=True)
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in documents))
    config = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"validation": str(data)}}}
    config |= {"validation_split": "validation", "metadata": {"version": 1.0}}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config | more))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("harness") / "tasks"
    for name, (documents, more) in TASKS.items():
        write(folder, name, documents, more)
    return folder


@pytest.fixture(scope="module")
def embedded() -> LoadedModel:
    return abbe.load("embedded")


@pytest.fixture(scope="module")
def whole(tasks: Path, embedded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """One evaluation of all tasks, and its folder."""
    folder = tmp_path_factory.mktemp("run")
    return evaluated(embedded, tasks, folder=folder), folder


def evaluated(model: Any, tasks: Any, **more: Any) -> Any:
    return abbe.evaluate(model, **({"plans": PLAN, "tasks": tasks, "batch_size": 3, "progress": False} | more))


def values(folder: Path, task: str, key: str) -> list[list[Any]]:
    """Of the documents, for the baseline and the plan."""
    number = sorted(TASKS).index(task)
    parts = [json.loads((folder / "parts" / f"{place}-{number}.json").read_text()) for place in (0, 1)]
    return [part["values"][key] for part in parts]


# -- A plain loop -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def log_chance(model: LoadedModel, given: list[int], answer: list[int]) -> float:
    """Of an answer after these tokens; of a longer text than the context, the last tokens are read."""
    ids = torch.tensor([(given + answer)[-(model.context or 10**9) - 1 :]])
    chances = model(input_ids=ids[:, :-1]).logits[0].float().log_softmax(-1)
    wanted: Tensor = chances[-len(answer) :].gather(1, torch.tensor(answer)[:, None])
    return float(wanted.sum())


def after(model: LoadedModel, text: str, answer: str) -> float:
    given, whole = (model.tokenizer(x).input_ids for x in (text, text + answer))
    return log_chance(model, given, whole[len(given) :])


def rolled(model: LoadedModel, text: str) -> float:
    """Every token once: the first `context` of them after the prefix, the others with as much before them as fits."""
    ids, total = model.tokenizer(text).input_ids, 0.0
    context, prefix = model.context or 10**9, model.tokenizer.eos_token_id
    for start in range(0, len(ids), context):
        piece = ids[start : start + context]
        before = [prefix] if start == 0 else ids[max(0, start + len(piece) - context - 1) : start]
        total += log_chance(model, before, piece)
    return total


def plainly(model: LoadedModel) -> dict[str, list[Any]]:
    scores = [[after(model, doc["question"], f" {choice}") for choice in doc["choices"]] for doc in CHOICES]
    best = [max(range(3), key=one.__getitem__) for one in scores]
    by_length = [
        max(range(3), key=lambda i, one=one, doc=doc: one[i] / len(doc["choices"][i]))
        for one, doc in zip(scores, CHOICES, strict=True)
    ]
    generated = []
    for doc in COPY:
        ids = model.tokenizer(doc["start"], return_tensors="pt").input_ids
        new = model.generate(input_ids=ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
        generated.append(float(model.tokenizer.decode(new, skip_special_tokens=True).partition("\n")[0] == doc["end"]))
    return {
        "choices acc": [float(i == doc["gold"]) for i, doc in zip(best, CHOICES, strict=True)],
        "choices acc_norm": [float(i == doc["gold"]) for i, doc in zip(by_length, CHOICES, strict=True)],
        "prose word_perplexity": [[rolled(model, doc["text"]), len(doc["text"].split())] for doc in PROSE],
        "last perplexity": [after(model, doc["start"], doc["end"]) for doc in LAST],
        "copy exact_match": generated,
    }


def test_the_values_of_every_document_are_those_of_a_plain_loop(whole: tuple[Any, Path], embedded: LoadedModel) -> None:
    wanted = [plainly(embedded)]
    with abbe.swap(embedded, PLAN):
        wanted.append(plainly(embedded))
    for name in wanted[0]:
        task, _, metric = name.partition(" ")
        for given, right in zip(values(whole[1], task, f"{metric},none"), wanted, strict=True):
            assert torch.tensor(given) == pytest.approx(torch.tensor(right[name]), abs=2e-4)
    assert wanted[0]["last perplexity"] != pytest.approx(wanted[1]["last perplexity"], abs=1e-2)


def test_a_short_context_is_cut_as_the_plain_loop_cuts_it_and_counted(tasks: Path, tmp_path: Path) -> None:
    tokenizer = abbe.load("embedded").tokenizer
    network = tiny_models.gpt2(vocab_size=len(tokenizer), n_positions=10)
    model = wrap(network, tokenizer, "short")
    result = evaluated(model, [str(tasks / f"{name}.yaml") for name in sorted(TASKS)], folder=tmp_path)
    for place, swapped in enumerate((None, PLAN)):
        with abbe.swap(model, swapped or "softmax"):
            wanted = {
                "prose word_perplexity": [[rolled(model, doc["text"]), len(doc["text"].split())] for doc in PROSE]
            }
            wanted["last perplexity"] = [after(model, doc["start"], doc["end"]) for doc in LAST]
        for name, right in wanted.items():
            task, _, metric = name.partition(" ")
            given = values(tmp_path, task, f"{metric},none")[place]
            assert torch.tensor(given) == pytest.approx(torch.tensor(right), abs=2e-4)
    answered = {
        "choices": [f"{doc['question']} {choice}" for doc in CHOICES for choice in doc["choices"]],
        "last": [doc["start"] + doc["end"] for doc in LAST],
    }
    # The last token of an answer is not read; generation leaves room for five.
    cut = {task: sum(len(tokenizer(x).input_ids) > 11 for x in texts) for task, texts in answered.items()}
    cut["copy"] = sum(len(tokenizer(doc["start"]).input_ids) > 10 - 5 for doc in COPY)
    assert all(cut.values())
    said = [why.partition(" requests longer than the context of 10 tokens")[0] for why in result.manifest["skipped"]]
    assert said == [f"{task}: {cut[task]} of {24 if task == 'choices' else 8}" for task in ("choices", "copy", "last")]


# -- lm-eval itself ---------------------------------------------------------------------------------------------------


def own_scores(model: LoadedModel, tasks: Path, **more: Any) -> dict[str, float]:
    manager = managers.TaskManager(include_path=str(tasks), include_defaults=False)
    harness = huggingface.HFLM(
        pretrained=model.network, tokenizer=model.tokenizer, batch_size=3, max_length=model.context
    )
    found = lm_eval.simple_evaluate(
        model=harness, tasks=sorted(TASKS), task_manager=manager, bootstrap_iters=0, fewshot_random_seed=0, **more
    )["results"]
    return {
        f"{task} {key.partition(',')[0]}": score
        for task, scores in found.items()
        for key, score in scores.items()
        if "," in key and "stderr" not in key
    }


def table_scores(result: Any, column: str) -> dict[str, float]:
    return {f"{row['task']} {row['metric']}": row[column] for row in result.table.to_dicts()}


def test_the_scores_are_those_of_simple_evaluate(whole: tuple[Any, Path], embedded: LoadedModel, tasks: Path) -> None:
    assert embedded.tokenizer.pad_token is None  # lm-eval gives one to its own copy
    other = abbe.load("embedded")
    # It puts the requests of several tasks into one batch: other paddings, other rounding.
    assert table_scores(whole[0], "baseline") == pytest.approx(own_scores(other, tasks), rel=1e-6)
    with abbe.swap(other, PLAN):
        assert table_scores(whole[0], "score") == pytest.approx(own_scores(other, tasks), rel=1e-6)


def test_examples_are_the_same_for_all_contenders_and_those_of_lm_eval(tasks: Path) -> None:
    model, seen = abbe.load("embedded"), list[Any]()
    model.network.base_model.register_forward_pre_hook(
        lambda _, args, given: seen.append((args or (given["input_ids"],))[0].tolist()), with_kwargs=True
    )
    result = evaluated(model, tasks / "choices.yaml", num_fewshot=2, plans=["softmax", PLAN], limit=5)
    wanted = own_scores(abbe.load("embedded"), tasks, num_fewshot=2, limit=5)
    for row in result.table.filter(plan="softmax").to_dicts():
        assert row["baseline"] == row["score"] == wanted[f"choices {row['metric']}"]
        assert row["documents"] == 5
    third, rest = len(seen[-15:]) // 3, seen[-15:]
    assert third == 5  # batches of 3 for 15 requests
    assert rest[:third] == rest[third : 2 * third] == rest[2 * third :]
    assert all(len(ids) > 20 for ids in rest[0])  # with examples


def test_a_perplexity_has_the_interval_of_resampled_documents(whole: tuple[Any, Path]) -> None:
    row = whole[0].table.row(
        by_predicate=(pl.col("task") == "prose") & (pl.col("metric") == "word_perplexity"), named=True
    )
    first, second = (torch.tensor(x, dtype=torch.float64) for x in values(whole[1], "prose", "word_perplexity,none"))
    counts = resampled_counts(len(PROSE), 1000, 0)

    def perplexity(documents: Tensor, counts: Tensor) -> Tensor:
        likelihood, words = (counts @ documents).unbind(-1)
        return (-likelihood / words).exp()

    drawn = perplexity(second, counts) - perplexity(first, counts)
    low, high = interval_ends(drawn[:, None], 0.95, len(PROSE))
    assert (row["difference_low"], row["difference_high"]) == pytest.approx((float(low), float(high)))
    assert row["verdict"] == ("worse" if low > 0 else "better" if high < 0 else "neither")
    assert row["difference"] == row["score"] - row["baseline"]


def test_generation_with_sampling_repeats_and_leaves_the_random_state(tasks: Path, embedded: LoadedModel) -> None:
    folder = tasks.parent / "sampled"
    more = TASKS["copy"][1] | {
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 5, "do_sample": True, "temperature": 1.0}
    }
    write(folder, "sampled", COPY, more | {"metric_list": [{"metric": "bleu"}]})
    state = torch.get_rng_state()
    tables = [evaluated(embedded, folder, seed=seed).table for seed in (0, 0, 1)]
    assert torch.equal(state, torch.get_rng_state())
    assert tables[0].equals(tables[1])
    assert tables[0]["verdict"].to_list() == ["not judged"]  # BLEU is not resampled


# -- Runs -------------------------------------------------------------------------------------------------------------


def test_shards_make_what_one_process_makes(
    whole: tuple[Any, Path], embedded: LoadedModel, tasks: Path, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        with abbe.shard(f"{number}/3") as share:
            evaluated(embedded, tasks, folder=tmp_path)
        assert share.made
    merged = evaluated(embedded, tasks, folder=tmp_path)
    assert merged.table.equals(whole[0].table)
    assert [str(one) for one in merged.findings] == [str(one) for one in whole[0].findings]
    assert merged.manifest["harness"]["lm_eval"] == "0.4.13"
    assert merged.manifest["harness"]["tasks"]["prose"]["documents"] == 7


def test_other_documents_are_another_run(tasks: Path, embedded: LoadedModel, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    write(folder, "choices", *TASKS["choices"])
    evaluated(embedded, folder, folder=tmp_path / "run")
    write(folder, "choices", [CHOICES[0] | {"question": "The end"}, *CHOICES[1:]], TASKS["choices"][1])
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: text\)"):
        evaluated(embedded, folder, folder=tmp_path / "run")
    write(folder, "choices", CHOICES, TASKS["choices"][1] | {"metric_list": [{"metric": "acc", **MEAN}]})
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: tasks\)"):
        evaluated(embedded, folder, folder=tmp_path / "run")


def bad_tasks(folder: Path) -> dict[str, tuple[str, str]]:
    """A task that cannot be evaluated, and what the line says, by name."""
    write(folder, "unsafe", COPY, TASKS["copy"][1] | {"unsafe_code": True})
    write(folder, "gone", COPY, TASKS["copy"][1])
    (folder / "gone.jsonl").unlink()
    write(folder, "hub", COPY, TASKS["copy"][1])
    text = yaml.safe_load((folder / "hub.yaml").read_text()) | {
        "dataset_path": "nobody/nothing",
        "dataset_kwargs": None,
    }
    (folder / "hub.yaml").write_text(yaml.safe_dump(text))
    long = {"generation_kwargs": {"until": ["\n"], "max_gen_toks": 2000}}
    write(folder, "long", COPY, TASKS["copy"][1] | long)
    write(folder, "answer", [LAST[0] | {"end": " word" * 2000}], TASKS["last"][1])
    (folder / "broken.yaml").write_text("task: [")
    return {
        "unsafe": ("task unsafe: it runs code that the model writes", ""),
        "gone": ("task .*gone.* cannot be loaded: ", "gone"),
        "hub": ("task .*hub.* cannot be loaded: .*nobody/nothing", "hub"),
        "long": ("task long: .*2000", ""),
        "answer": (r"task answer: an answer has \d+ tokens, and the model reads 1024", ""),
        "broken": ("task .*broken.* cannot be loaded", "broken"),
    }


def test_what_cannot_be_evaluated_is_refused_in_one_line(tmp_path: Path, embedded: LoadedModel) -> None:
    for name, (pattern, _) in bad_tasks(tmp_path).items():
        with pytest.raises(abbe.AbbeError, match=pattern) as refused:
            evaluated(embedded, tmp_path / f"{name}.yaml")
        assert "\n" not in str(refused.value), name


def test_names_of_tasks(tasks: Path, embedded: LoadedModel, tmp_path: Path) -> None:
    for given, pattern in (
        ("hellaswagg", "lm-eval 0.4.13 has no task 'hellaswagg': did you mean hellaswag"),
        ("no-such-thing-at-all", "name one of"),
        (str(tmp_path), "holds no task of lm-eval"),
        (str(tmp_path / "absent.yaml"), "there is no file"),
        ([str(tasks), str(tasks / "copy.yaml")], "task copy is given twice"),
        ("hellaswag", "task hellaswag cannot be loaded: .*Rowan/hellaswag"),  # its data are on the hub
    ):
        with pytest.raises(abbe.AbbeError, match=pattern) as refused:
            evaluated(embedded, given)
        assert "\n" not in str(refused.value)


def test_models_and_plans_that_do_not_fit(tasks: Path, tmp_path: Path) -> None:
    encoder = wrap(tiny_models.bert(vocab_size=256), tiny_models.byte_tokenizer(), "tiny bert")
    with pytest.raises(abbe.AbbeError, match="tiny bert is an encoder: an evaluation needs a causal language model"):
        evaluated(encoder, tasks)
    plan = tmp_path / "plan.safetensors"
    abbe.plan(tiny_models.llama(), PLAN).save(plan)
    with pytest.raises(abbe.AbbeError, match="is for a LlamaForCausalLM, and this model is a GPT2LMHeadModel"):
        evaluated("embedded", tasks, plans=plan)


def test_the_python_of_the_page(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the embedded model; tests/docs runs it with a stand-in for lm-eval."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "evaluating.md").read_text(encoding="utf-8")
    (tmp_path / "my-tasks").symlink_to(tasks)
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.+?)^```", page, re.DOTALL | re.MULTILINE):
        exec(block.replace("smollm2", "embedded"), space)
    found = {task: scores for task, scores in space["found"]["results"].items() if task in TASKS}
    for row in space["evaluation"].table.to_dicts():
        assert found[row["task"]][f"{row['metric']},none"] == pytest.approx(row["score"], rel=1e-6)


# -- lm_eval --model abbe ---------------------------------------------------------------------------------------------

LM_EVAL = "import abbe; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"


@pytest.mark.parametrize("plan", ["", f",plan={PLAN}"])
def test_the_program_of_lm_eval_knows_the_model(
    plan: str, whole: tuple[Any, Path], tasks: Path, tmp_path: Path
) -> None:
    options = ["run", "--model", "abbe", "--model_args", f"pretrained=embedded{plan}", "--tasks", "choices", "prose"]
    options += ["--include_path", str(tasks), "--output_path", str(tmp_path), "--batch_size", "3"]
    done = subprocess.run([sys.executable, "-c", LM_EVAL, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(next(tmp_path.rglob("results_*.json")).read_text())["results"]
    for row in whole[0].table.filter(pl.col("task").is_in(["choices", "prose"])).to_dicts():
        assert results[row["task"]][f"{row['metric']},none"] == row["score" if plan else "baseline"]


@pytest.mark.parametrize("program", ["import abbe, lm_eval.models", "import lm_eval.models, abbe", "import abbe"])
def test_the_registry_of_lm_eval_keeps_its_own_models(program: str) -> None:
    program += (
        "; from lm_eval.api.registry import get_model; print(get_model('abbe').__name__, get_model('hf').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["AbbeLM", "HFLM"]


def test_the_command(tasks: Path, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "abbe", "eval", "embedded", "--out", str(tmp_path / "run"), "--tasks"]
    options = ["--plan", PLAN, "--plan", "layers.0=softmax", "--limit", "6"]
    done = subprocess.run([*run, str(tasks), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{PLAN} is " in done.stdout
    lines = done.stderr.splitlines()
    assert [line for line in lines if "3 contenders, 4 tasks, 24 documents" in line]
    assert not [line for line in lines if "%|" in line or "WARN" in line], lines
    other = subprocess.run([*run, "hellaswagg", *options], capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert [line for line in other.stderr.splitlines() if line] == [other.stderr.strip()]
    assert math.isclose(float(abbe.open(tmp_path / "run").table["documents"].max()), 6)  # type: ignore[arg-type]

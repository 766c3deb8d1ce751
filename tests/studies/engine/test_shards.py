"""Workers that share a run folder: what they make together is what one process makes, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_runs
import torch
from inside import LOCK, Board, Unit, WindowReader, as_alternatives, call_as_json, spelled_as_called

import abbe
from abbe.models import LoadedModel
from abbe.studies import progress

QUICK = tiny_runs.QUICK | {"lengths": [16, 40]}
TIMES = ("time_ratio", "seconds", "extra_megabytes")  # of a comparison: are never the same
SOME_PARTS = 6  # windows of a diagnosis with these settings


def work(folder: Path, shard: str | None = None, study: str = "diagnose", **options: Any) -> abbe.Progress:
    model = options.pop("model", None) or tiny_runs.model()
    return abbe.work(study, model, tiny_runs.TEXT, folder=folder, shard=shard, **(QUICK | options))


def merge(folder: Path, model: LoadedModel | None = None) -> Any:
    return abbe.merge(folder, progress=False, **({} if model is None else {"model": model}))


def failing(window_of: int, times: int) -> LoadedModel:
    """A model that fails so often on the first window of this length."""
    model = tiny_runs.model()
    calls = []

    def fail(module: object, args: Any, kwargs: dict[str, Any]) -> None:
        tokens = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        same = kwargs.get("attention_mask") is None and (
            not calls or torch.equal(tokens, calls[0])
        )  # not a padded check
        if tokens.shape[-1] == window_of and same and len(calls) < times:
            calls.append(tokens)
            raise RuntimeError("out of\nluck")

    model.network.base_model.register_forward_pre_hook(fail, with_kwargs=True)
    return model


def test_shards_of_a_diagnosis(tmp_path: Path) -> None:
    made = [work(tmp_path, f"{number}/4") for number in (3, 1, 4)]
    assert [one.made for one in made] == [1, 2, 1]
    assert not any(one.complete for one in made)
    assert (made[-1].there, made[-1].total) == (4, SOME_PARTS)
    with pytest.raises(abbe.AbbeError, match=rf"^2 of 6 parts are missing in {tmp_path}: run the unfinished shards"):
        merge(tmp_path)
    last = work(tmp_path, "2/4")
    assert last.complete
    assert str(last) == f"{tmp_path} holds 6 of 6 parts, 2 of them computed here; all done: abbe merge {tmp_path}"
    again = work(tmp_path)
    assert (again.made, again.complete) == (0, True)
    assert progress(tmp_path).there == SOME_PARTS
    run = merge(tmp_path)
    local = tiny_runs.shared_run()
    assert run.table.equals(local.table)
    times = ("seconds", "made", "peak_extra_megabytes")
    assert {key: run.manifest[key] for key in run.manifest if key not in times} == {
        key: local.manifest[key] for key in local.manifest if key not in times
    }
    assert abbe.open(tmp_path).table.equals(local.table)
    assert not (tmp_path / ".abbe-work").exists()
    assert abbe.merge(tmp_path).table.equals(local.table)  # is finished


def test_shards_of_a_report(tmp_path: Path) -> None:
    local = abbe.report(tiny_runs.model(), tiny_runs.TEXT, **QUICK)
    for number in (2, 1):
        work(tmp_path, f"{number}/2", "report")
    merged = merge(tmp_path)
    assert local.as_json() | {"manifest": None} == merged.as_json() | {"manifest": None}
    assert merged.table.equals(local.table)
    assert merged.alternatives.equals(local.alternatives)
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("study", ["train_temperature", "train_text"])
def test_shards_of_an_experiment(study: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"normalizers": ["softmax", "sparsemax"], "optimizers": ["sgd"], "rates": [0.1, 0.3]}
    small |= {"seeds": 2, "steps": 10, "quick": True, "progress": False}
    train = getattr(abbe, study)
    local = train(folder=tmp_path / "local", **small)
    made = [abbe.work(study, folder=tmp_path / "run", shard=f"{number}/2", **small) for number in (1, 2)]
    assert sum(one.made for one in made) == made[-1].total == made[-1].there
    merged = abbe.merge(tmp_path / "run", progress=False)
    assert merged.table.equals(local.table)
    assert merged.findings == local.findings


@pytest.mark.slow
def test_shards_of_a_comparison_after_calibration(tmp_path: Path) -> None:
    small: dict[str, Any] = {"normalizers": ["sparsemax", "topk:k=4"], "length": 32, "windows": 2, "queries": 4}
    small |= {"needle_lengths": [32], "prompts": 1, "resamples": 50, "calibrate": True, "progress": False}
    local = abbe.compare("embedded", **small, folder=tmp_path / "local")
    assert not any(why.startswith("time and memory") for why in local.manifest["skipped"])
    for number in (2, 1):
        abbe.work("compare", "embedded", folder=tmp_path / "run", shard=f"{number}/2", **small)
    merged = abbe.merge(tmp_path / "run", progress=False)
    assert merged.needle.equals(local.needle)
    assert merged.table.drop(TIMES).equals(local.table.drop(TIMES))


def test_a_part_that_fails_is_tried_again(tmp_path: Path) -> None:
    done = work(tmp_path, model=failing(16, times=2))
    assert done.complete
    assert done.failed == ()
    assert merge(tmp_path).table.equals(tiny_runs.shared_run().table)


def test_a_part_that_fails_three_times_is_left_out(tmp_path: Path) -> None:
    done = work(tmp_path, model=failing(16, times=3))
    assert done.complete
    assert done.there == SOME_PARTS - 1
    (failure,) = done.failed
    assert (failure.part, failure.reason, failure.attempts) == ("windows/16-0", "RuntimeError: out of luck", 3)
    run = merge(tmp_path)
    assert any(why.startswith("a window of 16 tokens: windows/16-0 failed 3 times") for why in run.manifest["skipped"])
    assert len(run.manifest["windows"]) == SOME_PARTS - 1
    of_long = pl.col("length") == 40
    assert run.table.filter(of_long).equals(tiny_runs.shared_run().table.filter(of_long))


def test_a_damaged_part_is_made_again(tmp_path: Path) -> None:
    work(tmp_path)
    part = tmp_path / "windows" / "16-1.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert work(tmp_path).made == 1
    part.write_bytes(part.read_bytes()[:-1] + b"x")  # again, and now who merges finds it: with the model
    assert merge(tmp_path, tiny_runs.model()).table.equals(tiny_runs.shared_run().table)


def test_the_claim_of_a_dead_worker_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on another machine, and never returns: its part is made when its claim has expired."""
    claim = tmp_path / ".abbe-work" / "claims" / "windows+16-0.json"
    claim.parent.mkdir(parents=True)
    claim.write_text('{"process": 1, "host": "node7", "machine": "node7", "worker": "gone"}')
    monkeypatch.setenv("ABBE_CLAIM_SECONDS", "1")
    done = work(tmp_path)
    assert (done.made, done.complete) == (SOME_PARTS, True)


def test_another_run_in_the_folder(tmp_path: Path) -> None:
    work(tmp_path, "1/4")
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: seed\): name a new folder"):
        work(tmp_path, "2/4", seed=1)
    with pytest.raises(abbe.AbbeError, match=r"is a folder of `abbe diagnose`"):
        abbe.work("capacity", tiny_runs.model(), tiny_runs.TEXT, folder=tmp_path, lengths=[16], progress=False)


def test_a_plain_run_finishes_what_shards_began(tmp_path: Path) -> None:
    work(tmp_path, "1/2")
    run = tiny_runs.run(folder=tmp_path)
    assert run.table.equals(tiny_runs.shared_run().table)
    assert not (tmp_path / ".abbe-work").exists()
    assert abbe.merge(tmp_path, progress=False).table.equals(run.table)


@pytest.mark.slow
def test_a_network_cannot_be_kept(tmp_path: Path) -> None:
    """A study of windows does not need it, but a search for capacities does."""
    work(tmp_path / "run")
    assert abbe.merge(tmp_path / "run", progress=False).table.equals(tiny_runs.shared_run().table)
    small = {"lengths": [16], "windows": 1, "layers": False, "way": "deletion", "tau": 0.5, "queries": 4}
    done = abbe.work("capacity", tiny_runs.model(), tiny_runs.TEXT, folder=tmp_path / "n", progress=False, **small)
    assert done.complete
    with pytest.raises(abbe.AbbeError, match=r"cannot keep model: call abbe.merge\(folder, model=...\)"):
        abbe.merge(tmp_path / "n")


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        ("5/4", "shard is 5/4, but shards of 4 are 1/4 to 4/4"),
        ("0/4", "shard is 0/4, but"),
        ("1/0", "shard is 1/0, but"),
        ("0/0", "shard is 0/0, but N of I/N must be at least 1"),
        ("a/b", "shard is 'a/b', but must be I/N, such as 3/16, slurm or any"),
        ("-1/4", "must be I/N"),
        ("3", "must be I/N"),
        (3, "shard is 3, but must be I/N"),
        ("slurm", "shard is slurm, but SLURM_ARRAY_TASK_ID is not set: start it with sbatch --array=1-16, or give I/N"),
    ],
)
def test_wrong_shards(shard: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    with pytest.raises(abbe.AbbeError) as error:
        abbe.work("diagnose", folder=tmp_path / "run", shard=shard)
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()


def test_tasks_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ID", "8"), ("COUNT", "4"), ("MIN", "6"), ("MAX", "9")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    done = work(tmp_path, "slurm")
    assert done.made == 1
    assert sorted(path.stem for path in (tmp_path / "windows").iterdir()) == ["16-2"]  # the third of four
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "12")
    with pytest.raises(abbe.AbbeError, match=r"task 12 is none of 4 from 6 on: .* such as --array=6-9"):
        work(tmp_path, "slurm")


def test_wrong_studies_and_folders(tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=r"there is no study 'diagnosis' to work on: choose one of diagnose, "):
        abbe.work("diagnosis", folder=tmp_path)
    with pytest.raises(abbe.AbbeError, match=r"holds no run: name the folder \(--out\) of the shards"):
        abbe.merge(tmp_path)
    with pytest.raises(abbe.AbbeError, match=r"holds no run"):
        abbe.merge(tmp_path / "nowhere")
    with pytest.raises(abbe.AbbeError, match="there is no text file"):
        abbe.work("diagnose", "embedded", "nothing.txt", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(abbe.AbbeError, match="is not valid JSON"):
        abbe.merge(tmp_path)


def test_merging_what_was_not_shared(tmp_path: Path) -> None:
    model = tiny_runs.model()
    failed = []

    def stop(*_: object) -> None:
        if (tmp_path / "windows").exists() and not failed:
            failed.append(1)
            raise KeyboardInterrupt

    model.network.base_model.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        abbe.diagnose(model, tiny_runs.TEXT, folder=tmp_path, **QUICK)
    with pytest.raises(abbe.AbbeError, match="was not made by shards: the same command with this folder resumes it"):
        abbe.merge(tmp_path)


def test_files_of_others_are_never_removed(tmp_path: Path) -> None:
    for number, place in enumerate(("work/thesis.txt", ".abbe-work/thesis.txt", ".abbe-work/claims/thesis.txt")):
        folder = tmp_path / str(number)
        thesis = folder / place
        thesis.parent.mkdir(parents=True)
        thesis.write_text("x")
        for call in (work, lambda folder: tiny_runs.run(folder=folder)):
            with pytest.raises(abbe.AbbeError, match="is not empty and holds no run"):
                call(folder)
        assert thesis.read_text() == "x"


def test_a_merge_removes_only_what_workers_wrote(tmp_path: Path) -> None:
    work(tmp_path)
    thesis = tmp_path / ".abbe-work" / "stages" / "thesis.txt"
    thesis.write_text("x")
    (tmp_path / ".abbe-work" / "stages" / ".ab.json.12-0123abcd.part").write_text("of a worker that was killed")
    merge(tmp_path)
    assert [path for path in (tmp_path / ".abbe-work").rglob("*") if path.is_file()] == [thesis]


def test_what_workers_wrote_is_cleared_while_the_folder_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(tmp_path)
    real, locked = Board.clear, []

    def clear(board: Board) -> None:
        locked.append((tmp_path / LOCK).exists())
        real(board)

    monkeypatch.setattr(Board, "clear", clear)
    merge(tmp_path)
    assert locked[-1]


def test_a_broken_node_stops_and_does_not_use_up_the_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("no device")

    with monkeypatch.context() as node:
        node.setattr(WindowReader, "measure", fail)
        done = work(tmp_path)
    assert done.stopped == "5 parts failed one after the other here, last: RuntimeError: no device; stopping"
    assert [failure.attempts for failure in done.failed] == [1] * 5
    assert done.has_failed
    assert not done.complete
    again = work(tmp_path)
    assert (again.made, again.complete, again.failed) == (SOME_PARTS, True, ())


def test_any_gives_failed_parts_fresh_attempts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = work(tmp_path, model=failing(16, times=3))
    assert str(done).endswith(f", 1 failed; all done but 1 that failed (see above): abbe merge {tmp_path}")
    assert done.has_failed
    assert work(tmp_path, "1/2").failed == done.failed
    again = work(tmp_path, progress=True)
    assert (again.made, again.failed) == (1, ())
    assert "1 part failed earlier: trying again, up to 3 times\n" in capsys.readouterr().err


def test_all_windows_failed(tmp_path: Path) -> None:
    work(tmp_path, "1/2", lengths=[16], windows=1)
    (tmp_path / "windows" / "16-0.safetensors").unlink()
    for _ in range(3):
        Board(tmp_path).fail(Unit("windows/16-0", ()), "no device", "gone")
    for model in (None, tiny_runs.model()):
        with pytest.raises(
            abbe.AbbeError, match=r"^all windows failed, .*the first: windows/16-0 failed 3 times, .* any"
        ):
            merge(tmp_path, model)
        for remembered in (tmp_path / ".abbe-work" / "remembered").glob("*"):
            remembered.unlink()  # now the study itself finds out


def test_files_are_written_down_so_that_they_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "plan.safetensors").write_bytes(b"a swap")
    monkeypatch.chdir(tmp_path)
    given = {"normalizers": ["sparsemax", "file:plan.safetensors"], "beside": Path("plan.safetensors")}
    asked = call_as_json(given)
    here = as_alternatives(given["normalizers"])
    monkeypatch.chdir(tmp_path / "elsewhere")
    stored = asked["arguments"]
    assert stored["beside"] == str(tmp_path / "plan.safetensors")
    assert stored["normalizers"] == ["sparsemax", f"file:{tmp_path}/plan.safetensors"]
    with spelled_as_called(asked):
        there = as_alternatives(stored["normalizers"])
    assert [one.name for one in there] == [one.name for one in here]  # else it would be another run
    assert there[1].what == f"file:{tmp_path}/plan.safetensors"


@pytest.mark.slow
def test_shards_of_a_comparison_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    abbe.plan(abbe.load("embedded"), "sparsemax").save("plan.safetensors")
    small: dict[str, Any] = {"normalizers": "file:plan.safetensors", "length": 32, "windows": 2, "queries": 4}
    small |= {"needle_lengths": [32], "prompts": 1, "resamples": 50, "progress": False}
    abbe.work("compare", "embedded", folder="run", **small)
    monkeypatch.chdir("elsewhere")
    merged = abbe.merge("../run", progress=False)
    assert "file:plan.safetensors" in merged.table["normalizer"].to_list()
    why = "time and memory on an idle machine: workers shared this run"
    assert any(one.startswith(why) for one in merged.manifest["skipped"])
    assert why in Path("../run/compare.html").read_text(encoding="utf-8")

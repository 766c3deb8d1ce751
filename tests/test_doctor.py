"""`abbe doctor`: every line is ok or says what to do, and only what is broken counts."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
import tomllib
import warnings
from importlib import metadata, resources
from pathlib import Path

import pytest
import torch
from cli_runs import run, run_main
from inside import kernels_switch
from packaging.requirements import Requirement

import abbe
from abbe import models, normalizers, studies
from abbe.studies import Check, Checks

LINES = ["Python", "packages", "abbe[models]", "abbe[report]", "kernels", "threads", "memory", "embedded model"]
LINES.append("cache")


def check_of(name: str) -> Check:
    (check,) = [check for check in abbe.doctor() if check.name == name]
    return check


@pytest.fixture(autouse=True)
def required(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requirements as the metadata of an installation has them, from this checkout."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"]]
    for extra, some in project["optional-dependencies"].items():
        for line in map(Requirement, some):
            line.marker = Requirement(f"x; {f'{line.marker} and ' if line.marker else ''}extra == '{extra}'").marker
            lines.append(str(line))
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    return lines


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Other versions of these packages; None for one that is not installed."""
    real = metadata.version

    def version(name: str) -> str:
        if (other := versions.get(name, real(name))) is None:
            raise metadata.PackageNotFoundError(name)
        return other

    monkeypatch.setattr(metadata, "version", version)


def test_this_installation_is_fine() -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.stdout
    assert "Everything abbe needs is installed" in result.stdout
    checks = abbe.doctor()
    assert [check.name for check in checks] == LINES
    for check in checks:
        assert check.name in result.stdout
        assert (check.advice == "") == (check.state == "ok")
        assert not check.failed


def test_versions_are_the_real_ones() -> None:
    assert f"torch {torch.__version__}" in check_of("packages").detail
    assert f"polars {metadata.version('polars')}" in check_of("abbe[models]").detail


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, numba=None, typer=None)
    check = check_of("packages")
    assert check.failed
    assert check.detail == "numba is not installed, typer is not installed"
    assert check.advice.startswith("pip install 'numba<0.69,>=0.62'; pip install 'typer>=")
    result = run("doctor")
    assert result.exit_code == 1
    assert "-> pip install 'numba<0.69,>=0.62'" in result.stdout
    assert "abbe will not work properly: fix packages." in result.stdout


@pytest.mark.parametrize(
    ("line", "package", "version", "state", "detail"),
    [
        *(("packages", "numba", version, state, f"numba {version}") for version, state in (
            ("0.61.9", "broken"), ("0.62", "ok"), ("0.62.0rc1", "ok"), ("0.68.9", "ok"), ("0.69", "warning"),
            ("1", "warning"))),
        ("abbe[report]", "altair", None, "missing", "altair is not installed"),
        ("abbe[models]", "polars", "1.19.9", "warning", "polars 1.19.9 is too old"),
    ],
)  # fmt: skip
def test_a_package_of_another_version(
    line: str, package: str, version: str | None, state: str, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, **{package: version})
    check = check_of(line)
    assert check.state == state
    assert detail in check.detail
    if line != "packages":
        assert check.detail == detail
        assert check.advice == f"pip install --upgrade '{line}'"
        assert run("doctor").exit_code == 0


def test_abbe_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert {check_of(name).state for name in LINES[1:4]} == {"warning"}


def test_kernels_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    real = normalizers.Normalizer.__call__

    def wrong(self: normalizers.Normalizer, logits: torch.Tensor, *more: object) -> torch.Tensor:
        weights = real(self, logits, *more)
        return weights + 1e-3 if weights.dtype == torch.float32 and "topk" in str(self) else weights

    monkeypatch.setattr(normalizers.Normalizer, "__call__", wrong)
    check = check_of("kernels")
    assert (check.failed, check.detail) == (True, "wrong weights of topk:k=8")
    assert "ABBE_KERNELS=off" in check.advice


def test_kernels_that_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(self: normalizers.Normalizer, logits: torch.Tensor, *more: object) -> torch.Tensor:
        warnings.warn("abbe goes on without its compiled kernels: no space (so on)", RuntimeWarning, stacklevel=1)
        return logits.float()

    monkeypatch.setattr(normalizers.Normalizer, "__call__", give_up)
    monkeypatch.setattr(kernels_switch, "_broken", True)
    check = check_of("kernels")
    assert (check.failed, check.detail) == (True, "abbe goes on without its compiled kernels: no space")
    assert "NUMBA_CACHE_DIR" in check.advice


def test_kernels_that_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert check_of("kernels").failed
    monkeypatch.setattr(kernels_switch, "_on", False)
    assert (check_of("kernels").state, check_of("kernels").advice[:18]) == ("warning", "unset ABBE_KERNELS")


def test_an_old_python_and_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as old:
        old.setattr(sys, "version_info", (3, 10, 9))
        assert check_of("Python").failed
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    assert check_of("threads") == Check("threads", "warning", "8 on 3 cores", "set OMP_NUM_THREADS=3")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert check_of("threads").state == "ok"


@pytest.mark.parametrize(
    ("free", "state", "detail"),
    [
        (3e9, "ok", "3.0 GB free"),
        (2048.0, "warning", "0.0 GB free"),
        (-1e9, "warning", "0.0 GB free"),  # beyond the limit of a container
        (None, "ok", "not known on this system"),
    ],
)
def test_little_memory(free: float | None, state: str, detail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "free_memory", lambda device: free)
    assert (check_of("memory").state, check_of("memory").detail) == (state, detail)


@pytest.mark.parametrize("file", models.EMBEDDED_FILES)
def test_a_file_of_the_embedded_model_is_missing_or_cut_off(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(models.embedded_folder(), tmp_path / "embedded")
    monkeypatch.setattr(resources, "files", lambda package: tmp_path)
    fine = check_of("embedded model")
    assert (fine.state, fine.detail) == ("ok", "GPT-2 shape, 6 layers x 8 heads, 5.53 M parameters")
    (copied / file).write_bytes((copied / file).read_bytes()[:-20])
    assert check_of("embedded model").failed
    (copied / file).unlink()
    check = check_of("embedded model")
    assert check.failed
    assert file in check.detail
    assert "install abbe again" in check.advice


def test_the_cache_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "deep" / "cache"))
    assert check_of("cache") == Check("cache", "ok", str(tmp_path / "deep" / "cache"))
    assert list(tmp_path.iterdir()) == []  # looking changes nothing
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "file"))
    assert check_of("cache").state == "warning"

    def refuse(**_options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setenv("ABBE_CACHE", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    check = check_of("cache")
    assert (check.state, check.failed) == ("warning", False)
    assert check.detail.endswith("Read-only file system")
    assert "ABBE_CACHE" in check.advice


def test_a_check_that_fails_itself_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(*size: int, **_options: object) -> torch.Tensor:
        raise ImportError("libllvm is gone\nand so on")

    monkeypatch.setattr(torch, "randn", fall_over)
    assert (check_of("kernels").failed, check_of("kernels").detail) == (True, "ImportError: libllvm is gone")
    assert check_of("embedded model").state == "ok"


def answering(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    monkeypatch.setattr(studies, "doctor", lambda: Checks(checks))


def test_quiet_shows_what_needs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, warned = Check("lens", "ok", "clean"), Check("lamp", "warning", "dim", "turn it up")
    absent = Check("eyepiece", "missing", "none", "buy one")
    answering(monkeypatch, fine, absent)
    assert run("doctor", "--quiet").output == ""
    answering(monkeypatch, fine, warned, absent)
    shown = run("doctor", "--quiet")
    assert shown.exit_code == 0
    assert "turn it up" in shown.stdout
    assert "check lamp." in shown.stdout
    assert "lens" not in shown.stdout
    assert "eyepiece" not in shown.stdout


def test_exit_codes_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch, Check("lens", "missing", "[/]cracked[bold]", "buy one"))
    assert run_main(monkeypatch, "doctor") == 0
    assert "[/]cracked[bold]" in capsys.readouterr().out  # no markup
    for check in (Check("lens", "warning", "dusty", "wipe it"), Check("lens", "broken", "cracked", "buy one")):
        answering(monkeypatch, check)
        assert run_main(monkeypatch, "doctor", "--json") == int(check.failed)
        printed = json.loads(capsys.readouterr().out)
        assert printed == {"fine": not check.failed, "checks": [dataclasses.asdict(check)]}

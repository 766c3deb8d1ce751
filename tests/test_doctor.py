"""`abbe doctor`: what is missing is found, said with what to do, and only what is needed counts."""

from __future__ import annotations

import json
import re
import shutil
import webbrowser
from importlib import metadata
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_runs import run, run_main

from abbe import studies
from abbe.models._load import embedded as _embedded
from abbe.studies import Check, doctor
from abbe.studies._doctor import files, machine, packages


def found(name: str) -> Check:
    (check,) = [check for check in doctor() if check.name == name]
    return check


def gone(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """These packages are not installed."""
    version = metadata.version

    def look(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", look)


def test_this_installation_is_fine() -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.stdout
    assert "Everything that abbe needs is there" in result.stdout
    for check in doctor():
        assert check.name in result.stdout
        assert check.advice or check.state == "ok"
        assert not check.failed


def test_checks_of_a_group_stand_together() -> None:
    """What is needed first."""
    groups = [group for group, _ in groupby(check.group for check in doctor())]
    assert groups == ["Versions", "Machine", "Models and caches", "Optional parts", "Browsers"]


def test_versions_are_the_real_ones() -> None:
    wanted = {re.split(r"[<>=;]", line)[0].strip() for line in metadata.requires("abbe") or []}
    checks = {check.name: check for check in packages.package_checks()}
    assert set(checks) == wanted
    assert checks["torch"].found.startswith(torch.__version__)
    assert checks["polars"].found == metadata.version("polars")
    assert checks["polars"].needed
    assert not checks["hypothesis"].needed


def test_a_needed_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "polars")
    check = found("polars")
    assert (check.state, check.failed) == ("missing", True)
    assert check.advice == "pip install 'polars>=1.20'"
    result = run("doctor")
    assert result.exit_code == 1
    assert "-> pip install 'polars>=1.20'" in result.stdout
    assert "abbe cannot work as it should: see to polars." in result.stdout


def test_an_optional_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "entmax")
    check = found("entmax")
    assert (check.state, check.failed) == ("missing", False)
    assert check.advice == "pip install 'entmax>=1.3', or all of this extra: pip install 'abbe[dev]'"
    assert run("doctor").exit_code == 0


@pytest.mark.parametrize(
    ("version", "state"),
    [("1.19.9", "broken"), ("0.99", "broken"), ("1.20", "ok"), ("1.20.0rc1", "ok"), ("1.100", "ok"), ("2", "ok")],
)
def test_a_package_that_is_too_old(version: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "polars" else real(name))
    check = found("polars")
    assert check.state == state
    assert check.failed == (state == "broken")


def test_abbe_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    gone(monkeypatch, "abbe")
    monkeypatch.setattr(metadata, "requires", lambda name: (_ for _ in ()).throw(metadata.PackageNotFoundError(name)))
    assert found("abbe").state == "warning"
    assert packages.package_checks() == []


def test_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PYTHON", (9, 0))
    assert found("Python").failed


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The embedded model, in a place where it may be damaged."""
    shutil.copytree(_embedded.FOLDER, tmp_path / "embedded")
    monkeypatch.setattr(_embedded, "FOLDER", tmp_path / "embedded")
    return tmp_path / "embedded"


def test_the_embedded_model_is_whole(copied: Path) -> None:
    assert files.embedded_check().state == "ok"
    assert "6 layers x 8 heads" in files.embedded_check().found


@pytest.mark.parametrize("file", _embedded.FILES)
def test_a_file_of_the_embedded_model_is_missing(file: str, copied: Path) -> None:
    (copied / file).unlink()
    check = files.embedded_check()
    assert check.failed
    assert file in check.found
    assert "install abbe again" in check.advice


@pytest.mark.parametrize("file", _embedded.FILES)
def test_a_file_of_the_embedded_model_is_cut_off(file: str, copied: Path) -> None:
    (copied / file).write_bytes((copied / file).read_bytes()[:-20])
    check = files.embedded_check()
    assert (check.state, check.failed) == ("broken", True)


def test_pulled_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    check = found("smollm2")
    assert (check.state, check.advice, check.failed) == ("missing", "abbe pull smollm2", False)
    about = tmp_path / "cache" / "models" / "smollm2" / "ABOUT.json"
    about.parent.mkdir(parents=True)
    about.write_text('{"what": "a small lens"}')
    assert (found("smollm2").state, found("smollm2").found) == ("ok", "a small lens")
    about.write_text("{")
    assert found("smollm2").state == "broken"


def test_the_cache_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "deep" / "cache"))
    assert str(tmp_path / "deep" / "cache") in files.cache_check().found
    assert not (tmp_path / "deep").exists()  # looking changes nothing
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5e8))
    assert files.cache_check().state == "warning"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "file"))
    assert "cannot be written" in files.cache_check().found


def test_the_cache_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.kernel_cache_check().state == "ok"
    monkeypatch.setattr(files, "_writable", lambda folder: False)
    assert (files.kernel_cache_check().state, files.kernel_cache_check().failed) == ("warning", False)

    def refuse() -> Path:
        raise RuntimeError("cannot cache function 'row_max': no locator available")

    monkeypatch.setattr(files, "_kernel_cache", refuse)
    check = files.kernel_cache_check()
    assert check.failed
    assert "NUMBA_CACHE_DIR" in check.advice


def test_a_folder_is_tried_by_writing(tmp_path: Path) -> None:
    assert files._writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not files._writable(tmp_path / "nowhere")


def test_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in there else None)
    assert (files.chromium_check().state, files.chromium_check().found) == ("missing", "none was found")
    there.add("google-chrome")
    assert files.chromium_check().found == "only /bin/google-chrome"
    there.add("chromium")
    assert (files.chromium_check().state, files.chromium_check().found) == ("ok", "/bin/chromium")
    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(name="firefox"))
    assert (files.opening_check().state, files.opening_check().found) == ("ok", "firefox")

    def none() -> Any:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    assert (files.opening_check().state, files.opening_check().failed) == ("missing", False)


def test_a_check_that_fails_itself_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over() -> Check:
        raise ImportError("libllvm is gone\nand so on")

    monkeypatch.setattr(machine, "vectors_check", fall_over)
    check = found("kernels")
    assert check.failed
    assert check.found == "ImportError: libllvm is gone"
    assert found("embedded model").state == "ok"


def test_json() -> None:
    told = json.loads(run("doctor", "--json").stdout)
    assert told["fine"] is True
    assert {"name", "state", "found", "advice", "group", "needed"} == set(told["checks"][0])
    assert len(told["checks"]) == len(doctor())


def answering(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    monkeypatch.setattr(studies, "doctor", lambda: list(checks))


def test_quiet_shows_what_needs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, warned = Check("lens", "ok", "clean"), Check("lamp", "warning", "dim", "turn it up")
    absent = Check("eyepiece", "missing", "none", "buy one", needed=False)
    answering(monkeypatch, fine, absent)
    assert run("doctor", "--quiet").output == ""
    answering(monkeypatch, fine, warned, absent)
    shown = run("doctor", "--quiet")
    assert shown.exit_code == 0
    assert "turn it up" in shown.stdout
    assert "look at lamp." in shown.stdout
    assert "lens" not in shown.stdout
    assert "eyepiece" not in shown.stdout


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answering(monkeypatch, Check("lens", "broken", "[/]cracked[bold]", "buy one", needed=False))
    assert run_main(monkeypatch, "doctor") == 0
    assert "[/]cracked[bold]" in capsys.readouterr().out  # no markup
    answering(monkeypatch, Check("lens", "broken", "cracked", "buy one"))
    assert run_main(monkeypatch, "doctor", "--json") == 1
    assert json.loads(capsys.readouterr().out)["fine"] is False

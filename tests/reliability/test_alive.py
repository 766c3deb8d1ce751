"""Claims of workers that share a folder: one at a time, and those of the dead are free again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from inside import Alive, held, living, shared
from threads import refused_in_another_thread

import abbe


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    return tmp_path / ".abbe-work" / "claims" / "windows+16-0.0.json"


def left_by(claim: Path, seconds_ago: float = 0.0, **who: object) -> None:
    """A claim as a worker on another machine would leave it."""
    claim.parent.mkdir(parents=True, exist_ok=True)
    claim.write_text(json.dumps({"process": 1, "host": "node7", "machine": "node7", "worker": "other"} | who))
    then = time.time() - seconds_ago
    os.utime(claim, (then, then))


def test_one_claims_and_the_other_waits_until_it_is_released(tmp_path: Path, claim: Path) -> None:
    with Alive(tmp_path) as first, Alive(tmp_path) as second:
        assert first.claim("windows/16-0")
        assert first.claim("windows/16-0")
        assert not second.claim("windows/16-0")
        assert second.claim("windows/16-1")
        second.release("windows/16-0")  # is not its own
        assert claim.exists()
        first.release("windows/16-0")
        assert second.claim("windows/16-0")
    assert list(tmp_path.iterdir()) == []


def test_of_many_at_once_one_gets_it(tmp_path: Path, claim: Path) -> None:
    """Also where the claim of a dead worker has to be taken over first."""
    left_by(claim, seconds_ago=1000)
    winners = []

    def take(alive: Alive) -> None:
        if alive.claim("windows/16-0"):
            winners.append(alive.name)

    with at_once(tmp_path, 8, take):
        assert len(winners) == 1
        (now,) = claim.parent.iterdir()  # the expired one is gone
        assert json.loads(now.read_bytes())["worker"] == winners[0]
    assert list(tmp_path.iterdir()) == []


def test_a_claim_of_another_machine_expires(tmp_path: Path, claim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Alive(tmp_path) as worker:
        left_by(claim, seconds_ago=60)
        assert not worker.claim("windows/16-0")
        monkeypatch.setenv("ABBE_CLAIM_SECONDS", "30")
        assert worker.claim("windows/16-0")


def test_time_is_that_of_the_file_system(tmp_path: Path, claim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a day ahead takes no claims away."""
    left_by(claim)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    with Alive(tmp_path) as worker:
        assert not worker.claim("windows/16-0")


def test_a_living_worker_keeps_its_claim(tmp_path: Path, claim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CLAIM_SECONDS", "0.3")
    with Alive(tmp_path) as first, Alive(tmp_path) as second:
        assert first.claim("windows/16-0")
        before = claim.stat().st_mtime_ns
        time.sleep(0.5)
        assert claim.stat().st_mtime_ns > before
        assert not second.claim("windows/16-0")


def test_a_dead_process_of_this_machine_is_seen_at_once(tmp_path: Path, claim: Path) -> None:
    code = f"from pathlib import Path; from abbe._workers import Alive; import os\na = Alive(Path({str(tmp_path)!r}))\n"
    code += "a.__enter__(); a.claim('windows/16-0'); os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert claim.exists()
    with Alive(tmp_path) as worker:
        assert worker.claim("windows/16-0")


def test_a_worker_that_lost_its_claim_leaves_the_claim_of_another(tmp_path: Path, claim: Path) -> None:
    with Alive(tmp_path) as worker:
        assert worker.claim("windows/16-0")
        left_by(claim)  # it was away for long, and another has taken over
        worker.release("windows/16-0")
        assert claim.exists()


def test_a_run_is_refused_beside_workers_and_a_worker_beside_a_run(tmp_path: Path) -> None:
    with shared(tmp_path), held(tmp_path), held(tmp_path / "runs"):
        said = refused_in_another_thread(lambda: held(tmp_path))
        assert said.startswith(f"{tmp_path} is shared by 1 worker, the first on {socket.gethostname()}: wait until")
        assert refused_in_another_thread(lambda: shared(tmp_path)) == ""
    with held(tmp_path):
        said = refused_in_another_thread(lambda: shared(tmp_path))
        assert said.startswith(f"{tmp_path} is in use by process {os.getpid()} on "), said
        assert "which does not share it: wait" in said
    with held(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_dead_worker_holds_nobody_up(tmp_path: Path) -> None:
    left_by(tmp_path / ".abbe-work" / "workers" / "other.json", seconds_ago=1000)
    with held(tmp_path):
        assert living(tmp_path, tmp_path / ".lock") == []
    left_by(tmp_path / ".abbe-work" / "workers" / "other.json")
    with pytest.raises(abbe.AbbeError, match=r"shared by 1 worker, the first on node7"), held(tmp_path):
        pass


@pytest.mark.parametrize("given", ["abc", "0", "nan", "inf", ""])
def test_wrong_seconds_are_refused_at_once(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABBE_CLAIM_SECONDS", given)
    with pytest.raises(abbe.AbbeError, match=rf"^ABBE_CLAIM_SECONDS is '{given}', but must be"), shared(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_claim_from_an_old_look_is_withdrawn(tmp_path: Path, claim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saw no claim, was away for a while, and another worker has claimed the part in between."""
    other = claim.with_name("windows+16-0.3.json")
    left_by(other)
    with Alive(tmp_path) as worker:
        looks = iter([{}])
        real = worker._numbered
        monkeypatch.setattr(worker, "_numbered", lambda name: next(looks, real(name)))
        assert not worker.claim("windows/16-0")
        assert list(claim.parent.iterdir()) == [other]


def test_claims_of_parts_with_similar_names_are_their_own(tmp_path: Path) -> None:
    with Alive(tmp_path) as first, Alive(tmp_path) as second:
        assert first.claim("layers/a")
        assert second.claim("layers/a.0")
        assert not second.claim("layers/a")


@pytest.mark.slow
def test_of_many_at_once_never_two_get_it(tmp_path: Path) -> None:
    """Over and over, from claims that were left by a dead worker, released, and none at all."""
    for attempt in range(300):
        folder = tmp_path / str(attempt)
        claim = folder / ".abbe-work" / "claims" / "windows+16-0.0.json"
        if attempt % 2:
            left_by(claim, seconds_ago=1000)
        crowd(folder)


def crowd(folder: Path) -> None:
    """Six workers claim and release one part as fast as they can: never do two hold it."""
    holders: list[str] = []
    most = []

    def take(alive: Alive) -> None:
        for _ in range(4):
            if alive.claim("windows/16-0"):
                holders.append(alive.name)
                most.append(len(holders))
                time.sleep(0.0005)
                holders.remove(alive.name)
                alive.release("windows/16-0")

    folder.mkdir(exist_ok=True)
    with at_once(folder, 6, take):
        assert max(most) == 1


@contextmanager
def at_once(folder: Path, count: int, take: Callable[[Alive], None]) -> Iterator[None]:
    """So many workers of a folder, each in a thread, that begin at the same moment; within, all have done it."""
    gate = threading.Barrier(count)

    def begin(alive: Alive) -> None:
        gate.wait()
        take(alive)

    with ExitStack() as stack:
        workers = [stack.enter_context(Alive(folder)) for _ in range(count)]
        threads = [threading.Thread(target=begin, args=(worker,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield

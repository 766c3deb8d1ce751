"""Studies on Ray: an actor is a process with the study and its model, and makes the parts that the driver asks for.

Ray hands out the parts (its actor pool), restarts dead actors and repeats lost parts. An actor runs the same study in a
folder of its own, waits at `Parts.each` for the names of parts, and returns their files; only the driver writes into
the folder of the run, so that no file system is shared.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from .. import _declared
from .._arguments import whole
from .._errors import AbbeError
from .._files import is_unfinished, write_whole
from .._locks import HOLDER, LOCK
from ..models import Text, read_text
from ..results import MANIFEST
from .executors import Executor, Has, Local, Make, using
from .study import engine

AUTO = "auto"
RESTARTS = 3  # of a dead actor, and repetitions of a lost part; Ray's defaults are none
_LOOK = 0.5  # seconds between two looks for actors that were placed
_PATIENCE = 5.0  # seconds until an address counts as dead: Ray itself tries for minutes
_PORTS = {"ray": 10001}  # for addresses without one
# No usage statistics, and no token in the home folder: nobody else can reach an instance of this process.
_PRIVATE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
_OWN = (LOCK, HOLDER)  # files that every process has for itself, beside the manifest of the run

Files = dict[str, bytes]  # by their path in the folder of the run


def _files_in(folder: Path) -> dict[str, Path]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in _OWN and not is_unfinished(path)]
    return {path.relative_to(folder).as_posix(): path for path in paths if path != folder / MANIFEST}


def _states_in(folder: Path) -> dict[str, tuple[int, int]]:
    """What changes when a file is written again, since writing replaces it."""
    about = {name: path.stat() for name, path in _files_in(folder).items()}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in about.items()}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, durable=False)


class Actor(Executor):
    """A process that Ray starts: it runs the study in a thread, which waits for parts to make."""

    def __init__(self, study: str, arguments: Mapping[str, Any], here: str, threads: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="abbe-"))
        self._wanted: queue.Queue[tuple[int, str]] = queue.Queue()
        self._answers: queue.Queue[Files | BaseException] = queue.Queue()
        self._stage = -1
        self._pending: tuple[int, str] | None = None
        call = self._run, study, arguments, here, threads
        threading.Thread(target=copy_context().run, args=call, daemon=True).start()

    def _run(self, study: str, arguments: Mapping[str, Any], here: str, threads: int) -> None:
        torch.set_num_threads(threads)
        try:
            function = _declared.studies()[study].load(study)
            with chdir(here) if Path(here).is_dir() else nullcontext(), using(self):
                function(**arguments, folder=self._folder, progress=False)
            raise AbbeError("the study ended before its parts were made")
        except BaseException as error:  # the driver raises it
            self._answers.put(error)

    def ready(self) -> None:
        """Returns as soon as the actor runs."""

    def part(self, stage: int, name: str, before: Files) -> tuple[str, Files]:
        """The name and the files of one part; `before` are those that the driver has, which later stages read."""
        _write(self._folder, {name: content for name, content in before.items() if not (self._folder / name).exists()})
        self._wanted.put((stage, name))
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            self._answers.put(answer)  # for whoever asks next
            raise answer if isinstance(answer, AbbeError) else AbbeError(f"{type(answer).__name__}: {answer}")
        return name, answer

    def make(self, folder: Path | None, names: Sequence[str], make: Make, step: Make, has: Has) -> None:
        """Serve this stage, as the executor of the study, until a part of a later one is wanted."""
        self._stage += 1
        while True:
            stage, name = self._pending or self._wanted.get()
            self._pending = None
            if stage > self._stage:
                self._pending = stage, name
                return
            before = _states_in(self._folder)
            with using(Local()):
                make(name)
            written = [key for key, state in _states_in(self._folder).items() if before.get(key) != state]
            self._answers.put({key: (self._folder / key).read_bytes() for key in written})

    def finish(self) -> None:
        """Wait for ever: the driver ends the actor."""
        self._wanted.get()


@dataclass
class RayExecutor(Executor):
    """The driver's side of one study: its actors make the parts, and it writes them."""

    ray: Any
    study: str
    arguments: Mapping[str, Any]
    actors: int
    options: Mapping[str, Any]  # cores and GPUs per actor, as Ray names them
    stage: int = field(default=-1, init=False)
    running: list[Any] = field(default_factory=list, init=False)  # actors that were started
    waiting: dict[Any, Any] = field(default_factory=dict, init=False)  # by the answer that Ray has placed one

    def make(self, folder: Path | None, names: Sequence[str], make: Make, step: Make, has: Has) -> None:
        self.stage += 1
        missing = [name for name in names if not has(name)]
        for name in {*names} - {*missing}:
            step(name)
        if not missing:
            return
        root = Path(self.arguments["folder"])
        before = self.ray.put({name: path.read_bytes() for name, path in _files_in(root).items()})
        self._start(min(self.actors, len(missing)))
        placed = [actor for actor in self.running if actor not in self.waiting.values()]
        pool = import_module("ray.util").ActorPool(placed)
        for name in missing:
            pool.submit(lambda actor, name: actor.part.remote(self.stage, name, before), name)
        left = len(missing)
        try:
            while left:
                self._welcome(pool)
                try:
                    name, files = pool.get_next_unordered(timeout=_LOOK)
                except TimeoutError:
                    continue
                _write(root, files)
                step(name)
                left -= 1
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, AbbeError) else AbbeError(first_line(cause)) from None
        except self.ray.exceptions.RayError as error:
            raise AbbeError(f"an actor died {RESTARTS + 1} times: {first_line(error)}") from None
        lost = [name for name in missing if not has(name)]
        if lost:
            raise AbbeError(f"the actors returned no {lost[0]}: do they have the same versions of abbe and torch?")

    def close(self) -> None:
        """End the actors; finished parts are in the folder."""
        for actor in self.running:
            self.ray.kill(actor)
        self.running, self.waiting = [], {}

    def _welcome(self, pool: Any) -> None:
        """Give work to the actors that Ray has placed by now; others may never find room, and get none."""
        if self.waiting:
            placed, _ = self.ray.wait(list(self.waiting), timeout=0 if pool.has_next() else None)
            for answer in placed:
                pool.push(self.waiting.pop(answer))

    def _start(self, actors: int) -> None:
        """Start actors up to this number; those of an earlier stage have the model already."""
        remote = self.ray.remote(**self.options, max_restarts=RESTARTS, max_task_retries=RESTARTS)(Actor)
        sent = {key: value for key, value in self.arguments.items() if key not in ("folder", "progress")}
        for _ in range(actors - len(self.running)):
            self.running.append(remote.remote(self.study, sent, os.getcwd(), self.options["num_cpus"]))
            self.waiting[self.running[-1].ready.remote()] = self.running[-1]


def _executor(ray: Any, actors: int, options: Mapping[str, Any], study: str, arguments: dict[str, Any]) -> RayExecutor:
    """An executor for one call of a study; its text is read here and sent, its model is loaded by every actor."""
    if arguments.get("folder") is None:
        raise AbbeError("actors return their parts to a folder: give folder=...")
    if "text" in arguments and not isinstance(arguments["text"], Text | None):
        arguments["text"] = read_text(arguments["text"])
    for name in ("model", "tokenizer"):
        value = arguments.get(name)
        if value is not None and not isinstance(value, str | os.PathLike | list | tuple):
            raise AbbeError(
                f"{name} cannot be sent to actors: every one loads its own copy, so give a name or a folder"
            )
    return RayExecutor(ray, study, arguments, actors, options)


@contextmanager
def on_ray(
    address: str | None = None, *, actors: int | None = None, threads: int = 1, gpus: float | None = 0
) -> Iterator[None]:
    """Run the studies called within on actors of Ray, each with a copy of the model.

    The result is that of a single process. A dead actor is restarted; finished parts are in the run folder, from which
    the same call resumes.

    Args:
        address: of a cluster ("auto" for the one that this machine belongs to, "host:6379", "ray://host:10001"); by
            default an instance on this machine that ends with the context.
        actors: how many, >= 1; by default as many as fit on this machine, or on the free part of the cluster.
        threads: cores per actor, >= 1.
        gpus: per actor; 0.5 lets two share one, None means one if there are any.

    Raises:
        AbbeError: Ray is not installed, or has too little room.

    Examples:
        >>> with abbe.on_ray(actors=0):
        ...     report = abbe.report("smollm2", "book.txt", folder="shared/smollm2")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: actors is 0, ...
    """
    whole("threads", threads, 1)
    if actors is not None:
        whole("actors", actors, 1)
    if engine.get() is not None:
        raise AbbeError("on_ray cannot be used within on_ray")
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with _cluster(address, threads * (actors or max(1, here // threads))) as ray:
        there = ray.cluster_resources()
        if gpus is None:
            gpus = 1 if there.get("GPU", 0) else 0
        most, now = (_fitting(room, threads, gpus) for room in (there, ray.available_resources()))
        if most < (actors or 1):
            has = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs"
            raise AbbeError(
                f"Ray has {has}, too few for {actors or 1} actors of {threads} cores"
                f"{f' and {gpus:g} GPUs' if gpus else ''} each: at most {most} fit"
            )
        options = {"num_cpus": threads, "num_gpus": gpus}
        token = engine.set(partial(_executor, ray, actors or max(1, now), options))
        try:
            yield
        finally:
            engine.reset(token)


def _fitting(room: Mapping[str, float], threads: int, gpus: float) -> int:
    return int(min([room.get("CPU", 0) // threads, *([room.get("GPU", 0) // gpus] if gpus else [])]))


@contextmanager
def _cluster(address: str | None, cores: int) -> Iterator[Any]:
    """The module `ray`, connected to the address, or to a local instance that ends with the context.

    An existing connection of the program is kept.
    """
    if find_spec("ray") is None:
        raise AbbeError("the engine ray needs the package ray, which is not installed: pip install 'abbe[ray]'")
    before = {name: os.environ.get(name) for name in _PRIVATE}
    if address is None:
        os.environ.update(_PRIVATE)
    ray: Any = import_module("ray")  # after the variables are set, which it reads
    mine = not ray.is_initialized()
    try:
        if mine:
            _connect(ray, address, cores)
        yield ray
    finally:
        if mine:
            with suppress(Exception):
                ray.shutdown()
        if address is None:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})


def _connect(ray: Any, address: str | None, cores: int) -> None:
    quiet = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    _check_reachable(address)
    try:
        if address is None:
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        what = "cannot start Ray here" if address is None else f"cannot reach Ray at {address}"
        raise AbbeError(f"{what}: {first_line(error)}") from None


def _check_reachable(address: str | None) -> None:
    """Refuse an address with a host where nobody listens."""
    if address is None or address == AUTO:
        return
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":") if ":" in place else (place, "", str(_PORTS.get(scheme, 6379)))
    if not host or not port.isdecimal():
        raise AbbeError(f"address is {address!r}, but must be auto, HOST:PORT (usually :6379) or ray://HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or first_line(error)
        raise AbbeError(
            f"nothing answers at {address} ({why}): start it with `ray start --head`, or leave --address out"
        ) from None


def first_line(error: BaseException) -> str:
    """Errors of libraries may have several lines: the first one is the reason."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)

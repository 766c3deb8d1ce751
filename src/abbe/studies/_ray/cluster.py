"""Connect to a Ray instance of this process, or to the cluster at an address; one line says what is wrong."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..._errors import AbbeError

AUTO = "auto"
_PATIENCE = 5.0  # seconds: Ray itself tries for minutes
_PORTS = {"ray": 10001}  # for addresses without one
# No usage statistics, and no token in the home folder: nobody else can reach an instance of this process.
_PRIVATE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@contextmanager
def cluster(address: str | None, cores: int) -> Iterator[Any]:
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
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)

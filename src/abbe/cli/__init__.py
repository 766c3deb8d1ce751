"""The command line: thin, each command calls one study and shows its result."""

from ._app import app
from ._main import main

__all__ = ["app", "main"]

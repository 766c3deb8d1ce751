"""The command line: thin, each command calls one study and shows its result."""

try:
    from ._app import app
    from ._main import main
except ModuleNotFoundError as error:
    if error.name not in ("rich", "typer"):
        raise
    from ._invocation import main_without_typer as main

__all__ = ["app", "main"]

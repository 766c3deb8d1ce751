"""A page per command, from the help of the command line."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

import typer

from abbe import cli

from .markdown import cell, code, page, sentence, table

_TITLES = ("command", "what it does")
_KINDS = {
    **dict.fromkeys(("str", "text"), "text"),
    **dict.fromkeys(("int", "integer"), "whole number"),
    "float": "number",
    "path": "path",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by the words that call it, in the order of the help; a group stands before its commands."""
    yield from _below("", typer.main.get_command(cli.app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for word, one in getattr(command, "commands", {}).items():
        called = f"{name} {word}".strip()
        yield called, one
        yield from _below(called, one)


def command_pages() -> dict[str, str]:
    """Pages by path; the index shows them by their panels."""
    pages = {f"commands/{name.replace(' ', '-')}.md": _page(name, command) for name, command in commands()}
    top: Any = typer.main.get_command(cli.app)
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, command in commands():
        panel = top.commands[name.split()[0]].rich_help_panel  # beside the group that it is in
        panels.setdefault(panel, []).append(_row(name, command))
    parts = [part for panel, rows in panels.items() for part in (f"## {panel}", table(_TITLES, rows))]
    return {"commands/index.md": page("Commands", str(top.help), *parts, _options(top))} | pages


def _page(name: str, command: Any) -> str:
    usage = ["abbe", name, *_words(command)]
    below = [_row(f"{name} {word}", one) for word, one in getattr(command, "commands", {}).items()]
    return page(
        f"abbe {name}",
        *_paragraphs(command),
        "```text\n" + " ".join(usage) + "\n```",
        table(_TITLES, below) if below else "",
        _arguments(command),
        _options(command),
        _examples(command),
    )


def _words(command: Any) -> list[str]:
    if hasattr(command, "commands"):
        return ["COMMAND"]
    return [*_placeholders(command), "[OPTIONS]"]


def _placeholders(command: Any) -> list[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    return [_name(one) if one.required else f"[{_name(one)}]" for one in arguments]


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name).upper()


def _arguments(command: Any) -> str:
    rows = [
        (code(_name(one)), _default(one), cell(one.help or ""))
        for one in command.params
        if one.param_type_name == "argument"
    ]
    return "## Arguments\n\n" + table(("argument", "default", "meaning"), rows) if rows else ""


def _options(command: Any) -> str:
    panels: dict[str, list[tuple[str, ...]]] = {}
    for one in command.params:
        if one.param_type_name == "option" and not one.hidden:
            names = ", ".join(code(name) for name in (*one.opts, *one.secondary_opts))
            row = names, _kind(one), _default(one), cell(one.help or "")
            panels.setdefault(getattr(one, "rich_help_panel", None) or "Options", []).append(row)
    return "\n\n".join(
        f"## {sentence(panel)}\n\n" + table(("option", "value", "default", "meaning"), rows)
        for panel, rows in panels.items()
    )


def _kind(option: Any) -> str:
    if option.is_flag:
        return ""
    return _KINDS[_type_name(option)] + (", repeatable" if option.multiple else "")


def _type_name(option: Any) -> str:
    """typer has its own descriptor of types; older versions have that of click."""
    described = getattr(option, "type_descriptor", None)
    if described is None:
        return str(option.type.name).lower()
    (inner, *_) = [one for one in typing.get_args(described.annotation) if one is not type(None)] or [
        described.annotation
    ]
    return str(inner.__name__).lower()


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required or value is None or value is False or value == () or callable(value):
        return "required" if parameter.required else ""
    return "yes" if value is True else code(str(value))


def _examples(command: Any) -> str:
    lines = re.findall(r"\[bold\](.*?)\[/\]", str(command.epilog or ""))
    return "## Examples\n\n```text\n" + "\n".join(lines) + "\n```" if lines else ""


def _row(name: str, command: Any) -> tuple[str, str]:
    return f"[`abbe {name}`]({name.replace(' ', '-')}.md)", _paragraphs(command)[0]


def _paragraphs(command: Any) -> list[str]:
    """Paragraphs of the help; names in bold are options or commands."""
    text = re.sub(r"\[bold\](.*?)\[/\]", r"`\1`", inspect.cleandoc(str(command.help or "")))
    return [cell(part) for part in text.split("\n\n")]

"""Run the Python of a document as it is written, and hold it to what its comments say."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

import polars as pl
from doc_blocks import ROOT, Block, Document

_NUMBER = re.compile(r"#\s*(-?\d+(?:\.(\d+))?(?:e-?\d+)?)(?=[\s:,;]|$)")
ROUNDING = 1e-4  # numbers below this are rounding errors: that they are small is all that is claimed


class Untrue(AssertionError):
    """A document shows something that is not so."""


def run_python(document: Document) -> dict[str, Any]:
    """All Python blocks in order, in one namespace, which is returned; a traceback names the line of the document."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for block in document.of("python"):
        space["_shown"] = lambda value, line, name=document.name: check_shown(value, line, f"{name}: {line.strip()}")
        exec(compiled(block, document.name), space)
    return space


def compiled(block: Block, name: str) -> Any:
    """The code of a block, in which every expression that stands alone is looked at."""
    text = "\n" * (block.line - 1) + block.text + "\n"
    tree = ast.fix_missing_locations(_Look(_comments(text)).visit(ast.parse(text)))
    return compile(tree, str(ROOT / name), "exec")


class _Look(ast.NodeTransformer):
    """`x  # 0.73` becomes `_shown(x, "# 0.73")`."""

    def __init__(self, comments: dict[int, str]) -> None:
        self.comments = comments

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        comment = ast.Constant(self.comments.get(node.end_lineno or 0, ""))
        call = ast.Call(ast.Name("_shown", ast.Load()), [node.value, comment], [])
        return ast.copy_location(ast.Expr(call), node)


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def check_shown(value: Any, comment: str, where: str) -> None:
    """An expression that a document shows: a table has rows, and a number is the one in the comment, as printed."""
    if isinstance(value, pl.DataFrame) and value.is_empty():
        raise Untrue(f"{where} shows an empty table")
    number = _NUMBER.match(comment)
    if number is None:
        return
    printed, places = float(number[1]), len(number[2] or "")
    if abs(printed) < ROUNDING:
        right = 0 <= float(value) < ROUNDING
    else:
        right = abs(float(value) - printed) <= 0.5 * 10**-places * (1 + 1e-9)
    if not right:
        raise Untrue(f"{where}: it is {float(value):.6g}")

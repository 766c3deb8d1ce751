"""What a person sees of a result: terminal, page, notebook card and figures, all from its `View`."""

from .text import TextTable
from .view import Page, View, card, figures, page, terminal

__all__ = ["Page", "TextTable", "View", "card", "figures", "page", "terminal"]

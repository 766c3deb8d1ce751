"""abbe train temperature, length, recall and text: experiments of the lab."""

from .group import make_group

__all__ = ["make_group"]

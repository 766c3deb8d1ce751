"""Rules by which the studies of one temperature judge what was trained."""

from .length import judge_length
from .versus import judge_accuracy, judge_loss

__all__ = ["judge_accuracy", "judge_length", "judge_loss"]

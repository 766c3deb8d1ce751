# The public names and their types: `abbe._lazy` reads them, and imports each name on first use.

# needs models
from .experiments import (
    train_length as train_length,
    train_recall as train_recall,
    train_temperature as train_temperature,
    train_text as train_text,
)
from .result import Experiment as Experiment

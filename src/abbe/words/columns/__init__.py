"""The columns of every table of a result: what a row is, and what each column holds."""

from ._column import Column, Table
from ._experiments import EXPERIMENTS
from ._heads import HEADS
from ._normalizers import COMPARE, NORMALIZERS

__all__ = ["COMPARE", "Column", "Table", "list_tables", "table_of"]


def list_tables() -> tuple[Table, ...]:
    """Every table of every study, in the order of the commands.

    Returns:
        Tables with their columns, and what high and low mean in each.

    Examples:
        >>> from abbe.words.columns import list_tables
        >>> table = list_tables()[0]
        >>> table.study, table.name
        ('diagnose', 'table')
    """
    return (*HEADS, *NORMALIZERS, *EXPERIMENTS)


def table_of(study: str, name: str = "table") -> Table:
    """A table of the result of a study.

    Args:
        study: the name of its command.
        name: of the attribute that holds it.

    Returns:
        The table with its columns.

    Examples:
        >>> from abbe.words.columns import table_of
        >>> table_of("diagnose").names[:3]
        ('model', 'layer', 'head')
    """
    return next(table for table in list_tables() if (table.study, table.name) == (study, name))

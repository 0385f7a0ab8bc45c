"""PySpark's functions that are a template of SQL, as data; see `minishark.functions.templates`."""

from minishark.functions.tables.aggregates import AGGREGATES
from minishark.functions.tables.nested import NESTED
from minishark.functions.tables.numbers import NUMBERS
from minishark.functions.tables.other import OTHER
from minishark.functions.tables.text import TEXT
from minishark.functions.tables.times import TIMES
from minishark.functions.templates import by_name

TEMPLATES = by_name((*NUMBERS, *TEXT, *TIMES, *NESTED, *AGGREGATES, *OTHER))

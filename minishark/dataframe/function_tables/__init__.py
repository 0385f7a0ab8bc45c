"""PySpark's functions that are a template of SQL, as data; see `minishark.dataframe.templates`."""

from minishark.dataframe.function_tables.aggregates import AGGREGATES
from minishark.dataframe.function_tables.nested import NESTED
from minishark.dataframe.function_tables.numbers import NUMBERS
from minishark.dataframe.function_tables.other import OTHER
from minishark.dataframe.function_tables.text import TEXT
from minishark.dataframe.function_tables.times import TIMES
from minishark.dataframe.templates import by_name

TEMPLATES = by_name((*NUMBERS, *TEXT, *TIMES, *NESTED, *AGGREGATES, *OTHER))

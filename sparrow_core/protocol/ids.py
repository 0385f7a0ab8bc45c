"""Types of ids, so that a type checker distinguishes a node's name from a job's id."""

from typing import NewType

JobId = NewType("JobId", str)
TaskId = int
NodeName = NewType("NodeName", str)

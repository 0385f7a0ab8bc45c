"""Python over the cluster: objects in partitions, and functions that SQL calls."""

from minishark.jobs.items import Items
from minishark.jobs.scalar import UserFunctions

__all__ = ["Items", "UserFunctions"]

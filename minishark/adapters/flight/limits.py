"""What a server allows."""

from __future__ import annotations

from minishark.errors import OptionError


class Limits:
    """What a server allows: to each connection, and in all."""

    def __init__(
        self,
        *,
        connections: int = 200,
        running: int = 100,
        running_each: int = 16,
        kept_each: int = 1000,
        idle_s: float = 1800.0,
        refused: float = 30.0,
    ) -> None:
        """Limits.

        Args:
            connections: connections at a time.
            running: statements that run or send rows at a time, in all.
            running_each: the same, of one connection.
            kept_each: prepared statements, and results not fetched yet, of one connection.
            idle_s: seconds after which a connection ends that nobody uses.
            refused: calls from one address in a minute that show no valid credential.

        Raises:
            OptionError: one is not positive.
        """
        self.connections = connections
        self.running = running
        self.running_each = running_each
        self.kept_each = kept_each
        self.idle_s = idle_s
        self.refused = refused
        for name, value in vars(self).items():
            if not value > 0:
                raise OptionError(f"{name} must be positive.")

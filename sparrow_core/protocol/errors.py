"""What can go wrong, as types.

SparrowError
├── InvalidJob            a job that no cluster could run: doubled task ids, bad probe ratio ...
├── Unsatisfiable         a placement constraint that no live node satisfies
├── NoNodes               there is no node at all
├── RunnerError           a runner could not be loaded or made
├── ClusterStartError     a local cluster did not come up; carries the tail of the log
├── InsecureTransport     tcp without keys, or a key or socket that others can reach
├── ConfigError           a configuration file that cannot be read or says senseless things
├── ClusterClosed         a call on a cluster that is closed
└── TaskFailure           raised by a *runner*: the task failed (retryable or for good)
"""


class SparrowError(Exception):
    """Base of all errors of this package."""


class InvalidJob(SparrowError):  # noqa: N818 - it says what is the matter
    """A job description that no cluster could run."""


class Unsatisfiable(SparrowError):  # noqa: N818 - it says what is the matter
    """A placement constraint that no live node satisfies."""


class NoNodes(SparrowError):  # noqa: N818 - it says what is the matter
    """The cluster has no live node."""


class RunnerError(SparrowError):
    """A runner's factory could not be found, imported or called."""


class ClusterStartError(SparrowError):
    """A local cluster did not come up in time, or a process of it died at once."""


class InsecureTransport(SparrowError):  # noqa: N818 - it says what is the matter
    """Others could listen or pretend to be somebody: tcp without keys, files open to others."""


class ConfigError(SparrowError):
    """A configuration file is missing, malformed, or asks for the impossible."""


class ClusterClosed(SparrowError):  # noqa: N818 - it says what is the matter
    """The cluster has been closed."""


class TaskFailure(SparrowError):  # noqa: N818 - it says what is the matter
    """Raised by a runner to say that its task failed.

    Args:
        message: A sentence for the user.
        detail: Opaque bytes that travel to the embedding program (e.g. a pickled exception).
        retryable: True if another attempt, perhaps on another node, may succeed.
    """

    def __init__(self, message: str, detail: bytes = b"", retryable: bool = False) -> None:
        """Keep message, detail and whether another attempt makes sense."""
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.retryable = retryable

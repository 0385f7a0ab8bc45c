"""The exceptions of this package.

SparrowError
├── InvalidJob            a job that no cluster could run: duplicate task ids, bad probe ratio ...
│   └── PlacementFailed   a placement that is a plug-in raised, or returned nonsense
├── Unsatisfiable         a placement constraint that no live node satisfies
├── NoNodes               the cluster has no live node
├── RunnerError           a runner could not be loaded or created
├── ClusterStartError     a cluster did not start; the message has the tail of the log
├── ConfigError           a configuration file that is missing or invalid
├── ClusterClosed         a call on a closed cluster
└── TaskFailure           raised by a *runner*: the task failed, permanently or retryably
"""


class SparrowError(Exception):
    """Base of all errors of this package."""


class InvalidJob(SparrowError):  # noqa: N818 - a condition, not an error name
    """A job description that no cluster could run."""


class PlacementFailed(InvalidJob):
    """A placement that is a plug-in raised, or returned nonsense, for the job with this id."""

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class Unsatisfiable(SparrowError):  # noqa: N818 - a condition, not an error name
    """A placement constraint that no live node satisfies."""


class NoNodes(SparrowError):  # noqa: N818 - a condition, not an error name
    """The cluster has no live node."""


class RunnerError(SparrowError):
    """A runner's factory could not be found, imported or called."""


class ClusterStartError(SparrowError):
    """A cluster did not start in time, or one of its processes died."""


class ConfigError(SparrowError):
    """A configuration file is missing, malformed or inconsistent."""


class ClusterClosed(SparrowError):  # noqa: N818 - a condition, not an error name
    """The cluster has been closed."""


class TaskFailure(SparrowError):  # noqa: N818 - a condition, not an error name
    """Raised by a runner when its task failed.

    Args:
        message: For the user, one sentence.
        detail: Opaque bytes for the embedding program, such as a pickled exception.
        retryable: True if another attempt, perhaps on another node, may succeed.
    """

    def __init__(self, message: str, detail: bytes = b"", retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.retryable = retryable

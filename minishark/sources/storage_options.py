"""What users say about object stores: `connect(storage_options=...)`.

Settings have the names that pandas, polars and delta-rs share (those of Rust's object_store), for
all stores, or by URI prefix. Each may come from a function, which is called when a statement needs
a store: so credentials can be renewed. They travel to executors in messages, and are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from minishark.errors import OptionError
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess

Provider: TypeAlias = Callable[[], Mapping[str, Any]]
"""Gives settings, with credentials that are valid for the next statement."""

StorageOptions: TypeAlias = Mapping[str, Any] | Provider
"""Settings by name; or settings, or a provider of some, by URI prefix; or a provider."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How a session reaches object stores."""

    _by_prefix: Mapping[str, StorageOptions] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, options: StorageOptions | None) -> Storage:
        """From an argument of users.

        Raises:
            OptionError: it is of another kind.
        """
        if options is None:
            return cls()
        if not isinstance(options, Mapping) or not any("://" in str(name) for name in options):
            options = {"": options}
        for prefix, settings in options.items():
            if prefix and "://" not in prefix:
                raise OptionError(
                    "storage_options has settings by name, or by URI prefix such as 's3://bucket', "
                    "not both."
                )
            if not callable(settings):
                _as_text(settings)
        return cls(dict(options))

    def access(self) -> StoreAccess:
        """The settings as they are now.

        Raises:
            OptionError: a provider failed, or gave something else.
        """
        if not self._by_prefix:
            return FROM_ENVIRONMENT
        return StoreAccess({prefix: _now(options) for prefix, options in self._by_prefix.items()})


def _now(settings: StorageOptions) -> dict[str, str]:
    if not callable(settings):
        return _as_text(settings)
    try:
        given = settings()
    except Exception as error:  # whatever a user's function raises
        name = type(error).__name__
        raise OptionError(f"The provider of storage options failed with {name}.") from error
    return _as_text(given)


def _as_text(settings: object) -> dict[str, str]:
    if not isinstance(settings, Mapping):
        raise OptionError(
            "storage_options takes settings by name, such as {'aws_access_key_id': ...}, or a "
            "function that returns them."
        )
    return {
        str(name): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
        if value is not None
    }

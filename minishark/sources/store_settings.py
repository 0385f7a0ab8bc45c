"""Settings of object stores, as PyIceberg and deltalake name them.

The names of `connect(storage_options=...)` are those of Rust's object_store, which deltalake has,
too; PyIceberg has others for the same settings. Translated both ways, so that a table's metadata,
which these libraries read, and its files, which hosts fetch, are reached alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from minishark.sources.filesystems import StoreAccess, is_remote, plain_settings

_ICEBERG = {
    "s3": {
        "access_key_id": "s3.access-key-id",
        "secret_access_key": "s3.secret-access-key",
        "token": "s3.session-token",
        "session_token": "s3.session-token",
        "endpoint": "s3.endpoint",
        "region": "s3.region",
        "default_region": "s3.region",
        "skip_signature": "s3.anonymous",
    },
    "az": {
        "account_name": "adls.account-name",
        "account_key": "adls.account-key",
        "access_key": "adls.account-key",
        "sas_token": "adls.sas-token",
        "sas_key": "adls.sas-token",
        "client_id": "adls.client-id",
        "client_secret": "adls.client-secret",
        "tenant_id": "adls.tenant-id",
    },
}
"""By kind of store: our names without prefixes, and PyIceberg's; the first of several is ours."""

_KINDS = {"s3": "s3", "s3a": "s3"} | dict.fromkeys(("az", "azure", "abfs", "abfss"), "az")


def iceberg_properties(uri: str, access: StoreAccess) -> dict[str, str]:
    """PyIceberg's properties for the settings of `uri`; those that it has no name for are left out.

    What the environment says is PyIceberg's own to read.
    """
    names = _ICEBERG.get(_KINDS.get(_scheme(uri), ""), {})
    settings = plain_settings(uri, access.of(uri))
    return {names[name]: text for name, text in settings.items() if name in names}


def access_of_properties(location: str, properties: Mapping[str, str]) -> StoreAccess | None:
    """How hosts reach the files below `location` with PyIceberg's properties.

    None if the properties say something that has no translation here.
    """
    kind = _KINDS.get(_scheme(location), "")
    ours = {theirs: name for name, theirs in reversed(_ICEBERG.get(kind, {}).items())}
    settings = {ours[name]: text for name, text in properties.items() if name in ours}
    prefixes = ("s3.", "client.", "gcs.", "adls.", "hf.")
    harmless = ("timeout", "resolve-region", "endpoint")
    for name in properties:
        if name.startswith(prefixes) and name not in ours and not name.endswith(harmless):
            return None
    return StoreAccess({location: settings} if settings else {})


def delta_options(uri: str, access: StoreAccess, own: Mapping[str, str]) -> dict[str, str]:
    """The storage options of deltalake: the table's own, and the session's where it has none."""
    if not is_remote(uri):
        return dict(own)
    settings = plain_settings(uri, access.of(uri))
    named = plain_settings(uri, own)
    prefix = {"s3": "aws_", "az": "azure_"}.get(_KINDS.get(_scheme(uri), ""), "")
    options = {
        name if name in _BARE else f"{prefix}{name}": text
        for name, text in settings.items()
        if name not in named
    }
    endpoint = {**settings, **named}.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", ""))
    if endpoint.startswith("http://") and "allow_http" not in named:
        options["allow_http"] = "true"
    return {**options, **own}


_BARE = ("allow_http", "timeout", "connect_timeout")


def _scheme(uri: str) -> str:
    return uri.partition("://")[0].lower() if is_remote(uri) else ""

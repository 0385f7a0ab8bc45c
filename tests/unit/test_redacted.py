"""Texts that others may read have no passwords."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark import errors
from minishark.errors import QueryError, redacted
from minishark.model.events.kinds import shortened


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM postgres_scan('postgresql://ann:s3same@h:5432/d', 'a', 't')",
        "postgresql://u:open s3same@h:1/x",
        "postgresql://u:p@s3same@h",
        "postgresql://u:p/s3same@h",
        "postgresql://h/d?user=u&password=s3same&x=1",
        "port=1 password='open s3same' host=h",
        "postgres_scan('host=x password=''open s3same'' user=b', 'p')",
        "postgres_scan('host=x PASSWORD = s3same', 'p')",
        "CREATE SECRET s (TYPE s3, KEY_ID 'ab', SECRET 's3same')",
        "{'aws_secret_access_key': 's3same', 'x': 1}",
        '{"session_token": "s3same"}',
        "https://a.blob/x?sv=1&sig=s3same%3D&se=3",
        "https://b.s3/x?X-Amz-Signature=s3same",
        "b.s3/x?X-Amz-Signature=s3same",
        "b.s3/x?s\u0131g=s3same",
        "credent\u0130al = 's3same'",
    ],
)
def test_secrets_are_not_shown(text: str) -> None:
    """Whether in an event or in an error, and nothing more is lost."""
    shown = redacted(text)
    assert "s3same" not in shown
    assert "***" in shown
    assert text[:6] == shown[:6]
    assert shown == redacted(shown)
    assert "s3same" not in str(QueryError(text))
    for limit in range(1, len(text)):
        assert "s3same" not in shortened(text, limit)


@pytest.mark.parametrize(
    "text",
    [
        "grpc://127.0.0.1:8815 asks ann@host",
        "SELECT secret, password FROM t WHERE x = '1'",
        'There is no column "password".',
        "s3://bucket/key?versionId=3",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert text == redacted(text)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("piece", ["://", "://a:", "secret", "password ", "secret='", "a_", "x=''"])
def test_any_text_takes_linear_time(piece: str) -> None:
    assert redacted(piece * 20_000)


_PIECES = (
    *("pass", "password", "PASSWD", "pa\u017f\u017fword", "pwd", "secret", "to\u212aen", "token"),
    *("credential", "account_key", "sas_key", "sig", "signature", "://", "a", "_", ":", "@", "?"),
    *("&", "=", " ", "'", '"', "x", "?x-signature=", "&s\u0131g=", "credent\u0130al="),
)


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
def test_what_is_passed_over_has_no_secret(text: str) -> None:
    """Texts without certain words are not searched: the search finds nothing in them."""
    if redacted(text) == text:
        search = errors._SECRETS
        assert search.sub(lambda secret: f"{secret[secret.lastgroup or 0]}***", text) == text

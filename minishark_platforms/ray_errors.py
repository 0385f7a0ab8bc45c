"""What Ray's errors say."""

from __future__ import annotations

_SENTENCE_MAX = 500


def sentence(error: BaseException) -> str:
    """What went wrong with an actor, without its stack."""
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, Exception) else error).strip()
    if "No module named 'minishark" in text:
        return (
            "Ray's workers can't import minishark: install the same version on every machine of "
            "the Ray cluster."
        )
    return text[:_SENTENCE_MAX]

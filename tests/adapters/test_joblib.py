"""joblib and scikit-learn run their calls in a session's cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minishark
from minishark.session.session import Session

joblib = pytest.importorskip("joblib")
pytest.importorskip("minishark.adapters.joblib")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with minishark.connect(nodes=2, executors_per_node=1) as found:
        yield found


def _run(session: Session, calls: Any, **options: Any) -> list[Any]:
    with joblib.parallel_config("minishark", session=session):
        return list(joblib.Parallel(n_jobs=-1, **options)(calls))


@pytest.mark.slow
def test_calls_run_in_the_cluster(session: Session) -> None:
    """In order, in processes other than this one, also as a generator."""
    squares = [joblib.delayed(lambda x: x * x)(i) for i in range(300)]
    assert [i * i for i in range(300)] == _run(session, squares)
    assert [i * i for i in range(300)] == _run(session, squares, return_as="generator")


@pytest.mark.slow
def test_an_exception_ends_them(session: Session) -> None:
    """With its type; the session goes on."""
    with pytest.raises(ZeroDivisionError):
        _run(session, [joblib.delayed(lambda x: 1 / x)(i) for i in range(-3, 3)])
    assert [1, 2] == _run(session, [joblib.delayed(abs)(i) for i in (-1, -2)])


def test_scikit_learn_searches_a_grid(session: Session) -> None:
    """The same scores as in this process."""
    pytest.importorskip("sklearn")
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    x, y = make_classification(n_samples=200, random_state=1)
    scores = []
    for options in ({"backend": "minishark", "session": session}, {"backend": "threading"}):
        with joblib.parallel_config(**options):
            search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0, 10.0]}, n_jobs=-1, cv=3)
            search.fit(x, y)
            scores.append(search.cv_results_["mean_test_score"].tolist())
    assert scores[0] == scores[1]

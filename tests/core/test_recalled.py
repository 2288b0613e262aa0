"""What history told of a fleet without compression, and how long that answers for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kvmedic.model.compression import Figures
from kvmedic.model.config_edits import Revision
from kvmedic.model.readings import Recalled
from kvmedic.model.spec import CompressionPolicy
from kvmedic.runbooks.branches import Compressed
from kvmedic.runbooks.compression.methods import with_recalled
from run_builder import NEW, NOW, OLD

MINUTE = timedelta(minutes=1)
KNOWN = Recalled(
    method="TriAttention",
    revision=4,
    template=NEW,
    previous=3,
    source="default",
    asked_at=NOW,
    figures=Figures(10.0, 1900.0, 0.1, 0.9, 7e10, 9.0),
    seen_at=NOW - 60 * MINUTE,
    replicas=3,
)
UNKNOWN = replace(KNOWN, figures=Figures(), seen_at=None, replicas=0, trouble="no replica")
LATER = replace(UNKNOWN, again_at=NOW + 10 * MINUTE)
RUN = (Revision(5, "llm-5", OLD), Revision(4, "llm-4", NEW))
METHOD = Compressed("TriAttention", None, "a variable")


@pytest.mark.parametrize(
    ("recalled", "method", "run", "source", "minutes", "holds"),
    [
        pytest.param(KNOWN, "TriAttention", RUN, "default", 0, True, id="the same"),
        pytest.param(KNOWN, "TriAttention", RUN, "default", 99_999, True, id="for good"),
        pytest.param(KNOWN, "TriAttention", RUN, "other", 0, True, id="known, whoever is asked now"),
        pytest.param(KNOWN, "fp8", RUN, "default", 0, False, id="another method"),
        pytest.param(KNOWN, "TriAttention", RUN[:1], "default", 0, False, id="turned on anew since"),
        pytest.param(
            KNOWN, "TriAttention", (Revision(6, "llm-4", NEW),), "default", 0, False, id="the same one again"
        ),
        pytest.param(
            KNOWN, "TriAttention", (Revision(4, "llm-4", OLD),), "default", 0, False, id="another template"
        ),
        pytest.param(KNOWN, "TriAttention", (), "default", 0, False, id="nobody knows when"),
        pytest.param(UNKNOWN, "TriAttention", RUN, "default", 99_999, True, id="the past does not come back"),
        pytest.param(UNKNOWN, "TriAttention", RUN, "other", 0, False, id="another source may know"),
        pytest.param(LATER, "TriAttention", RUN, "default", 9, True, id="no answer: leave it alone"),
        pytest.param(LATER, "TriAttention", RUN, "default", 10, False, id="no answer: ask again"),
    ],
)
def test_what_is_on_record_answers_for_the_run_that_it_is_of(
    recalled: Recalled, method: str, run: tuple[Revision, ...], source: str, minutes: int, *, holds: bool
) -> None:
    assert recalled.holds(method, run, source, NOW + minutes * MINUTE) is holds


def test_what_the_spec_gives_counts_and_history_has_the_rest() -> None:
    given = Figures(tokens_per_second=2000.0, preemptions_per_request=0.0)
    method = replace(METHOD, without=given, policy=CompressionPolicy(baseline=given))

    found = with_recalled(method, KNOWN)

    assert found.without == replace(KNOWN.figures, tokens_per_second=2000.0, preemptions_per_request=0.0)
    assert found.without_from == (
        "spec.compression.baseline, the rest of revision 3, 3 replicas, before 2026-03-01T02:00:00Z"
    )


@pytest.mark.parametrize(
    ("method", "origin"),
    [
        pytest.param(METHOD, "", id="nothing is known"),
        pytest.param(replace(METHOD, recalled=UNKNOWN), "", id="history knows nothing"),
        pytest.param(
            with_recalled(METHOD, KNOWN), "revision 3, 3 replicas, before 2026-03-01T02:00:00Z", id="history"
        ),
        pytest.param(
            replace(METHOD, policy=CompressionPolicy(baseline=Figures(e2e_p95=9.0)), recalled=UNKNOWN),
            "spec.compression.baseline",
            id="the spec",
        ),
    ],
)
def test_figures_of_before_say_where_they_are_from(method: Compressed, origin: str) -> None:
    assert method.without_from == origin


def test_a_look_at_the_past_of_which_nothing_is_known_has_no_line() -> None:
    assert UNKNOWN.line() == ""

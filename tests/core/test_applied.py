"""The verdict on a replica that was made so that it has another type of KV cache."""

import pytest

from kvmedic.model.reasons import Reason
from kvmedic.model.run import Judged, Verdict
from kvmedic.verdict.vetoes import in_view_of_types

RECOVERED = Judged(Verdict.RECOVERED, Reason.RECOVERED, "calm")


@pytest.mark.parametrize("types", [set(), {"fp8"}, {"fp8_e4m3"}, {"auto", "int8_per_token_head"}])
def test_a_verdict_stands_where_a_new_replica_has_the_type_or_nobody_tells(types):
    assert in_view_of_types(RECOVERED, types, ("fp8", "int8")) == RECOVERED


@pytest.mark.parametrize("types", [{"auto"}, {"bfloat16", "auto"}])
def test_a_new_replica_without_the_type_was_made_in_vain(types):
    found = in_view_of_types(RECOVERED, types, ("fp8", "int8"))

    assert found.verdict is Verdict.NOT_RECOVERED
    assert "auto, too" in found.message or "auto, bfloat16, too" in found.message

"""The operator's judgement of a run, from its scrapes alone."""

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import observe_pages, parse_page
from kvmedic.metrics.saved_pages import glimpse, moment
from kvmedic.model.engine import Knob
from kvmedic.model.evidence import Inconclusive, Observation
from kvmedic.model.spec import LeverBound, Trigger
from kvmedic.runbooks import RUNBOOKS
from kvmedic.runbooks.branches import Advice, Assignment, Evidence, NoChange, Setting, diagnose
from lab.bench.drive import Outcome

TRIGGER = Trigger(preemptions_per_request=0.1, kv_cache_usage_ratio=0.85)
"""Lower than the default, so that sizing is asked where a cut must not come, too."""
_LEVERS = (LeverBound(Knob.MAX_NUM_SEQS),)


def observed(outcome: Outcome, pages: int) -> Observation:
    """Return what the last pages of a run say."""
    parsed = [parse_page(text, at) for at, text in outcome.pages[-pages:]]
    return observe_pages({"bench-0": parsed}, VLLM_SIGNALS)


def seen(outcome: Outcome) -> Evidence:
    """Return what the operator sees at the end of a run: its second half, and all of it."""
    pages = len(outcome.pages)
    whole = observed(outcome, pages)
    return Evidence(observed(outcome, pages // 2), whole, TRIGGER, evicts=outcome.evicts)


def advice_on(evidence: Evidence, setting: Setting) -> Advice:
    """Return what the operator would set, or why nothing."""
    found = diagnose(RUNBOOKS["PreemptionThrash"], evidence)
    if isinstance(found, Inconclusive):
        return NoChange(found.reason, found.message)
    if found.branch.then is None:
        return NoChange(found.reason, "")
    return found.branch.then(evidence, setting)


def chosen_cap(outcome: Outcome, present: int | None = None, *, ours: bool = False) -> tuple[int | None, str]:
    """Return the cap that the operator reads off the scrapes, or None, with its reason.

    Args:
        outcome: the run.
        present: the cap that is set.
        ours: it is one that the operator computed, and has not corrected yet.
    """
    return _advised(seen(outcome), Setting(present, _LEVERS, is_our_cap=ours))


def glimpsed_cap(outcome: Outcome) -> tuple[int | None, str]:
    """Return the cap that two pages tell: the first and the last, without a clock."""
    first, last = outcome.pages[0][1], outcome.pages[-1][1]
    pages = [parse_page(text, moment(place)) for place, text in enumerate((first, last))]
    glanced = glimpse({"bench-0": pages}, VLLM_SIGNALS, None).observation
    return _advised(Evidence(glanced, glanced, TRIGGER, evicts=outcome.evicts), Setting(None, _LEVERS))


def _advised(evidence: Evidence, setting: Setting) -> tuple[int | None, str]:
    advice = advice_on(evidence, setting)
    return (
        (int(advice.value), str(advice.reason))
        if isinstance(advice, Assignment)
        else (None, str(advice.reason))
    )

"""A thrashing engine as the sizing sees it; tests change single figures."""

from __future__ import annotations

from kvmedic.model.engine import Knob
from kvmedic.runbooks.branches import Setting, SettingAdvice
from kvmedic.runbooks.preemption.cap_size import Offered, Strain
from kvmedic.runbooks.preemption.levers import LEVERS
from kvmedic.runbooks.preemption.pressure import Case, Reach
from kvmedic.verdict.occupancy import Occupancy

CASE = Case(
    sequence=Occupancy(mean_blocks=7.2, deviation_blocks=5.0, growth_share=0.7),
    strain=Strain(
        running_mean=22.8,
        preemptions_per_request=1.75,
        stalls_per_request=0.3,
        step_seconds=0.028,
        prefill_extra_seconds=0.12,
        prefill_tokens=60,
        output_tokens=190,
    ),
    blocks=149,
    block_tokens=32,
    prompt_tokens=60,
    output_tokens=190,
    spread=1.0,
    running_max=32,
    offered=Offered(1.0, served_per_second=608, is_full=True, is_steady=True),
    requests=2880,
    reach=Reach(prompt_tokens=200, output_tokens=1000, limit_tokens=2000, counted_tokens=20_000),
)


def propose(knob: Knob, case: Case, setting: Setting) -> SettingAdvice:
    """Return what the lever of a knob proposes, or why it does not apply."""
    return next(lever for lever in LEVERS if lever.knob is knob).propose(case, setting)

"""What a method that was turned on as a fix is to do for the sequences of a fleet, and what proved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvmedic.core.blocks import PASS_TOKENS, Compacted, Keep
from kvmedic.core.bundle import BundleStep
from kvmedic.core.come_back import Promise
from kvmedic.core.compressed import Answer, answer_for
from kvmedic.core.compression_policy import CompressionPolicy, Fix
from kvmedic.core.edit import container_at
from kvmedic.core.quantity import parse_count
from kvmedic.core.running_blocks import Passes
from kvmedic.core.trialling import Question
from kvmedic.engines.kv_methods import method_named
from kvmedic.runbooks.methods import replacement_of, variables_of


def promise_of(
    step: BundleStep, policy: CompressionPolicy, answers: Sequence[Answer], template: Mapping[str, object]
) -> Promise | None:
    """Return what is to be seen of a bundle on the fleet; None where it turned on no method that compacts.

    What was tried on the very pod template counts before what the spec says by now.

    Args:
        step: the change.
        policy: what the spec says.
        answers: of trials.
        template: the target's pod template, with the change.
    """
    if step.fix is not Fix.COMPACTING_METHOD or step.undoes is not None:
        return None
    answer = answer_for(answers, step.after_template, Question.RECLAMATION)
    keep = _keep(step.method, policy, answer)
    passes = Passes(keep, Compacted(), _every(step, template, answer)) if keep else None
    return Promise(step.method, passes, answer.message if answer else "", policy.probe.tokens)


def _keep(method: str, policy: CompressionPolicy, answer: Answer | None) -> Keep | None:
    if answer is not None and answer.keep is not None:
        return answer.keep
    wanted = replacement_of(policy)
    return wanted.keep if wanted is not None and wanted.name == method else None


def _every(step: BundleStep, template: Mapping[str, object], answer: Answer | None) -> int:
    """Return the tokens from one pass of a method to the next, by its variable or by what was seen of it."""
    known = method_named(step.method)
    container = container_at(template, step.edit.parts[0].container_index)
    given = variables_of(container or {}).get(known.every, "").strip() if known else ""
    return parse_count(given) or _seen_between(answer)


def _seen_between(answer: Answer | None) -> int:
    """Return by how many tokens one request on a trial pod outgrew what is kept, `PASS_TOKENS` at least.

    It rises from what is kept to that and one pass more, so the highest of some readings is near the pass.
    Taken for too long a pass makes live traffic tell less, never a method that works look like none.
    """
    if answer is None or answer.keep is None or answer.block_tokens is None or not answer.seen:
        return PASS_TOKENS
    keep, size = answer.keep, answer.block_tokens
    late = [each for each in answer.seen if 2 * each.tokens >= answer.seen[-1].tokens]
    return max(PASS_TOKENS, *(round(each.used * size) - keep.of(each.tokens) for each in late))

"""KV blocks in the host's memory."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import THRASHING, an_evidence
from kvmedic.engines import ENGINES
from kvmedic.model.engine import Knob
from kvmedic.model.fleet import ObjectRef, template_hash
from kvmedic.model.plan import Plan
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import LeverBound
from kvmedic.model.status import Attempt, FailedAttempt, Record
from kvmedic.runbooks.branches import (
    GIB,
    KEPT_BY_ENGINE,
    Assignment,
    HostTerms,
    NoChange,
    Setting,
    SettingAdvice,
    Supply,
)
from kvmedic.runbooks.planning import plan_of
from kvmedic.runbooks.preemption.levers import first_that_applies, present_setting
from kvmedic.runbooks.workload import Workload, workload_of
from run_builder import a_failure
from runbooks.cases import CASE, propose

OWN, SWAP = Knob.KV_OFFLOADING_SIZE, Knob.SWAP_SPACE
LEVER = LeverBound(OWN, maximum=32)
TERMS = HostTerms(OWN, limit_bytes=64 * GIB, shared_bytes=inf, uses_shared=True)


def workload(
    *args: str,
    version: str = "0.32.0",
    limit: str | None = "64Gi",
    request: str | None = None,
    shm: str | None = "",
    **extra: object,
) -> Workload:
    """An engine in a container; `shm` is the size limit of its shared memory, None: the usual 64 MiB."""
    amounts = {"limits": {"memory": limit}, "requests": {"memory": request}}
    container = {
        "name": "vllm",
        "image": f"vllm/vllm-openai:v{version}",
        "args": ["--model=m", *args],
        "resources": {kind: each for kind, each in amounts.items() if each["memory"]},
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        **extra,
    }
    volumes: list[dict[str, object]] = [{"name": "models", "emptyDir": {}}]
    if shm is not None:
        container["volumeMounts"] = [*container["volumeMounts"], {"name": "shm", "mountPath": "/dev/shm/"}]
        volumes.append(
            {"name": "shm", "emptyDir": {"medium": "Memory"} | ({"sizeLimit": shm} if shm else {})}
        )
    body = {"spec": {"containers": [container], "volumes": volumes}}
    found = workload_of(ObjectRef("Deployment", "llm"), "uid", body, None, ENGINES)
    assert isinstance(found, Workload)
    return found


def known(of: Workload, lever: LeverBound = LEVER, tried: tuple[FailedAttempt, ...] = ()) -> Setting:
    return present_setting(of, (lever,), Record(failed_attempts=tried), an_evidence(THRASHING))


def advised(of: Workload, lever: LeverBound = LEVER) -> SettingAdvice:
    return propose(Knob.KV_OFFLOADING_SIZE, CASE, known(of, lever))


@pytest.mark.parametrize(
    ("args", "value"),
    [
        pytest.param((), 32, id="one GPU"),
        pytest.param(("--tensor-parallel-size=4",), 32, id="the size is that of all ranks"),
        pytest.param(("-tp", "2", "-pp", "2"), 32, id="of all stages too"),
        pytest.param(("--data-parallel-size=4",), 8, id="each engine has its own"),
        pytest.param(("-dp", "16", "--data-parallel-size-local=2"), 16, id="of which two run here"),
        pytest.param(("-dp", "16", "--data-parallel-rank=3"), 32, id="of which one runs here"),
    ],
)
def test_the_size_is_given_as_the_flag_counts_it(args: tuple[str, ...], value: int) -> None:
    found = advised(workload(*args))

    assert isinstance(found, Assignment), found
    assert (found.knob, found.value, found.reason) == (OWN, value, Reason.HOST_MEMORY_USED)
    assert "32 GiB per replica in all" in found.message


@pytest.mark.parametrize(
    ("args", "value"),
    [((), 32), (("--tensor-parallel-size=4",), 8), (("-tp", "4", "-pp", "2"), 4)],
    ids=["one GPU", "of each of four", "of each of eight"],
)
def test_an_engine_that_swaps_is_given_what_each_of_its_gpus_may_take(
    args: tuple[str, ...], value: int
) -> None:
    found = advised(workload("--preemption-mode=swap", *args, version="0.7.3", shm=None))

    assert isinstance(found, Assignment), found
    assert (found.knob, found.value) == (SWAP, value)
    assert "32 GiB per replica in all" in found.message


@pytest.mark.parametrize(
    ("of", "reason", "words"),
    [
        pytest.param(
            workload(version="0.7.3"), Reason.LEVER_WITHOUT_EFFECT, "--preemption-mode swap", id="V0"
        ),
        pytest.param(
            workload("--preemption-mode=recompute", version="0.7.3"),
            Reason.LEVER_WITHOUT_EFFECT,
            "never swaps",
            id="V0 that computes again",
        ),
        pytest.param(
            workload(version="0.10.2"), Reason.LEVER_WITHOUT_EFFECT, "never swaps", id="V1, nothing to read"
        ),
        pytest.param(
            workload("--kv-transfer-config", '{"kv_connector": "NixlConnector"}'),
            Reason.LEVER_WITHOUT_EFFECT,
            "would replace that",
            id="a connector",
        ),
        pytest.param(
            workload("--kv-transfer-config.kv_role=kv_both"),
            Reason.LEVER_WITHOUT_EFFECT,
            "would replace that",
            id="a part of a connector",
        ),
        pytest.param(
            workload("--kv-offloading-backend=lmcache"),
            Reason.LEVER_WITHOUT_EFFECT,
            "lmcache",
            id="another keeper",
        ),
        pytest.param(workload(limit=None), Reason.HOST_MEMORY_SHORT, "no memory limit", id="no limit"),
        pytest.param(
            workload(limit="42Gi"), Reason.HOST_MEMORY_SHORT, "raise resources", id="too low a limit"
        ),
        pytest.param(
            workload(request="40Gi"),
            Reason.HOST_MEMORY_SHORT,
            "24.0 GiB are free",
            id="the engine asks for more",
        ),
        pytest.param(workload(shm=None), Reason.HOST_MEMORY_SHORT, "/dev/shm", id="the usual shared memory"),
        pytest.param(
            workload(shm="16Gi"), Reason.HOST_MEMORY_SHORT, "at least 32Gi", id="small shared memory"
        ),
        pytest.param(
            workload(version="0.27.1"),
            Reason.HOST_MEMORY_SHORT,
            "up to 64 GiB",
            id="a version that rounds up",
        ),
        pytest.param(
            workload("--kv-offloading-size=32"), Reason.LEVER_AT_BOUND, "is 32 already", id="as much"
        ),
        pytest.param(workload("-dp", "64"), Reason.LEVER_AT_BOUND, "less than 1 GiB", id="too many engines"),
    ],
)
def test_it_is_refused(of: Workload, reason: Reason, words: str) -> None:
    found = advised(of)

    assert isinstance(found, NoChange), found
    assert found.reason is reason
    assert words in found.message


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(
            workload(limit="43Gi"), id="a limit that is just enough: three quarters of it are 32.25 GiB"
        ),
        pytest.param(workload(request="32Gi"), id="an engine that asks for just as little as to leave it"),
        pytest.param(workload(request="64Gi"), id="a request that equals the limit says nothing"),
        pytest.param(workload(shm="32Gi"), id="just enough shared memory"),
        pytest.param(
            workload(version="0.27.1", shm=None, limit="86Gi"), id="rounding up, and no shared memory"
        ),
        pytest.param(workload("--kv-offloading-size=31"), id="a little less already"),
    ],
)
def test_it_is_allowed_where_everything_just_fits(of: Workload) -> None:
    assert isinstance(advised(of), Assignment)


@pytest.mark.parametrize(
    ("bound", "supply", "reason"),
    [
        (LEVER, Supply(), Reason.PRESENT_VALUE_UNKNOWN),
        (LeverBound(OWN), Supply(host=TERMS), Reason.LEVER_NOT_ALLOWED),
        (LEVER, Supply(host=HostTerms(None, "it cannot")), Reason.LEVER_WITHOUT_EFFECT),
    ],
    ids=["no manifest", "no size", "no flag"],
)
def test_without_a_size_or_a_flag_nothing_is_done(bound: LeverBound, supply: Supply, reason: Reason) -> None:
    assert propose(Knob.KV_OFFLOADING_SIZE, CASE, Setting(None, (bound,), supply=supply)).reason is reason


@pytest.mark.parametrize(("stalls", "applies"), [(0.05, True), (0.049, False)])
def test_it_is_for_fleets_in_which_somebody_hangs(stalls: float, *, applies: bool) -> None:
    case = replace(CASE, strain=replace(CASE.strain, stalls_per_request=stalls))

    assert isinstance(propose(Knob.KV_OFFLOADING_SIZE, case, known(workload())), Assignment) is applies


@pytest.mark.parametrize(
    ("of", "knob"),
    [(workload(), OWN), (workload("--preemption-mode=swap", version="0.7.3"), SWAP)],
    ids=["today's flag", "the one of old"],
)
def test_what_did_not_help_is_left_alone_whichever_flag_it_was(of: Workload, knob: Knob) -> None:
    tried = a_failure(Attempt.TURN_LEVER, knob, template_hash(of.template))

    found = first_that_applies(CASE, known(of, tried=(tried,)))

    assert isinstance(found, NoChange)
    assert "was tried on this revision" in found.message


@pytest.mark.parametrize(
    ("of", "token"),
    [
        (workload(), "--kv-offloading-size=32"),
        (workload("--preemption-mode=swap", version="0.7.3"), "--swap-space=32"),
    ],
)
def test_the_plan_is_one_token(of: Workload, token: str) -> None:
    advice = advised(of)
    assert isinstance(advice, Assignment)

    plan = plan_of(of, advice, 1)

    assert isinstance(plan, Plan), plan
    assert plan.steps[0].edit.after == token


terms_of = st.builds(
    HostTerms,
    knob=st.sampled_from((OWN, SWAP)),
    devices=st.integers(1, 16),
    engines=st.integers(1, 16),
    limit_bytes=st.none() | st.integers(0, 4096 * GIB),
    request_bytes=st.integers(0, 4096 * GIB),
    shared_bytes=st.none() | st.just(inf) | st.integers(0, 4096 * GIB).map(float),
    uses_shared=st.booleans(),
    rounds_up=st.booleans(),
)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(terms=terms_of, gib=st.integers(1, 4096))
def test_never_more_than_was_allowed_nor_than_the_container_has(terms: HostTerms, gib: int) -> None:
    bound = LeverBound(OWN, maximum=gib)

    found = propose(
        Knob.KV_OFFLOADING_SIZE, CASE, Setting(None, (bound,), given={}, supply=Supply(host=terms))
    )

    if isinstance(found, NoChange):
        return
    value = int(found.value)
    assert terms.flag_bytes(value) <= gib * GIB < terms.flag_bytes(value + 1)
    assert terms.limit_bytes is not None
    assert terms.taken_bytes(value) <= (1 - KEPT_BY_ENGINE) * terms.limit_bytes
    assert not terms.uses_shared or (terms.shared_bytes or 0) >= terms.flag_bytes(value)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(terms=terms_of, gib=st.integers(1, 4096))
def test_once_set_it_is_not_set_again(terms: HostTerms, gib: int) -> None:
    bound = LeverBound(OWN, maximum=gib)
    found = propose(
        Knob.KV_OFFLOADING_SIZE, CASE, Setting(None, (bound,), given={}, supply=Supply(host=terms))
    )
    if isinstance(found, NoChange):
        return

    again = propose(
        Knob.KV_OFFLOADING_SIZE,
        CASE,
        Setting(None, (bound,), given={found.knob: found.value}, supply=Supply(host=terms)),
    )

    assert again.reason is Reason.LEVER_AT_BOUND

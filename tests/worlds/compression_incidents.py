"""Incidents of fleets with KV compression: each branch has one that fires it and a twin that must not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from builders import CALM, IDLE, NO_SERIES, NOW, POOL, THRASHING, Replica, an_evidence, without
from kvmedic.model.compression import BundleSetting, Figures, Keep, MethodClass
from kvmedic.model.devices import Cause, NodeHealth
from kvmedic.model.evidence import Measured, PodReadings, Pool, Signal, Unsupported
from kvmedic.model.reasons import Reason
from kvmedic.model.spec import CompressionPolicy
from kvmedic.model.trial import Answer, Growth, Question, Reclaim
from kvmedic.runbooks.branches import Compressed, Evidence, NoChange, Try
from kvmedic.runbooks.compression.savings import figures_of
from runbooks.incident import Incident
from worlds.vitals_builder import a_device, an_end, ill, restarted, with_vitals

TEMPLATE, OFF = "0123456789abcdef", "fedcba9876543210"
EVICTS = Compressed(
    name="TriAttention",
    method_class=MethodClass.COMPACTING_EVICTION,
    known_by="TRIATTN_RUNTIME_KV_BUDGET",
    keep=Keep(2048),
    settings=(BundleSetting(env="ENABLE_TRIATTENTION", on="1", off="0"),),
)
FEWER_BITS = Compressed(
    name="fp8",
    method_class=MethodClass.QUANTIZATION,
    known_by="cache_dtype fp8",
    cache_types=("fp8",),
    asks_for_type="fp8",
    settings=(BundleSetting(flag="--kv-cache-dtype", on="fp8", off=None),),
)
PAGES = Compressed("Quest", MethodClass.PAGE_SELECTION, "spec.compression")
EIGHT = replace(POOL, cache_dtype="fp8", blocks=2 * POOL.blocks)
WIDE = replace(POOL, cache_dtype="fp8", block_tokens=1056)
"""Of a hybrid model, whose blocks are as large as its state asks for."""
GIB = float(1 << 30)
WAITS = NoChange(Reason.GATE_MISSING, "fp8 changes what the cache keeps: give an evaluation")
TRIES = Try(
    Question.RECLAMATION,
    "Mine",
    16_384,
    Keep(2048),
    timedelta(minutes=30),
    Reason.TRIAL_RUNNING,
    "whether its blocks come back is to be shown first",
)
"""What may come after a method that saved nothing."""


def answered(reclaim: Reclaim | None) -> Answer:
    """Return what a trial showed."""
    return Answer(Question.RECLAMATION, TEMPLATE, "on a trial pod 16384 tokens", NOW, 1, reclaim)


def grew(growth: Growth | None) -> Answer:
    """Return what a trial of prompts showed."""
    text = "on a trial pod prompts of 2048, 4096, 8192, 16384 tokens"
    return Answer(Question.PROMPTS, TEMPLATE, text, NOW, 1, growth=growth)


def larger(name: str, times: float) -> Pool:
    """Return a pool that stores in a type, and has so many times the blocks."""
    return replace(POOL, cache_dtype=name, blocks=round(times * POOL.blocks))


def began(blocks: int | None, block_tokens: int | None = None) -> Compressed:
    """Return fewer bits of which a start without them showed so many blocks."""
    text = f"on a trial pod without fp8 there are {blocks} blocks"
    start = Answer(Question.START, OFF, text, NOW, 1, beside=TEMPLATE, blocks=blocks)
    return replace(FEWER_BITS, start_without=start, blocks_without=blocks, block_tokens_without=block_tokens)


def compressed(evidence: Evidence, method: Compressed | None = EVICTS) -> Evidence:
    """Return evidence of a fleet with a method on."""
    return replace(evidence, compression=method)


def holding(evidence: Evidence, gib: float) -> Evidence:
    """Return evidence in which so much of each replica's device, which has 80 GiB, is in use."""
    device = a_device(memory_free=(80 - gib) * 1024, memory_in_use=gib / 80)
    for name in evidence.burn.pods:
        evidence = with_vitals(evidence, name, devices=Measured((device,), NOW))
    return evidence


def without_it(evidence: Evidence, **figures: float | None) -> Figures:
    """Return figures of a fleet without the method: those of now but for what is given."""
    return replace(figures_of(evidence), **figures)


def against(evidence: Evidence, method: Compressed = EVICTS, **figures: float | None) -> Evidence:
    """Return evidence of a fleet with a method on, and what is known of it without."""
    return compressed(evidence, replace(method, without=without_it(evidence, **figures)))


def with_pool(replica: Replica, **pool: object) -> PodReadings:
    """Return the readings of a replica with another pool."""
    return replace(replica, pool=replace(POOL, **pool)).readings()


def fixing(evidence: Evidence, fix: Try | NoChange) -> Evidence:
    """Return evidence of a fleet for which a fix is due, or waits."""
    return replace(evidence, fix=fix)


def unpaged(replica: Replica) -> PodReadings:
    """Return the readings of a replica whose engine reports no pool."""
    return replace(replica.readings(), pool=Unsupported())


CALM_FLEET = an_evidence(*[CALM] * 3)
THRASH = an_evidence(*[THRASHING] * 3)
SLOWER = 1.3 * (figures_of(CALM_FLEET).tokens_per_second or 0.0)
"""Tokens per second of a fleet that now makes a quarter fewer."""
FULLER = 0.9
"""Usage of a fleet without the method, of which CALM uses 0.7."""
EIGHT_BITS_CALM = an_evidence(*[replace(CALM, pool=EIGHT)] * 3)
ONE_STALE = an_evidence(replace(CALM, pool=EIGHT), replace(CALM, pool=EIGHT), CALM)
SAVES = against(CALM_FLEET, kv_cache_usage=FULLER)
GREW = against(holding(CALM_FLEET, 60), tokens_per_second=SLOWER, device_memory=40 * GIB)
FELL_BACK = replace(EVICTS, answer=answered(Reclaim.RECLAIMS))


def unfused(method: Compressed, without: Growth | None = Growth.NONE) -> Compressed:
    """Return a method with which memory grows with the square of the prompt, and how it grows without."""
    return replace(method, grown=grew(Growth.SQUARE), grown_without=grew(without))


NOT_TO_GO = replace(FELL_BACK, grown=grew(Growth.SQUARE), policy=CompressionPolicy(fixes=()))


def slower(method: Compressed = FELL_BACK, gib: float | None = 60, **before: float | None) -> Evidence:
    """Return evidence of a fleet that makes fewer tokens than before; of memory before nothing is known."""
    fleet = CALM_FLEET if gib is None else holding(CALM_FLEET, gib)
    return against(fleet, method, **{"tokens_per_second": SLOWER, "device_memory": None, **before})


def against_bits() -> Evidence:
    """Return evidence of a fleet with fewer bits that makes fewer tokens than before."""
    fleet = holding(EIGHT_BITS_CALM, 60)
    return against(fleet, FEWER_BITS, tokens_per_second=SLOWER, device_memory=None)


COMPRESSION_INCIDENTS: dict[Reason, tuple[Incident, ...]] = {
    Reason.NO_COMPRESSION: (
        Incident("a calm day without compression", CALM_FLEET, fires=True),
        Incident("thrash without compression", THRASH, fires=True),
        Incident("a calm day with compression", compressed(CALM_FLEET), fires=False),
    ),
    Reason.COMPRESSION_SAVES: (
        Incident("usage fell", SAVES, fires=True),
        Incident(
            "usage fell and device memory stayed as it was",
            against(holding(CALM_FLEET, 72), kv_cache_usage=FULLER, device_memory=72 * GIB),
            fires=True,
        ),
        Incident("preemptions fell", against(CALM_FLEET, preemptions_per_request=0.2), fires=True),
        Incident(
            "usage fell by less than windows differ", against(CALM_FLEET, kv_cache_usage=0.72), fires=False
        ),
        Incident("usage fell, and so did the load", against(CALM_FLEET, requests_per_second=99), fires=False),
        Incident("nobody knows how it was before", compressed(CALM_FLEET), fires=False),
        Incident(
            "usage fell, and replicas preempt", against(THRASH, preemptions_per_request=9.0), fires=False
        ),
    ),
    Reason.COMPRESSION_UNDOUBTED: (
        Incident("a calm day, and nobody knows how it was before", compressed(CALM_FLEET), fires=True),
        Incident("nobody sends anything", compressed(an_evidence(IDLE, IDLE)), fires=True),
        Incident(
            "another load than before",
            against(CALM_FLEET, requests_per_second=99, kv_cache_usage=0.7),
            fires=True,
        ),
        Incident("fewer bits everywhere", compressed(EIGHT_BITS_CALM, FEWER_BITS), fires=True),
        Incident("thrash on an ill GPU", ill(compressed(THRASH), a_device(last_xid=79)), fires=True),
        Incident(
            "a replica ran out of device memory",
            restarted(compressed(THRASH), an_end(Cause.DEVICE_MEMORY)),
            fires=True,
        ),
        Incident(
            "nothing moved, and blocks come back on a trial pod", against(CALM_FLEET, FELL_BACK), fires=True
        ),
        Incident("thrash", compressed(THRASH), fires=False),
        Incident(
            "a figure is missing on a replica",
            compressed(an_evidence(CALM, without(CALM.readings(), Signal.KV_CACHE_USAGE_MEAN, NO_SERIES))),
            fires=False,
        ),
        Incident("nothing moved", against(CALM_FLEET), fires=False),
        Incident("one replica has other bits", compressed(ONE_STALE, FEWER_BITS), fires=False),
    ),
    Reason.COMPRESSION_NOT_APPLIED: (
        Incident("one replica has other bits", compressed(ONE_STALE, FEWER_BITS), fires=True),
        Incident("no replica has them", compressed(CALM_FLEET, FEWER_BITS), fires=True),
        Incident(
            "they are there and the pool is no larger, under pressure",
            compressed(
                an_evidence(*[with_pool(THRASHING, cache_dtype="fp8")] * 3),
                replace(FEWER_BITS, blocks_without=POOL.blocks),
            ),
            fires=True,
        ),
        Incident(
            "they are there and the pool is twice as large, under pressure",
            compressed(
                an_evidence(*[replace(THRASHING, pool=EIGHT)] * 3),
                replace(FEWER_BITS, blocks_without=POOL.blocks),
            ),
            fires=False,
        ),
        Incident(
            "as many blocks of twice the tokens, as hybrid models have, under pressure",
            compressed(an_evidence(*[replace(THRASHING, pool=WIDE)] * 3), began(POOL.blocks, 528)),
            fires=False,
        ),
        Incident(
            "as many blocks of the same tokens, under pressure",
            compressed(an_evidence(*[replace(THRASHING, pool=WIDE)] * 3), began(POOL.blocks, 1056)),
            fires=True,
        ),
        *(
            Incident(
                f"{name}, and {times} times as many tokens, under pressure",
                compressed(
                    an_evidence(*[replace(THRASHING, pool=larger(name, times))] * 3),
                    replace(FEWER_BITS, cache_types=(name,), asks_for_type=name, blocks_without=POOL.blocks),
                ),
                fires=fires,
            )
            for name, times, fires in (
                ("nvfp4", 1.9, True),
                ("nvfp4", 2.4, False),
                ("fp8_ds_mla", 1.3, True),
                ("fp8_ds_mla", 1.5, False),
                ("turboquant_3bit_nc", 2.8, True),
                ("turboquant_3bit_nc", 3.2, False),
            )
        ),
        Incident(
            "another form of eight bits",
            compressed(an_evidence(*[with_pool(CALM, cache_dtype="fp8_e4m3")] * 3), FEWER_BITS),
            fires=False,
        ),
        Incident("a method that leaves the bits alone", compressed(THRASH), fires=False),
    ),
    Reason.EAGER_FALLBACK: (
        Incident("throughput fell and memory rose", GREW, fires=True),
        Incident(
            "also on nodes that are known to be well",
            replace(GREW, node_health=NodeHealth.REQUIRED),
            fires=True,
        ),
        Incident(
            "also where a trial frees blocks",
            against(holding(CALM_FLEET, 60), FELL_BACK, tokens_per_second=SLOWER, device_memory=40 * GIB),
            fires=True,
        ),
        Incident(
            "also where a replica ran out of memory for it",
            restarted(GREW, an_end(Cause.DEVICE_MEMORY)),
            fires=True,
        ),
        Incident(
            "throughput fell and memory stayed",
            against(holding(CALM_FLEET, 40), tokens_per_second=SLOWER, device_memory=40 * GIB),
            fires=False,
        ),
        Incident(
            "memory rose and throughput held",
            against(holding(CALM_FLEET, 60), kv_cache_usage=FULLER, device_memory=40 * GIB),
            fires=False,
        ),
        Incident("the memory is unknown", against(CALM_FLEET, tokens_per_second=SLOWER), fires=False),
        Incident(
            "memory grows with the square of the prompt",
            slower(unfused(FELL_BACK)),
            fires=True,
        ),
        Incident(
            "it does so with fewer bits, under pressure",
            compressed(
                an_evidence(*[replace(THRASHING, pool=EIGHT)] * 3),
                unfused(FEWER_BITS),
            ),
            fires=True,
        ),
        Incident(
            "it does so, and a replica ran out of memory for it",
            restarted(slower(unfused(EVICTS)), an_end(Cause.DEVICE_MEMORY)),
            fires=True,
        ),
        Incident(
            "it does so on nodes of which nothing is known",
            replace(
                slower(unfused(FELL_BACK), gib=None),
                node_health=NodeHealth.REQUIRED,
            ),
            fires=False,
        ),
        *(
            Incident(
                f"memory of the prompt: {growth}", slower(replace(FELL_BACK, grown=grew(growth))), fires=False
            )
            for growth in (Growth.LINEAR, Growth.NONE, None)
        ),
        Incident(
            "the other half of the comparison showed nothing", slower(unfused(FELL_BACK, None)), fires=True
        ),
        Incident(
            "turning the method off is not allowed, so nothing is compared", slower(NOT_TO_GO), fires=True
        ),
        Incident("it does so without the method too", slower(unfused(FELL_BACK, Growth.SQUARE)), fires=False),
    ),
    Reason.ATTENTION_UNCOMPARED: (
        Incident(
            "memory grows with the square of the prompt",
            slower(replace(FELL_BACK, grown=grew(Growth.SQUARE))),
            fires=True,
        ),
        Incident(
            "it does so with fewer bits, under pressure",
            compressed(
                an_evidence(*[replace(THRASHING, pool=EIGHT)] * 3),
                replace(FEWER_BITS, grown=grew(Growth.SQUARE)),
            ),
            fires=True,
        ),
        *(
            Incident(f"the other half showed: {growth}", slower(unfused(FELL_BACK, growth)), fires=False)
            for growth in (*Growth, None)
        ),
        Incident("turning the method off is not allowed", slower(NOT_TO_GO), fires=False),
        Incident(
            "nobody knows how the method is turned off", slower(replace(NOT_TO_GO, settings=())), fires=False
        ),
        Incident(
            "memory grows in proportion", slower(replace(FELL_BACK, grown=grew(Growth.LINEAR))), fires=False
        ),
    ),
    Reason.FIX_WAITS: (
        Incident("no gate, under pressure", fixing(THRASH, WAITS), fires=True),
        Incident("no gate, and pages are selected", fixing(compressed(THRASH, PAGES), WAITS), fires=True),
        Incident("no gate, calm", fixing(CALM_FLEET, WAITS), fires=False),
        Incident("a fix is to be tried, under pressure", fixing(THRASH, TRIES), fires=False),
        Incident("no fix, under pressure", THRASH, fires=False),
    ),
    Reason.FIX_DUE: (
        Incident("a fix is to be tried, calm", fixing(CALM_FLEET, TRIES), fires=True),
        Incident("a fix is to be tried, under pressure", fixing(THRASH, TRIES), fires=True),
        Incident("pages are selected, under pressure", fixing(compressed(THRASH, PAGES), TRIES), fires=True),
        Incident("no gate, calm", fixing(CALM_FLEET, WAITS), fires=True),
        Incident("no gate, under pressure", fixing(THRASH, WAITS), fires=False),
        Incident("pages are selected, calm", fixing(compressed(CALM_FLEET, PAGES), TRIES), fires=False),
        Incident("an ill GPU", ill(fixing(THRASH, TRIES), a_device(last_xid=79)), fires=False),
        Incident(
            "a replica ran out of device memory",
            restarted(fixing(THRASH, TRIES), an_end(Cause.DEVICE_MEMORY)),
            fires=False,
        ),
        Incident(
            "on nodes of which nothing is known",
            replace(fixing(THRASH, TRIES), node_health=NodeHealth.REQUIRED),
            fires=False,
        ),
    ),
    Reason.PAGE_SELECTION: (
        Incident("pages are selected, under pressure", compressed(THRASH, PAGES), fires=True),
        Incident("pages are selected, and nothing moved", against(CALM_FLEET, PAGES), fires=True),
        Incident("pages are selected, calm", compressed(CALM_FLEET, PAGES), fires=False),
        Incident("tokens are evicted, under pressure", compressed(THRASH), fires=False),
    ),
    Reason.BLOCKS_NOT_FREED: (
        *(
            Incident(
                f"a trial showed {reclaim}",
                compressed(THRASH, replace(EVICTS, answer=answered(reclaim))),
                fires=True,
            )
            for reclaim in (Reclaim.IN_PART, Reclaim.SCATTERED, Reclaim.PER_HEAD, Reclaim.NONE)
        ),
        Incident(
            "a trial showed InPart, of a number of kept tokens that the spec alone has",
            compressed(THRASH, replace(EVICTS, answer=answered(Reclaim.IN_PART), keep_is_read=False)),
            fires=False,
        ),
        Incident(
            "a trial showed that blocks come back",
            compressed(THRASH, replace(EVICTS, answer=answered(Reclaim.RECLAIMS))),
            fires=False,
        ),
        Incident(
            "a trial showed that none come back, on nodes of which nothing is known",
            replace(
                compressed(THRASH, replace(EVICTS, answer=answered(Reclaim.NONE))),
                node_health=NodeHealth.REQUIRED,
            ),
            fires=False,
        ),
        Incident(
            "a trial showed nothing",
            compressed(THRASH, replace(EVICTS, answer=answered(None))),
            fires=False,
        ),
        Incident(
            "a trial showed that none come back, and nobody suffers",
            compressed(CALM_FLEET, replace(EVICTS, answer=answered(Reclaim.NONE))),
            fires=False,
        ),
    ),
    Reason.PRESSED_THOUGH_COMPRESSED: (
        Incident(
            "blocks come back, under pressure",
            compressed(THRASH, replace(EVICTS, answer=answered(Reclaim.RECLAIMS))),
            fires=True,
        ),
        Incident(
            "fewer bits with twice the tokens, under pressure",
            compressed(
                an_evidence(*[replace(THRASHING, pool=EIGHT)] * 3),
                replace(FEWER_BITS, blocks_without=POOL.blocks),
            ),
            fires=True,
        ),
        Incident(
            "fewer bits that nobody compared, under pressure",
            compressed(an_evidence(*[replace(THRASHING, pool=EIGHT)] * 3), FEWER_BITS),
            fires=False,
        ),
        Incident(
            "usage or preemptions fell, under pressure",
            against(THRASH, preemptions_per_request=9.0),
            fires=True,
        ),
        Incident("nobody knows yet, under pressure", compressed(THRASH), fires=False),
        Incident(
            "blocks come back, calm",
            compressed(CALM_FLEET, replace(EVICTS, answer=answered(Reclaim.RECLAIMS))),
            fires=False,
        ),
    ),
    Reason.ATTENTION_UNPROVEN: (
        Incident("slower, and the memory of before is unknown", slower(), fires=True),
        Incident(
            "answers take longer, and the memory of before is unknown",
            slower(tokens_per_second=figures_of(CALM_FLEET).tokens_per_second, e2e_p95=0.001),
            fires=True,
        ),
        Incident("slower with fewer bits", against_bits(), fires=True),
        Incident(
            "slower, and a trial of blocks showed nothing",
            slower(replace(EVICTS, answer=answered(None))),
            fires=True,
        ),
        Incident("slower, and blocks are not asked about yet", slower(EVICTS), fires=False),
        Incident("slower, and the memory of now is unknown", slower(gib=None), fires=False),
        Incident("slower, with the memory of before", slower(device_memory=60 * GIB), fires=False),
        *(
            Incident(
                f"it was asked: {growth}",
                slower(replace(FELL_BACK, grown=grew(growth))),
                fires=False,
            )
            for growth in (*Growth, None)
        ),
        Incident("as fast as before", slower(tokens_per_second=SLOWER / 1.3), fires=False),
        Incident("under pressure", compressed(THRASH, FELL_BACK), fires=False),
    ),
    Reason.COMPRESSION_UNPROVEN: (
        Incident("under pressure", compressed(THRASH), fires=True),
        Incident("nothing moved at comparable load", against(CALM_FLEET), fires=True),
        Incident("throughput fell", against(CALM_FLEET, tokens_per_second=SLOWER), fires=True),
        Incident(
            "under pressure, and the engine reports no pool",
            compressed(an_evidence(*[unpaged(THRASHING)] * 3)),
            fires=False,
        ),
        Incident(
            "under pressure, with a method that nobody knows",
            compressed(THRASH, replace(EVICTS, name="Mine", method_class=None)),
            fires=False,
        ),
        Incident(
            "a trial showed nothing before",
            compressed(THRASH, replace(EVICTS, answer=answered(None))),
            fires=False,
        ),
        Incident("calm", compressed(CALM_FLEET), fires=False),
        Incident("nothing moved with fewer bits", against(EIGHT_BITS_CALM, FEWER_BITS), fires=True),
        *(
            Incident(f"nothing moved with fewer bits; {text}", against(EIGHT_BITS_CALM, method), fires=False)
            for text, method in {
                "a start without showed the blocks": began(POOL.blocks),
                "a start without showed nothing": began(None),
                "the spec has the blocks": replace(FEWER_BITS, blocks_without=POOL.blocks),
                "the command line sizes the pool": replace(FEWER_BITS, pool_is_fixed=True),
                "nobody knows how they are turned off": replace(FEWER_BITS, settings=()),
            }.items()
        ),
    ),
}

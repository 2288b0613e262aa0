"""vLLM's signals: complete, and named as the recorded pages name them."""

from datetime import UTC, datetime, timedelta

import pytest

from kvmedic.engines.signal_sources import (
    COUNTS_AGREE,
    Across,
    ChangeSource,
    CounterSource,
    GaugeSource,
    HeldRatioSource,
    HeldTailSource,
    HeldWaitSource,
    HistogramSource,
    SignalSource,
    StartSource,
    across_of,
    agreement_of,
)
from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.page import Page, parse_page
from kvmedic.metrics.promql import Span, duration_text, expression, moments_of, presence
from kvmedic.metrics.readings import (
    Presence,
    Replica,
    histogram,
    histogram_of,
    read_number,
    read_pool,
    window,
)
from kvmedic.metrics.series import Series
from kvmedic.model.evidence import (
    HISTOGRAMS,
    Absence,
    Histogram,
    Measured,
    Missing,
    Pool,
    Signal,
    Unsupported,
)
from worlds.scripted_fleet import DATA

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = Span(timedelta(minutes=5), timedelta(minutes=2))
RECORDED = ("idle", "thrash", "recovered", "after-restart-seqs8", "apiserver2")
LABELS = ("namespace", "pod")


def recorded(name: str) -> Page:
    return parse_page((DATA / f"metrics-{name}.txt").read_text(), NOW)


def newest_names(source: SignalSource) -> tuple[str, ...]:
    match source:
        case CounterSource(names=names) | GaugeSource(names=names):
            return names[:1]
        case ChangeSource(names=names):
            return names
        case HistogramSource(names=names):
            return f"{names[0]}_bucket", f"{names[0]}_sum"
        case HeldRatioSource(numerator=numerator, denominator=denominator):
            return newest_names(numerator) + newest_names(denominator)
        case HeldTailSource(names=names, denominator=denominator):
            return f"{names[0]}_bucket", f"{names[0]}_count", *newest_names(denominator)
        case HeldWaitSource(waiting=waiting, ended=ended, in_flight=in_flight):
            return waiting, *newest_names(ended), *in_flight
        case StartSource(name=name):
            return (name,)


def test_every_signal_has_a_source_of_its_kind():
    assert set(VLLM_SIGNALS.signals) == set(Signal)
    histograms = {s for s, source in VLLM_SIGNALS.signals.items() if isinstance(source, HistogramSource)}
    assert histograms == HISTOGRAMS


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("signal", list(Signal))
def test_the_newest_name_is_on_every_recorded_page(name, signal):
    page = recorded(name)
    missing = {n for n in newest_names(VLLM_SIGNALS.signals[signal]) if not page.find(n)}

    several_servers = name == "apiserver2"
    assert missing == (
        {"process_start_time_seconds"} if several_servers and signal is Signal.STARTED_SECONDS else set()
    )


@pytest.mark.parametrize("name", RECORDED)
def test_no_label_of_the_engine_is_taken_for_a_scrapers(name):
    page = recorded(name)
    names = {n for source in VLLM_SIGNALS.signals.values() for n in newest_names(source)}

    labels = {label for n in names for one in page.find(n) for label in one.labels}

    assert labels <= VLLM_SIGNALS.own_labels


def test_queries_name_no_pod():
    texts = [expression(source, SPAN, VLLM_SIGNALS, LABELS) for source in VLLM_SIGNALS.signals.values()]

    assert not [
        text for text in (*texts, presence(SPAN, VLLM_SIGNALS)) if "pod=" in text or "namespace=" in text
    ]


QUERIES = {
    Signal.PREEMPTIONS: "increase(vllm:num_preemptions_total[300s])",
    Signal.KV_CACHE_USAGE_MEAN: "avg_over_time(vllm:kv_cache_usage_perc[300s])"
    " or avg_over_time(vllm:gpu_cache_usage_perc[300s])",
    Signal.WAITING_AT_END: "last_over_time(vllm:num_requests_waiting[300s])",
    Signal.STARTED_SECONDS: "last_over_time(process_start_time_seconds[120s])"
    " and on (namespace, pod, instance, job) last_over_time(vllm:num_requests_running[120s])",
    Signal.E2E_SECONDS: "(increase(vllm:e2e_request_latency_seconds_bucket[300s]))"
    " or increase(vllm:e2e_request_latency_seconds_sum[300s])",
}


@pytest.mark.parametrize("signal", list(QUERIES))
def test_the_query_is(signal):
    assert expression(VLLM_SIGNALS.signals[signal], SPAN, VLLM_SIGNALS, LABELS) == QUERIES[signal]


GRIDS = [
    (timedelta(minutes=2), timedelta(seconds=15), 8, "15s"),
    (timedelta(seconds=30), timedelta(seconds=15), 4, "7500ms"),
    (timedelta(minutes=10), timedelta(seconds=15), 40, "15s"),
    (timedelta(seconds=100), timedelta(seconds=15), 7, "14285ms"),
    (timedelta(seconds=2), timedelta(milliseconds=100), 20, "100ms"),
]


@pytest.mark.parametrize(("hold", "resolution", "count", "step"), GRIDS)
def test_a_hold_is_sampled_at_least_four_times_and_never_beyond_itself(hold, resolution, count, step):
    moments = moments_of(Span(timedelta(minutes=5), hold, resolution))

    assert (moments.count, duration_text(moments.step)) == (count, step)
    assert moments.step <= resolution
    assert moments.count * moments.step <= hold


def replica(*engines: str, scrapers: int = 1) -> Replica:
    found = {frozenset({("replica", str(i))}): NOW + timedelta(seconds=i) for i in range(scrapers)}
    return Replica(Presence(NOW, frozenset(engines or {""}), found, ()), VLLM_SIGNALS)


def series(value: float, bound: float | None = None, scraper: int = 0, **labels: str) -> Series:
    return Series({"replica": str(scraper), **labels}, value, bound)


INF = float("inf")


def buckets(scraper: int, *values: tuple[float, float], total: float = 5.0) -> list[Series]:
    return [series(v, b, scraper) for b, v in values] + [series(total, None, scraper)]


HISTOGRAM_CASES = {
    "counts are those between two bounds": (
        [*buckets(0, (1, 2), (10, 5), (INF, 6))],
        ((1.0, 10.0), (2, 3, 1)),
    ),
    "a bucket below the one before it holds none": (
        buckets(0, (1, 2.1), (10, 2.0), (INF, 3)),
        ((1.0, 10.0), (2.1, 0, pytest.approx(0.9))),
    ),
    "without a sum": ([series(1, INF)], Missing(Absence.NOTHING_FOUND)),
    "without the last bucket": (buckets(0, (1, 2)), Missing(Absence.NOTHING_FOUND)),
    "a sum that is no number": (buckets(0, (INF, 2), total=float("nan")), Missing(Absence.NOT_A_NUMBER)),
    "a bound that is no number": (buckets(0, (-INF, 2), (INF, 3)), Missing(Absence.NOT_A_NUMBER)),
}


@pytest.mark.parametrize(("given", "expected"), HISTOGRAM_CASES.values(), ids=HISTOGRAM_CASES)
def test_a_histogram_of_buckets(given, expected):
    seen = histogram_of(given)

    assert ((seen.bounds, seen.counts) if isinstance(seen, Histogram) else seen) == expected


DUPLICATES = {
    "the same": (buckets(1, (1, 2), (INF, 3)), True),
    "other bounds": (buckets(1, (2, 2), (INF, 3)), False),
    "other counts": (buckets(1, (1, 20), (INF, 30), total=50.0), False),
    "another mean": (buckets(1, (1, 2), (INF, 3), total=9.0), False),
    "no sum": (buckets(1, (1, 2), (INF, 3))[:-1], False),
    "nothing observed yet": (buckets(1, (1, 0), (INF, 1), total=5 / 3), True),
}


@pytest.mark.parametrize(("other", "agree"), DUPLICATES.values(), ids=DUPLICATES)
def test_histograms_of_two_scrapers_agree_or_not(other, *, agree):
    seen = histogram(replica(scrapers=2), [*buckets(0, (1, 2), (INF, 3)), *other])

    assert isinstance(seen, Measured) is agree
    assert agree or seen in {Missing(Absence.AMBIGUOUS), Missing(Absence.NOTHING_FOUND)}


def test_histograms_of_engines_with_other_bounds_do_not_add_up():
    given = [
        Series({**one.labels, "engine": engine}, one.value, one.bound)
        for engine, bound in (("0", 1.0), ("1", 2.0))
        for one in buckets(0, (bound, 2), (INF, 3))
    ]

    assert histogram(replica("0", "1"), given) == Missing(Absence.AMBIGUOUS)


@pytest.mark.parametrize("signal", list(Signal))
def test_duplicates_and_engines_of_every_signal_are_settled(signal):
    source = VLLM_SIGNALS.signals[signal]

    assert agreement_of(source).agrees(3.0, 3.0)
    assert across_of(source) in Across


AGREEING = [(100, 110, True), (100, 114, False), (0, 2, True), (0, 2.3, False), (-5, -5.2, True)]


@pytest.mark.parametrize(("a", "b", "agree"), AGREEING)
def test_counts_agree_within_a_tenth_and_two(a, b, *, agree):
    assert COUNTS_AGREE.agrees(a, b) is agree


def test_of_two_scrapers_that_agree_the_more_recent_counts():
    source = VLLM_SIGNALS.signals[Signal.PREEMPTIONS]

    seen = read_number(replica(scrapers=2), source, [series(100, scraper=0), series(104, scraper=1)])

    assert seen == Measured(104, NOW)


def test_the_deviation_of_engines_is_that_of_a_typical_one():
    source = VLLM_SIGNALS.signals[Signal.KV_CACHE_USAGE_DEVIATION]

    seen = read_number(replica("0", "1"), source, [series(0.3, engine="0"), series(0.1, engine="1")])

    assert seen == Measured(pytest.approx((0.05) ** 0.5), NOW)


def info(scraper: int = 0, **labels: str) -> Series:
    return series(
        1.0, None, scraper, **{"num_gpu_blocks": "150", "block_size": "32", "cache_dtype": "auto"} | labels
    )


POOLS = {
    "an engine of old": ([info()], Pool(149, 32)),
    "fp8": ([info(cache_dtype="fp8")], Pool(149, 32, "fp8")),
    "prefixes reused": ([info(enable_prefix_caching="True")], Pool(149, 32, "auto", True)),
    "prefixes not reused": ([info(enable_prefix_caching="False")], Pool(149, 32, "auto", False)),
    "an engine that does not say": ([info(enable_prefix_caching="None")], Pool(149, 32)),
    "the effective block size counts": (
        [info(effective_attention_block_size="64", kv_cache_size_tokens="9600")],
        Pool(149, 64),
    ),
    "None is not a size": (
        [info(effective_attention_block_size="None", kv_cache_size_tokens="None")],
        Pool(149, 32),
    ),
    "rounding to whole requests is no hybrid": ([info(kv_cache_size_tokens="4700")], Pool(149, 32)),
    "a hybrid's block holds more than its size": (
        [info(kv_cache_size_tokens="217000")],
        Pool(149, 1447, has_window=True),
    ),
    "layers with a sliding window": ([info(sliding_window="1024")], Pool(149, 32, has_window=True)),
    "no sliding window": ([info(sliding_window="None")], Pool(149, 32)),
    "blocks left out": ([info(num_gpu_blocks="None")], Unsupported()),
    "block size left out": ([info(block_size="None")], Unsupported()),
    "blocks that are no number": ([info(num_gpu_blocks="many")], Missing(Absence.NOT_A_NUMBER)),
    "one block, which is the null block": ([info(num_gpu_blocks="1")], Missing(Absence.NOT_A_NUMBER)),
    "two scrapers agree": ([info(), info(scraper=1)], Pool(149, 32)),
    "two scrapers differ": ([info(), info(scraper=1, num_gpu_blocks="151")], Missing(Absence.AMBIGUOUS)),
    "one scraper says two things": ([info(), info(num_gpu_blocks="151")], Missing(Absence.AMBIGUOUS)),
    "an unknown scraper": ([info(scraper=7)], Missing(Absence.NOTHING_FOUND)),
}


@pytest.mark.parametrize(("given", "expected"), POOLS.values(), ids=POOLS)
def test_the_pool_is(given, expected):
    seen = read_pool(replica(scrapers=2), given)

    assert (seen.value if isinstance(seen, Measured) else seen) == expected


PARALLEL = [
    (
        "one frontend for both engines",
        [info(engine="0", num_gpu_blocks="300"), info(engine="1", num_gpu_blocks="300")],
        Pool(298, 32),
    ),
    ("a frontend for each engine", [info(engine="0"), info(1, engine="1")], Pool(298, 32)),
    (
        "tokens are one engine's, blocks are all engines'",
        [info(engine=i, num_gpu_blocks="300", kv_cache_size_tokens="4800") for i in "01"],
        Pool(298, 32),
    ),
    ("only one engine says something", [info(engine="0")], Missing(Absence.NOTHING_FOUND)),
    (
        "engines of different kinds",
        [info(engine="0"), info(1, engine="1", cache_dtype="fp8")],
        Missing(Absence.AMBIGUOUS),
    ),
]


@pytest.mark.parametrize(
    ("given", "expected"), [row[1:] for row in PARALLEL], ids=[row[0] for row in PARALLEL]
)
def test_the_pool_of_two_engines_is(given, expected):
    seen = read_pool(replica("0", "1", scrapers=2), given)

    assert (seen.value if isinstance(seen, Measured) else seen) == expected


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (info(), ""),
        (info(sliding_window="None"), ""),
        (info(sliding_window="4096"), "sliding_window is 4096 in vllm:cache_config_info"),
        (
            info(kv_cache_size_tokens="2400"),
            "vllm:cache_config_info reports 16 tokens per block of 32, as models do that mix kinds of "
            "attention",
        ),
    ],
    ids=["no label", "no window", "a window, of some layers or all", "chunks or mixed layers"],
)
def test_what_of_a_model_frees_blocks_is_named(given, named):
    assert window(replica(), [given]) == named

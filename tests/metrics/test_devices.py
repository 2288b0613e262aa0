"""Readings of GPUs from a real Prometheus over scripted history."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.fleet import FleetMetrics
from kvmedic.metrics.series import PodKey
from kvmedic.model.devices import Device, Vital
from kvmedic.model.evidence import Absence, Measured, Missing, Reading
from kvmedic.model.fleet import Pod
from kvmedic.settings import ScrapeOptions
from run_builder import a_pod
from worlds.http_double import Reply, Request, Server, forwarded
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, source

Devices = Mapping[str, Reading[tuple[Device, ...]]]


async def devices(url: str, *pods: str, namespace: str = NAMESPACE, **options: Any) -> Devices:
    looked = source(url, **options)
    try:
        return await looked.devices([PodKey(namespace, pod) for pod in pods], FIVE)
    finally:
        looked.close()


async def only_device(history: PrometheusServer, pod: str, **options: Any) -> Device:
    found = (await devices(history.url, pod, **options))[pod]
    assert isinstance(found, Measured)
    (device,) = found.value
    return device


CASES = [
    ("nothing is wrong", "gpu-well", {}),
    ("new names", "gpu-renamed", {Vital.CLOCK_REASONS: 0x40, Vital.LAST_XID: 79, Vital.ROW_REMAP_FAILED: 1}),
    ("labels as the exporter set them", "gpu-honoured", {Vital.LAST_XID: 48}),
    ("labels of an exporter of old", "gpu-of-old", {Vital.UNCORRECTABLE_ERRORS: 2}),
    ("hot for a minute of the window", "gpu-was-hot", {Vital.CLOCK_REASONS: 0x40}),
    ("hot before the window", "gpu-was-hot-long-ago", {}),
    ("two reasons one after the other", "gpu-two-reasons", {Vital.CLOCK_REASONS: 0x28}),
    ("ordinary reasons alone", "gpu-capped", {}),
    ("the exporter's pod was replaced", "gpu-moved", {}),
    ("a tenant's page shows another's fault", "gpu-forged", {}),
    ("of two scrapers one saw it", "gpu-twice", {Vital.LAST_XID: 79}),
]
XIDS = [
    ("in the gauge since before its user came", "gpu-old-xid", 0),
    ("before the window, while its user had it", "gpu-xid-of-its-user", 79),
    ("another after one of old", "gpu-xid-again", 48),
    ("before its user came, and before the window", "gpu-xid-after", 0),
    ("before its user came, inside the window", "gpu-xid-next", 79),
    ("nobody knows what was before the window", "gpu-xid-unseen", 79),
    ("of a GPU of the default set", "gpu-default-set", 0),
]


@pytest.mark.parametrize(("pod", "xid"), [case[1:] for case in XIDS], ids=[case[0] for case in XIDS])
async def test_an_xid_counts_that_came_of_late_or_to_its_user(
    history: PrometheusServer, pod: str, xid: int
) -> None:
    device = await only_device(history, pod)

    assert device.value(Vital.LAST_XID) == xid
    assert device.list_unknown() == (), "the default set is enough for `nodeHealth: Required`"


@pytest.mark.parametrize(("pod", "ill"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_a_gpu_is_seen_with(history: PrometheusServer, pod: str, ill: dict[Vital, int]) -> None:
    device = await only_device(history, pod)

    well = dict.fromkeys(
        (Vital.CLOCK_REASONS, Vital.LAST_XID, Vital.UNCORRECTABLE_ERRORS, Vital.ROW_REMAP_FAILED), 0
    )
    assert {vital: device.value(vital) for vital in well} == well | ill
    assert device.list_unknown() == ()
    assert device.name == "GPU 0"
    assert device.reading(Vital.LAST_XID) == Measured(float(ill.get(Vital.LAST_XID, 0)), END)


@pytest.mark.parametrize(
    ("case", "node", "xid"),
    [
        ("Hostname", "gpu-7", 0),
        ("target", "gpu-7", 0),
        ("nobody", "gpu-7", 0),
        ("Hostname", "gpu-8", 79),
        ("Hostname", "", 79),
    ],
    ids=[
        "another node's exporter, by its page",
        "another node's exporter, by its target, whatever its page says",
        "an exporter that hides where it is",
        "no exporter names the replica's node, as those do not that name their own pod",
        "nobody knows where the replica runs",
    ],
)
async def test_only_exporters_on_a_replicas_node_speak_of_its_gpus(
    history: PrometheusServer, case: str, node: str, xid: int, caplog: pytest.LogCaptureFixture
) -> None:
    pod = replace(a_pod(f"gpu-elsewhere-{case}"), node=node)
    looked = source(history.url)
    try:
        for _ in range(2):
            metrics = FleetMetrics({"default": looked}, _no_scrapes())
            seen = (await metrics.devices("default", [pod], NAMESPACE, FIVE))[pod.name]
    finally:
        looked.close()

    assert isinstance(seen, Measured)
    (device,) = seen.value
    assert device.value(Vital.LAST_XID) == xid
    assert device.value(Vital.MEMORY_FREE) == (80 if xid else 4000)
    said = [line for line in caplog.messages if "runs elsewhere" in line]
    assert len(said) == (1 if xid == 0 and case != "nobody" else 0)
    assert all("gpu-9" in line and pod.name in line for line in said)


async def test_each_gpu_of_a_replica_is_one_of_its_own(history: PrometheusServer) -> None:
    found = (await devices(history.url, "gpu-pair"))["gpu-pair"]

    assert isinstance(found, Measured)
    assert {device.name: device.value(Vital.LAST_XID) for device in found.value} == {"GPU 0": 31, "GPU 1": 79}


async def test_what_the_exporter_leaves_out_by_default_is_missing(history: PrometheusServer) -> None:
    device = await only_device(history, "gpu-default-set")

    assert device.list_unknown() == ()
    assert device.reading(Vital.CLOCK_REASONS) == Missing(Absence.NO_SERIES)


async def test_a_number_that_stands_for_none_is_missing(history: PrometheusServer) -> None:
    device = await only_device(history, "gpu-blank")

    assert device.reading(Vital.UNCORRECTABLE_ERRORS) == Missing(Absence.NO_SERIES)
    assert device.value(Vital.LAST_XID) == 0


@pytest.mark.parametrize("pod", ["gpu-silent", "nobody", "thrashing"])
async def test_a_replica_without_a_fresh_series_is_missing(history: PrometheusServer, pod: str) -> None:
    found = await devices(history.url, pod)

    assert found == {pod: Missing(Absence.NO_SERIES)}


async def test_a_pod_of_the_same_name_elsewhere_is_another(history: PrometheusServer) -> None:
    found = await devices(history.url, "gpu-well", namespace="other")

    assert found == {"gpu-well": Missing(Absence.NO_SERIES)}


async def test_a_source_whose_replicas_have_labels_of_their_own(history: PrometheusServer) -> None:
    labels = {"namespace": "exported_namespace", "pod": "exported_pod"}

    device = await only_device(history, "gpu-renamed", labels=labels)

    assert device.value(Vital.LAST_XID) == 79


MEMORY = [
    ("the same all the time", "memory-steady", 0.9),
    ("most at some moment of the window", "memory-peaked", 0.95),
    ("most before the window", "memory-peaked-long-ago", 70_000 / 81_920),
    ("new names, in bytes", "memory-in-bytes", 0.9),
    ("of two scrapers the fuller counts", "memory-twice", 0.91),
    ("a number that stands for none", "memory-blank", None),
    ("nothing used and nothing free", "memory-zero", None),
    ("without the other series", "memory-half-reported", None),
]


@pytest.mark.parametrize(("pod", "share"), [case[1:] for case in MEMORY], ids=[case[0] for case in MEMORY])
async def test_the_share_of_memory_in_use_is(
    history: PrometheusServer, pod: str, share: float | None
) -> None:
    found = (await devices(history.url, pod))[pod]

    ratios = [one.ratio(Vital.MEMORY_IN_USE) for one in found.value] if isinstance(found, Measured) else []
    measured = [ratio for ratio in ratios if ratio is not None]
    assert measured == ([] if share is None else [pytest.approx(share)])


async def test_each_gpu_reports_its_own_memory(history: PrometheusServer) -> None:
    found = (await devices(history.url, "memory-pair"))["memory-pair"]

    assert isinstance(found, Measured)
    assert {device.name: device.ratio(Vital.MEMORY_IN_USE) for device in found.value} == {
        "GPU 0": pytest.approx(0.5),
        "GPU 1": pytest.approx(0.95),
    }


async def test_memory_of_an_exporter_that_fell_silent_is_not_known(history: PrometheusServer) -> None:
    assert await devices(history.url, "memory-silent") == {"memory-silent": Missing(Absence.NO_SERIES)}


async def test_queries_do_not_grow_with_replicas(history: PrometheusServer) -> None:
    with Server(lambda request: forwarded(request, history.url)) as proxy:
        looked = source(proxy.url)
        names = [[PodKey(NAMESPACE, f"pod-{number}") for number in range(pods)] for pods in (1, 200)]
        await asyncio.gather(*(looked.devices(pods, FIVE) for pods in names))
        looked.close()

    assert len(proxy.requests) == 6


async def test_a_source_that_does_not_answer_one_query_leaves_its_vital_unknown(
    history: PrometheusServer,
) -> None:
    def refuse(request: Request) -> Reply:
        heavy = "EVENT_REASONS" in request.text
        return (
            Reply(422, b'{"status":"error","error":"too heavy"}')
            if heavy
            else forwarded(request, history.url)
        )

    with Server(refuse) as proxy:
        found = (await devices(proxy.url, "gpu-well", "nobody"))["gpu-well"]

    assert isinstance(found, Measured)
    assert found.value[0].reading(Vital.CLOCK_REASONS) == Missing(Absence.SOURCE_UNAVAILABLE)
    assert found.value[0].value(Vital.LAST_XID) == 0


async def test_a_source_that_is_down_reports_no_gpu() -> None:
    found = await devices("http://127.0.0.1:9", "gpu-well")

    assert found == {"gpu-well": Missing(Absence.SOURCE_UNAVAILABLE)}


async def test_a_source_is_found_by_name(history: PrometheusServer) -> None:
    metrics = FleetMetrics({"default": source(history.url)}, _no_scrapes())
    pods: list[Pod] = [a_pod("gpu-honoured")]

    known = await metrics.devices("default", pods, NAMESPACE, timedelta(minutes=5))
    unknown = await metrics.devices("another", pods, NAMESPACE, timedelta(minutes=5))
    await metrics.close()

    assert isinstance(known["gpu-honoured"], Measured)
    assert unknown == {"gpu-honoured": Missing(Absence.SOURCE_UNAVAILABLE)}


def _no_scrapes() -> Any:
    return FleetMetrics.from_options({}, ScrapeOptions(), VLLM_SIGNALS)._scraper


@pytest.mark.parametrize(
    ("pod", "free"),
    [
        ("gpu-well", 4000),
        ("gpu-renamed", 4000),
        ("gpu-was-full", 90),
        ("gpu-was-full-long-ago", 4000),
        ("gpu-full-twice", 80),
        ("gpu-default-set", None),
        ("memory-in-bytes", 8192),
    ],
)
async def test_of_the_memory_the_least_of_the_window_counts(
    history: PrometheusServer, pod: str, free: int | None
) -> None:
    assert (await only_device(history, pod)).value(Vital.MEMORY_FREE) == free

"""A source that holds several clusters is asked of one alone, in every selector."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from kvmedic.engines.vllm_signals import VLLM_SIGNALS
from kvmedic.metrics.series import NOTHING, PodKey, Reply
from kvmedic.metrics.source import PrometheusSource
from kvmedic.model.evidence import AT_REST, Absence, Look, Measured, Missing
from kvmedic.settings import SourceOptions
from worlds.prometheus_server import PrometheusServer
from worlds.scripted_fleet import END, FIVE, NAMESPACE, TWO, observed

SELECTOR = re.compile(r"(?:vllm:|DCGM_|process_start|scrape_)\w+(\{[^}]*\})?")
OURS = 'cluster="a", env=~"prod|x{2}"'


class Written:
    """A client that writes down what it is asked."""

    is_narrowed = False

    def __init__(self) -> None:
        self.queries: list[str] = []

    async def query(self, expression: str, at: datetime) -> Reply:
        self.queries.append(expression)
        return NOTHING

    async def query_range(self, expression: str, moments: Sequence[datetime]) -> Sequence[Reply]:
        self.queries.append(expression)
        return [NOTHING for _ in moments]

    def close(self) -> None:
        pass


async def queries(*matchers: str, of_devices: tuple[str, ...] = ()) -> list[str]:
    """Return every query that a source sends, of the present and of the past."""
    client = Written()
    options = SourceOptions(url="http://p", matchers=matchers, device_matchers=of_devices)
    here = PrometheusSource("default", client, options, VLLM_SIGNALS, now=lambda: END)
    for looked in (here, here.as_of(END - timedelta(days=1))):
        await looked.observe([PodKey(NAMESPACE, "calm")], Look(FIVE, TWO))
        await looked.observe([PodKey(NAMESPACE, "calm")], Look(FIVE))
        await looked.observe([PodKey(NAMESPACE, "calm")], Look(FIVE, signals=AT_REST))
        await looked.devices([PodKey(NAMESPACE, "calm")], FIVE)
        await looked.find_pods(FIVE, NAMESPACE, "calm-")
        await looked.peaks([PodKey(NAMESPACE, "calm")])
        await looked.past_lengths([PodKey(NAMESPACE, "calm")])
    return client.queries


async def test_matchers_stand_in_every_selector_and_nothing_else_changes() -> None:
    plain, ours = await queries(), await queries('cluster="a"', 'env=~"prod|x{2}"')

    assert len(plain) == len(ours) > 60
    for before, after in zip(plain, ours, strict=True):
        assert after.replace(f"{{{OURS}}}", "").replace(f"{OURS}, ", "") == before
        count = len(SELECTOR.findall(before))
        assert count > 0
        assert after.count(OURS) == count
        assert after.count("{" + OURS) == count


async def test_matchers_of_exporters_stand_in_the_selectors_of_devices_alone() -> None:
    exporters = 'job="dcgm", namespace="gpu-operator"'
    plain = await queries('cluster="a"')
    narrowed = await queries('cluster="a"', of_devices=('job="dcgm"', 'namespace="gpu-operator"'))

    for before, after in zip(plain, narrowed, strict=True):
        assert after.replace(f", {exporters}", "") == before
        assert after.count(exporters) == before.count("DCGM_FI_")
    assert any(exporters in text for text in narrowed)


async def test_without_matchers_a_query_is_sent_as_it_is() -> None:
    assert not any("cluster" in text for text in await queries())


async def test_a_source_answers_with_the_series_that_match_alone(history: PrometheusServer) -> None:
    look = Look(FIVE, TWO)
    plain, ours, theirs = [
        await observed(history, look, "calm", matchers=matchers)
        for matchers in ((), (f'namespace="{NAMESPACE}"', 'pod!=""'), ('namespace="another"',))
    ]

    assert plain.pods == ours.pods
    assert isinstance(ours.pods["calm"].pool, Measured)
    assert theirs.pods["calm"].pool == Missing(Absence.NO_SERIES)

"""The election on a real API server: with clocks that the test moves, and with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvmedic.kube.client import Client, Limits, connect
from kvmedic.kube.leadership import LONGEST_SECONDS, Leadership, LeaseTimes, fresh_identity
from kvmedic.kube.objects import CONFIG_MAPS, LEASES, JsonObject, Ref, section
from kvmedic.model.edits import PatchOperation
from lab.cluster.light import LightCluster

TIMES = LeaseTimes(duration_seconds=15, margin_seconds=5, retry_seconds=0.02, attempt_seconds=2)
HELD_FOR = TIMES.duration_seconds - TIMES.margin_seconds


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Cut:
    """A connection to the API server that can be cut, before a write arrives or before its answer does."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.hangs = False
        self.loses_answers = False
        self.looks = 0

    async def get(self, ref: Ref) -> JsonObject | None:
        await self._pass()
        found = await self.client.get(ref)
        self.looks += 1
        return found

    async def create(self, ref: Ref, body: JsonObject) -> JsonObject:
        await self._pass()
        return await self.client.create(ref, body)

    async def put(self, ref: Ref, body: JsonObject) -> JsonObject:
        await self._pass()
        answer = await self.client.put(ref, body)
        if self.loses_answers:
            await asyncio.sleep(3600)
        return answer

    async def _pass(self) -> None:
        if self.hangs:
            await asyncio.sleep(3600)


class Candidate:
    """One process that takes part."""

    def __init__(self, client: Client, lease: Ref, clock: Clock, times: LeaseTimes = TIMES) -> None:
        self.wire, self.clock = Cut(client), clock
        self.leadership = Leadership(self.wire, lease, times, fresh_identity(), clock)  # type: ignore[arg-type]

    @property
    def holds(self) -> bool:
        return self.leadership.is_held()

    async def until(self, holds: bool, seconds: float = 5) -> None:
        async with asyncio.timeout(seconds):
            while self.holds is not holds:
                await asyncio.sleep(0.01)

    async def looked(self, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not self.wire.looks:
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Candidate]:
        task = asyncio.create_task(self.leadership.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def client(light: LightCluster) -> AsyncIterator[Client]:
    async with await connect(light.kubeconfig, Limits(per_second=500, burst=500)) as made:
        yield made


@pytest.fixture
def lease(namespace: str) -> Ref:
    return Ref(LEASES, namespace, "kvmedic")


async def spec_of(client: Client, lease: Ref) -> JsonObject:
    return section(await client.get(lease) or {}, "spec")


async def pauses(clock: Clock, seconds: float) -> None:
    """Let time pass in small steps, with room for attempts in between."""
    for _ in range(int(seconds)):
        clock.now += 1
        await asyncio.sleep(0.06)


class TestElection:
    async def test_the_first_creates_the_lease_and_holds_it(self, client: Client, lease: Ref) -> None:
        candidate = Candidate(client, lease, Clock())
        assert not candidate.holds

        async with candidate.running():
            await candidate.until(True)
            spec = await spec_of(client, lease)

        assert spec["leaseDurationSeconds"] == 15
        assert spec["leaseTransitions"] == 1
        assert spec["acquireTime"] <= spec["renewTime"]

    async def test_while_one_renews_no_other_gets_it(self, client: Client, lease: Ref) -> None:
        clock = Clock()
        first, second = Candidate(client, lease, clock), Candidate(client, lease, clock)

        async with first.running():
            await first.until(True)
            async with second.running():
                for _ in range(40):
                    await pauses(clock, 1)
                    assert (first.holds, second.holds) == (True, False)

    async def test_a_lease_that_asks_for_68_years_is_not_believed(self, client: Client, lease: Ref) -> None:
        spec = {"holderIdentity": "gone", "leaseDurationSeconds": 2**31 - 1}
        await client.create(lease, {"metadata": {"name": lease.name}, "spec": spec})
        clock = Clock()
        candidate = Candidate(client, lease, clock)

        async with candidate.running():
            await pauses(clock, 20)
            assert not candidate.holds
            for _ in range(600):
                clock.now += LONGEST_SECONDS + 1
                await asyncio.sleep(0.1)
                if candidate.holds:
                    break

            assert (await spec_of(client, lease))["leaseDurationSeconds"] == 15

    async def test_given_back_it_is_taken_at_once(self, client: Client, lease: Ref) -> None:
        clock = Clock()
        first, second = Candidate(client, lease, clock), Candidate(client, lease, clock)

        async with first.running():
            await first.until(True)
        assert not first.holds
        assert (await spec_of(client, lease))["holderIdentity"] == ""
        async with second.running():
            await second.until(True)

            assert (await spec_of(client, lease))["leaseTransitions"] == 2

    async def test_a_holder_cut_off_stops_before_another_begins(self, client: Client, lease: Ref) -> None:
        clock = Clock()
        first, second = Candidate(client, lease, clock), Candidate(client, lease, clock)
        both, order = False, []

        async with first.running(), second.running():
            await asyncio.sleep(0.3)
            holder, other = (first, second) if first.holds else (second, first)
            holder.wire.hangs = True
            for _ in range(40):
                await pauses(clock, 1)
                both = both or (holder.holds and other.holds)
                order.append((holder.holds, other.holds))
                if other.holds:
                    break

        assert not both
        assert (False, False) in order
        assert order[-1] == (False, True)
        assert len(order) >= TIMES.duration_seconds

    async def test_a_stopped_process_finds_its_time_over_at_once(self, client: Client, lease: Ref) -> None:
        clock = Clock()
        candidate = Candidate(client, lease, clock)

        async with candidate.running():
            await candidate.until(True)
            candidate.wire.hangs = True
            await asyncio.sleep(0.1)
            clock.now += HELD_FOR

            assert not candidate.holds

    @pytest.mark.parametrize(("age", "held"), [(-0.01, True), (0, False), (0.01, False)])
    async def test_the_time_counts_from_before_the_renewal_was_sent(
        self,
        client: Client,
        lease: Ref,
        age: float,
        held: bool,
    ) -> None:
        clock = Clock()
        slow = LeaseTimes(duration_seconds=15, margin_seconds=5, retry_seconds=5, attempt_seconds=4)
        candidate = Candidate(client, lease, clock, slow)
        create = candidate.wire.create

        async def late(ref: Ref, body: JsonObject) -> JsonObject:
            answer = await create(ref, body)
            clock.now += 3
            return answer

        candidate.wire.create = late  # type: ignore[method-assign]
        async with candidate.running():
            await candidate.until(True)
            clock.now += HELD_FOR - 3 + age

            assert candidate.holds is held

    async def test_a_renewal_whose_answer_was_lost_is_found_again(self, client: Client, lease: Ref) -> None:
        clock = Clock()
        times = LeaseTimes(duration_seconds=15, margin_seconds=5, retry_seconds=0.02, attempt_seconds=0.2)
        candidate = Candidate(client, lease, clock, times)

        async with candidate.running():
            await candidate.until(True)
            candidate.wire.loses_answers = True
            await asyncio.sleep(0.5)
            candidate.wire.loses_answers = False
            clock.now += HELD_FOR
            await candidate.until(True)

        assert (await spec_of(client, lease))["leaseTransitions"] == 1

    async def test_taken_away_by_hand_it_is_gone_with_the_next_renewal(
        self, client: Client, lease: Ref
    ) -> None:
        candidate = Candidate(client, lease, Clock())

        async with candidate.running():
            await candidate.until(True)
            await client.json_patch(lease, [PatchOperation("replace", "/spec/holderIdentity", "a person")])
            await candidate.until(False)

            assert (await spec_of(client, lease))["holderIdentity"] == "a person"

    async def test_a_deleted_lease_is_made_again(
        self, client: Client, lease: Ref, light: LightCluster
    ) -> None:
        candidate = Candidate(client, lease, Clock())

        async with candidate.running():
            await candidate.until(True)
            light.api.delete("Lease", lease.name, lease.namespace)
            await asyncio.sleep(0.3)
            await candidate.until(True)

            assert await client.get(lease) is not None

    async def test_a_lease_of_nobody_known_runs_out_after_its_own_time(
        self, client: Client, lease: Ref
    ) -> None:
        clock = Clock()
        spec = {"holderIdentity": "an older version", "leaseDurationSeconds": 30}
        await client.create(lease, {"metadata": {"name": lease.name}, "spec": spec})
        candidate = Candidate(client, lease, clock)

        async with candidate.running():
            await candidate.looked()
            await pauses(clock, 30)
            before = candidate.holds
            clock.now += 2
            await candidate.until(True)

            assert (before, candidate.holds) == (False, True)

    async def test_without_permission_nobody_holds_it_and_it_is_said_once(
        self, light: LightCluster, lease: Ref, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        kubeconfig = light.impersonate("default", lease.namespace).write_kubeconfig(tmp_path / "config")
        async with await connect(kubeconfig, Limits(per_second=500)) as nobody:
            candidate = Candidate(nobody, lease, Clock())
            async with candidate.running():
                await asyncio.sleep(0.5)
                held = candidate.holds

        assert not held
        assert [record.levelname for record in caplog.records].count("WARNING") == 1
        assert "cannot get resource" in caplog.text

    async def test_nothing_held_nothing_given_back(self, client: Client, lease: Ref) -> None:
        spec = {"holderIdentity": "somebody", "leaseDurationSeconds": 30}
        await client.create(lease, {"metadata": {"name": lease.name}, "spec": spec})
        candidate = Candidate(client, lease, Clock())

        async with candidate.running():
            await asyncio.sleep(0.2)

        assert (await spec_of(client, lease))["holderIdentity"] == "somebody"


PROCESS = """
import asyncio, sys, time
from pathlib import Path
from kvmedic.kube.client import connect
from kvmedic.kube.client import Limits
from kvmedic.kube.leadership import Leadership, LeaseTimes, fresh_identity
from kvmedic.kube.objects import LEASES, Ref

async def main(kubeconfig, namespace):
    times = LeaseTimes(duration_seconds=3, margin_seconds=1, retry_seconds=0.2, attempt_seconds=1)
    async with await connect(Path(kubeconfig), Limits()) as client:
        part = Leadership(client, Ref(LEASES, namespace, "kvmedic"), times, fresh_identity())
        asyncio.create_task(part.run())
        while True:
            print(f"{time.monotonic()} {int(part.is_held())}", flush=True)
            time.sleep(0.01)
            await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_process_that_was_stopped_and_goes_on_does_not_act(
    light: LightCluster, namespace: str, tmp_path: Path
) -> None:
    script = tmp_path / "candidate.py"
    script.write_text(PROCESS)

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    async def start(name: str) -> tuple[asyncio.subprocess.Process, Path]:
        log = tmp_path / name
        with log.open("w") as out:
            argv = [sys.executable, str(script), str(light.kubeconfig), namespace]
            return await asyncio.create_subprocess_exec(*argv, stdout=out, env=environment), log

    first, first_log = await start("first")
    try:
        await seen(first_log, "1")
        second, second_log = await start("second")
        try:
            await asyncio.sleep(1)
            first.send_signal(signal.SIGSTOP)
            await seen(second_log, "1")
            resumed_at = time.monotonic()
            first.send_signal(signal.SIGCONT)
            await asyncio.sleep(1.5)
        finally:
            second.kill()
            await second.wait()
    finally:
        first.kill()
        await first.wait()

    held_by_first = [at for at, held in lines(first_log) if held == "1"]
    held_by_second = [at for at, held in lines(second_log) if held == "1"]
    assert max(held_by_first) < min(held_by_second)
    assert [held for at, held in lines(first_log) if at >= resumed_at].count("0") > 10


def lines(log: Path) -> list[tuple[float, str]]:
    """What the process has said, without a last line that it is still writing."""
    said = (line.partition(" ") for line in log.read_text().splitlines(keepends=True) if line.endswith("\n"))
    return [(float(at), held.strip()) for at, _, held in said]


async def seen(log: Path, held: str, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while held not in (each for _, each in lines(log)):
            await asyncio.sleep(0.05)


def test_times_that_one_failed_renewal_would_break_are_refused() -> None:
    with pytest.raises(ValueError, match="leaseRetry"):
        LeaseTimes(duration_seconds=10, margin_seconds=5, retry_seconds=2, attempt_seconds=3)


def test_something_else_than_a_lease_is_refused() -> None:
    with pytest.raises(ValueError, match="not a Lease"):
        Leadership(None, Ref(CONFIG_MAPS, "a", "b"), TIMES, "me")  # type: ignore[arg-type]


def test_no_two_processes_share_an_identity() -> None:
    made: Callable[[], str] = fresh_identity

    assert len({made() for _ in range(100)}) == 100

"""Replicas' GPU drivers, asked by nvidia-smi in containers: what is known, and how seldom they are asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from kubernetes.aio.client import Configuration

from kvmedic.cluster.nvidia_smi import LIMIT_BYTES, NvidiaSmi, Patience
from kvmedic.kube.client import Client, Limits
from kvmedic.model.devices import Answer, Silence, Vital
from kvmedic.model.evidence import Measured
from kvmedic.model.fleet import Pod
from lab.scripted.commands import (
    NO_PROGRAM,
    STDOUT,
    Commands,
    Play,
    exit_status,
    floods,
    hangs,
    prints,
    sends,
    serving,
)
from run_builder import a_pod

UUID = "GPU-5a1f0c9e-30ba-9f6e-0000-0123456789ab"
WELL = f"0, {UUID}, Disabled, 0, 0x0000000000000004\n"
SOON = Patience(seconds=5)


def pods(count: int) -> list[Pod]:
    return [replace(a_pod(f"llm-{i}"), uid=f"uid-{i}") for i in range(count)]


@asynccontextmanager
async def drivers(commands: Commands, patience: Patience = SOON) -> AsyncIterator[NvidiaSmi]:
    async with serving(commands) as port:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        async with Client(configuration, Limits(per_second=1000)) as client:
            yield NvidiaSmi(client, patience)


async def asked(commands: Commands, count: int = 1, patience: Patience = SOON) -> Mapping[str, Answer]:
    async with drivers(commands, patience) as made:
        return await made.ask("serving", pods(count), "vllm")


def clocks(answer: Answer) -> int | None:
    assert isinstance(answer, Measured)
    return answer.value[0].value(Vital.CLOCK_REASONS)


@pytest.mark.parametrize(
    ("commands", "silence"),
    [
        (Commands(refusal=403), Silence.FORBIDDEN),
        (Commands(refusal=401), Silence.UNREACHABLE),
        (Commands(refusal=404), Silence.UNREACHABLE),
        (Commands(refusal=500), Silence.UNREACHABLE),
        (Commands(sends(NO_PROGRAM)), Silence.NOT_STARTED),
        (Commands(hangs), Silence.TIMED_OUT),
        (Commands(floods), Silence.TOO_LONG),
        (Commands(sends(STDOUT + b"x" * (LIMIT_BYTES + 1))), Silence.TOO_LONG),
        (Commands(sends(STDOUT + WELL.encode())), Silence.UNREACHABLE),
        (Commands(prints("")), Silence.NO_DEVICE),
        (Commands(prints("Failed to initialize NVML\n", code=255)), Silence.FAILED),
        (Commands(prints('Field "x" is not a valid field to query.\n', code=2)), Silence.UNKNOWN_FIELD),
    ],
    ids=[
        "it may not be run",
        "a wrong token",
        "the container is gone",
        "the kubelet is away",
        "it is not in the image",
        "it hangs",
        "it prints without end",
        "it prints too much",
        "its answer was cut off",
        "it lists nothing",
        "it fails",
        "it knows no such field",
    ],
)
async def test_a_driver_that_tells_nothing_is_never_one_whose_gpus_are_well(
    commands: Commands, silence: Silence
) -> None:
    assert await asked(commands, patience=Patience(seconds=2)) == {"llm-0": silence}


async def test_each_replica_has_its_own_answer() -> None:
    hot = prints(WELL.replace("0x0000000000000004", "0x0000000000000040"))
    commands = Commands(prints(WELL), plays={"llm-1": hot, "llm-2": hangs})

    found = await asked(commands, 3)

    assert (clocks(found["llm-0"]), clocks(found["llm-1"]), found["llm-2"]) == (0, 0x40, Silence.TIMED_OUT)
    assert {container for _, container, _ in commands.asked} == {"vllm"}


async def test_a_driver_of_old_is_asked_by_the_fields_old_name() -> None:
    async def of_old(socket: object, words: list[str]) -> None:
        new = any("clocks_event_reasons" in word for word in words)
        await (prints("not a valid field", code=2) if new else prints(WELL))(socket, words)  # type: ignore[arg-type]

    commands = Commands(of_old)

    found = await asked(commands)

    assert clocks(found["llm-0"]) == 0
    assert ["clocks_event" in words[1] for _, _, words in commands.asked] == [True, False]


async def test_a_fresh_answer_serves_again_and_an_old_one_does_not() -> None:
    commands = Commands(prints(WELL))
    async with drivers(commands, Patience(seconds=30, fresh_seconds=1.0)) as made:
        first = await made.ask("serving", pods(1), "vllm")
        second = await made.ask("serving", pods(1), "vllm")
        assert (len(commands.asked), second) == (1, first)
        await asyncio.sleep(1.1)

        third = await made.ask("serving", pods(1), "vllm")

    assert len(commands.asked) == 2
    assert isinstance(first["llm-0"], Measured)
    assert isinstance(third["llm-0"], Measured)
    assert third["llm-0"].at > first["llm-0"].at


async def test_another_pod_of_the_same_name_is_asked_anew() -> None:
    commands = Commands(prints(WELL))
    async with drivers(commands) as made:
        await made.ask("serving", pods(1), "vllm")
        await made.ask("serving", [replace(pods(1)[0], uid="another")], "vllm")

    assert len(commands.asked) == 2


async def test_one_that_hung_is_left_alone_for_longer_than_one_that_answered() -> None:
    """Each try may leave another process that nobody can end."""
    commands = Commands(hangs)
    async with drivers(commands, Patience(seconds=0.2, fresh_seconds=0.3)) as made:
        await made.ask("serving", pods(1), "vllm")
        await asyncio.sleep(0.5)

        found = await made.ask("serving", pods(1), "vllm")

    assert (len(commands.asked), found) == (1, {"llm-0": Silence.TIMED_OUT})


async def test_few_are_asked_at_once() -> None:
    async def slow(socket: object, words: list[str]) -> None:
        await asyncio.sleep(0.1)
        await prints(WELL)(socket, words)  # type: ignore[arg-type]

    commands = Commands(slow)

    found = await asked(commands, 9, Patience(seconds=30, at_once=3))

    assert commands.most_at_once == 3
    assert {clocks(answer) for answer in found.values()} == {0}


async def test_a_look_ends_in_time_however_many_hang_and_the_next_goes_on_with_the_others() -> None:
    answering: dict[str, Play] = {f"llm-{i}": prints(WELL) for i in range(4, 6)}
    commands = Commands(hangs, plays=answering)
    patience = Patience(seconds=3, at_once=2, look_seconds=1)
    async with drivers(commands, patience) as made:
        began = time.monotonic()
        first = await made.ask("serving", pods(6), "vllm")
        took = time.monotonic() - began
        second = await made.ask("serving", pods(6), "vllm")
        third = await made.ask("serving", pods(6), "vllm")

    assert list(first.values()) == [Silence.TIMED_OUT] * 2 + [Silence.NO_TURN] * 4
    assert list(second.values())[:4] == [Silence.TIMED_OUT] * 4
    assert [clocks(third[name]) for name in answering] == [0, 0]
    assert took < 10
    assert len(commands.asked) == 6


async def test_one_replica_that_answers_is_not_kept_from_it_by_one_that_hangs() -> None:
    found = await asked(Commands(hangs, plays={"llm-1": sends(STDOUT + WELL.encode(), exit_status(0))}), 2)

    assert (found["llm-0"], clocks(found["llm-1"])) == (Silence.TIMED_OUT, 0)

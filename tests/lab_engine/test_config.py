"""Command line, defaults and bounds against what vLLM 0.32 made of the same arguments."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.engine.arguments import parse_api_server, parse_serve
from lab.engine.config import ConfigError, resolve
from lab.engine.logs import log_pool
from lab.engine.settings import Faults, LabSettings

DATA = Path(__file__).parents[1] / "data" / "vllm"
CASES = json.loads((DATA / "argv_cases.json").read_text())
SERVED = [case for case in CASES if case["argv"][0] == "vllm"]
# The lab's model has no compilation levels, so it has nothing to refuse there.
REFUSED = [case for case in SERVED if "config_error" in case and "-O.mode=3" not in case["argv"]]


def resolved(*argv, **environ):
    return resolve(parse_serve(["serve", *argv]), environ)


def locally(argv):
    return [part.replace("/config/", f"{DATA}/config/") for part in argv[2:]]


@pytest.mark.parametrize(
    "case", [c for c in SERVED if "resolved" in c], ids=lambda c: " ".join(c["argv"][2:])
)
def test_defaults_and_values_are_vllms(case):
    config = resolved(*locally(case["argv"]))

    assert {
        "max_num_seqs": config.limits.max_num_seqs,
        "max_num_active_seqs": config.limits.max_num_active_seqs,
        "max_model_len": config.limits.max_model_len,
        "max_num_batched_tokens": config.limits.max_num_batched_tokens,
        "enable_prefix_caching": config.prefix_caching,
        "enable_chunked_prefill": config.limits.chunked_prefill,
        "block_size": config.pool.block_size,
        "watermark": config.limits.watermark,
    }.items() <= case["resolved"].items()


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: " ".join(c["argv"][2:]))
def test_what_vllm_refuses_to_start_with_is_refused(case):
    named = next(
        name
        for name in ("max_num_seqs", "max_model_len", "gpu_memory_utilization")
        if name in case["config_error"]
    )

    with pytest.raises(ConfigError, match=named):
        resolved(*locally(case["argv"]))


def test_the_recorded_pool_has_the_recorded_size():
    config = resolved(
        "m", "--block-size", "32", "--max-model-len", "2048", "--num-gpu-blocks-override", "150"
    )

    assert (config.pool.profiled_blocks, config.pool.total_blocks, config.pool.tokens) == (32768, 150, 4800)
    assert config.labels["kv_cache_max_concurrency"] == "2.34375"


def test_a_pool_without_blocks_or_too_small_for_one_request_is_refused():
    with pytest.raises(ConfigError, match="No available memory for the cache blocks"):
        resolved("m", LAB_DEVICE_MEMORY_MIB="100", LAB_WEIGHTS_MIB="99")
    with pytest.raises(ConfigError, match="To serve at least one request"):
        resolved("m", "--num-gpu-blocks-override", "2")


DEVICE = {"LAB_DEVICE_MEMORY_MIB": "100", "LAB_WEIGHTS_MIB": "50"}
LARGE_STEPS = DEVICE | {"LAB_STEP_TOKEN_KIB": "4"}
FEWER = {"LAB_FAULT_MISSING_BLOCKS": "10", "LAB_FAULT_ONLY_BELOW_SEQS": "64"}
# On a device: MiB left x 32 blocks of 32 KiB; a large step takes 4 KiB for each of its tokens.
POOLS = {
    "a share of the device": (["--gpu-memory-utilization=0.8"], DEVICE, 30 * 32),
    "a larger share": (["--gpu-memory-utilization=0.9"], DEVICE, 40 * 32),
    "beside a step of 1024 tokens": (["--max-num-batched-tokens=1024"], LARGE_STEPS, (42 - 4) * 32),
    "beside a step of 5120 tokens": (["--max-num-batched-tokens=5120"], LARGE_STEPS, (42 - 20) * 32),
    "a fault for a changed setting only": (
        ["--num-gpu-blocks-override=150", "--max-num-seqs=64"],
        FEWER,
        150,
    ),
    "the changed setting": (["--num-gpu-blocks-override=150", "--max-num-seqs=63"], FEWER, 140),
}


@pytest.mark.parametrize(("argv", "environ", "blocks"), POOLS.values(), ids=POOLS)
def test_the_pool_has_what_is_left_for_it(argv, environ, blocks):
    assert resolved("m", "--block-size=32", *argv, **environ).pool.total_blocks == blocks


def test_without_chunks_a_step_holds_the_longest_request_and_the_pool_is_smaller():
    whole, chunked = (
        resolved("m", "--block-size=32", flag, LAB_STEP_TOKEN_KIB="4", **DEVICE)
        for flag in ("--no-enable-chunked-prefill", "--enable-chunked-prefill")
    )

    assert (whole.limits.max_num_batched_tokens, chunked.limits.max_num_batched_tokens) == (4096, 2048)
    assert chunked.pool.total_blocks - whole.pool.total_blocks == 2048 * 4 // 32


def test_the_host_holds_as_many_blocks_as_its_memory_has_room_for():
    config = resolved("m", "--block-size=32", "--kv-offloading-size=0.5", **DEVICE)

    assert (config.host_blocks, config.lacks_device_for_host) == (512 * 32, False)


@pytest.mark.parametrize(("size", "lacks_device"), [("0.5", True), ("0", False)])
def test_the_cpu_build_has_no_device_to_offload_from(size, lacks_device):
    config = resolved("m", f"--kv-offloading-size={size}")

    assert (config.host_blocks, config.lacks_device_for_host) == (0, lacks_device)


def test_an_engine_need_not_report_its_pool(capsys):
    reported, unreported = (
        resolved("m", "--num-gpu-blocks-override=150", LAB_FAULT_UNREPORTED_POOL=each) for each in "01"
    )

    for config in (reported, unreported):
        log_pool(config, 1.0)

    assert (reported.labels["num_gpu_blocks"], unreported.labels["num_gpu_blocks"]) == ("150", "None")
    assert capsys.readouterr().out.count("KV cache size") == 1


@pytest.mark.parametrize(("seqs", "crashes"), [(7, True), (8, False), (16, False), (17, True)])
def test_an_engine_set_to_crash_does_so_outside_its_bounds_only(seqs, crashes):
    environ = {"LAB_FAULT_CRASH_BELOW_SEQS": "8", "LAB_FAULT_CRASH_ABOVE_SEQS": "16"}
    faults = Faults.from_environ(seqs, environ)

    assert (faults.reason_to_crash(seqs) is not None) == crashes


@pytest.mark.parametrize(("share", "at_start", "at"), [(0.92, True, None), (0.9, False, None)])
def test_an_engines_memory_runs_out_above_a_share_of_its_device_only(share, at_start, at):
    faults = Faults.from_environ(8, {"LAB_FAULT_OOM_ABOVE_UTILIZATION": "0.9"})
    later = replace(faults, oom_running=3)

    assert (faults.runs_out_at_start(share), faults.runs_out_at(share)) == (at_start, at)
    assert (later.runs_out_at_start(share), later.runs_out_at(share)) == (False, 3 if at_start else None)


def test_a_fault_may_be_that_of_a_changed_setting_only():
    environ = {"LAB_FAULT_SLOWDOWN": "4", "LAB_FAULT_ONLY_BELOW_SEQS": "64"}

    assert [Faults.from_environ(seqs, environ).slowdown for seqs in (63, 64)] == [4.0, 1.0]


def test_the_time_scale_touches_step_and_start_up():
    settings = LabSettings.from_environ({"LAB_TIME_SCALE": "0.5", "LAB_STEP_MS": "10", "LAB_TOKEN_US": "100"})

    assert settings.cost.of(10) == pytest.approx(0.0055)
    assert settings.startup_seconds == 6.0


def test_a_setting_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="LAB_STEP_MS='fast' is not a number"):
        LabSettings.from_environ({"LAB_STEP_MS": "fast"})


def parse(argv):
    local = [part.replace("/config/", f"{DATA}/config/") for part in argv]
    if local[0] == "python":
        return vars(parse_api_server(local[3:]))
    return vars(parse_serve(local[1:]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case["argv"][2:]))
def test_arguments_are_read_as_vllm_read_them(case, capsys):
    if "parsed" in case:
        parsed = parse(case["argv"])
        assert {name: parsed[name] for name in case["parsed"]} == case["parsed"]
        return

    with pytest.raises((SystemExit, FileNotFoundError)) as stopped:
        parse(case["argv"])

    if stopped.type is SystemExit:
        assert stopped.value.code == case["exit"] == 2
        assert capsys.readouterr().err.strip().splitlines()[-1] == case["error"]
    else:
        assert case["error"].startswith("FileNotFoundError")


def test_one_pod_in_so_many_starts_late_by_its_address():
    environ = {"LAB_FAULT_SLOW_START_SECONDS": "120", "LAB_FAULT_SLOW_START_ONE_IN": "8"}
    one_in_eight, all_of_them = (
        Faults.from_environ(64, {**environ, **more}) for more in ({}, {"LAB_FAULT_SLOW_START_ONE_IN": ""})
    )

    late = [one_in_eight.start_delay(f"10.77.0.{last}") for last in range(10, 26)]
    assert (late.count(120), late.count(0), late.index(120)) == (2, 14, 6)
    assert all_of_them.start_delay("10.77.0.13") == 120

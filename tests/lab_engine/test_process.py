"""The lab engine as a process: how it starts, fails to start, and stops."""

import json
import re
import signal
import threading
import time

import httpx
import pytest

from kvmedic.cluster.containers.exit_causes import bears_device_memory
from lab.cluster import usage
from lab.engine.__main__ import serve
from lab.engine.logs import OUT_OF_MEMORY
from lab.engine.server import TEARDOWN_SECONDS
from lab_engine.engine_process import PLAIN, SMALL, TESTS, a_process, free_port, until_healthy


def ask(url, results, **fields):
    body = {"prompt": "a b c", "max_tokens": 100, "stream": True, **fields}
    lines = []
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, **PLAIN) as response:
            lines += [line for line in response.iter_lines() if line]
    except httpx.TransportError as error:
        lines.append(f"cut: {error}")
    results.append(lines)


def start_streams(url, count):
    """Start streams in threads; returns when the engine has all of them."""
    results = []
    threads = [threading.Thread(target=ask, args=(url, results)) for _ in range(count)]
    for thread in threads:
        thread.start()
    while under_way(url) < count:
        time.sleep(0.02)
    return threads, results


def under_way(url):
    text = httpx.get(f"{url}/metrics", **PLAIN).text
    counts = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)", text, re.MULTILINE)
    return sum(float(count) for count in counts)


def is_refused(url):
    try:
        httpx.get(f"{url}/health", **PLAIN)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False  # accepted just before the end, and cut
    return False


def test_it_logs_what_operators_look_for_listens_and_stops_to_listen_before_it_goes():
    with a_process("--max-num-seqs=8", "--served-model-name=tiny") as (process, url):
        until_healthy(url)
        process.terminate()
        while not is_refused(url):
            time.sleep(0.02)
        assert process.poll() is None  # it goes TEARDOWN_SECONDS later
        out, _ = process.communicate(timeout=60)

    assert TEARDOWN_SECONDS < 2  # a real process was gone after 1.5 to 2.1 s
    assert re.search(r"\(EngineCore pid=\d+\) INFO \d\d-\d\d [\d:]{8} \[kv_cache_utils.py:\d+\] ", out)
    assert re.search(
        r"CPU KV cache size: 520 tokens, Maximum concurrency for 512 tokens per request: 1\.02x", out
    )
    assert "Overriding num_gpu_blocks=131072 with num_gpu_blocks_override=65" in out
    arguments = re.search(r"non-default args: (\{.*\})", out)[1]
    assert "'max_num_seqs': 8" in arguments


OOM = {"LAB_FAULT_OOM_ABOVE_UTILIZATION": "0.9"}
ENDS = {
    "an unknown flag": (["--swap-space=4"], {}, 2, "vllm: error: unrecognized arguments: --swap-space=4\n"),
    "a setting that cannot work": (
        ["--max-num-seqs=32", "--max-num-batched-tokens=16"],
        {},
        1,
        "max_num_batched_tokens (16) must be greater than or equal to max_num_seqs (32)",
    ),
    "set to crash below a cap": (
        ["--max-num-seqs=8"],
        {"LAB_FAULT_CRASH_BELOW_SEQS": "9"},
        1,
        "EngineCore failed to start",
    ),
    "set to die with a message": (
        [],
        {"LAB_FAULT_CRASH_ABOVE_SEQS": "1", "LAB_FAULT_CRASH_MESSAGE": "torch.OutOfMemoryError: CUDA"},
        1,
        "torch.OutOfMemoryError: CUDA",
    ),
    "a share of the device over what it has": (["--gpu-memory-utilization=0.92"], OOM, 1, OUT_OF_MEMORY),
    "its version": (["--version"], {}, 0, "0.32.0\n"),
}


@pytest.mark.parametrize(("arguments", "environ", "code", "said"), ENDS.values(), ids=ENDS)
def test_it_ends_at_once_and_says_why(monkeypatch, capsys, arguments, environ, code, said):
    for name, value in (environ | {"LAB_STARTUP_SECONDS": "0"}).items():
        monkeypatch.setenv(name, value)

    try:
        ended = serve(arguments if "--version" in arguments else ["serve", "m", *SMALL, *arguments])
    except SystemExit as error:
        ended = error.code

    out, err = capsys.readouterr()
    assert ended == code
    assert said in (err if code == 2 else out)
    assert bears_device_memory(out.splitlines()) == ("OutOfMemoryError" in said)


def test_a_setting_of_the_lab_that_is_no_number_ends_the_process():
    with a_process(LAB_STEP_MS="fast") as (process, _):
        _, err = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "LAB_STEP_MS='fast' is not a number" in err


def test_it_dies_of_memory_while_serving_once_enough_runs():
    faults = {"LAB_FAULT_OOM_ABOVE_UTILIZATION": "0.9", "LAB_FAULT_OOM_RUNNING": "3"}
    with a_process("--gpu-memory-utilization=0.92", LAB_STEP_MS="50", **faults) as (process, url):
        until_healthy(url)
        results = []
        threads = [threading.Thread(target=ask, args=(url, results)) for _ in range(3)]
        threads[0].start()
        time.sleep(0.3)
        assert process.poll() is None
        for thread in threads[1:]:
            thread.start()
        out, _ = process.communicate(timeout=60)
        for thread in threads:
            thread.join()

    assert process.returncode == 1
    assert "EngineCore encountered a fatal error" in out
    assert bears_device_memory(out.splitlines())


def test_set_never_to_be_ready_it_never_listens_and_can_be_stopped():
    with a_process(LAB_FAULT_NEVER_READY="1") as (process, url):
        time.sleep(0.8)
        assert process.poll() is None
        assert is_refused(url)
        process.terminate()
        assert process.wait(timeout=60) != 0


def test_all_ways_to_start_vllm_work():
    module = ("-m", "vllm.entrypoints.openai.api_server", "--model=m")
    script = (str(TESTS / "lab" / "engine" / "image" / "vllm"), "serve", "m")
    with a_process("--max_num_seqs=8", command=module) as (_, one), a_process(command=script) as (_, other):
        for url in (one, other):
            until_healthy(url)
            assert httpx.get(f"{url}/v1/models", **PLAIN).json()["data"][0]["id"] == "m"
            assert httpx.get(f"{url}/version", **PLAIN).json() == {"version": "0.32.0"}


def test_sigterm_aborts_what_is_under_way_within_two_seconds():
    with a_process(LAB_STEP_MS="200") as (process, url):
        until_healthy(url)
        threads, results = start_streams(url, 6)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        for thread in threads:
            thread.join()

    assert process.returncode == 0
    assert "[shutdown] EngineCore: start mode=abort timeout=0s" in out
    ends = sorted("cut" if lines[-1].startswith("cut") else lines[-2][:14] for lines in results)
    assert ends == ["cut"] * 3 + ['data: {"error"'] * 3


def test_with_a_shutdown_timeout_everything_under_way_and_queued_completes():
    with a_process("--shutdown-timeout=60", "--max-num-seqs=2", LAB_STEP_MS="25") as (process, url):
        until_healthy(url)
        threads, results = start_streams(url, 4)
        process.send_signal(signal.SIGTERM)
        while "draining" not in process.stdout.readline():
            pass
        during = [httpx.get(f"{url}{path}", **PLAIN).status_code for path in ("/health", "/metrics")]
        body = {"prompt": "a", "max_tokens": 5}
        refused = httpx.post(f"{url}/v1/completions", json=body, **PLAIN)
        late = []
        ask(url, late)
        assert process.wait(timeout=60) == 0
        for thread in threads:
            thread.join()

    assert during == [200, 200]
    assert refused.status_code == 200
    assert refused.json()["choices"][0]["finish_reason"] == "abort"
    assert refused.json()["usage"]["completion_tokens"] == 0
    assert late == [["data: [DONE]"]]
    assert [len(lines) for lines in results] == [101] * 4
    assert all('"finish_reason":"length"' in lines[-2] for lines in results)


def test_a_drain_that_outlasts_its_timeout_aborts_the_rest():
    with a_process("--shutdown-timeout=1", LAB_STEP_MS="100") as (process, url):
        until_healthy(url)
        threads, results = start_streams(url, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        for thread in threads:
            thread.join()

    assert all('"finish_reason":"length"' not in json.dumps(lines) for lines in results)


def resident_mib(process):
    return usage.resident_bytes(process.pid) / 2**20


def test_the_hosts_memory_is_taken_once_enough_sequences_run():
    memory = {"LAB_FAULT_HOST_MEMORY_MIB": "200", "LAB_FAULT_HOST_MEMORY_RUNNING": "2"}
    with a_process(**memory, LAB_STEP_MS="50") as (process, url):
        until_healthy(url)
        alone, _ = start_streams(url, 1)
        time.sleep(0.5)
        before = resident_mib(process)
        both, _ = start_streams(url, 1)
        deadline = time.monotonic() + 20
        while resident_mib(process) < before + 190 and time.monotonic() < deadline:
            time.sleep(0.1)
        after = resident_mib(process)
        for thread in (*alone, *both):
            thread.join()

    assert before + 190 <= after < before + 300


def test_a_slow_engine_takes_longer_for_each_step():
    def seconds(**environ):
        with a_process(**environ) as (_, url):
            until_healthy(url)
            began = time.monotonic()
            httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 40}, **PLAIN)
            return time.monotonic() - began

    slow = seconds(LAB_FAULT_SLOWDOWN="4", LAB_FAULT_ONLY_BELOW_SEQS="1000")

    assert slow >= 40 * 4 * 0.005
    assert seconds(LAB_FAULT_SLOWDOWN="4", LAB_FAULT_ONLY_BELOW_SEQS="1") < slow


def test_one_engine_is_slowed_down_while_it_runs():
    with a_process() as (_, url):
        until_healthy(url)
        assert httpx.post(f"{url}/lab/slowdown", content="4", **PLAIN).status_code == 200
        began = time.monotonic()
        httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 40}, **PLAIN)

        assert time.monotonic() - began >= 40 * 4 * 0.005
        assert httpx.post(f"{url}/lab/slowdown", content="much", **PLAIN).status_code == 400


def test_ranks_have_a_port_each_and_one_health_and_end_together():
    health = free_port()
    several = ("--data-parallel-size=2", "-dpm", f"--data-parallel-supervisor-port={health}")
    with a_process(*several) as (process, url):
        host, _, port = url.rpartition(":")
        urls = (url, f"{host}:{int(port) + 1}")
        until_healthy(f"{host}:{health}")

        pages = [httpx.get(f"{each}/metrics", **PLAIN).text for each in urls]
        process.terminate()
        code = process.wait(20)

        assert [f'vllm:num_requests_running{{engine="{n}",' in page for n, page in enumerate(pages)] == [
            True
        ] * 2
        assert code == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{urls[1]}/health", **PLAIN)


def test_a_rank_that_cannot_start_takes_the_others_with_it():
    several = ("--data-parallel-size=2", "-dpm", f"--data-parallel-supervisor-port={free_port()}")
    with a_process(*several, "--max-num-seqs=4", LAB_FAULT_CRASH_BELOW_SEQS="8") as (process, _):
        out, _ = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "a data-parallel rank ended, so all others are ended" in out

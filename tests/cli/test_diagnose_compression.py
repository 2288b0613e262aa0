"""`kvmedic diagnose --log`: which method compresses the KV cache, what shows it, and which wall shows."""

import gzip
from collections.abc import Callable

import pytest
from typer.testing import Result

from kvmedic.cli.saved import LARGEST_LOG_BYTES as LARGEST_BYTES
from lab.engine.logs import BACKEND, EIGHT_BIT
from worlds.saved_pages import DATA, IDLE, MANIFEST, OTHER, STARTED, THRASH, answer, diagnose, started_later
from worlds.saved_pages import SPEC as PLAIN

PLUGIN = "[TriAttention] Runtime (V2) plugin activated: patch_scheduler=True patch_worker=True"
READY = "INFO:     Application startup complete.\n"


def saying(*lines: str) -> str:
    """Return the recorded start with more lines, as they stand before the pool."""
    before, mark, after = STARTED.partition("(EngineCore pid=23463) INFO 11-21 04:50:01 [utils.py:347]")
    return before + "".join(f"{line}\n" for line in lines) + mark + after


EVICTS = saying(PLUGIN, f"INFO 11-21 04:50:00 [cuda.py:446] {BACKEND.format('FLASH_ATTN')}")
EIGHT = saying(f"INFO 11-21 04:49:51 [cache.py:232] {EIGHT_BIT.format('fp8')}")
ASKS = MANIFEST.replace('"64"]', '"64", --kv-cache-dtype, fp8]')
SPEC = PLAIN + "  runbooks: [PreemptionThrash, CompressionWithoutSavings]\n"

Give = Callable[..., Result]


@pytest.fixture
def give(tmp_path) -> Give:
    """Diagnose two pages with more files, by option."""

    def given(pages: tuple[str, str] = (IDLE, THRASH), form: str = "json", **files: str | bytes) -> Result:
        argv = ["-o", form]
        for option, content in (("scrape", pages[0]), ("scrape", pages[1]), *files.items()):
            file = tmp_path / f"{option}{len(argv)}"
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
            argv += [f"--{option}", str(file)]
        return diagnose(*argv)

    return given


def test_a_log_of_a_plain_engine_names_no_method_and_changes_nothing(give):
    plain, found = answer(give()), answer(give(log=STARTED))

    assert plain["compression"] is None
    assert (found["branch"], found["plan"]) == (plain["branch"], plain["plan"])
    assert found["compression"]["method"] is None
    assert found["compression"]["startLogs"]["replica"] == {
        "methods": [],
        "cacheType": None,
        "attentionBackends": [],
        "pool": {"tokens": 4800},
        "isWhole": True,
    }


def test_a_method_that_only_its_log_line_names_is_asked_on_a_trial_pod(give):
    result = give(log=EVICTS)

    found = answer(result)
    method = found["compression"]
    assert (result.exit_code, found["runbook"]) == (0, "CompressionWithoutSavings")
    assert found["branch"] == "CompressionUnproven"
    assert (method["method"], method["class"]) == ("TriAttention", "CompactingEviction")
    assert method["isConfirmed"] is True
    assert method["knownBy"] == "start-up log: [TriAttention] Runtime (V2) plugin activated"
    assert method["blocks"] == "about as many blocks become free as tokens are evicted"
    assert method["wall"].startswith("unknown: ")
    missing = "\n".join(method["missing"])
    for each in ("spec.compression.baseline (with", "baseline.deviceMemory", "trial pod", "a cluster"):
        assert each in missing
    assert method["startLogs"]["replica"]["attentionBackends"] == ["FLASH_ATTN"]
    assert [change["knob"] for change in found["plan"]] == ["trial pod"]


def test_a_person_reads_method_class_blocks_wall_and_what_is_missing(give):
    result = give(form="text", log=EVICTS)

    lines = result.stdout.splitlines()
    kinds = list(dict.fromkeys(line.split()[0] for line in lines))
    assert kinds == [
        *("diagnosis", "plan", "because", "target", "replicas", "note"),
        *("log", "method", "blocks", "wall", "missing"),
    ]
    assert (
        "method     TriAttention, CompactingEviction, known by start-up log: [TriAttention]" in result.stdout
    )
    assert "attention backend FLASH_ATTN (decides nothing by itself)" in result.stdout
    assert "plan       trial pod: 16384 tokens with TriAttention" in lines


def test_a_variable_says_only_what_somebody_wants(give):
    manifest = MANIFEST + "        env: [{name: TRIATTN_RUNTIME_KV_BUDGET, value: '512'}]\n"

    configured, logged = answer(give(manifest=manifest)), answer(give(manifest=manifest, log=EVICTS))

    assert (configured["compression"]["knownBy"], configured["compression"]["isConfirmed"]) == (
        "TRIATTN_RUNTIME_KV_BUDGET",
        False,
    )
    assert any("--log FILE" in each for each in configured["compression"]["missing"])
    assert logged["compression"]["isConfirmed"] is True
    assert not any("--log FILE" in each for each in logged["compression"]["missing"])


@pytest.mark.parametrize(
    ("manifest", "reason", "branch"),
    [
        (MANIFEST, "PressedThoughCompressed", "FleetWideDemand"),
        (ASKS, "CompressionUnproven", "CompressionUnproven"),
        (None, "CompressionUnproven", "CompressionUnproven"),
    ],
    ids=["not asked", "asked for", "no manifest"],
)
def test_a_type_that_the_start_up_log_names_is_applied_whatever_the_label_says(
    give, manifest, reason, branch
):
    result = give(log=EIGHT, **({"manifest": manifest} if manifest else {}))

    found = answer(result)
    method = found["compression"]
    assert result.exit_code == 0
    assert (method["method"], method["class"]) == ("fp8", "Quantization")
    assert method["reason"] == reason
    assert found["branch"] == branch, "what it brings is compared where it can be"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (STARTED, "its start-up log names no type; the template asks for fp8"),
        (None, "stores keys and values as auto"),
    ],
)
def test_a_type_that_the_template_asks_for_and_the_engine_has_not_is_not_applied(give, log, said):
    result = give(manifest=ASKS, **({"log": log} if log else {}))

    found = answer(result)
    assert (result.exit_code, found["branch"]) == (0, "FleetWideDemand")
    assert "cannot go on, CompressionNotApplied: " in found["message"]
    assert said in found["message"]
    assert found["compression"]["wall"].startswith("none yet")


def test_a_label_alone_classifies(give):
    pages = tuple(page.replace('cache_dtype="auto"', 'cache_dtype="fp8_e4m3"') for page in (IDLE, THRASH))

    method = answer(give(pages))["compression"]

    assert (method["method"], method["knownBy"]) == ("fp8", "cache_dtype fp8_e4m3")
    assert method["isConfirmed"] is True


PATIENT = (
    SPEC
    + """\
  trigger: {preemptionsPerRequest: 2}
  compression:
    baseline:
      requestsPerSecond: %.4f
      tokensPerSecond: %.4f
      preemptionsPerRequest: %.4f
      kvCacheUsage: %.4f
"""
)
COMPARED = {
    "fewer preemptions than before": ((1, 1, 3), "CompressionSaves", "none: it saves", ""),
    "as before": ((1, 1, 1), "CompressionUnproven", "unknown:", "wall 2"),
    "slower than before": ((1, 2, 1), "CompressionUnproven", "unknown:", "wall 2"),
    "another load than before": (
        (9, 1, 1),
        "CompressionUndoubted",
        "none: no e",
        "figures to compare: the load",
    ),
}


@pytest.mark.parametrize(("times", "reason", "wall", "missing"), COMPARED.values(), ids=COMPARED)
def test_a_baseline_is_compared_with(give, times, reason, wall, missing):
    found = answer(give())
    seen, seconds = found["evidence"]["replica"], found["windowSeconds"]
    arrived = seen["requestsFinished"] + seen["requestsInFlightChange"]
    spec = PATIENT % (
        times[0] * arrived / seconds,
        times[1] * seen["generatedTokens"] / seconds,
        times[2] * seen["preemptions"] / seen["requestsFinished"],
        seen["kvCacheUsageMean"],
    )

    method = answer(give(log=EVICTS, spec=spec))["compression"]

    assert (method["reason"], method["wall"][: len(wall)]) == (reason, wall)
    assert missing in "\n".join(method["missing"])
    assert not any("spec.compression.baseline (with" in each for each in method["missing"])


def test_a_spec_that_leaves_the_runbook_out_is_followed_and_a_note_says_so(give):
    spec = SPEC.replace(", CompressionWithoutSavings", "")

    found = answer(give(log=EVICTS, spec=spec))

    assert found["runbook"] == "PreemptionThrash"
    assert any("CompressionWithoutSavings" in note for note in found["notes"])
    assert found["compression"]["reason"] == "CompressionUnproven"


def test_what_a_spec_declares_and_no_log_shows_stops_no_cap(give):
    spec = SPEC + "  compression: {method: fp8}\n"

    result = give(log=READY, spec=spec)

    found = answer(result)
    assert (result.exit_code, found["branch"]) == (0, "FleetWideDemand")
    assert "cannot go on, LogUnreadable: " in found["message"]
    assert "the beginning of its log is gone" in found["message"]
    assert any("head -c" in note for note in found["notes"])


def test_pages_that_say_nothing_still_leave_the_method(give):
    result = give((IDLE, OTHER), log=EVICTS)

    method = answer(result)["compression"]
    assert result.exit_code == 3
    assert (method["method"], method["reason"]) == ("TriAttention", "MetricsMissing")
    assert "different processes" in method["wall"]


def test_a_log_shows_the_pool_that_no_metric_shows(give):
    pages = [(DATA / "generations" / f"v1-0.8.0-{name}.txt").read_text() for name in ("before", "thrash")]

    silent, logged = answer(give(pages)), answer(give(pages, log=STARTED))

    assert "poolBlocks" not in silent["evidence"]["replica"]
    assert logged["evidence"]["replica"]["poolBlocks"] == 149


def test_nothing_of_a_log_is_shown_but_what_is_looked_for(give):
    quoted = f"INFO Received request a: prompt: '{PLUGIN} sesame'\n"
    log = (
        STARTED.replace("non-default args: {", "non-default args: {'api_key': ['sesame'], ") + READY + quoted
    )

    shown = [give(form=form, log=log) for form in ("json", "text")]

    for result in shown:
        assert result.exit_code == 0
        assert "sesame" not in result.stdout + result.stderr
        assert "TriAttention" not in result.stdout


CUT_IN_A_LETTER = EVICTS.encode() + "█".encode()[:2]
FORMS = {
    "compressed": gzip.compress(EVICTS.encode()),
    "in UTF-16, as PowerShell redirects": EVICTS.encode("utf-16"),
    "cut off inside a letter": CUT_IN_A_LETTER,
    "with the times of kubectl": "".join(
        f"2026-03-01T02:58:00Z {line}\n" for line in EVICTS.splitlines()
    ).encode(),
}


@pytest.mark.parametrize("log", FORMS.values(), ids=FORMS)
def test_a_log_is_read_as_it_was_saved(give, log):
    assert answer(give(log=log))["compression"] == answer(give(log=EVICTS))["compression"]


UNFIT = {
    "no text": (b"\x1f\x8b\x00\xff\xfe", "neither text nor gzip"),
    "a core dump": (b"\x7fELF\x00\x00", "neither text nor gzip"),
    "huge": (b"x" * (LARGEST_BYTES + 1), "larger than 16 MiB"),
}


@pytest.mark.parametrize(("log", "why"), UNFIT.values(), ids=UNFIT)
def test_a_file_that_is_no_log_ends_with_2_and_says_what_to_give(give, log, why):
    result = give(log=log)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "log" in result.stderr.split()[0]
    assert why in result.stderr
    assert "head -c" in result.stderr


WRONG = [
    ("no such file", ["--scrape=T0", "--scrape=T1", "--log=nowhere"], "nowhere: No such file"),
    ("a folder", ["--scrape=T0", "--scrape=T1", "--log=."], ".: Is a directory"),
    ("no pages", ["chat", "--log=start.log"], "give --scrape or --url too"),
    ("of nobody", ["--scrape=T0", "--scrape=T1", "--log=b=start.log"], "which replica?"),
    ("no name", ["--scrape=T0", "--scrape=T1", "--log==start.log"], "--log =start.log: write FILE"),
    ("twice", ["--scrape=T0", "--scrape=T1", "--log=start.log", "--log=start.log"], "there is a log of"),
    (
        "of one of two",
        ["--scrape=a=T0", "--scrape=a=T1", "--scrape=b=B0", "--scrape=b=B1", "--log=start.log"],
        "a, b",
    ),
]


@pytest.mark.parametrize(("argv", "expected"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_usage_ends_with_2(monkeypatch, tmp_path, argv, expected):
    pages = {"T0": IDLE, "T1": THRASH, "B0": f"{IDLE}\n# b", "B1": f"{THRASH}\n# b"}
    for name, content in (*pages.items(), ("start.log", STARTED)):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)

    result = diagnose(*argv)

    assert (result.exit_code, result.stdout) == (2, "")
    assert expected in result.stderr


def test_logs_of_several_replicas_are_distinguished(monkeypatch, tmp_path):
    later = [started_later(page) for page in (IDLE, THRASH)]
    for name, content in zip(("a0", "a1", "b0", "b1"), (IDLE, THRASH, *later), strict=True):
        (tmp_path / name).write_text(content)
    (tmp_path / "b.log").write_text(EVICTS)
    monkeypatch.chdir(tmp_path)
    argv = [*(f"--scrape={file[0]}={file}" for file in ("a0", "a1", "b0", "b1")), "--log=b=b.log"]

    found = answer(diagnose(*argv, "-o", "json"))

    assert list(found["compression"]["startLogs"]) == ["b"]
    assert found["compression"]["method"] == "TriAttention"

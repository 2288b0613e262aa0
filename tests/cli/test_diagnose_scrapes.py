"""`kvmedic diagnose` on saved pages: no cluster, no Prometheus, no clock."""

import gzip
import re
from collections.abc import Callable

import pytest
from typer.testing import Result

from worlds.saved_pages import IDLE, MANIFEST, OTHER, RECOVERED, THRASH, answer, diagnose, started_later
from worlds.saved_pages import SPEC as PLAIN

SPEC = PLAIN + "  levers: [{name: maxNumSeqs, min: 14}]\n"

Write = Callable[[str, str | bytes], str]


@pytest.fixture
def write(tmp_path) -> Write:
    def written(name: str, content: str | bytes) -> str:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return written


def of(write: Write, *pages: str | bytes, options: tuple[str, ...] = ()) -> Result:
    files = [write(f"T{place}.txt", page) for place, page in enumerate(pages)]
    scrapes = [word for file in files for word in ("--scrape", file)]
    return diagnose(*scrapes, *options, "-o", "json")


def test_two_recorded_pages_of_thrash_lead_to_a_cap(write):
    result = of(write, IDLE, THRASH)

    found = answer(result)
    assert result.exit_code == 0
    assert (found["branch"], found["reason"]) == ("FleetWideDemand", "FleetWideDemand")
    [change] = found["plan"]
    assert (change["knob"], change["flag"], change["before"]) == ("maxNumSeqs", "--max-num-seqs", None)
    assert 8 <= int(change["after"]) <= 16, "caps that the same engine ran best with, measured"
    assert found["evidence"]["replica"]["preemptions"] == 338
    assert found["evidence"]["replica"]["outputLengthMean"] == pytest.approx(433.66, abs=0.01)


IN_A_FILE = """\
kind: ConfigMap
metadata: {name: limits}
data:
  engine.yaml: |
    max-num-seqs: 64  # cap
---
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      volumes: [{name: config, configMap: {name: limits}}]
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args: [--model=/models/tiny, --config, /etc/vllm/engine.yaml]
        volumeMounts: [{name: config, mountPath: /etc/vllm}]
"""


REPLICAS = SPEC.replace("{name: maxNumSeqs, min: 14}", "{name: scaleOut, maxReplicas: 3}")
PLANS = {
    "the manifest says what is set now": (
        ("manifest", MANIFEST),
        {"knob": "maxNumSeqs", "before": "64", "object": "chat"},
        {},
    ),
    "it may hold numbers and booleans, as every real one does": (
        ("manifest", f"{MANIFEST}        ports: [{{containerPort: 8000}}]\n        stdin: false\n"),
        {"before": "64"},
        {},
    ),
    "a flag in a ConfigMap of the manifest": (
        ("manifest", IN_A_FILE),
        {"knob": "maxNumSeqs", "before": "64"},
        {},
    ),
    "a ConfigMap that is not in the manifest": (
        ("manifest", IN_A_FILE.partition("---\n")[2]),
        None,
        {"reason": "FlagNotEditable", "blocked": "ConfigMap/limits, which does not exist"},
    ),
    "a cap that is set already is not planned again": (
        ("manifest", MANIFEST.replace("64", "8")),
        None,
        {
            "branch": "FleetWideDemand",
            "reason": "CapWithoutEffect",
            "blocked": "at most 8 were running or allowed",
        },
    ),
    "a command line that cannot be edited": (
        ("manifest", MANIFEST.replace('"64"', "$(CAP)")),
        None,
        {"reason": "FlagNotEditable", "blocked": r"^maxNumSeqs \d+ cannot be set: "},
    ),
    "the spec bounds the lever": (("spec", SPEC), {"after": "14"}, {}),
    "the spec sets the trigger": (
        ("spec", SPEC + "  trigger: {preemptionsPerRequest: 2, stallsPerRequest: 0.2}\n"),
        None,
        {"branch": "Healthy"},
    ),
    "a lever that the spec does not allow": (
        ("spec", SPEC.replace("[{name: maxNumSeqs, min: 14}]", "[]")),
        None,
        {"reason": "LeverNotAllowed"},
    ),
    "where only replicas are allowed their number is planned": (
        ("spec", REPLICAS),
        {"knob": "replicas", "flag": None, "after": "2"},
        {
            "branch": "CapacityShort",
            "reason": "CapacityShort",
            "because": "given back after 60 minutes of calm",
        },
    ),
    "where nothing is left the numbers for a split are printed": (
        ("spec", REPLICAS.replace("3", "1")),
        None,
        {
            "branch": "CapacityExhausted",
            "reason": "CapacityExhausted",
            "message": "1 replicas are there and scaleOut allows 1",
            "blocked": r"(?=.*prefill takes \d+% and decode \d+% of the time)"
            ".*answers of 434 tokens on average",
        },
    ),
}


@pytest.mark.parametrize(("file", "change", "expected"), PLANS.values(), ids=PLANS)
def test_a_manifest_or_a_spec_decides_what_is_planned(write, file, change, expected):
    option, content = file

    found = answer(of(write, IDLE, THRASH, options=(f"--{option}", write("file.yaml", content))))

    plans = found["plan"]
    assert len(plans) == (change is not None)
    assert all(change.items() <= each.items() for each in plans)
    for field, pattern in expected.items():
        assert re.search(pattern, found[field]), field


def test_an_idle_engine_is_healthy(write):
    later = IDLE.replace("process_cpu_seconds_total 6.46", "process_cpu_seconds_total 7.46")

    result = of(write, IDLE, later)

    assert result.exit_code == 0
    assert answer(result)["branch"] == "Healthy"


def test_text_names_evidence_diagnosis_and_plan(write):
    result = diagnose("--scrape", write("a", IDLE), "--scrape", write("b", THRASH))

    assert result.exit_code == 0
    kinds = [line.split()[0] for line in result.stdout.splitlines()]
    assert kinds == ["diagnosis", "plan", "because", "target", "replicas", "replicas", "note", "next"]
    assert "maxNumSeqs (unknown without --manifest) -> " in result.stdout


@pytest.mark.parametrize(
    ("columns", "last"), [("40", "running"), ("80", "preemptions/request"), ("", "token")]
)
def test_a_narrow_terminal_has_fewer_figures_of_each_replica(write, monkeypatch, columns, last):
    monkeypatch.setenv("COLUMNS", columns)

    lines = diagnose("--scrape", write("a", IDLE), "--scrape", write("b", THRASH)).stdout.splitlines()

    head, row = (line for line in lines if line.startswith("replicas "))
    assert last in head.split()
    assert len(head) == len(row)
    assert not columns or len(head) <= int(columns)
    assert row.split()[:3] == ["replicas", "replica", "11.00"]


def test_every_reading_is_shown_where_it_is_asked_for(write):
    pages = ("--scrape", write("a", IDLE), "--scrape", write("b", THRASH))

    short, long = (diagnose(*pages, *more).stdout for more in ((), ("-v",)))

    added = set(long.splitlines()) - set(short.splitlines())
    assert [line.partition(": ")[0] for line in added] == ["evidence   replica"]
    assert "runningMax=not known" in long


@pytest.mark.parametrize(
    ("manifest", "typed"),
    [("", "the same with --manifest FILE"), (MANIFEST, "kvmedic flags set max_num_seqs=14 -f ")],
)
def test_the_last_line_is_what_to_type_next(write, manifest, typed):
    given = ("--manifest", write("deploy.yaml", manifest)) if manifest else ()

    lines = diagnose("--scrape", write("a", IDLE), "--scrape", write("b", THRASH), *given).stdout.splitlines()

    assert lines[-1].startswith(f"next       {typed}")


def test_several_replicas_are_distinguished_by_name(write):
    pages = [("a", IDLE), ("a", THRASH), ("b", started_later(IDLE)), ("b", started_later(THRASH))]
    scrapes = [f"--scrape={name}={write(f'{name}{i}', page)}" for i, (name, page) in enumerate(pages)]

    found = answer(diagnose(*scrapes, "-o", "json"))

    assert sorted(found["evidence"]) == ["a", "b"]
    assert found["branch"] == "FleetWideDemand"
    assert len(found["plan"]) == 1


def test_one_pressured_replica_of_two_is_one_to_be_replaced(write):
    calm = re.sub(r"(?m)^(vllm:num_preemptions_total\S*) .*", r"\1 2.0", started_later(THRASH))
    calm = re.sub(r'(?m)^(vllm:inter_token_latency_seconds_bucket{.*le="2.5".*}) .*', r"\1 84077.0", calm)
    pages = [("a", IDLE), ("a", THRASH), ("b", started_later(IDLE)), ("b", calm)]
    scrapes = [f"--scrape={name}={write(f'{name}{i}', page)}" for i, (name, page) in enumerate(pages)]

    result = diagnose(*scrapes, "-o", "json")

    found = answer(result)
    assert (result.exit_code, found["reason"]) == (0, "OneReplicaPressured")
    (change,) = found["plan"]
    assert (change["knob"], change["flag"], change["before"], change["after"]) == (
        "replica",
        None,
        "a",
        "a new one",
    )
    assert "the other one serves and has" in found["because"]


HEADERS = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
FORMS = {
    "compressed": gzip.compress(THRASH.encode()),
    "with another system's line ends": THRASH.replace("\n", "\r\n"),
    "in UTF-16, as PowerShell redirects": THRASH.encode("utf-16"),
    "with a byte order mark": "\ufeff" + THRASH,
    "with the headers of curl -i": HEADERS + THRASH,
    "as OpenMetrics": re.sub(r"(# TYPE \S+?)_total counter", r"\1 counter", THRASH) + "# EOF\n",
}


@pytest.mark.parametrize("page", FORMS.values(), ids=FORMS)
def test_a_page_is_read_as_it_was_saved(write, page):
    plain = answer(of(write, IDLE, THRASH))

    assert answer(of(write, IDLE, page)) == plain


def of_v0(page: str) -> str:
    """The same page by the names and labels of a V0 engine."""
    later = ("vllm:prefix_cache", "vllm:iteration")
    kept = [line for line in page.splitlines() if not line.startswith(later)]
    text = "\n".join(kept) + "\n"
    for new, old in (
        ('engine="0",', ""),
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ):
        text = text.replace(new, old)
    return text


def test_an_engine_of_old_is_read_by_its_own_names(write):
    found = answer(of(write, of_v0(IDLE), of_v0(THRASH)))

    assert found["branch"] == "FleetWideDemand"
    assert 8 <= int(found["plan"][0]["after"]) <= 16


def dropped(name: str) -> str:
    return "\n".join(line for line in THRASH.splitlines() if not line.startswith(name)) + "\n"


NAN = THRASH.replace(
    'vllm:num_preemptions_total{engine="0",model_name="tiny"} 338.0',
    'vllm:num_preemptions_total{engine="0",model_name="tiny"} NaN',
)
MIXED = THRASH + 'vllm:num_requests_running{engine="0",model_name="other"} 3.0\n'
UNFIT = {
    "statistics are off": (dropped("vllm:"), "MetricsMissing", "--disable-log-stats"),
    "no preemptions": (dropped("vllm:num_preemptions_total"), "MetricsMissing", "preemptionsPerRequestHeld"),
    "no gaps": (dropped("vllm:inter_token_latency_seconds"), "MetricsMissing", "interTokenSeconds"),
    "no lengths": (dropped("vllm:request_generation_tokens"), "MetricsMissing", "outputLength"),
    "no pool": (dropped("vllm:cache_config_info"), "MetricsMissing", "KV-cache pool"),
    "not a number": (NAN, "MetricsMissing", "NaN"),
    "two models": (MIXED, "ReplicasDiffer", "other, tiny"),
    "another process": (OTHER, "MetricsMissing", "different processes"),
}


@pytest.mark.parametrize(("page", "reason", "named"), UNFIT.values(), ids=UNFIT)
def test_pages_that_say_too_little_are_inconclusive_and_name_what_is_missing(write, page, reason, named):
    result = of(write, IDLE, page)

    found = answer(result)
    assert result.exit_code == 3
    assert (found["branch"], found["reason"], found["plan"]) == (None, reason, [])
    assert named in found["message"]


def test_the_newer_page_first_is_noticed(write):
    result = of(write, THRASH, IDLE)

    assert result.exit_code == 3
    assert "the older scrape must come first" in answer(result)["message"]


def test_requests_that_stay_longer_than_the_time_between_are_inconclusive(write):
    result = of(write, IDLE, THRASH, options=("--interval", "3s"))

    assert (result.exit_code, answer(result)["reason"]) == (3, "TooFewRequests")


def test_the_time_between_is_taken_as_given(write):
    found = answer(of(write, IDLE, THRASH, options=("--interval", "5m")))

    assert found["windowSeconds"] == 300
    assert found["notes"] == []
    assert len(found["plan"]) == 1


def test_too_few_requests_are_counted(write):
    result = of(write, THRASH, RECOVERED)

    assert (result.exit_code, answer(result)["reason"]) == (3, "TooFewRequests")
    assert "72 requests finished" in answer(result)["message"]


def test_scrapes_of_resting_engines_say_that_gauges_show_nothing(write):
    result = of(write, IDLE, RECOVERED)

    assert result.exit_code == 3
    assert any("scrape while requests are being served" in note for note in answer(result)["notes"])


WRONG = {
    "one scrape": (["--scrape", "T0"], "give two"),
    "one scrape of a replica": (["--scrape", "a=T0", "--scrape", "a=T1", "--scrape", "b=T1"], "of b"),
    "the same twice": (["--scrape", "T0", "--scrape", "T0"], "the same scrape"),
    "no such file": (["--scrape", "T0", "--scrape", "nowhere"], "No such file"),
    "a web page": (["--scrape", "T0", "--scrape", "page.html"], "no metrics page"),
    "half a page": (["--scrape", "T0", "--scrape", "half"], "no metrics page"),
    "no text": (["--scrape", "T0", "--scrape", "noise"], "neither text nor gzip"),
    "some named": (["--scrape", "T0", "--scrape", "a=T1"], "NAME=FILE for each"),
    "no name": (["--scrape", "=T0", "--scrape", "=T1"], "NAME=FILE"),
    "no duration": (["--scrape", "T0", "--scrape", "T1", "--interval", "soon"], "--interval soon"),
    "no time at all": (["--scrape", "T0", "--scrape", "T1", "--interval", "0s"], "comes after"),
    "no manifest": (["--scrape", "T0", "--scrape", "T1", "--manifest", "half"], "half"),
    "no spec": (["--scrape", "T0", "--scrape", "T1", "--spec", "chat.yaml"], "0 objects of kind KVRem"),
    "a wrong spec": (["--scrape", "T0", "--scrape", "T1", "--spec", "bad.yaml"], "spec.mode"),
    "no version": (
        ["--scrape", "T0", "--scrape", "T1", "--manifest", "chat.yaml", "--engine-version", "latest"],
        "not a version",
    ),
    "a version of nothing": (
        ["--scrape", "T0", "--scrape", "T1", "--engine-version", "0.32.0"],
        "--manifest",
    ),
    "a version beside a resource": (["chat", "--engine-version", "0.32.0"], "--engine-version out"),
    "nothing to look at": ([], "say what to look at"),
    "two things to look at": (["chat", "--scrape", "T0"], "say what to look at"),
}


@pytest.mark.parametrize(("argv", "expected"), WRONG.values(), ids=WRONG)
def test_wrong_usage_ends_with_2_and_says_what_to_write(write, monkeypatch, tmp_path, argv, expected):
    for name, content in (
        ("T0", IDLE),
        ("T1", THRASH),
        ("page.html", "<html>hello</html>"),
        ("half", THRASH[: THRASH.index('le="') + 3]),
        ("noise", b"\x1f\x8b\x00\xff\xfe"),
        ("chat.yaml", MANIFEST),
        ("bad.yaml", SPEC + "  mode: Sometimes\n"),
    ):
        write(name, content)
    monkeypatch.chdir(tmp_path)

    result = diagnose(*argv)

    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stdout == ""


def test_a_file_whose_name_has_an_equals_sign_is_a_file(write):
    files = [write("pod=a,T0.txt", IDLE), write("pod=a,T1.txt", THRASH)]

    found = answer(diagnose("--scrape", files[0], "--scrape", files[1], "-o", "json"))

    assert list(found["evidence"]) == ["replica"]

import re

import pytest

from kvmedic.engines import ENGINES, profiles_for
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.invocation import NotAnEngine, invocation_of
from kvmedic.model.engine import Arity, Engine, Flag, Kind, Knob, Presence, Version


def v(text: str) -> Version:
    return Version.parse(text)


def a_flag(knob: Knob) -> Flag:
    flag = VLLM.flag(knob)
    assert flag is not None
    return flag


def test_every_engine_spells_every_knob_it_has_once():
    for engine in ENGINES:
        knobs = [flag.knob for flag in engine.flags]
        assert len(knobs) == len(set(knobs))
        assert set(engine.by_dest()) == {flag.dest for flag in engine.flags}


def test_every_knob_has_a_flag_and_a_default():
    assert {flag.knob for flag in VLLM.flags} == set(Knob)
    assert all(flag.default for flag in VLLM.flags)


@pytest.mark.parametrize("flag", VLLM.flags, ids=lambda flag: flag.name)
def test_every_flag_is_an_option_of_some_release(flag):
    options = [option for option in VLLM.options if flag.name in option.names]

    assert options
    assert {option.dest for option in options} == {flag.dest}


@pytest.mark.parametrize("release", VLLM.releases, ids=str)
def test_no_release_has_a_name_twice(release):
    names = [name for option in VLLM.options_of(release) for name in option.names]

    assert len(names) == len(set(names))
    assert VLLM.dialect.config in names
    assert VLLM.dialect.positional in names
    assert VLLM.dialect.needs_positional in names


def test_switches_take_no_value_and_have_a_negative():
    for option in VLLM.options:
        assert (option.arity is Arity.NONE) == (option.kind in {Kind.SWITCH, Kind.PRESENCE, Kind.HELP})
        assert any(name.startswith("--no-") for name in option.names) or option.kind is not Kind.SWITCH


def test_0_32_has_as_many_options_as_its_own_parser():
    assert len(VLLM.options_of(v("0.32.0"))) == 317


HISTORY = [
    (Knob.SWAP_SPACE, "0.17.1", "0.18.0"),
    (Knob.SHUTDOWN_TIMEOUT, "0.18.0", "0.17.1"),
    (Knob.MAX_NUM_ACTIVE_SEQS, "0.31.0", "0.30.0"),
    (Knob.WATERMARK, "0.24.0", "0.23.0"),
    (Knob.KV_OFFLOADING_SIZE, "0.11.2", "0.11.0"),
    (Knob.KV_CACHE_MEMORY_BYTES, "0.10.2", "0.9.2"),
    (Knob.MAX_NUM_SEQS, "0.5.5", None),
]


@pytest.mark.parametrize(("knob", "present", "absent"), HISTORY)
def test_a_flag_is_there_from_when_it_came_until_it_went(knob, present, absent):
    flag = a_flag(knob)

    assert Engine(VLLM, v(present)).presence(flag) is Presence.PRESENT
    if absent is not None:
        assert Engine(VLLM, v(absent)).presence(flag) is Presence.ABSENT


@pytest.mark.parametrize(
    ("knob", "version", "presence"),
    [
        pytest.param(
            Knob.KV_OFFLOADING_SIZE, "0.11.1", Presence.UNKNOWN, id="between one without and one with"
        ),
        pytest.param(Knob.CHUNKED_PREFILL, "0.8.0", Presence.UNKNOWN, id="between two ways of writing it"),
        pytest.param(Knob.MAX_NUM_SEQS, "0.8.0", Presence.PRESENT, id="between two that have it"),
        pytest.param(Knob.WATERMARK, "0.8.0", Presence.ABSENT, id="between two that lack it"),
        pytest.param(Knob.WATERMARK, "0.99.0", Presence.PRESENT, id="newer than all counts as the newest"),
        pytest.param(Knob.WATERMARK, "0.1.0", Presence.ABSENT, id="older than all counts as the oldest"),
    ],
)
def test_between_releases_only_what_both_agree_on_is_known(knob, version, presence):
    assert Engine(VLLM, v(version)).presence(a_flag(knob)) is presence


def test_of_an_unknown_version_only_what_all_have_is_known():
    engine = Engine(VLLM)

    known = {flag.knob for flag in VLLM.flags if engine.presence(flag) is Presence.PRESENT}

    assert known == {
        Knob.MAX_NUM_SEQS,
        Knob.MAX_MODEL_LEN,
        Knob.MAX_NUM_BATCHED_TOKENS,
        Knob.GPU_MEMORY_UTILIZATION,
        Knob.PREFIX_CACHING,
        Knob.CHUNKED_PREFILL,
        Knob.KV_CACHE_DTYPE,
        Knob.NUM_GPU_BLOCKS_OVERRIDE,
        Knob.BLOCK_SIZE,
    }


@pytest.mark.parametrize(
    ("image", "ours"),
    [
        ("vllm/vllm-openai", True),
        ("docker.io/vllm/vllm-openai", True),
        ("registry.example:5000/mirror/vllm/vllm-openai-rocm", True),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo", True),
        ("team/qwen-vllm", True),
        ("vllm", True),
        ("lmcache/lmstack-router", False),
        ("vllm/vllm-router", False),
        ("envoyproxy/envoy", False),
        ("lmsysorg/sglang", False),
    ],
)
def test_images_of_the_server_are_recognised_by_their_name(image, ours):
    assert any(re.fullmatch(pattern, image) for pattern in VLLM.launch.images) is ours


@pytest.mark.parametrize(
    ("image", "words", "other"),
    [
        ("lmsysorg/sglang", (), "SGLang"),
        ("registry.example/team/sglang-runtime", ("--model-path", "m", "--kv-cache-dtype", "fp8"), "SGLang"),
        ("own/image", ("python3", "-m", "sglang.launch_server", "--model-path", "m"), "SGLang"),
        ("own/image", ("sh", "-c", "exec python -m sglang.launch_server --port 1"), "SGLang"),
        ("ghcr.io/huggingface/text-generation-inference", ("--model-id", "m"), "Text Generation Inference"),
        ("own/image", ("text-generation-launcher",), "Text Generation Inference"),
        ("nvcr.io/nvidia/tensorrt-llm/release", (), "TensorRT-LLM"),
        ("own/image", ("trtllm-serve", "m", "--max_batch_size", "8"), "TensorRT-LLM"),
        ("nvcr.io/nvidia/tritonserver", (), "Triton Inference Server"),
        (
            "own/image",
            ("/opt/tritonserver/bin/tritonserver", "--model-repository=/m"),
            "Triton Inference Server",
        ),
        ("ghcr.io/ggml-org/llama.cpp", ("-m", "x.gguf"), "llama.cpp"),
        ("own/image", ("python", "-m", "llama_cpp.server"), "llama.cpp"),
        ("ollama/ollama", ("serve",), "Ollama"),
        ("own/image", ("--served-model-name", "tritonserver"), ""),
        ("own/image", ("org/sglang-tuned-model",), ""),
        ("lmsysorg/sglang-router", (), ""),
        ("nvcr.io/nvidia/tritonserver", ("vllm", "serve", "m"), ""),
        ("vllm/vllm-openai", ("--model", "m"), ""),
    ],
)
def test_another_engine_is_known_by_its_image_or_its_command_whatever_a_person_calls_it(image, words, other):
    field = "args" if not words or words[0].startswith("-") else "command"
    container = {"name": "c", "image": image, field: [*words]}

    for profile in (VLLM, *profiles_for("vLLM")):
        found = invocation_of(container, profile)
        assert (found.other if isinstance(found, NotAnEngine) else "") == other


@pytest.mark.parametrize(
    ("knob", "version", "on"),
    [
        (Knob.PREFIX_CACHING, "0.5.5", False),
        (Knob.PREFIX_CACHING, "0.7.3", False),
        (Knob.PREFIX_CACHING, "0.8.0", None),
        (Knob.PREFIX_CACHING, "0.32.0", None),
        (Knob.CHUNKED_PREFILL, "0.10.2", None),
        (Knob.CHUNKED_PREFILL, "0.11.0", True),
    ],
)
def test_a_switch_that_is_not_given_is_known_by_version_only_where_all_engines_agree(knob, version, *, on):
    assert Engine(VLLM, v(version)).has_on(a_flag(knob), None) is on


@pytest.mark.parametrize("given", [True, False])
def test_what_is_given_counts_before_the_version(*, given):
    assert Engine(VLLM, v("0.7.3")).has_on(a_flag(Knob.PREFIX_CACHING), given) is given


def test_without_a_version_a_switch_that_is_not_given_is_not_known():
    assert Engine(VLLM).has_on(a_flag(Knob.PREFIX_CACHING), None) is None


def test_what_decides_about_host_memory_are_options_of_some_release():
    cache = VLLM.host_cache

    named = {*cache.ranks, cache.engines, cache.engines_here, cache.engine_rank}
    named |= {cache.connector, cache.backend, cache.swap_mode}

    assert named <= {option.dest for option in VLLM.options}
    assert cache.shared_since < cache.exact_since

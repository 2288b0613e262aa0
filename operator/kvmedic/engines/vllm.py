"""vLLM: what may be turned on it and how its command line reads.

Defaults and bounds are those of vLLM 0.32.0 unless a version is named: `config/scheduler.py`,
`config/cache.py`, `config/model.py` and `engine/arg_utils.py` of its package. The table of options beside
this file was derived by `tests/engines/derive_vllm_options.py`, and compared with the parser of 0.32.0: the
same 317 options, values, types and spellings. Three lists of numbers count as text here.
"""

from __future__ import annotations

from importlib.resources import files

from kvmedic.engines.other_engines import OTHER_ENGINES
from kvmedic.model.engine import (
    ApiKey,
    Arity,
    Bounds,
    Dialect,
    EngineProfile,
    Flag,
    HostCache,
    Kind,
    Knob,
    Launch,
    Option,
    OptionName,
    RemoteCache,
    Version,
)


def _read_options() -> tuple[tuple[Version, ...], tuple[Option, ...]]:
    head, *rows = files("kvmedic.engines").joinpath("vllm_options.tsv").read_text("utf-8").splitlines()
    releases = tuple(Version.parse(text) for text in head.split("\t")[1].split())
    by_text = {release.text: release for release in releases}
    return releases, tuple(_option(row, by_text) for row in rows)


def _option(row: str, releases: dict[str, Version]) -> Option:
    names, arity, kind, since, until, choices = row.split("\t")
    spellings = tuple(names.split())
    longest = next(name for name in spellings if name.startswith("--"))
    return Option(
        names=spellings,
        dest=longest.removeprefix("--").replace("-", "_"),
        arity=Arity(arity),
        kind=Kind(kind.removesuffix("?")),
        since=releases[since],
        until=releases[until],
        nullable=kind.endswith("?"),
        choices=tuple(choices.split()),
    )


RELEASES, OPTIONS = _read_options()


FLAGS = (
    Flag(
        Knob.MAX_NUM_SEQS,
        "--max-num-seqs",
        Bounds(minimum=1),
        "1024 on a GPU of at least 70 GiB other than the A100, 256 on other GPUs, 128 per rank on CPU; "
        "twice as many with --performance-mode throughput; never above max_num_batched_tokens",
        most=2048,
        least=128,
    ),
    Flag(
        Knob.MAX_NUM_ACTIVE_SEQS,
        "--max-num-active-seqs",
        Bounds(minimum=1),
        "max_num_seqs; may not exceed it",
    ),
    Flag(
        Knob.WATERMARK,
        "--watermark",
        Bounds(minimum=0, maximum=1, maximum_open=True),
        "0.0: a sequence is admitted when it fits",
    ),
    Flag(
        Knob.MAX_MODEL_LEN,
        "--max-model-len",
        Bounds(minimum=1, also=(-1,)),
        "the model's own; -1 fits it to memory (by 0.14)",
        is_greatest_unset=True,
    ),
    Flag(
        Knob.MAX_NUM_BATCHED_TOKENS,
        "--max-num-batched-tokens",
        Bounds(minimum=1),
        "16384 on a GPU of at least 160 GiB, 8192 from 70 GiB other than the A100, 2048 otherwise; "
        "may not be under max_num_seqs, nor under max_model_len without chunked prefill",
        least=2048,
    ),
    Flag(
        Knob.GPU_MEMORY_UTILIZATION,
        "--gpu-memory-utilization",
        Bounds(minimum=0, maximum=1, minimum_open=True),
        "0.92 from 0.20, 0.9 before; without effect where kv_cache_memory_bytes or "
        "num_gpu_blocks_override is given",
        ((Version.parse("0.5.5"), 0.9), (Version.parse("0.20.0"), 0.92)),
    ),
    Flag(
        Knob.PREFIX_CACHING,
        "--enable-prefix-caching",
        default="on where the model supports it; off on V0, which is the default before 0.8.0",
        off_before=Version.parse("0.8.0"),
    ),
    Flag(
        Knob.CHUNKED_PREFILL,
        "--enable-chunked-prefill",
        default="on where the model supports it; before 0.11.0 off on V0, which that release removed",
        on_since=Version.parse("0.11.0"),
        kept_on=(Version.parse("0.8.0"), Version.parse("0.12.0")),
    ),
    Flag(
        Knob.KV_OFFLOADING_SIZE,
        "--kv-offloading-size",
        Bounds(minimum=0),
        "no offloading; GiB of one engine over all its ranks",
    ),
    Flag(
        Knob.SWAP_SPACE,
        "--swap-space",
        Bounds(minimum=0),
        "4 GiB of each GPU; read but without effect on V1, removed in 0.18.0",
    ),
    Flag(Knob.KV_CACHE_DTYPE, "--kv-cache-dtype", default="auto: the model's own"),
    Flag(
        Knob.KV_CACHE_MEMORY_BYTES,
        "--kv-cache-memory-bytes",
        Bounds(minimum=1),
        "what gpu_memory_utilization leaves",
    ),
    Flag(Knob.NUM_GPU_BLOCKS_OVERRIDE, "--num-gpu-blocks-override", Bounds(minimum=1), "what memory holds"),
    Flag(
        Knob.BLOCK_SIZE, "--block-size", Bounds(minimum=1), "the attention backend's: 16 on CUDA, 128 on CPU"
    ),
    Flag(Knob.SHUTDOWN_TIMEOUT, "--shutdown-timeout", Bounds(minimum=0), "0: requests in flight are aborted"),
)

"""`kept_on` of chunked prefill: V1, the default from 0.8.0 on, sets it for every model that generates,
whatever is given (`_set_default_args_v1`, in 0.11.0 `_set_default_args`, of `engine/arg_utils.py`; issue
18547). Later ones only warn. Of the releases between, 0.12.0 is the first that is no patch of 0.11."""

_NAME = r"vllm(?:-(?:openai|cpu|gpu|cuda|rocm|tpu|xpu|hpu|gaudi|neuron|ascend|arm64|gh200|openai-[a-z0-9]+))*"
"""An image's last path part that says "vLLM server" and nothing else: `vllm`, `vllm-openai`,
`vllm-openai-rocm`, `vllm-cpu`."""

LAUNCH = Launch(
    executable="vllm",
    subcommand="serve",
    modules=("vllm.entrypoints.openai.api_server",),
    command_modules=("vllm.entrypoints.cli.main", "vllm.scripts"),
    images=(rf"(?:.*/)?{_NAME}", r"(?:.*/)?vllm-cpu-release-repo", r"(?:.*/)?[a-z0-9._-]*[-_.]vllm"),
    versioned_images=(
        rf"(?!.*lmcache/)(?:.*/)?{_NAME}",
        r"(?:.*/)?vllm-cpu-release-repo",
    ),
    # Dynamo 0.9, `components/src/dynamo/vllm/args.py`: its own options and `AsyncEngineArgs.add_cli_args`.
    host_modules=("dynamo.vllm",),
    others=OTHER_ENGINES,
)

DIALECT = Dialect(
    config="--config",
    positional="--model",
    positional_since=Version.parse("0.11.1"),
    needs_positional="--served-model-name",
    dotted_since=Version.parse("0.9.2"),
    short_level="-O",
    level="--optimization-level",
    levels=("0", "1", "2", "3"),
    foreign=("--omni",),
)
"""From `utils/argparse_utils.py` and `entrypoints/cli/main.py` of the releases in `OPTIONS`."""

HOST_CACHE = HostCache(
    ranks=("tensor_parallel_size", "pipeline_parallel_size"),
    engines="data_parallel_size",
    engines_here="data_parallel_size_local",
    engine_rank="data_parallel_rank",
    connector="kv_transfer_config",
    backend="kv_offloading_backend",
    own_backend="native",
    shared_since=Version.parse("0.28.0"),
    exact_since=Version.parse("0.32.0"),
    swap_mode="preemption_mode",
    swapping="swap",
)
"""`kv_offloading_size` sets a connector of its own, whatever one was configured (`config/vllm.py`,
`_post_init_kv_transfer_config`), sums the size over the ranks of one engine (`config/cache.py`), and on GPUs
maps it into `/dev/shm` (`v1/kv_offload/cpu/spec.py`): read in 0.32.0. That came with pull request 50094, in a
release after 0.27; before it each rank pinned tensors of its own, which torch rounds up to powers of two
(issue 53042). Between these two both are reckoned with. Swapping is V0's: only with `--preemption-mode swap`,
or for groups of several sequences (0.8.5, `core/scheduler.py`), which no manifest shows."""

VLLM = EngineProfile(
    name="vLLM",
    launch=LAUNCH,
    flags=FLAGS,
    options=OPTIONS,
    dialect=DIALECT,
    releases=RELEASES,
    assumed=Version.parse("0.32.0"),
    unknown_since=Version.parse("0.8.5.post1"),
    types=("dtype", "kv_cache_dtype", "quantization"),
    host_cache=HOST_CACHE,
    api_key=ApiKey("--api-key", "VLLM_API_KEY"),
    remote_cache=RemoteCache(
        (
            OptionName("--kv-transfer-config", "kv_transfer_config"),
            OptionName("--kv-events-config", "kv_events_config"),
        ),
        # `lmcache/v1/config.py`, `vllm/envs.py`, `kv_connector/v1/mooncake`: read by connectors alone.
        ("LMCACHE_", "MOONCAKE_", "NIXL_", "VLLM_NIXL_", "VLLM_MOONCAKE_"),
    ),
)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("derive_vllm_options.py")

CONFIG = """
from typing import Literal
CacheDType = Literal["auto", "fp8"]

@config
class CacheConfig:
    cache_dtype: CacheDType = "auto"
    enable_prefix_caching: bool | None = None
    kv_cache_memory_bytes: int | None = None
    names: list[str] | None = None
"""
ARGUMENTS = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        cache_kwargs = get_kwargs(CacheConfig)
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--enable-prefix-caching", **cache_kwargs["enable_prefix_caching"])
        group.add_argument("--kv-cache-memory-bytes", **cache_kwargs["kv_cache_memory_bytes"])
        group.add_argument("--names", "-n", **cache_kwargs["names"])
        group.add_argument("--swap-space", type=float, default=4)
        group.add_argument("--headless", action="store_true")
"""


def a_release(folder: Path, version: str, arguments: str) -> None:
    package = folder / version / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "config.py").write_text(CONFIG)
    (package / "engine" / "arg_utils.py").write_text(arguments)


def test_options_are_read_from_sources_with_the_releases_that_have_them(tmp_path: Path) -> None:
    a_release(tmp_path, "0.9.0", ARGUMENTS)
    a_release(tmp_path, "0.10.0", ARGUMENTS.replace("--swap-space", "--watermark"))

    table = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=True
    ).stdout

    assert table.splitlines() == [
        "releases\t0.9.0 0.10.0",
        "--config\t1\ttext\t0.9.0\t0.10.0\t",
        "--enable-prefix-caching --no-enable-prefix-caching\t0\tswitch\t0.9.0\t0.10.0\t",
        "--headless\t0\tpresence\t0.9.0\t0.10.0\t",
        "--help -h\t0\thelp\t0.9.0\t0.10.0\t",
        "--kv-cache-dtype\t1\ttext\t0.9.0\t0.10.0\tauto fp8",
        "--kv-cache-memory-bytes\t1\thuman?\t0.9.0\t0.10.0\t",
        "--names -n\t+\ttext?\t0.9.0\t0.10.0\t",
        "--swap-space\t1\tfloat\t0.9.0\t0.9.0\t",
        "--watermark\t1\tfloat\t0.10.0\t0.10.0\t",
    ]

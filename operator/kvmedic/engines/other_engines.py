"""Engines whose flags kvmedic does not know, by the names of their images and of what starts them.

Without them a person who points kvmedic at one would be asked to call it vLLM: some of their flags are
spelled like vLLM's and mean something else, so that a change would break what serves.
"""

from __future__ import annotations

from kvmedic.model.engine import OtherEngine

_BESIDE = r"(?!.*(?:router|gateway|exporter|proxy|operator|bench|loadgen))"
"""An image whose name says that it stands beside an engine, and is none."""


def _images(*names: str) -> tuple[str, ...]:
    """Return what an image's last path part is called that has one of the names as a word of its own."""
    return tuple(rf"{_BESIDE}(?:.*/)?(?:[a-z0-9._-]*[-_.])?{name}(?:[-_.][a-z0-9._-]*)?" for name in names)


def _starts(*words: str) -> tuple[str, ...]:
    """Return what a command line has as words of its own, with a path before them or without."""
    return tuple(rf"(?:^|[\s/;&|(\"'])(?:{each})(?=$|[\s;&|)\"'])" for each in words)


OTHER_ENGINES = (
    # vLLM calls it a demonstration, not for production: it has neither the API nor the metrics.
    OtherEngine(
        "vLLM's demo server without metrics (vllm.entrypoints.api_server)",
        (),
        _starts(r"vllm\.entrypoints\.api_server"),
    ),
    OtherEngine(
        "SGLang",
        _images("sglang"),
        _starts(r"sglang\.launch_server", r"sglang\s+serve", r"dynamo\.sglang"),
    ),
    OtherEngine(
        "Text Generation Inference",
        _images("text-generation-(?:inference|launcher|server)", "tgi"),
        _starts("text-generation-(?:launcher|server)"),
    ),
    OtherEngine(
        "TensorRT-LLM",
        # NVIDIA publishes it as `tensorrt-llm/release`.
        (*_images("(?:tensorrt|trt)[-_]?llm"), r"(?:.*/)?tensorrt-llm/[a-z0-9._-]+"),
        _starts("trtllm-(?:serve|llmapi-launch)", r"tensorrt_llm[\w.]*", r"dynamo\.trtllm"),
    ),
    OtherEngine(
        "Triton Inference Server",
        _images("tritonserver", "triton-inference-server"),
        _starts("tritonserver", r"launch_triton_server\.py"),
    ),
    OtherEngine(
        "llama.cpp",
        _images("llama[-_.]?cpp", "llama-server"),
        _starts("llama-server", r"llama_cpp\.server"),
    ),
    OtherEngine("Ollama", _images("ollama"), _starts(r"ollama\s+serve")),
    OtherEngine("LMDeploy", _images("lmdeploy"), _starts(r"lmdeploy\s+serve")),
    OtherEngine("MLC LLM", _images("mlc[-_]llm"), _starts(r"mlc_llm\s+serve")),
    OtherEngine(
        "OpenVINO Model Server",
        (*_images("ovms"), r"(?:.*/)?openvino/model_server(?:-gpu)?"),
        _starts("ovms"),
    ),
    # A fork of vLLM with options of its own.
    OtherEngine(
        "Aphrodite Engine",
        _images("aphrodite-(?:engine|openai)"),
        _starts(r"aphrodite\s+(?:run|serve)", r"aphrodite\.endpoints[\w.]*"),
    ),
    # Xinference and LocalAI choose an engine, and its flags, for each model that is loaded at run time.
    OtherEngine(
        "Xinference",
        _images("xinference"),
        _starts("xinference-(?:local|supervisor|worker)"),
    ),
    OtherEngine(
        "LocalAI",
        _images("local-?ai"),
        _starts("local-ai"),
    ),
    OtherEngine("TorchServe", _images("torchserve"), _starts("torchserve")),
    OtherEngine(
        "Text Embeddings Inference",
        _images("text-embeddings-(?:inference|router)"),
        _starts("text-embeddings-router"),
    ),
)
"""From the images and the quick-start commands that each project documents (2026)."""

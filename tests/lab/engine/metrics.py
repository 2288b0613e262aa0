"""What the engine counts: each step's tokens, latencies and preemptions, as vLLM's v1/metrics does.

Counted at the same moments as there (stats.py and loggers.py, 0.32): a preemption when the preempted
request's next token comes out, queue and prefill time at the first admission only, recomputed tokens never.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lab.engine.exposition import Histogram, Number, Page
from lab.engine.faults import Faults
from lab.engine.process_metrics import process_families
from lab.engine.requests import FinishReason
from lab.engine.scheduler import Output, PrefixCounts, Scheduler


@dataclass(slots=True)
class Times:
    """Moments in the life of one request, monotonic seconds; 0 until they happen."""

    arrived_at: float
    scheduled_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0


class EngineMetrics:
    """The `/metrics` page of one engine.

    Args:
        model_name: label `model_name`, the served name.
        max_model_len: bounds the buckets of token counts.
        cache_labels: all labels of `vllm:cache_config_info`.
        faults: which families are dropped or NaN on purpose.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_labels: Mapping[str, str],
        faults: Faults = Faults(),  # noqa: B008 - frozen
    ) -> None:
        self._labels = {"engine": "0", "model_name": model_name}
        self._faults = faults
        self.page = Page(model_name, max_model_len)
        self.page["vllm:cache_config_info"].number(**cache_labels).value = 1.0
        self._number("engine_sleep_state", sleep_state="awake").value = 1.0
        self._prefix_seen = (0, 0)
        self._external_seen = (0, 0)
        self.generated = self._number("generation_tokens_total")
        self.prompted = self._number("prompt_tokens_total")
        self._preemptions = self._number("num_preemptions_total")
        self._inter_token = self._histogram("inter_token_latency_seconds")
        self._first_token = self._histogram("time_to_first_token_seconds")
        self._iteration_tokens = self._histogram("iteration_tokens_total")

    def record_step(self, outputs: list[tuple[Output, Times]], now: float) -> None:
        """Count the tokens of one step, which ended at `now`."""
        computed = 0
        preemptions = 0
        observe_gap = self._inter_token.observe
        for output, times in outputs:
            preemptions += output.preemptions
            if times.first_token_at:
                observe_gap(now - times.last_token_at)
            else:
                computed += self._record_first_token(output, times, now)
            times.last_token_at = now
            if output.finish_reason is not None:
                self._record_finished(output, times, now)
        self._preemptions.value += preemptions
        self.generated.value += len(outputs)
        if outputs:
            self._iteration_tokens.observe(computed + len(outputs))

    def record_scheduler(self, scheduler: Scheduler) -> None:
        """Take over the scheduler's state, as after a step."""
        waiting = len(scheduler.waiting)
        self._number("num_requests_running").value = len(scheduler.running)
        self._number("num_requests_waiting").value = waiting
        self._number("num_requests_waiting_by_reason", reason="capacity").value = waiting
        self._number("kv_cache_usage_perc").value = scheduler.pool.usage
        prefix = scheduler.prefix
        queries, hits = prefix.queries - self._prefix_seen[0], prefix.hits - self._prefix_seen[1]
        self._prefix_seen = (prefix.queries, prefix.hits)
        self._number("prefix_cache_queries_total").add(queries)
        self._number("prefix_cache_hits_total").add(hits)
        self._number("prompt_tokens_cached_by_source_total", source="device").add(hits)
        self._record_external(scheduler.external)

    def _record_external(self, external: PrefixCounts) -> None:
        seen = (external.queries, external.hits)
        queries, hits = (now - before for now, before in zip(seen, self._external_seen, strict=True))
        self._external_seen = seen
        self._number("external_prefix_cache_queries_total").add(queries)
        self._number("external_prefix_cache_hits_total").add(hits)
        self._number("prompt_tokens_cached_by_source_total", source="host").add(hits)

    def record_http(self, method: str, handler: str, status: int, seconds: float, size: int) -> None:
        """Count one answered HTTP request; `size` is the length of its body in bytes."""
        page = self.page
        page["http_requests_total"].number(handler=handler, method=method, status=f"{status // 100}xx").add()
        page["http_request_size_bytes"].histogram(handler=handler).observe(size)
        page["http_response_size_bytes"].histogram(handler=handler).observe(0)
        page["http_request_duration_highr_seconds"].histogram().observe(seconds)
        page["http_request_duration_seconds"].histogram(handler=handler, method=method).observe(seconds)

    def record_rejection(self, reason: str) -> None:
        """Count one request that a queue limit refused."""
        name = self._labels["model_name"]
        self.page["vllm:admission_rejections_total"].number(model_name=name, reason=reason).add()

    def text(self) -> str:
        return self.page.text(process_families(), self._faults.dropped, self._faults.not_a_number)

    def _record_first_token(self, output: Output, times: Times, now: float) -> int:
        """Count the prompt along with its first token; return how many prompt tokens were computed."""
        request = output.request
        cached, loaded = request.cached_prompt_tokens, request.loaded_prompt_tokens
        computed = request.prompt_length - cached - loaded
        self.prompted.add(request.prompt_length)
        self._number("prompt_tokens_by_source_total", source="local_compute").add(computed)
        self._number("prompt_tokens_by_source_total", source="local_cache_hit").add(cached)
        self._number("prompt_tokens_by_source_total", source="external_kv_transfer").add(loaded)
        self._number("prompt_tokens_cached_total").add(cached + loaded)
        self._first_token.observe(now - times.arrived_at)
        times.first_token_at = now
        return computed

    def _record_finished(self, output: Output, times: Times, now: float) -> None:
        request = output.request
        decode = times.last_token_at - times.first_token_at
        generated = request.output_length
        self._number("request_success_total", finished_reason=str(output.finish_reason)).add()
        observations = {
            "e2e_request_latency_seconds": now - times.arrived_at,
            "request_queue_time_seconds": times.scheduled_at - times.arrived_at,
            "request_prefill_time_seconds": times.first_token_at - times.scheduled_at,
            "request_inference_time_seconds": times.last_token_at - times.scheduled_at,
            "request_decode_time_seconds": decode,
            "request_num_preemptions": request.preemptions,
            "request_prefill_kv_computed_tokens": request.prompt_length
            - request.cached_prompt_tokens
            - request.loaded_prompt_tokens,
            "request_prompt_tokens": request.prompt_length,
            "request_generation_tokens": generated,
            "request_max_num_generation_tokens": generated,
            "request_params_n": 1,
            "request_params_max_tokens": request.max_tokens,
            "request_time_per_output_token_seconds": decode / (generated - 1) if generated > 1 else 0.0,
        }
        for name, value in observations.items():
            self._histogram(name).observe(value)

    def record_abort(self) -> None:
        """Count a request that the engine itself ended."""
        self._number("request_success_total", finished_reason=FinishReason.ABORT.value).add()

    def _number(self, name: str, **labels: str) -> Number:
        return self.page[f"vllm:{name}"].number(**self._labels, **labels)

    def _histogram(self, name: str) -> Histogram:
        return self.page[f"vllm:{name}"].histogram(**self._labels)

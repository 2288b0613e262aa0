"""What holds for every engine, and that one more is found by its own words alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvmedic.engines import ENGINES, VOCABULARIES, vocabulary_of
from kvmedic.engines.vllm import VLLM
from kvmedic.manifests.errors import ErrorReason, ManifestError
from kvmedic.manifests.flags import read_flags
from kvmedic.manifests.invocation import Selector, engines_in
from kvmedic.model.engine import Dialect, Engine, Launch

OTHER = replace(
    VLLM,
    name="Other",
    launch=Launch("other", "serve", ("other.server",), (), (r"(?:.*/)?other",), ()),
    dialect=Dialect(),
)
BOTH = """\
kind: Deployment
metadata: {name: chat}
spec:
  template:
    spec:
      containers:
      - {name: a, image: vllm/vllm-openai, args: [--max-num-seqs=8]}
      - {name: b, image: x/y, command: [python3, -m, other.server, "", --max-num-seqs=9]}
"""


def test_each_engine_has_one_row():
    assert len({engine.name for engine in ENGINES}) == len(VOCABULARIES)
    assert all(vocabulary_of(each.profile) is each for each in VOCABULARIES)


def test_a_container_is_read_as_the_engine_that_it_starts():
    found = engines_in(BOTH, (VLLM, OTHER), Selector())

    assert not isinstance(found, ManifestError)
    assert [(container.name, profile.name) for container, profile in found] == [("a", "vLLM"), ("b", "Other")]
    views = [read_flags(container.data, Engine(profile)) for container, profile in found]
    assert [view.values() for view in views if not isinstance(view, ManifestError)] == [
        {"max_num_seqs": 8},
        {"max_num_seqs": 9},
    ]


@pytest.mark.parametrize(("profiles", "names"), [((VLLM,), "vLLM"), ((VLLM, OTHER), "vLLM or Other")])
def test_a_manifest_without_any_engine_is_refused_with_the_names_of_those_known(profiles, names):
    found = engines_in(BOTH.replace("other.server", "x").replace("vllm-openai", "x"), profiles, Selector())

    assert isinstance(found, ManifestError)
    assert found.reason is ErrorReason.NO_ENGINE
    assert f"no container starts {names}: " in found.message

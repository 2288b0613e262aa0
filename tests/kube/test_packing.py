"""Texts that are alike are kept in a fraction of their memory, and come back as they were."""

from __future__ import annotations

import json
import random
import zlib
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from kvmedic.kube.packing import MOST_COMMON, Packer
from lab.bench.scale_fleets import fleets


def pods(count: int) -> list[bytes]:
    digits = random.Random(1)
    named = ((each, {"name": each.name, "uid": str(digits.random())}) for each in fleets(count, 1))
    return [json.dumps({"metadata": metadata, **each.template()}).encode() for each, metadata in named]


def test_what_many_have_in_common_is_kept_once() -> None:
    texts, packer = pods(1000), Packer()
    packed = [packer.pack(each) for each in texts]

    alone = sum(len(zlib.compress(each)) for each in texts)
    dictionaries = {id(each.common): len(each.common) for each in packed}
    assert sum(len(each.rest) for each in packed) + sum(dictionaries.values()) < alone / 2
    assert [each.text() for each in packed] == texts


def test_the_first_one_may_be_unlike_the_others() -> None:
    texts, packer = pods(100), Packer()
    packer.pack(random.Random(2).randbytes(MOST_COMMON))

    packed = [packer.pack(each) for each in texts]

    assert (
        sum(len(each.rest) for each in packed[50:]) < sum(len(zlib.compress(each)) for each in texts[50:]) / 3
    )


def test_threads_may_share_a_packer() -> None:
    texts, packer = pods(400), Packer()
    with ThreadPoolExecutor(8) as threads:
        assert [each.text() for each in threads.map(packer.pack, texts)] == texts


@given(st.lists(st.binary(max_size=2 * MOST_COMMON), max_size=9))
def test_any_text_comes_back(texts: list[bytes]) -> None:
    packer = Packer()
    assert [packer.pack(each).text() for each in texts] == texts

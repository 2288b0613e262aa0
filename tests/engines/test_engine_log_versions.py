from __future__ import annotations

from datetime import timedelta

import pytest

from kvmedic.engines.engine_log import (
    Agreed,
    Mixed,
    ReportedVersion,
    Silent,
    Unclear,
    Witness,
    reported_version,
    witnesses,
)
from kvmedic.engines.vllm import VLLM
from kvmedic.model.engine import Version
from kvmedic.model.evidence import Absence, Measured, Missing, Reading, Stale, Unsupported
from run_builder import NEW, NOW, OLD, a_pod

NOTHING = Missing(Absence.SOURCE_UNAVAILABLE)
NO_PAGE = Missing(Absence.NOTHING_FOUND)
HTML = Missing(Absence.UNREADABLE)


def says(version: str) -> Reading[Version]:
    return Measured(Version.parse(version), NOW)


def judge(*answers: tuple[str, str, Reading[Version]]) -> ReportedVersion:
    """What follows from answers: pod, the image that it runs, its answer."""
    return reported_version([Witness(*answer) for answer in answers], VLLM)


def version(text: str) -> Version:
    return Version.parse(text)


OLDEST, NEWEST = str(VLLM.releases[0]), str(VLLM.releases[-1])
CASES: list[tuple[str, ReportedVersion, ReportedVersion]] = [
    ("one answers", judge(("a", "x", says("0.11.0"))), Agreed(version("0.11.0"))),
    (
        "a build of the same version is the same",
        judge(("a", "x", says("0.32.0+cpu")), ("b", "y", says("0.32.0"))),
        Agreed(version("0.32.0")),
    ),
    (
        "one of two of an image is busy",
        judge(("a", "x", NOTHING), ("b", "x", says("0.11.0"))),
        Agreed(version("0.11.0")),
    ),
    (
        "of another image nobody answers",
        judge(("a", "x", NOTHING), ("b", "y", says("0.11.0"))),
        Unclear("a did not answer"),
    ),
    (
        "two images, two versions",
        judge(("b", "y", says("0.11.0")), ("a", "x", says("0.9.2"))),
        Mixed("0.9.2 on a; 0.11.0 on b"),
    ),
    (
        "one image whose script installs what is newest",
        judge(("a", "x", says("0.9.2")), ("b", "x", says("0.11.0")), ("c", "y", says("0.9.2"))),
        Mixed("0.9.2 on a, c; 0.11.0 on b"),
    ),
    ("a release candidate is no release", judge(("a", "x", says("0.11.0rc2"))), Agreed(version("0.11.0rc2"))),
    ("the oldest release", judge(("a", "x", says(OLDEST))), Agreed(version(OLDEST))),
    (
        "before the oldest release",
        judge(("a", "x", says(f"{OLDEST}.dev1"))),
        Unclear(f"a says {OLDEST}.dev1, which is none of its releases"),
    ),
    ("after the newest release", judge(("a", "x", says("0.99.0"))), Agreed(version("0.99.0"))),
    (
        "a build from a shallow clone",
        judge(("a", "x", says("0.1.dev1+gabc"))),
        Unclear("a says 0.1.dev1+gabc, which is none of its releases"),
    ),
    (
        "another first number",
        judge(("a", "x", says("1.0.0"))),
        Unclear("a says 1.0.0, which is none of its releases"),
    ),
    (
        "nobody answers",
        judge(("a", "x", NOTHING), ("b", "x", NO_PAGE), ("c", "x", HTML)),
        Silent("a did not answer; b has no such page; c answered with something that is no version"),
    ),
    (
        "what no adapter of ours answers",
        judge(("a", "x", Unsupported()), ("b", "x", Stale(NOW)), ("c", "x", Missing(Absence.AMBIGUOUS))),
        Silent("a does not report it; b does not report it; c does not report it"),
    ),
    ("nobody is asked", judge(), Silent("no replica is Ready to be asked")),
]


@pytest.mark.parametrize(("found", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_the_version_that_replicas_report(found: ReportedVersion, expected: ReportedVersion) -> None:
    assert found == expected


def test_of_each_image_the_oldest_and_the_newest_are_asked_however_many_there_are() -> None:
    pods = [
        a_pod(f"{image}{number}", image=image, created_at=NOW - timedelta(minutes=number))
        for image in ("x", "y")
        for number in range(500)
    ]

    assert [pod.name for pod in witnesses(pods, OLD)] == ["x499", "x0", "y499", "y0"]


def test_one_replica_of_an_image_is_asked_once() -> None:
    assert [pod.name for pod in witnesses([a_pod("a", image="x")], OLD)] == ["a"]


def test_only_ready_replicas_of_the_template_that_stay_are_asked() -> None:
    pods = [
        a_pod("starting", ready_at=None),
        a_pod("going", terminating=True),
        a_pod("another", NEW),
        a_pod("serving"),
    ]

    assert [pod.name for pod in witnesses(pods, OLD)] == ["serving"]

"""The catalogue of faults names tests that are there, and says how they ended."""

import json
import re

import pytest

from documentation import faults as catalogue
from documentation.faults import (
    OPERATOR,
    CatalogueError,
    Fault,
    digest_of,
    fault_page,
    faults,
    named_tests,
    node_id,
    read_results,
    record,
)
from lab.play.files import DIRECTORY

TEST = "controller/test_faults.py::test_bad_metrics_judge_nothing"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.controller.test_faults" name="test_bad_metrics_judge_nothing[of every pod]"/>
<testcase classname="tests.controller.test_faults" name="test_bad_metrics_judge_nothing[of one pod]@group">
<failure message="it did"/></testcase>
<testcase classname="tests.kube.test_client.TestAnswers" name="test_a_webhook_that_does_not_answer_is_named"/>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "faults.xml"
    path.write_text(REPORT)
    return path


def test_every_test_and_scenario_of_the_catalogue_is_there():
    assert len(named_tests()) > len(faults())
    scenarios = {test[1:] for fault in faults() for test in fault.tests if test.startswith("/")}
    assert scenarios <= {path.stem for path in DIRECTORY.glob("*.yaml")}


def test_each_fault_has_a_row_with_its_result():
    page = fault_page()

    assert all(f"| {fault.what} | " in page for fault in faults())
    shown = sum(page.count(end) for end in (" passed at ", "[played]"))
    assert shown == sum(len(fault.tests) for fault in faults())


def test_a_test_that_is_not_there_is_named():
    with pytest.raises(CatalogueError, match=r"controller/test_faults.py::test_nothing, which is not there"):
        node_id("controller/test_faults.py::test_nothing")


def test_cases_of_one_test_are_counted_together_whichever_worker_ran_them(report):
    results = read_results(report)

    assert results[node_id(TEST)] == {"passed": 1, "failed": 1}
    named = "tests/kube/test_client.py::TestAnswers::test_a_webhook_that_does_not_answer_is_named"
    assert results[named] == {"passed": 1}


def test_what_a_report_has_is_written_down_and_the_rest_stays(report, monkeypatch, tmp_path):
    other, gone = (
        "controller/test_people.py::test_a_run_survives_people",
        "controller/test_people.py::test_gone",
    )
    kept = {"passed": 3, "failed": 0, "at": "abc", "operator": "123"}
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({other: kept, gone: kept}))
    monkeypatch.setattr(catalogue, "RECORDED", path)
    monkeypatch.setattr(catalogue, "named_tests", lambda: {node_id(test): test for test in (TEST, other)})

    assert record(report, "def") == 1
    new = {"passed": 1, "failed": 1, "at": "def", "operator": digest_of(OPERATOR)}
    assert json.loads(path.read_text()) == {TEST: new, other: kept}


@pytest.mark.parametrize(
    ("operator", "shown"),
    [
        ("the same", "| 3 passed at abc |"),
        ("123", "| 3 passed at abc, `operator/` changed since |"),
        (None, "| 3 passed at abc, `operator/` changed since |"),
    ],
)
def test_a_result_of_another_operator_says_so(monkeypatch, tmp_path, operator, shown):
    found = digest_of(OPERATOR) if operator == "the same" else operator
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({TEST: {"passed": 3, "failed": 0, "at": "abc", "operator": found}}))
    monkeypatch.setattr(catalogue, "RECORDED", path)
    monkeypatch.setattr(catalogue, "named_tests", lambda: {node_id(TEST): TEST})
    monkeypatch.setattr(catalogue, "faults", lambda: (Fault("Metrics", "they lie", (TEST,)),))

    page = fault_page()

    assert shown in page
    assert f"{int(operator == 'the same')} of 1 tests ran on the `operator/` of this tree" in page


def test_an_edit_a_new_file_and_another_name_are_another_operator(tmp_path):
    (tmp_path / "a.py").write_text("1")
    seen = [digest_of(tmp_path)]
    (tmp_path / "a.py").write_text("2")
    seen.append(digest_of(tmp_path))
    (tmp_path / "b.py").write_text("")
    seen.append(digest_of(tmp_path))
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    seen.append(digest_of(tmp_path))
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")

    assert len(set(seen)) == len(seen)
    assert digest_of(tmp_path) == seen[-1]


def test_a_page_with_a_test_that_was_never_run_is_refused_with_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "RECORDED", tmp_path / "recorded.json")
    monkeypatch.setattr(catalogue, "named_tests", lambda: {node_id(TEST): TEST})

    with pytest.raises(CatalogueError, match=re.escape(f'make faults FAULTS="{node_id(TEST)}"')):
        fault_page()

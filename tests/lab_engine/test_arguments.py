"""The lab engine's command line against what vLLM 0.32's own parser made of the same arguments."""

import json
from pathlib import Path

import pytest

from lab.engine.arguments import parse_api_server, parse_serve

DATA = Path(__file__).parents[1] / "data" / "vllm"
CASES = json.loads((DATA / "argv_cases.json").read_text())


def parse(argv):
    local = [part.replace("/config/", f"{DATA}/config/") for part in argv]
    if local[0] == "python":
        return vars(parse_api_server(local[3:]))
    return vars(parse_serve(local[1:]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case["argv"][2:]))
def test_arguments_are_read_as_vllm_read_them(case, capsys):
    if "parsed" in case:
        parsed = parse(case["argv"])
        assert {name: parsed[name] for name in case["parsed"]} == case["parsed"]
        return

    with pytest.raises((SystemExit, FileNotFoundError)) as stopped:
        parse(case["argv"])

    if stopped.type is SystemExit:
        assert stopped.value.code == case["exit"] == 2
        assert capsys.readouterr().err.strip().splitlines()[-1] == case["error"]
    else:
        assert case["error"].startswith("FileNotFoundError")

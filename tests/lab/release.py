"""What a release holds beside the Python packages: `python -m lab.release pack FOLDER BASE`, and `audit`.

Chart, manifests, and a bill of materials (CycloneDX) of what the image installs. The versions of chart, image
and package must be one, and the image's base is named by digest; anything else is refused.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from kvmedic import __version__
from lab.cluster.toolchain import Tool, binary

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "kvmedic"
BASE = ROOT / "deploy"
LOCK = ROOT / "requirements.lock"
TOOLS = ROOT / "build" / "release-tools" / "bin"
VULNERABLE, NOT_AUDITED = 1, 3
"""Exit codes of `audit`; 2 is a wrong call."""
PINNED = re.compile(r"(?P<path>[^@\s]+?)(?::(?P<tag>[^/:@\s]+))?@(?P<digest>sha256:[0-9a-f]{64})")
VALIDATE = """import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())
sys.exit(str(found) if found else 0)
"""


def versions() -> dict[str, str]:
    """Every version that a release names, by where it stands."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    base = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    labels = [pairs for each in base["labels"] if "app.kubernetes.io/version" in (pairs := each["pairs"])]
    return {
        "operator/kvmedic/__init__.py": __version__,
        "charts/kvmedic/Chart.yaml version": str(chart["version"]),
        "charts/kvmedic/Chart.yaml appVersion": str(chart["appVersion"]),
        "deploy/kustomization.yaml images": str(base["images"][0]["newTag"]),
        "deploy/kustomization.yaml labels": str(labels[0]["app.kubernetes.io/version"]),
    }


def refuse_several_versions(found: dict[str, str]) -> None:
    """Refuse versions that differ.

    Raises:
        ValueError: they are not one; it says where each stands.
    """
    if len(set(found.values())) > 1:
        listing = ", ".join(f"{place} {version}" for place, version in found.items())
        raise ValueError(f"a release has one version: {listing}; write the same everywhere")


def base_component(base: str) -> dict[str, str]:
    """Return the image's base as a component of the bill of materials.

    Raises:
        ValueError: it is not named by digest, so that nobody could say later what was in it.
    """
    found = PINNED.fullmatch(base)
    if found is None:
        raise ValueError(
            f"BASE={base} may be another image tomorrow: name it by digest, as in "
            f"make release BASE=python:3.11-slim@sha256:DIGEST (docker buildx imagetools inspect shows it)"
        )
    path, tag, digest = found["path"], found["tag"], found["digest"]
    name = path.rpartition("/")[2]
    purl = f"pkg:oci/{name}@{digest.replace(':', '%3A')}" + (f"?tag={tag}" if tag else "")
    return {"type": "container", "bom-ref": "base", "name": path, "version": digest, "purl": purl}


def write_materials(folder: Path, base: str) -> Path:
    """Write what the image is made of: each package with its version and hashes, and the base by digest."""
    component = base_component(base)
    argv = [
        TOOLS / "cyclonedx-py",
        "requirements",
        LOCK,
        "--output-reproducible",
        "--sv",
        "1.6",
        "--of",
        "JSON",
    ]
    materials = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    packages = [{key: each[key] for key in each if key != "description"} for each in materials["components"]]
    itself = {"type": "application", "bom-ref": "kvmedic", "name": "kvmedic", "version": __version__}
    made: dict[str, Any] = {
        **materials,
        "metadata": {**materials["metadata"], "component": itself},
        "components": [component, *packages],
        "dependencies": [{"ref": "kvmedic", "dependsOn": ["base", *(each["bom-ref"] for each in packages)]}],
    }
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    subprocess.run([TOOLS / "python", "-c", VALIDATE], input=text, check=True, text=True)
    path = folder / f"kvmedic-{__version__}.cdx.json"
    path.write_text(text)
    return path


def judge_audit(answer: str, error: str = "") -> tuple[int, str]:
    """Return the exit code for what pip-audit answered, and the sentence for a person.

    pip-audit ends with 0 and "no known vulnerabilities" where the service knows none of the packages.
    What was not looked up is not known to be safe.
    """
    try:
        found = json.loads(answer)["dependencies"]
    except (ValueError, KeyError):
        last = error.strip().rpartition("\n")[2] or "it gave no answer"
        return NOT_AUDITED, f"NOT AUDITED: the advisory service cannot be reached ({last})"
    bad = [
        f"{each['name']} {each['version']}: {', '.join(one['id'] for one in each['vulns'])}"
        for each in found
        if each.get("vulns")
    ]
    skipped = [str(each["skip_reason"]) for each in found if "skip_reason" in each]
    if bad:
        return VULNERABLE, "known vulnerabilities; raise these packages (make lock): " + "; ".join(bad)
    if skipped or not found:
        first = skipped[0] if skipped else "no package was named"
        return NOT_AUDITED, f"NOT AUDITED: {len(skipped)} of {len(found)} packages, such as: {first}"
    return 0, f"none of {len(found)} packages has a known vulnerability"


def audit() -> int:
    """Ask the advisory service about each package that the image installs; say what came of it."""
    argv = [TOOLS / "pip-audit", "-r", LOCK, "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    done = subprocess.run([*argv, "-f", "json"], check=False, capture_output=True, text=True)
    code, sentence = judge_audit(done.stdout, done.stderr)
    print(f"audit: {sentence}", file=sys.stderr if code else sys.stdout)
    if code == NOT_AUDITED:
        print(
            "audit: run it where that service answers; make release AUDIT=no goes on without", file=sys.stderr
        )
    return code


def pack(folder: Path) -> list[Path]:
    """Put the packed chart, the definitions and the manifests of a whole installation into a folder."""
    refuse_several_versions(versions())
    helm = [str(binary(Tool.HELM)), "package", str(CHART), "--destination", str(folder)]
    subprocess.run(helm, check=True, capture_output=True)
    made = []
    for name, source in (("install", BASE), ("crds", ROOT / "crds")):
        kustomize = [str(binary(Tool.KUBE)), "kubectl", "kustomize", str(source)]
        text = subprocess.run(kustomize, check=True, capture_output=True, text=True).stdout
        made.append(folder / f"kvmedic-{__version__}-{name}.yaml")
        made[-1].write_text(text)
    return [folder / f"kvmedic-{__version__}.tgz", *made]


def has_section(changelog: str) -> bool:
    """Return whether the changelog has a section of this version."""
    return re.search(rf"^## \[{re.escape(__version__)}\]", changelog, re.MULTILINE) is not None


def main(arguments: list[str]) -> int:
    """Pack or audit; name what was made, and say what a person must still write."""
    match arguments:
        case ["audit"]:
            return audit()
        case ["base", base]:
            base_component(base)
        case ["pack", folder, base]:
            for path in [*pack(Path(folder)), write_materials(Path(folder), base)]:
                print(path)
            if not has_section((ROOT / "CHANGELOG.md").read_text()):
                print(f"CHANGELOG.md has no section [{__version__}] yet: name what is released first")
        case _:
            print("usage: python -m lab.release audit | base BASE | pack FOLDER BASE", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"release: {error}")

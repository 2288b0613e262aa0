"""What a release holds beside the Python packages: `python -m lab.release FOLDER` packs chart and manifests.

The versions of chart, image and package must be one; a release of several is refused.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from kvmedic import __version__
from lab.cluster.toolchain import Tool, binary

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "kvmedic"
BASE = ROOT / "deploy"


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
        told = ", ".join(f"{place} {version}" for place, version in found.items())
        raise ValueError(f"a release has one version: {told}; write the same everywhere")


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


def main(folder: str) -> int:
    """Pack, name what was made, and say what a person must still write."""
    for path in pack(Path(folder)):
        print(path)
    if not has_section((ROOT / "CHANGELOG.md").read_text()):
        print(f"CHANGELOG.md has no section [{__version__}] yet: name what is released before you push it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

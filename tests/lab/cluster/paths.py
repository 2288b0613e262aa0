"""Where the lab keeps what it builds and runs: everything lies under the repository's `build/`."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LAB_SOURCES = ROOT / "tests" / "lab"
BUILD = ROOT / "build" / "lab"
BIN = BUILD / "bin"
IMAGES = BUILD / "images"
KUBECONFIG = BUILD / "kubeconfig"

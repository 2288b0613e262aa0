#!/usr/bin/env bash
# Makes build/venv from the hashed requirements. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p build
say() { printf '[setup] %s\n' "$*"; }
root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  say "Python 3.11 or newer is needed; found $(python3 --version)"; exit 1
fi
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  say "installing python3-venv"
  root apt-get update -qq && root apt-get install -y -qq --no-install-recommends python3-venv
fi
[ -x build/venv/bin/python ] || { say "creating build/venv"; python3 -m venv build/venv; }
build/venv/bin/python -m uv --version >/dev/null 2>&1 || { say "installing uv"; build/venv/bin/python -m pip install -q --disable-pip-version-check uv; }
say "installing the locked requirements"
# install, not sync: sync would remove pip and uv themselves.
build/venv/bin/python -m uv pip install -q --require-hashes -r requirements-dev.lock --python build/venv/bin/python
say "ready: $(build/venv/bin/python --version)"

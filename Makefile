# Everything a contributor types. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PY := build/venv/bin/python
export PYTHONPATH := operator:tests
# Tests start some hundred interpreters: none of them compiles what another one has, also where the machine forbids it.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: build/venv/.done ## Install the Python environment into build/venv

build/venv/.done: requirements-dev.lock tests/lab/setup.sh
	@bash tests/lab/setup.sh
	@touch $@

.PHONY: lock
lock: setup ## Resolve the Python requirements anew
	build/venv/bin/uv pip compile pyproject.toml --extra operator --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 -o requirements.lock
	build/venv/bin/uv pip compile pyproject.toml --extra operator --group dev --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 -o requirements-dev.lock
	build/venv/bin/uv pip compile --group pyproject.toml:docs --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 -o requirements-docs.lock
	build/venv/bin/uv pip compile --group pyproject.toml:release --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 -o requirements-release.lock

.PHONY: fmt
fmt: setup ## Format the code
	build/venv/bin/ruff format operator tests
	build/venv/bin/ruff check --fix-only -q operator tests

DOCS := build/docs
$(DOCS)/.done: requirements-docs.lock build/venv/.done
	build/venv/bin/uv venv -q --clear --python $(PY) $(DOCS)
	build/venv/bin/uv pip install -q --require-hashes -r requirements-docs.lock --python $(DOCS)/bin/python
	@touch $@

.PHONY: docs
docs: $(DOCS)/.done ## Build the documentation into build/site; fails on a broken link and on a page outside the navigation
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "docs: build/site/index.html; to search too: python3 -m http.server -d build/site"

.PHONY: pictures
pictures: docs ## Have a browser take the pictures of report, documentation and terminal that are kept in docs/assets
	@$(PY) -m lab.pictures

.PHONY: dashboard-pictures
dashboard-pictures: setup ## Play a scenario on a real cluster and draw what the chart's dashboards show of it, kept in docs/assets
	$(PY) -m lab.dashboards

.PHONY: words
words: setup ## Count the words of the documentation, and list the longest pages
	@$(PY) -m documentation.words

.PHONY: check
check: setup docs ## Format, lint, types, import contracts, generated files, documentation
	build/venv/bin/ruff format --check operator tests
	build/venv/bin/ruff check operator tests
	build/venv/bin/mypy
	build/venv/bin/lint-imports
	@for kind in $(KINDS); do \
	  $(PY) -m kvmedic crd $$kind | diff -q - crds/kvmedic.io_$$kind.yaml >/dev/null || { echo "crds/kvmedic.io_$$kind.yaml is stale: run make crd"; exit 1; }; \
	  $(PY) -m kvmedic crd $$kind -o markdown | diff -q - docs/reference/$${kind%s}.md >/dev/null || { echo "docs/reference/$${kind%s}.md is stale: run make crd"; exit 1; }; \
	done
	$(PY) -m chart.generated --check
	@for tree in operator tests; do \
	  printf '%s: %d files, %d lines\n' $$tree $$(find $$tree -name '*.py' | wc -l) $$(find $$tree -name '*.py' -exec cat {} + | wc -l); \
	done

WORKERS ?= 6
.PHONY: test
test: setup ## Run every test; installs and builds what they need, and takes the lab's cluster down (PYTEST=… for options, WORKERS=6)
	@PYTEST='$(PYTEST)' WORKERS=$(WORKERS) bash tests/run.sh

.PHONY: faults
faults: setup ## Run the tests of the catalogue of faults, and write down how they ended (FAULTS="tests/controller/test_faults.py")
	$(PY) -m lab tools
	@$(PY) -m pytest -q --timeout=600 -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --junitxml=build/faults.xml $(or $(FAULTS),$$($(PY) -m documentation.faults)); \
	$(PY) -m documentation.faults build/faults.xml && $(PY) -m chart.generated

.PHONY: test-core
test-core: setup ## Run the tests that need no cluster, in seconds
	$(PY) -m pytest -q tests/model tests/verdict tests/rollout tests/runbooks tests/manifests tests/engines tests/cli tests/record tests/test_layout.py $(PYTEST)

KINDS := kvremediations kvapprovals
.PHONY: crd
crd: setup ## Write the CustomResourceDefinitions, their copies and their reference pages from the models
	@mkdir -p build
	@for kind in $(KINDS); do \
	  $(PY) -m kvmedic crd $$kind >build/crd.yaml && mv build/crd.yaml crds/kvmedic.io_$$kind.yaml || exit 1; \
	  $(PY) -m kvmedic crd $$kind -o markdown >build/crd.md && mv build/crd.md docs/reference/$${kind%s}.md || exit 1; \
	done
	$(PY) -m chart.generated

.PHONY: manifests
manifests: setup ## Write the files that follow from others (chart's CRD, RBAC, tables in docs)
	$(PY) -m chart.generated

ARCHES ?= $(shell uname -m)
WHEELS := build/wheels/.$(shell echo $(ARCHES) | tr ' ' -)
# manylinux tags by which a wheel may name what C library it needs.
LIBC := manylinux_2_28 manylinux_2_17 manylinux2014
$(WHEELS): requirements.lock build/venv/.done
	@rm -rf build/wheels && mkdir -p build/wheels
	@for arch in $(ARCHES); do \
	  $(PY) -m pip download -q --disable-pip-version-check --require-hashes --only-binary :all: \
	    --implementation cp --python-version 3.11 $(foreach libc,$(LIBC),--platform $(libc)_$$arch) \
	    -d build/wheels -r requirements.lock || exit 1; \
	done
	@touch $@

.PHONY: wheels
wheels: $(WHEELS) ## Fetch the image's requirements, so that its build needs no network (ARCHES="x86_64 aarch64")

IMAGE ?= kvmedic:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' operator/kvmedic/__init__.py)
BASE ?= python:3.11-slim
.PHONY: image
image: wheels ## Build the operator's image (IMAGE=, BASE=) with docker, podman or buildah
	@set -- -f Containerfile --build-arg BASE=$(BASE) -t $(IMAGE) .; \
	if docker info >/dev/null 2>&1; then docker build "$$@"; \
	elif command -v podman >/dev/null; then podman build "$$@"; \
	elif command -v buildah >/dev/null; then buildah bud "$$@"; \
	else echo "make image needs a Docker engine, podman or buildah"; exit 1; fi

TOOLS := build/release-tools
$(TOOLS)/.done: requirements-release.lock build/venv/.done
	build/venv/bin/uv venv -q --clear --python $(PY) $(TOOLS)
	build/venv/bin/uv pip install -q --require-hashes -r requirements-release.lock --python $(TOOLS)/bin/python
	@touch $@

.PHONY: audit
audit: $(TOOLS)/.done ## Look up known vulnerabilities of what the image installs; fails where nobody answers, too (AUDIT=if-answered: only says so)
	@$(PY) -m lab.release audit || { code=$$?; [ "$(AUDIT) $$code" = "if-answered 3" ] || exit $$code; }

RELEASE := build/release
CHECKSUMS = @cd $(RELEASE) && rm -f SHA256SUMS && sha256sum -- * | tee ../SHA256SUMS && mv ../SHA256SUMS .
PLATFORMS ?= linux/amd64,linux/arm64
OCI = $(RELEASE)/$(subst :,-,$(IMAGE)).oci.tar
.PHONY: release-image
release-image: setup ## Build the operator's image for PLATFORMS into one OCI archive in build/release, after make release (BASE=NAME@sha256:…); nothing is pushed
	@$(PY) -m lab.release base '$(BASE)'
	@$(MAKE) -s wheels ARCHES="x86_64 aarch64"
	@mkdir -p $(RELEASE); set -- -f Containerfile --build-arg BASE=$(BASE) --platform $(PLATFORMS); \
	if docker buildx version >/dev/null 2>&1; then docker buildx build "$$@" --output type=oci,dest=$(OCI) .; \
	elif command -v buildah >/dev/null; then \
	  buildah manifest rm $(IMAGE) >/dev/null 2>&1 || true; \
	  buildah build "$$@" --manifest $(IMAGE) . && buildah manifest push -q --all $(IMAGE) oci-archive:$(OCI); \
	else echo "make release-image needs docker buildx or buildah, and qemu-user-static for another architecture"; exit 1; fi
	$(CHECKSUMS)

.PHONY: release
release: setup $(TOOLS)/.done ## Build packages, chart, manifests, bill of materials and checksums into build/release (BASE=NAME@sha256:…, AUDIT=no); nothing is pushed
	@$(PY) -m lab.release base '$(BASE)'
	@if [ '$(AUDIT)' = no ]; then echo 'audit: left out (AUDIT=no); nothing is known of the packages'; else $(PY) -m lab.release audit; fi
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) build/venv/bin/uv build -q --out-dir $(RELEASE)
	@rm -f $(RELEASE)/.gitignore
	$(PY) -m lab.release pack $(RELEASE) '$(BASE)'
	$(CHECKSUMS)

GPUS ?= 8
.PHONY: lab-up
lab-up: setup ## Bring up a real Kubernetes cluster (kind with Docker, else natively as root); GPUS=8
	$(PY) -m lab up --gpus $(GPUS)

.PHONY: lab-down
lab-down: setup ## Take that cluster down without a trace
	$(PY) -m lab down

.PHONY: demo
demo: setup ## Show a thrashing fleet being healed on a real cluster (SCENARIO=thrash|healthy|bad-canary|compression, ENGINE=lab|vllm)
	@SCENARIO=$(SCENARIO) ENGINE=$(ENGINE) $(PY) -m lab.demo

.PHONY: test-kind
test-kind: setup ## Run the demo and the tests of a real cluster on kind, once a release; starts a Docker engine where none answers
	LAB_CLUSTER=kind $(PY) -m lab.demo
	LAB_CLUSTER=kind $(PY) -m lab down
	LAB_CLUSTER=kind $(PY) -m pytest -v -p no:cacheprovider -m "cluster and not takes_cluster_down" --timeout=600 tests

.PHONY: scenarios
scenarios: setup ## Play every scenario and its near twin on a real cluster (SCENARIOS="thrash healthy", FIRST="thrash", LANES=2, LIST=1)
	@SCENARIOS="$(SCENARIOS)" FIRST="$(FIRST)" LANES=$(LANES) LIST=$(LIST) $(PY) -m lab.play

.PHONY: random-kills
random-kills: setup ## Kill the operator at random moments of whole runs and compare how they end (KILLS=200, SEED=, COURSES=)
	$(PY) -m lab tools
	@KILLS=$(KILLS) SEED=$(SEED) COURSES="$(COURSES)" $(PY) -m lab.kills

.PHONY: bench-sizing
bench-sizing: setup ## Compare the operator's caps and verdicts with a sweep (WORKLOADS="chat drawn=0-9"), or with doing nothing under arrivals that do not wait (WORKLOADS="open starving")
	$(PY) -m lab.bench.sizing $(WORKLOADS)

.PHONY: bench-levers
bench-levers: setup ## Compare the operator's watermarks and step budgets with what they really do (WORKLOADS="Azure drawn=0-9")
	$(PY) -m lab.bench.levers $(WORKLOADS)

.PHONY: bench-supply
bench-supply: setup ## Measure what shared prefixes and the host's memory bring, and what the operator makes of them
	$(PY) -m lab.bench.supply

.PHONY: bench-adoption
bench-adoption: setup ## Count how many shapes of real fleets are let in, and why not, how many answers are right, and wrong edits (ROWS=--rows)
	$(PY) -m lab.bench.adoption $(ROWS)

.PHONY: bench-blocks
bench-blocks: setup ## Count the blocks that evictions free on real block tables, and compare with arithmetic
	$(PY) -m lab.bench.blocks

.PHONY: bench-verdict
bench-verdict: setup ## Let fleets whose arrivals do not wait tell which changes are kept and taken back rightly (FLEETS="--fleets 40 --rows")
	$(PY) -m lab.bench.verdict $(FLEETS)

.PHONY: bench-day
bench-day: setup ## Let a day of chats and a night of reasoning say what a cap that goes both ways brings (DAY="--hours 6")
	$(PY) -m lab.bench.day $(DAY)

.PHONY: bench-paging
bench-paging: setup ## Let fleets that nobody changes say from which share served in time on a person is needed (PAGING="--fleets 70")
	$(PY) -m lab.bench.paging $(PAGING)

.PHONY: bench-scale
bench-scale: setup ## Measure what one operator costs that looks after N fleets, and how soon it opens runs (N=1000, SCALE="--replicas 2 --seconds 90"), or what a bare kopf operator and KEDA cost (PEERS=1)
	$(PY) -m lab.bench.$(if $(PEERS),scale_peers,scale) $(or $(N),200) $(SCALE)

.PHONY: bench-soak
bench-soak: setup ## Let one operator look after N fleets through an hour of churn and faults; fails where it grows or leaves a sick fleet (N=300, SOAK="--minutes 60")
	$(PY) -m lab.bench.soak $(or $(N),300) $(SOAK)

.PHONY: plots
plots: setup ## Draw the pictures of the docs from what benchmarks printed (tests/data/bench)
	$(PY) -m lab.plots

.PHONY: bench-recall
bench-recall: setup ## Score the lab's evaluation by what a method keeps of the cache
	$(PY) -m lab.bench.recall

.PHONY: bench-mutants
bench-mutants: setup ## Change what decides in one place at a time, and count which changes the tests notice (MUTANTS=200, SEED=1)
	@MUTANTS=$(MUTANTS) SEED=$(SEED) $(PY) -m lab.mutants

.PHONY: bench-lab
bench-lab: setup ## Replay the table measured on real vLLM on the lab engine and compare
	$(PY) -m lab.bench.replay

# `make` alone lists the commands. Each that needs the environment sets it up first, and takes an interrupted set-up up again.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

READY := .venv/.ready
UV_VERSION := 0.13.9

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-16s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(READY) ## Install what the project needs into .venv
	@echo "ready: .venv"

# uv from the PATH, else one of our own in .uv, by the system's Python.
$(READY): pyproject.toml uv.lock
	@uv=$$(command -v uv || true)
	if [[ -z $$uv ]]; then
	  uv=.uv/bin/uv
	  if [[ ! -e .uv/.ready-$(UV_VERSION) ]]; then
	    rm -rf .uv
	    if ! python3 -c 'import ensurepip' 2>/dev/null && [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then
	      echo "installing python3-venv, which a plain Debian has not"
	      { apt-get install -qqy python3-venv || { apt-get update -qq && apt-get install -qqy python3-venv; }; } >/dev/null
	    fi
	    python3 -m venv .uv >/dev/null || { echo "Python cannot make a virtual environment. Run: apt-get install python3-venv (or install uv), then make again." >&2; rm -rf .uv; exit 1; }
	    .uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	    touch .uv/.ready-$(UV_VERSION)
	  fi
	fi
	[[ -x .venv/bin/python ]] || rm -rf .venv
	"$$uv" sync --locked --compile-bytecode --extra local --group dev
	touch $@

.PHONY: up
up: $(READY) ## Start the embedded stack: MySQL, Kafka, Kafka Connect, Airflow
	@.venv/bin/lakerelay up

.PHONY: down
down: $(READY) ## Stop the embedded stack; its data stay
	@.venv/bin/lakerelay down

.PHONY: status
status: $(READY) ## Show how far each table is, and which servers run
	@.venv/bin/lakerelay status

.PHONY: demo
demo: $(READY) ## Load TPC-H from MySQL into Hudi while it is written to, through Airflow, and compare (SCALE=0.1)
	@.venv/bin/lakerelay demo $(if $(SCALE),--scale $(SCALE))

.PHONY: test
test: $(READY) ## Run the tests, on real servers that they start themselves
	@.venv/bin/pytest $(ARGS)

.PHONY: faults
faults: $(READY) ## Break things while tables are loaded and streamed, and write docs/faults.md
	@LAKERELAY_TEST_WRITE=1 .venv/bin/pytest -m fault $(ARGS)

.PHONY: lint
lint: $(READY) ## Check style and types
	@.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

.PHONY: format
format: $(READY) ## Put the code into its form
	@.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: bench-full-load
bench-full-load: $(READY) ## Measure the full load: TPC-H lineitem, scale 1
	@.venv/bin/python bench/full_load.py $(ARGS)

.PHONY: bench-stream
bench-stream: $(READY) ## Measure the stream: changes per second, and the delay from MySQL to Hudi
	@.venv/bin/python bench/stream.py $(ARGS)

.PHONY: clean
clean: $(READY) ## Stop the embedded stack and remove its data, the tests' and benches' too
	@.venv/bin/lakerelay down --erase
	if [[ -f .lakerelay-test.toml ]]; then LAKERELAY_SETTINGS=.lakerelay-test.toml .venv/bin/lakerelay down --erase; rm .lakerelay-test.*; fi
	if [[ -f .lakerelay-bench/pipeline.toml ]]; then LAKERELAY_SETTINGS=.lakerelay-bench/pipeline.toml .venv/bin/lakerelay down --erase; rm -rf .lakerelay-bench; fi
	rm -rf .mypy_cache .pytest_cache .ruff_cache

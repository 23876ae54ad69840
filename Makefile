# Everything this project can be told to do. `make up` runs it, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# uv reads no pip configuration, so a local folder of wheels is passed on by hand.
UV     := $(BIN)/uv pip install --quiet --python $(BIN)/python $(addprefix --find-links ,$(PIP_FIND_LINKS)) --constraint constraints.txt
# Tests that look at times and deadlines want the cores for themselves; the others share them, the longest first.
ALONE  := tests/harness tests/browser $(addprefix tests/worker/test_,child.py execution.py gate.py loop.py run.py)
LONG   := tests/worker/test_proving.py tests/kernels
SHARED := $(LONG) $(filter-out $(LONG) $(ALONE),tests/db tests/pages tests/server $(wildcard tests/worker/test_*.py tests/test_*.py))

.PHONY: help up test e2e lint types migrations build check format browser clean

help:           ## List what can be made.
	@sed -n 's/^\([a-z0-9]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

up: $(VENV)/.serve  ## Start database, server and workers, measure the last five commits; ONCE=1 exits when they are done.
	@$(BIN)/warpwatch up $(if $(ONCE),--once)

test: $(VENV)/.develop browser  ## Run the tests, headless browser included; ARGS="tests/db -k queue" runs some.
ifdef ARGS
	$(BIN)/pytest $(ARGS)
else
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(SHARED)
	$(BIN)/pytest $(ALONE)
endif

e2e: $(VENV)/.develop browser  ## Measure ten and forty commits of known fate through the whole service; needs three quarters of an hour.
	$(BIN)/pytest tests/e2e $(ARGS)

check: lint types migrations build  ## Everything but the tests.

lint: $(VENV)/.develop  ## Style of every file.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.develop  ## Strict types.
	$(BIN)/mypy

migrations: $(VENV)/.develop  ## An upgraded empty database equals the models.
	$(BIN)/warpwatch migrate --check

build: $(VENV)/.develop  ## Compile all native code, CUDA included; no GPU is needed.
	$(BIN)/warpwatch build

format: $(VENV)/.develop  ## Rewrite files in the house style.
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

browser: $(VENV)/.develop
	@$(BIN)/python tests/install_browser.py

clean:          ## Remove the environment; measured data stays.
	rm -rf $(VENV)

$(VENV)/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Warpwatch needs Python 3.11 or newer; set PYTHON=/path/to/python")'
	@command -v git >/dev/null || { echo "Warpwatch needs git; install it first"; exit 1; }
	@echo "setting up $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv

# Byte code is compiled at install, because importing torch without it takes twice as long in every child process.
$(VENV)/.serve: $(BIN)/uv pyproject.toml constraints.txt
	@$(UV) --compile-bytecode --editable '.[measure,database,embedded,server]'
	@touch $@

$(VENV)/.develop: $(VENV)/.serve
	@$(UV) --editable '.[dev]'
	@touch $@

# Everything this project can be told to do. `make up` runs it, `make test` proves it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# uv reads no pip configuration, so a local folder of wheels is passed on by hand.
UV     := $(BIN)/uv pip install --python $(BIN)/python $(addprefix --find-links ,$(PIP_FIND_LINKS)) --constraint constraints.txt
LOCK   := uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-package warpwatch-example \
          --constraint constraints.in --extra dev pyproject.toml
# Tests that assert times get a core for themselves. Others share them, the longest first, in two processes per core and
# one more, because half of the time they wait for children, servers and browsers. Those that measure and those that
# serve have processes of their own, which import and collect half as much. Those of the worker's loop, which wait most,
# come first, so that they wait beside others. Browsers have a process of their own: their event loop stays in it, and
# the service that all of them look at is seeded once. Before them it runs about as much as each of the others.
TIMED    := $(addprefix tests/harness/test_,bench.py cheaters.py cuda.py cuda_bench.py cuda_profile.py extras.py)
LONG     := $(addprefix tests/worker/test_,loop.py execution.py up.py run.py proving.py) tests/kernels \
            $(addprefix tests/worker/test_,templates.py exam.py definitions.py toolchains.py working_tree.py turns.py)
LATER    := tests/server/test_openapi.py tests/server/test_openapi_roles.py tests/security $(wildcard tests/test_*.py)
MEASURED := $(LONG) $(filter-out $(LONG) $(TIMED),$(wildcard tests/harness/test_*.py tests/worker/test_*.py))
LONG     := $(addprefix tests/server/test_,truth.py story.py creep.py cards.py public.py judgements.py what_is_shown.py) \
            $(addprefix tests/server/test_,launch.py patches.py command.py several_servers.py example.py)
SERVED   := $(LONG) $(filter-out $(LONG) $(LATER),$(wildcard tests/server/test_*.py)) tests/db tests/pages
PYTEST := $(BIN)/pytest
# Plugins for tests of browsers and of made-up requests take a second to import, in each process, and that of hypothesis
# reads every constant of our code for the few tests that it makes up values for, which find bugs without.
PLAIN  := -p no:schemathesis -p no:playwright -p no:base_url -p no:hypothesispytest
# Runs of pytest beside each other in make test; coverage has one, because two would write one file.
TESTERS ?= 3
# In `make ci`, what each part of it costs is written down.
PART = $(if $(COSTS),$(BIN)/python -m tests.costs $@)
# Many images switch byte code off, and then every process compiles all of our modules.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help up ci test measured served later timed e2e nightly package coverage lint types migrations build libraries cuda check references shots examples lock vendor format hooks browser clean containers

help:           ## List what can be made.
	@sed -n 's/^\([a-z0-9]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

up: $(VENV)/.serve  ## Start database, server and workers, measure the last five commits; ONCE=1 exits when they are done.
	@$(BIN)/warpwatch up $(if $(ONCE),--once)

test: $(VENV)/.develop browser  ## Run the tests, headless browser included; ARGS="tests/db -k queue" runs some, ALSO=… more.
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	@$(MAKE) --no-print-directory --jobs $(TESTERS) measured served later
	@$(MAKE) --no-print-directory timed
endif

measured: $(VENV)/.collected
	$(PART) $(PYTEST) $(PLAIN) -n $$(nproc) --dist loadfile --no-loadscope-reorder $(MEASURED)

served: $(VENV)/.collected
	$(PART) $(PYTEST) $(PLAIN) -n $$(nproc) --dist loadfile --no-loadscope-reorder $(SERVED)

later: $(VENV)/.collected browser
	$(PART) $(PYTEST) $(LATER) $(ALSO) tests/browser

timed: $(VENV)/.develop
	$(PART) $(PYTEST) $(PLAIN) -n $$(nproc) --own-cpu $(TIMED)

# At a low priority, compilers take the cores that tests leave idle. Nothing runs there what is built for a GPU, so its
# compilers check it for one architecture and hardly optimize, and make nightly builds libraries for all.
# Where the browser has to be installed, the others do not wait for it. Nobody reads what mypy would keep.
CHECKED := lint types migrations libraries cuda
IN_CI   := ALSO=tests/package MYPY=--no-incremental
ci: $(VENV)/.develop  ## What CI runs: check, test and package, as far as possible at the same time.
	@rm -f $(VENV)/.costs
	@$(MAKE) --no-print-directory --jobs 5 measured served later $(CHECKED) COSTS=1 $(IN_CI)
	@$(MAKE) --no-print-directory timed COSTS=1
	@$(BIN)/python -m tests.costs

e2e: $(VENV)/.develop browser  ## Measure ten, twenty-five and forty commits of known fate through the whole service; takes an hour.
	$(BIN)/pytest tests/e2e $(ARGS)

nightly: $(VENV)/.develop browser  ## What CI has no time for: long tests, CUDA code as it ships, honest runs, a fleet, e2e.
	$(PYTEST) -m nightly
	$(PYTEST) tests/kernels --opcheck-all
	@$(MAKE) --no-print-directory build
	$(BIN)/warpwatch prove all --device cpu --honest 200 --load $$(nproc)
	$(BIN)/warpwatch prove caches --device cpu --seeds 1
	$(BIN)/warpwatch prove honest --device cpu --honest 500
	$(PYTEST) tests/server/test_openapi.py tests/server/test_openapi_roles.py -m "" --requests 40 --timeout 3600
	$(BIN)/python bench/fleet.py --workers 200 --jobs 5000 --faults
	@$(MAKE) --no-print-directory e2e

package: $(VENV)/.develop  ## Build the wheel, install it in empty environments and use it there; takes two minutes.
	$(BIN)/pytest tests/package -m "" $(ARGS)

coverage: $(VENV)/.develop browser  ## Run the tests and print which lines of the product they reach.
	$(BIN)/coverage erase
	$(MAKE) test PYTEST="$(PYTEST) --cov --cov-append --cov-report=" TESTERS=1
	$(BIN)/coverage report

check: lint types migrations build  ## Everything but the tests.

lint: $(VENV)/.develop  ## Style of every file.
	$(PART) $(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.develop  ## Strict types.
	$(PART) $(BIN)/mypy $(MYPY)

migrations: $(VENV)/.develop  ## An upgraded empty database equals the models.
	$(PART) $(BIN)/warpwatch migrate --check

build: $(VENV)/.develop  ## Compile all native code, CUDA included; no GPU is needed.
	nice $(BIN)/warpwatch build --no-fingerprints --target cpu
	nice $(BIN)/warpwatch build --no-fingerprints --target cuda

libraries: $(VENV)/.develop
	$(PART) nice $(BIN)/python -m tests.libraries

cuda: $(VENV)/.develop
	$(PART) nice $(BIN)/python -m tests.cuda_code

vendor:         ## Fetch the files of web/static/vendor from npm, and compare their digests.
	$(PYTHON) packaging/vendor.py

format: $(VENV)/.develop  ## Rewrite files in the house style.
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

containers: .env  ## Start database, server and a GPU worker with docker compose.
	docker compose up --build --detach

# The secrets are made once, and only their owner can read them.
.env:
	@umask 077 && printf 'POSTGRES_PASSWORD=%s\nWARPWATCH_TOKEN=%s\nWARPWATCH_WORKER_KEY=wwk_%s\n' \
	  "$$(openssl rand -hex 24)" "$$(openssl rand -hex 24)" "$$(openssl rand -hex 32)" > $@.new && mv $@.new $@

references: $(VENV)/.develop  ## Write docs/reference from the code.
	$(BIN)/python -m tests.references

shots: $(VENV)/.develop browser  ## Take the pictures of the documents from the example data.
	$(BIN)/python -m tests.shots

# An interrupted run goes on where it was when it is started again; with new commits it begins anew.
examples: $(VENV)/.develop  ## Measure the example data and bench/h200.md on DEVICE; resumable, an hour on two GPUs.
	$(BIN)/python bench/examples.py --device $(or $(DEVICE),cuda:0) --table bench/h200.md $(ARGS)

lock: $(BIN)/uv constraints.in  ## Choose the newest versions that fit, and pin them in constraints.txt.
	env -u PIP_FIND_LINKS $(BIN)/$(LOCK) --upgrade --output-file constraints.txt

hooks: $(VENV)/.develop  ## Make git check the changed files before every commit.
	git config core.hooksPath .githooks

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
$(VENV)/.serve: $(BIN)/uv pyproject.toml constraints.txt packaging/example/pyproject.toml
	@$(UV) --compile-bytecode --editable '.[measure,database,embedded,server]'
	@touch $@

# pytest rewrites the assertions of every file when it first reads it, which each of five processes would do beside the
# others. What goes wrong here goes wrong there as well, and is shown there.
$(VENV)/.collected: $(VENV)/.develop
	-@$(PYTEST) --collect-only -qq > /dev/null
	@touch $@

$(VENV)/.develop: $(VENV)/.serve
	@$(UV) --editable '.[dev]'
	@touch $@

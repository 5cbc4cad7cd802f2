# Every target installs its dependencies. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
MINUTES ?= 10
# If this is set, each worker and each test process compiles all modules again, which takes half of its time.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test all check format lint types imports weight unit faults shots bench soak peers simulate walk lock schema clean

help: ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml gateway/sdk/pyproject.toml tests/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Dragoman needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tests/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e gateway/sdk -e .
	@touch $(STAMP)

# One process compiles the tests for all workers, which would otherwise do so at the same time.
$(COMPILED): $(STAMP)
	@$(BIN)/pytest --collect-only -q | tail -n 1
	@touch $@

demo: $(STAMP) ## Play a scripted game through a real gateway, in every protocol
	$(BIN)/dragoman demo

test: $(STAMP) ## Run static checks and fast tests, in five minutes on two cores
	@$(MAKE) --no-print-directory -j 2 check unit

all: $(STAMP) ## Run the static checks and all tests, as CI does
	@$(MAKE) --no-print-directory -j 2 check faults FAULTS=--all

check: $(STAMP) lint types imports weight ## Run the static checks only

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyright

imports: $(STAMP)
	$(BIN)/lint-imports

weight: $(STAMP) ## Fail if a folder has more production lines than .github/weight.toml allows (WEIGHT=--write sets it)
	$(BIN)/python -m tests.weight $(WEIGHT)

unit: $(COMPILED) ## Run the tests only
	$(BIN)/pytest -n 6 --dist worksteal -m "not faults and not slow" --durations 5

faults: $(COMPILED) ## Run slow and fault tests; write tests/faults/README.md (FAULTS=tests/... for some)
	$(BIN)/python -m tests.faults.table $(FAULTS)

bench: $(STAMP) ## Run the benchmarks beside hand-written integrations; write tests/bench/README.md (BENCH="--quick --only T1,T4" for some)
	$(BIN)/python -m tests.bench --json .cache/bench.json --page $(BENCH)

shots: $(STAMP) ## Draw every page of the UI onto contact sheets in .cache/shots (SHOTS="--only busy,failing" for some)
	$(BIN)/python -m tests.ui.shots $(SHOTS)

soak: $(STAMP) ## Load a gateway for MINUTES=10 while links break; draw .cache/soak.png
	$(BIN)/python -m tests.bench.soak --minutes $(MINUTES)

peers: $(STAMP) ## Play against real servers of OpenHands V1, set up in .peers (needs Python 3.12: make peers PYTHON=python3.13)
	$(BIN)/python -m tests.peers.install $(PYTHON)
	DRAGOMAN_PEERS=.peers $(BIN)/pytest tests/peers -p no:cacheprovider --durations 5 $(PEERS)

simulate: $(STAMP) ## Run the gateway in a simulated world for MINUTES=10 of CPU (SEED=7 replays a seed)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--minutes $(MINUTES))

walk: $(STAMP) ## Count the functions and files of one HUMA tool call, here and in the previous release (WALK="--json FILE" names it)
	$(BIN)/python -m tests.bench.walk $(WALK)

format: $(STAMP) ## Format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schema: $(STAMP) ## Regenerate config/gateway.schema.json and config/openapi.json
	$(BIN)/dragoman schema > config/gateway.schema.json
	$(BIN)/dragoman openapi > config/openapi.json

COMPILE := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-emit-package dragoman-sdk -q
COMPILE_PEERS = $(subst 3.11,3.12,$(COMPILE)) --no-annotate

lock: ## Recompile the ten requirements files (needs uv)
	$(COMPILE) pyproject.toml --extra postgres --extra mcp --extra otel -o config/requirements.txt
	$(COMPILE) pyproject.toml --extra demo --constraint config/requirements.txt -o config/demo-requirements.txt
	$(COMPILE) pyproject.toml --all-extras --constraint config/requirements.txt -o tests/requirements.txt
	echo 'hatchling>=1.27,<2' | $(COMPILE) - --no-annotate --constraint tests/requirements.txt -o config/build-requirements.txt
	printf '%s\n' 'datamodel-code-generator>=0.89,<1' 'openapi-python-client>=0.29,<1' | \
	  $(COMPILE) - --no-annotate -o tests/clients/requirements.txt
	echo 'uvicorn>=0.30' | $(COMPILE) --resolution lowest-direct gateway/sdk/pyproject.toml --extra fastapi - --no-annotate \
	  -o tests/clients/sdk/requirements.txt
	printf '%s\n' 'fastmcp-slim[client]>=3.4,<4' 'mcp>=1.30,<2' | $(COMPILE) - --no-annotate -o tests/clients/mcp/requirements.txt
	echo openhands-agent-server==1.58.2 | $(COMPILE_PEERS) - --override tests/peers/overrides.txt \
	  $(foreach part,agent-server sdk tools,--no-emit-package openhands-$(part)) -o tests/peers/requirements.txt
	printf '%s\n' $(foreach part,agent-server sdk tools,openhands-$(part)==1.58.2) | $(COMPILE_PEERS) - --no-deps -o tests/peers/openhands-1.58.2.txt
	printf '%s\n' $(foreach part,agent-server sdk tools,openhands-$(part)==1.44.0) 'fastapi<0.142' 'starlette<1.7' | \
	  $(COMPILE_PEERS) - --no-deps -o tests/peers/openhands-1.44.0.txt

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) .peers .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage*

# All that a machine needs beforehand: Python 3.11 or later, and make.
#
#   make demo          a verdict on an incident that ships with the program
#   make quick         what to run after every edit: style, types, and the fast tests
#   make test          everything a change must pass
#   make corpus        all real logs beside the repository, of which `make test` reads a sample
#   make nightly       all tests, with many more examples of every property, on all incidents and real logs
#   make scores        how often the answers are right, on jobs whose truth is known: docs/accuracy.md; AGAINST=HEAD~1
#                      prints the answers that changed since
#   make benchmark     the cases of benchmark/, answered by this program and others: benchmark/RESULTS.md
#   make outside       labelled cases of others, SOURCES=… with clones of their repositories: benchmark/OUTSIDE.md
#   make bench         the command against awk, grep and a conventional parser
#   make bench-volume  the same, a job with long logs against one with short logs, and 2 GB of all families
#   make bench-curve   what grows with ranks: 512, 2,048 and 10,000 logs
#   make bench-screens the screens: first paint, keys, memory
#   make fuzz          hostile inputs of every kind for an hour: FUZZ_SECONDS=600 SEED=7 for less, or for others
#   make unknown-strings  messages of the newest NCCL that no grammar knows, as stubs; WHEELS=… for others, torch too
#   make variables     the releases and defaults of all variables, and the releases of all messages, from the sources of NCCL, RCCL, plugins, PyTorch
#   make knockouts     leaves out one condition of the engine at a time, and prints those that no incident needs
#   make mutants       changes a MODULE in one place at a time, and prints what incidents and TESTS do not notice
#   make coverage      the lines and branches that no test reaches: build/coverage/index.html
#   make docs          the documentation as a site in build/site, to open in a browser
#   make wheel         the wheel in dist, to install elsewhere
#   make sbom          the wheel, and beside it what it brings along with licences, as CycloneDX: dist/sbom.cdx.json
#   make clean         remove what these made

PYTHON := $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# An editable install compiles nothing, and where Python may not keep what it compiles, every start would do it again.
# Nor does it compile the grammars, as the wheel does: each process of the tests would.
COMPILE := @$(BIN)/python -m compileall -q ncclforensics && $(BIN)/python -m ncclforensics.extensions.precompile

# A folder of clones of others' repositories.
SOURCES ?= build/sources

# The modules with tests that a change needs at once; `-m "not slow"` leaves their expensive tests out.
QUICK := $(addprefix tests/test_,$(addsuffix .py,floor_plan words lines sources launcher_prefixes explain_line templates \
	selection grammars rules subsystems incidents))
PYTEST := $(BIN)/pytest -n auto --dist loadgroup

.PHONY: demo quick test corpus nightly scores benchmark outside bench bench-volume bench-curve bench-screens fuzz unknown-strings variables mutants knockouts coverage docs wheel sbom clean
.DELETE_ON_ERROR:

# `demo` ends with 1, for it finds something: that is its success.
demo: $(VENV)/installed
	@$(BIN)/ncclforensics demo; test $$? -eq 1

quick: export NCCLFORENSICS_TESTS = quick
quick: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST) -m "not slow" $(QUICK)

test: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST)

corpus: export NCCLFORENSICS_TESTS = full
corpus: $(VENV)/installed-dev
	$(PYTEST) tests/test_corpus.py

nightly: export NCCLFORENSICS_TESTS = full
nightly: $(VENV)/installed-dev
	$(PYTEST)

scores: $(VENV)/installed-dev
	$(BIN)/python -m tests.accuracy $(if $(AGAINST),--against $(AGAINST))

benchmark: SET := $(shell mktemp -d)
benchmark: $(VENV)/installed-dev
	$(BIN)/python -m benchmark.make_cases $(SET)/cases
	$(BIN)/python -m benchmark.adapters.ncclforensics_cli $(SET)/cases $(SET)/ours.json
	$(BIN)/python -m benchmark.adapters.grep_baseline $(SET)/cases $(SET)/grep.json
	$(BIN)/python -m benchmark.score $(SET)/cases $(SET)/ours.json benchmark/answers/*.json $(SET)/grep.json \
		--page benchmark/RESULTS.md
	rm -r $(SET)

outside: SET := $(shell mktemp -d)
outside: $(VENV)/installed-dev
	$(BIN)/python -m benchmark.outside $(SOURCES) $(SET)/cases
	$(BIN)/python -m benchmark.adapters.ncclforensics_cli $(SET)/cases $(SET)/ours.json
	$(BIN)/python -m benchmark.adapters.grep_baseline $(SET)/cases $(SET)/grep.json
	$(BIN)/python -m benchmark.score $(SET)/cases $(SET)/ours.json benchmark/answers/outside/*.json $(SET)/grep.json \
		--page benchmark/OUTSIDE.md
	rm -r $(SET)

bench: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.bench --cmd $(BIN)/ncclforensics

bench-volume: $(VENV)/installed-dev
	BENCH_CPU_TIME=1 $(BIN)/python -m tests.benchmarks.bench --cmd $(BIN)/ncclforensics --volume \
		--page docs/performance.md

bench-curve: $(VENV)/installed-dev
	BENCH_CPU_TIME=1 $(BIN)/python -m tests.benchmarks.curve --cmd $(BIN)/ncclforensics --page docs/performance.md

bench-screens: $(VENV)/installed-dev
	$(BIN)/python -m tests.benchmarks.screens

FUZZ_SECONDS ?= 3600
SEED ?= 1
fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --seed $(SEED)

unknown-strings: $(VENV)/installed-dev
	@mkdir -p build/wheels
	$(if $(WHEELS),,$(PIP) download --no-deps --dest build/wheels nvidia-nccl-cu12 nvidia-nccl-cu13)
	@$(BIN)/python -m tests.currency.unknown_strings $(or $(WHEELS),build/wheels/nvidia_nccl*.whl)

# SOURCES=… for a folder with bare clones of one's own: nccl.git, rccl.git and aws-ofi-nccl.git.
GITHUB := https://github.com
variables: $(VENV)/installed-dev
	@mkdir -p build/wheels build/sources
	$(foreach repository,NVIDIA/nccl ROCm/rccl aws/aws-ofi-nccl,test -e $(SOURCES)/$(notdir $(repository)).git || \
		git clone --quiet --bare $(GITHUB)/$(repository) $(SOURCES)/$(notdir $(repository)).git;)
	$(BIN)/python -m tests.currency.variables $(SOURCES) build/wheels
	$(BIN)/python -m tests.currency.messages $(SOURCES)
	$(PYTEST) --update tests/test_variables.py
	@git diff --stat -- ncclforensics/data/catalogue docs/variables.md

mutants: $(VENV)/installed-dev
	$(PIP) install 'cosmic-ray>=8.7,<9'
	$(BIN)/python -m tests.mutation $(MODULE) $(TESTS)

knockouts: $(VENV)/installed-dev
	$(BIN)/python -m tests.mutation.conditions

# What runs in other processes, such as the worker of `capture` and the code for signals, counts as not reached.
coverage: $(VENV)/installed-dev
	$(PIP) install 'pytest-cov>=7,<8'
	$(PYTEST) --cov ncclforensics --cov-branch --cov-report html:build/coverage --cov-report term:skip-covered

docs: $(VENV)/installed-dev
	$(BIN)/python -m sphinx -W --keep-going -q -d build/trees docs build/site
	@echo build/site/index.html

wheel: | $(BIN)/python
	$(PIP) wheel --no-deps --wheel-dir dist .

# The program with all extras but `capture`, whose torch is the user's choice, in an environment of its own.
SBOM := build/sbom
sbom: wheel
	@rm -rf $(SBOM)
	$(BIN)/python -m venv --without-pip $(SBOM)/program
	$(BIN)/python -m venv $(SBOM)/tool
	$(PIP) --python $(SBOM)/program/bin/python install "$$(echo dist/*.whl)[report,tui,mcp,remote,cluster,watch]"
	$(PIP) --python $(SBOM)/tool/bin/python install 'cyclonedx-bom>=7.5,<8'
	$(SBOM)/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.cdx.json $(SBOM)/program/bin/python
	@echo dist/sbom.cdx.json

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	$(COMPILE)
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(if $(LOCKED),$(PIP) install --require-hashes --requirement .ci/requirements.txt)
	$(PIP) install $(if $(LOCKED),--no-deps --no-build-isolation) --editable '.[dev]'
	$(COMPILE)
	@touch $@ $(VENV)/installed

# One environment, .venv, created on first use. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Bytecode is kept, but not among the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

CRATE := connector/native
NATIVE_SOURCES := setup.py $(CRATE)/Cargo.toml $(CRATE)/Cargo.lock $(CRATE)/build.rs $(wildcard $(CRATE)/src/*.rs)

QUICK := not spark and not kafka and not slow and not nightly and not style

.DEFAULT_GOAL := help
.PHONY: help demo test check types words native-check format-check imports quick pure long nightly durations kafka crash sim rewrite diagram planted bench site wheel release locked lock jars audit format clean

##@ Use
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo-ready ## read a bundled log into Delta tables and query them in SQL
	@$(BIN)/python notebooks/run.py notebooks/cluster_history.py 2>$(VENV)/demo.log || \
	{ tail -n 20 $(VENV)/demo.log >&2; echo "the demo failed; its output is in $(VENV)/demo.log" >&2; exit 1; }

##@ Build and test
test: $(VENV)/.native-ready ## required for every change: check, quick and long, 15 minutes on two cores
	@.ci/stage check $(MAKE) --no-print-directory check
	@.ci/stage quick $(MAKE) --no-print-directory quick
	@.ci/stage long $(MAKE) --no-print-directory long

check: $(VENV)/.native-ready ## format, lint, types, import contracts, words
	@$(MAKE) --no-print-directory -j2 types words native-check format-check imports

types: $(VENV)/.dev-ready
	@$(BIN)/mypy

# Collects all tests: their bytecode is compiled once here, and not by each worker of `quick`.
words: $(VENV)/.native-ready
	@$(BIN)/pytest -m style

format-check: $(VENV)/.dev-ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

imports: $(VENV)/.dev-ready
	@$(BIN)/lint-imports --no-logo

native-check: $(VENV)/.native-ready
	@sh .ci/native check

quick: $(VENV)/.native-ready ## tests without Spark or a JVM, in a minute
	@RAFTLOG_DURATIONS=$(VENV)/durations/quick.tsv \
	$(BIN)/pytest -n auto -m "$(QUICK)"

pure: $(VENV)/.native-ready ## the same tests of an installed wheel that was built without cargo
	@.ci/pure $(VENV) -n auto -m "$(QUICK)"

# One worker more than cores, because tests of processes wait. Two have a Spark session each. A
# worker that dies ends the run: with groups of tests xdist 3.8 waits for ever for its successor.
long: $(VENV)/.native-ready ## tests with Spark and Delta, of processes and of the built wheel
	@RAFTLOG_DURATIONS=$(VENV)/durations/long.tsv \
	$(BIN)/pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist loadgroup --no-loadscope-reorder --max-worker-restart=0 --durations=15 -m "(spark or slow) and not kafka and not nightly"

nightly: $(VENV)/.native-ready ## everything, with new seeds and planted bugs; STAGES="sim planted" for some stages
	@.ci/nightly $(BIN)/python $(STAGES)

durations: ## store the seconds of the last `make test` in tests/durations
	@mkdir -p tests/durations && cp $(VENV)/durations/*.tsv tests/durations

kafka: $(VENV)/.native-ready ## tests against a real Apache Kafka, downloaded by Maven
	@command -v mvn >/dev/null || { echo "make kafka needs Maven: install Apache Maven 3.8 or newer."; exit 1; }
	@$(BIN)/pytest -m kafka -rs

crash: $(VENV)/.native-ready ## 10,000 crash points of two runs of a log; Spark drivers killed in many orders
	@RAFTLOG_CRASH_STATES=10000 RAFTLOG_KILL_ORDERS=6 $(BIN)/pytest -n 2 --dist worksteal -m "slow or nightly" \
	tests/log/crash/test_crash_points.py tests/spark/writing/test_sink_kill_points_spark.py \
	tests/state/tables/test_materialize_kill_points_spark.py

sim: $(VENV)/.native-ready ## simulated clusters: SEEDS=n new ones; SEED=k repeats one with its trace, SHRINK=1 minimizes it
	@$(BIN)/python -m tests.simulation.running $(if $(SEED),--seed $(SEED) $(if $(SHRINK),--shrink),--seeds $(or $(SEEDS),200))

rewrite: $(VENV)/.dev-ready ## write the transcripts of the scenarios, the texts of errors and docs/reference; review the difference
	@$(BIN)/python -m tests.scenarios.rewrite
	@REWRITE=1 $(BIN)/pytest -q -p no:cacheprovider tests/golden_errors
	@$(BIN)/python -m tests.packaging.reference

diagram: $(VENV)/.dev-ready ## write the role transitions into ARCHITECTURE.md
	@$(BIN)/python -m tests.quorum.diagram

planted: $(VENV)/.native-ready ## apply known bugs, one at a time, and verify that a test fails; SINCE=commit only those of changed code; SEEDS=n also with seeds
	@$(BIN)/python -m tests.planted.run --seeds $(or $(SEEDS),0) $(if $(SINCE),--since $(SINCE))

bench: $(VENV)/.native-ready ## run the benchmarks and write benchmarks/README.md
	@$(BIN)/python -m benchmarks.run

site: $(VENV)/.dev-ready ## write the documentation as HTML into build/site
	@$(BIN)/python -m tests.packaging.site build/site

wheel: $(VENV)/.dev-ready ## build the distribution into dist/
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/pip wheel -q --no-deps -w dist .

release: $(VENV)/.dev-ready ## build distributions, SBOM, provenance and checksums into dist/; with IMAGE=NAME:TAG and SIGNING_KEY=FILE
	@.ci/release "$(PYTHON)" $(VENV)

locked: $(VENV)/.native-ready ## the tests of `make quick` with the locked dependencies
	@site=$$(.ci/locked "$(PYTHON)" $(VENV)) && \
	"$$site/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	"$$site/bin/python" -m pytest -n auto -m "$(QUICK)"

lock: $(VENV)/.dev-ready ## resolve the dependencies again and write their versions and hashes to .ci/*.lock
	@site=$$(.ci/locked "$(PYTHON)" $(VENV)) && .ci/lock "$$site"

jars: $(VENV)/.dev-ready ## download all jars of tests, benchmarks and the demo again and write their checksums to .ci/jars.lock
	@$(BIN)/python -m tests.support.jars --rewrite

audit: $(VENV)/.dev-ready ## compare the locked dependencies with the database of known vulnerabilities
	@site=$$(.ci/locked "$(PYTHON)" $(VENV)) && "$$site/bin/python" .ci/audit.py .ci/development.lock

format: $(VENV)/.dev-ready ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@sh .ci/native format

clean: ## remove everything that make created
	@rm -rf $(VENV) $(CRATE)/target connector/raftlog/_native*.so build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo-ready: pyproject.toml
	@sh .ci/prerequisites "$(PYTHON)"
	@sh .ci/environment "$(PYTHON)" $(VENV) spark
	@touch $@

$(VENV)/.dev-ready: pyproject.toml
	@sh .ci/prerequisites "$(PYTHON)"
	@sh .ci/environment "$(PYTHON)" $(VENV) spark,dev
	@touch $@ $(VENV)/.demo-ready $(VENV)/.native-ready

# Only after a change of the compiled core: the installation has just built it in a fresh clone.
$(VENV)/.native-ready: $(NATIVE_SOURCES) | $(VENV)/.dev-ready
	@[ -e $@ ] && [ -z "$$(find $(NATIVE_SOURCES) -newer $@)" ] || sh .ci/native build $(VENV)
	@touch $@

# One environment, .venv, made on first use. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KAFKA ?= auto
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Bytecode is kept, but not among the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.DEFAULT_GOAL := help
.PHONY: help demo test check quick spark kafka crash sim rewrite diagram planted bench wheel format clean

##@ Use
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo-ready ## read a bundled real log into Delta tables and answer questions in SQL
	@$(BIN)/python notebooks/run.py notebooks/cluster_history.py 2>$(VENV)/demo.log || \
	{ tail -n 20 $(VENV)/demo.log >&2; echo "the demo failed; all that was said is in $(VENV)/demo.log" >&2; exit 1; }

##@ Build and test
test: $(VENV)/.dev-ready ## everything: check, quick, spark and, where Maven is present, kafka
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory quick
	@$(MAKE) --no-print-directory spark
	@$(MAKE) --no-print-directory kafka-if-present

check: $(VENV)/.dev-ready ## format, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports --config setup.cfg --no-logo

quick: $(VENV)/.dev-ready ## tests without Spark or a JVM, below a minute
	@$(BIN)/pytest -n auto -m "not spark and not kafka and not slow"

spark: $(VENV)/.dev-ready ## the long sweeps, and tests in a real Spark session with Delta and of the built wheel
	@$(BIN)/pytest -n 2 --dist loadfile --durations=15 -m "(spark or slow) and not kafka"

kafka: $(VENV)/.dev-ready ## tests against a real Apache Kafka, brought from Maven's registry
	@command -v mvn >/dev/null || { echo "make kafka needs Maven: install Apache Maven 3.8 or newer."; exit 1; }
	@$(BIN)/pytest -m kafka -rs

.PHONY: kafka-if-present
kafka-if-present:
	@if [ "$(KAFKA)" = no ]; then echo "kafka: left out (KAFKA=no)"; \
	elif command -v mvn >/dev/null; then $(MAKE) --no-print-directory kafka; \
	else echo "kafka: skipped, Maven is not installed"; fi

crash: $(VENV)/.dev-ready ## 10,000 crash points of two lives of a log; Spark drivers killed in many orders
	@RAFTLOG_CRASH_STATES=10000 RAFTLOG_KILL_ORDERS=6 $(BIN)/pytest -n 2 --dist worksteal -m slow \
	tests/crash/test_crash_points.py tests/spark_write/test_sink_kill_points_spark.py \
	tests/tables/test_materialize_kill_points_spark.py

sim: $(VENV)/.dev-ready ## simulated clusters: SEEDS=n new ones, or SEED=k once more with its trace, SHRINK=1 the least of it
	@$(BIN)/python -m tests.simulation.running $(if $(SEED),--seed $(SEED) $(if $(SHRINK),--shrink),--seeds $(or $(SEEDS),200))

rewrite: $(VENV)/.dev-ready ## write down what the scenarios do now; read the difference before you keep it
	@$(BIN)/python -m tests.scenarios.rewrite

diagram: $(VENV)/.dev-ready ## draw the roles of a replica into ARCHITECTURE.md
	@$(BIN)/python -m tests.quorum.diagram

planted: $(VENV)/.dev-ready ## plant known bugs, one at a time, and see that a test finds each
	@$(BIN)/python -m tests.planted.run

bench: $(VENV)/.dev-ready ## measure, and write the table in benchmarks/README.md
	@$(BIN)/python benchmarks/run.py

wheel: $(VENV)/.dev-ready ## build the distribution into dist/
	@$(BIN)/pip wheel -q --no-deps -w dist .

format: $(VENV)/.dev-ready ## put the code into the house's form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove what make made, the environment too
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.demo-ready: pyproject.toml
	@sh .ci/prerequisites "$(PYTHON)"
	@sh .ci/environment "$(PYTHON)" $(VENV) spark
	@touch $@

$(VENV)/.dev-ready: pyproject.toml
	@sh .ci/prerequisites "$(PYTHON)"
	@sh .ci/environment "$(PYTHON)" $(VENV) spark,dev
	@touch $@ $(VENV)/.demo-ready

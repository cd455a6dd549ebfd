# One environment, .venv, made on first use. `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Bytecode is kept, but not among the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.DEFAULT_GOAL := help
.PHONY: help demo test check quick long nightly durations kafka crash sim rewrite diagram planted bench wheel format clean

##@ Use
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo-ready ## read a bundled real log into Delta tables and answer questions in SQL
	@$(BIN)/python notebooks/run.py notebooks/cluster_history.py 2>$(VENV)/demo.log || \
	{ tail -n 20 $(VENV)/demo.log >&2; echo "the demo failed; all that was said is in $(VENV)/demo.log" >&2; exit 1; }

##@ Build and test
test: $(VENV)/.dev-ready ## what a change is judged by: check, quick and long, 15 minutes on two cores
	@.ci/stage check $(MAKE) --no-print-directory check
	@.ci/stage quick $(MAKE) --no-print-directory quick
	@.ci/stage long $(MAKE) --no-print-directory long

check: $(VENV)/.dev-ready ## format, lint, types, import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --config setup.cfg --no-logo

quick: $(VENV)/.dev-ready ## tests without Spark or a JVM, in a minute
	@RAFTLOG_DURATIONS=$(VENV)/durations/quick.tsv \
	$(BIN)/pytest -n auto -m "not spark and not kafka and not slow and not nightly"

# One worker has the Spark session, the others take what is left.
long: $(VENV)/.dev-ready ## tests in a Spark session with Delta, of processes and of the built wheel
	@RAFTLOG_DURATIONS=$(VENV)/durations/long.tsv \
	$(BIN)/pytest -n auto --dist loadgroup --durations=15 -m "(spark or slow) and not kafka and not nightly"

nightly: $(VENV)/.dev-ready ## everything, new seeds and planted bugs too; STAGES="sim planted" for some of it
	@.ci/nightly $(BIN)/python $(STAGES)

durations: ## keep the seconds of the last `make test` in tests/durations
	@mkdir -p tests/durations && cp $(VENV)/durations/*.tsv tests/durations

kafka: $(VENV)/.dev-ready ## tests against a real Apache Kafka, brought from Maven's registry
	@command -v mvn >/dev/null || { echo "make kafka needs Maven: install Apache Maven 3.8 or newer."; exit 1; }
	@$(BIN)/pytest -m kafka -rs

crash: $(VENV)/.dev-ready ## 10,000 crash points of two lives of a log; Spark drivers killed in many orders
	@RAFTLOG_CRASH_STATES=10000 RAFTLOG_KILL_ORDERS=6 $(BIN)/pytest -n 2 --dist worksteal -m "slow or nightly" \
	tests/crash/test_crash_points.py tests/spark_write/test_sink_kill_points_spark.py \
	tests/tables/test_materialize_kill_points_spark.py

sim: $(VENV)/.dev-ready ## simulated clusters: SEEDS=n new ones, or SEED=k once more with its trace, SHRINK=1 the least of it
	@$(BIN)/python -m tests.simulation.running $(if $(SEED),--seed $(SEED) $(if $(SHRINK),--shrink),--seeds $(or $(SEEDS),200))

rewrite: $(VENV)/.dev-ready ## write down what the scenarios do now; read the difference before you keep it
	@$(BIN)/python -m tests.scenarios.rewrite

diagram: $(VENV)/.dev-ready ## draw the roles of a replica into ARCHITECTURE.md
	@$(BIN)/python -m tests.quorum.diagram

planted: $(VENV)/.dev-ready ## plant known bugs, one at a time, and see that a test finds each; SEEDS=n also by seeds
	@$(BIN)/python -m tests.planted.run --seeds $(or $(SEEDS),0)

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

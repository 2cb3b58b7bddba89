# Python 3.11+ with venv, and make: nothing else is needed. Each target sets up what it needs; a
# second call is instant.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
OUT    ?= build/atlas
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder
# Many processes are started, and without bytecode each would compile a thousand modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: atlas screenshot test tests test-fetched test-long test-cluster test-lowest setup lint models browser data \
        bench bench-peers bench-torch bench-data soak refute mutants fuzz examples index evidence lock release clean

atlas: $(STAMP)
	$(BIN)/attlas atlas --out $(OUT)

# The picture in the README, of the atlas as it is; it needs Chromium.
screenshot: $(STAMP)
	$(BIN)/attlas atlas --out $(OUT)
	$(BIN)/python -m tools.screenshot $(OUT)/index.html docs/atlas.png

# From nothing: tests that need what `models`, `browser` or `data` fetch are skipped where it is
# missing, and counted in the last lines. Types are checked meanwhile, by what the tests leave idle.
test: $(STAMP)
	@$(MAKE) --no-print-directory -j 2 lint tests

tests: $(STAMP)
	$(PYTEST) -m "not long and not cluster"

# Only those tests, once it was fetched.
test-fetched: $(STAMP)
	$(PYTEST) -m "(models or browser) and not long and not cluster"

test-long: $(STAMP)
	$(PYTEST) -m "long and not cluster"

test-cluster: $(STAMP)
	$(BIN)/python -m pytest -m cluster

# The oldest versions that pyproject.toml allows, in an environment of their own, against tests of
# every room: formulas, kernels, a training, a store, estimators, a check, the command line.
LOWEST := build/lowest
test-lowest: $(STAMP)
	test -x $(LOWEST)/bin/python || $(BIN)/uv venv --quiet --python $(PYTHON) $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
	  --group dev --editable ".[audit,certify,cluster]"
	$(LOWEST)/bin/python -m pytest tests/test_surface.py tests/test_gaussian.py \
	  tests/test_attention.py tests/test_scan.py tests/claims/test_checks.py \
	  tests/claims/test_evidence.py tests/kernels tests/single_location/test_population.py \
	  tests/order_parameters/test_problem.py tests/latent_posterior/test_models.py \
	  tests/sparse_variables/test_training.py tests/lab/test_blocks.py tests/lab/test_store.py \
	  tests/estimators/test_conditional.py tests/estimators/test_sparse.py tests/cli/test_claims.py \
	  tests/audit/test_tensors.py tests/test_figure.py

setup: $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Real checkpoints for the audit, into the user's cache or ATTLAS_MODELS; SMALL=1 fetches only what
# the ordinary tests use.
models: $(STAMP)
	$(BIN)/python -m tools.models $(if $(SMALL),--small)

# Chromium (Debian's, as root) and axe-core, for the tests of the pages.
browser: $(STAMP)
	$(BIN)/python -m tools.browser

# All rows, or some: make bench ROWS="*descent*"
bench: $(STAMP)
	set -f; $(BIN)/python -m bench $(ROWS)

# Beside WeightWatcher, which lives with its torch in an environment of its own.
bench-peers: $(STAMP) models
	test -x build/peers/bin/python || $(PYTHON) -m venv build/peers
	build/peers/bin/python -m pip install --quiet --disable-pip-version-check weightwatcher transformers torch
	$(BIN)/python -m bench.peers build/peers/bin/python

bench-torch: $(STAMP)
	test -x build/peers/bin/python || $(PYTHON) -m venv build/peers
	build/peers/bin/python -m pip install --quiet --disable-pip-version-check torch
	$(BIN)/python -m bench.encoders build/peers/bin/python

data: $(STAMP)
	$(BIN)/python -m tools.data

bench-data: $(STAMP)
	test -x build/ngboost/bin/python || $(PYTHON) -m venv build/ngboost
	build/ngboost/bin/python -m pip install --quiet --disable-pip-version-check ngboost==0.5.11
	$(BIN)/python -m bench.real

# Every claim on 40 seeds that no test uses: an hour and a half, and it goes on where it stopped.
soak: $(STAMP)
	set -f; $(BIN)/python -m tools.soak $(CLAIMS)

# A search of every claim for a setting at which it fails, MINUTES each: it goes on where it stopped.
refute: $(STAMP)
	set -f; $(BIN)/python -m tools.refute --minutes $(or $(MINUTES),1) --jobs $(or $(JOBS),1) $(CLAIMS)
	$(BIN)/python -m tools.domains

# Changes of the mathematics that no test or claim notices: make mutants N=60 SEED=1
# MODULES="gaussian kernels" JSON=build/mutants.json
mutants: $(STAMP)
	$(BIN)/python -m tools.mutants -n $(or $(N),60) --seed $(or $(SEED),0) --jobs $(or $(JOBS),2) \
	  $(if $(MODULES),--modules $(MODULES)) $(if $(JSON),--json $(JSON))

# Files that break a reader, looked for with Atheris, which lives in a folder of its own:
# make fuzz MINUTES=2 READERS="block gguf"; MINUTES are for each.
FUZZ := build/fuzz/packages
fuzz: $(STAMP)
	test -d $(FUZZ) || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --no-deps --target $(FUZZ) -r tools/fuzz.lock
	PYTHONPATH=$(FUZZ) $(BIN)/python -m tools.fuzz $(READERS) --minutes $(or $(MINUTES),1)

examples: $(STAMP)
	$(BIN)/python examples/sentence.py
	$(BIN)/python examples/events.py
	$(BIN)/python examples/bound.py
	$(BIN)/python examples/molecules.py
	$(BIN)/python examples/recording.py
	$(BIN)/python examples/eruptions.py

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Attlas needs Python 3.11 or newer; $(PYTHON) is older." \
	            "Say which to use: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing;" \
	            "install it (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# uv itself by the hashes of the lock, which it then installs.
	@awk '/^[^ #]/ { ours = /^uv==/ } ours' requirements.lock > $(VENV)/uv.lock
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --require-hashes --no-deps -r $(VENV)/uv.lock
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@# Write the bytecode of what is imported: without it the first `attlas run` compiles 1,900
	@# modules, which takes 8 s, and so does every other where PYTHONDONTWRITEBYTECODE is set.
	@$(BIN)/python -c 'import attlas, attlas.atlas.pages; [getattr(attlas, x) for x in dir(attlas)]'
	@touch $@

# The catalogue that `attlas list` and `attlas show` read, from the claims.
index: $(STAMP)
	$(BIN)/python -m tools.index

# Evidence at the paper's scale that comes with the package: what is missing, or was measured by
# other code. CLAIMS='single-location/*' for a part.
evidence: $(STAMP)
	set -f; $(BIN)/python -m tools.evidence $(CLAIMS)

lock: $(STAMP)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --group dev --extra audit --extra certify --extra cluster pyproject.toml -o requirements.lock

# Wheel and sources, and a bill of all that they stand on.
release: $(STAMP)
	$(BIN)/python -m hatchling build -d build/release
	$(BIN)/python -m tools.sbom build/release/attlas.cdx.json

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each command sets up in .venv what it needs; a second call finds it there. The demo needs less than the tests.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
FLOOR := .venv-floor
BIN := $(VENV)/bin
RUNS := $(VENV)/.demo
READY := $(VENV)/.ready
WORKERS ?= 2
# Small nets are 10 to 40 times slower with two threads that contend for two cores.
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo web test test-full test-floor browser rivals runtimes check format bench gpu docs pictures site links release-check locks clean
help: ## Say what each command does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(RUNS): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing lit-gelu with what the demo needs into $(VENV): 6.3 GB, most of it PyTorch with CUDA. This takes some minutes.'
	$(BIN)/python -m pip install --editable '.[demo]' 'setuptools>=77'
	touch $@

$(READY): $(RUNS)
	@echo 'Installing what tests and linters need beside it: 0.7 GB. Nothing more is said until that is done.'
	$(BIN)/python -m pip install --quiet --editable '.[dev]' 'setuptools>=77'
	touch $@

install: $(READY) ## Make .venv and install the package with its development tools

demo: $(RUNS) ## Train on digits, swap ReLU for GELU midway, export, prove parity: about 20 seconds; leaves runs/demo/
	$(BIN)/lit-gelu demo

web: $(RUNS) ## Train on digits and serve a page to draw on; needs npm, for onnxruntime-web; Ctrl+C ends it
	$(BIN)/python examples/web/serve.py

test: check ## Lint, types, import directions and the tests: no network, no GPU, no file from outside
	$(BIN)/pytest -n $(WORKERS) -m 'not full'

test-full: check browser rivals runtimes site links ## All tests, real data included where LIT_GELU_DATA names its folder
	$(BIN)/pytest -n $(WORKERS)
	$(BIN)/python -m pip install --quiet --editable 'examples/paper[dev,ray]'
	$(BIN)/pytest examples/paper/tests

# A bound without a release, or one that another dependency refuses, fails in pip: no floor is raised in silence.
$(FLOOR)/.ready: pyproject.toml .ci/floors.py | $(READY)
	rm -rf $(FLOOR)
	$(PYTHON) -m venv $(FLOOR)
	$(BIN)/python .ci/floors.py > $(FLOOR)/constraints.txt
	$(FLOOR)/bin/python -m pip install --quiet --upgrade pip
	$(FLOOR)/bin/python -m pip install --quiet --constraint $(FLOOR)/constraints.txt --editable '.[dev]' 'setuptools>=77'
	touch $@

test-floor: $(FLOOR)/.ready ## The tests with the lowest versions that pyproject.toml declares, in .venv-floor (5 GB)
	$(FLOOR)/bin/pytest -n $(WORKERS) -m 'not full'

browser: $(READY) ## Install what the tests in Chromium need, where it is missing (test-full does it)
	sh tests/web/install.sh $(BIN)

rivals: $(READY) ## Install the packages that benchmarks/curvature.py compares with (test-full and bench do it)
	$(BIN)/python -m pip install --quiet --editable '.[bench]' 'setuptools>=77'

runtimes: $(READY) ## Install what `lit-gelu audit` opens files and folders with (test-full does it)
	$(BIN)/python -m pip install --quiet --editable '.[folders,litert,executorch,openvino,ncnn]' 'setuptools>=77'

# A module that was deleted would stay in build/lib, and come into the copy; the built site stays where it is.
# mypy and import-linter do not see the package-dir mapping of an editable install, so they read an installed copy.
check: $(READY) ## Lint, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/lib build/bdist.* build/typed
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/typed .
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p lit_gelu
	cd build/typed && ../../$(BIN)/lint-imports --config ../../pyproject.toml
	cd build/typed && ../../$(BIN)/python -c 'import lit_gelu.callbacks, lit_gelu.export, lit_gelu.tasks; assert "typed" in lit_gelu.__file__'

format: $(READY) ## Rewrite the files as the linter wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: rivals ## Run every benchmark that needs no GPU; each prints ratios measured side by side in one run
	set -e; for script in $(filter-out %gpu.py,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$script"; $(BIN)/python $$script; done

# Four minutes a stage at most; `make gpu GPU='--stage parity --resume'` runs one, and goes on where it stopped.
gpu: $(READY) ## On a machine with a GPU: doctor, tests, parity, speed and training, one record each in runs/gpu (docs/gpu.md)
	$(BIN)/python -P benchmarks/gpu.py $(GPU)

docs: $(READY) ## Write the pages that are made of figures, those of activations, lowering, gpu, runtimes and architectures, and the explorer's files anew
	$(BIN)/python docs/make_activations.py
	$(BIN)/python docs/make_lowering.py
	$(BIN)/python docs/make_gpu.py
	$(BIN)/python docs/make_who_computes_what.py
	$(BIN)/python docs/make_architectures.py
	$(BIN)/python docs/make_explorer.py --models

pictures: $(READY) ## Draw the pictures of README.md and docs/start.md anew, from a run of the demo and one of choose: a minute
	$(BIN)/python docs/make_pictures.py

site: $(READY) ## Build the site into build/website/site: guides, gallery of activations, reference, search; nothing is fetched
	$(BIN)/python docs/make_site.py

links: ## Check every link of the built site: none may be broken; those that lead outside are listed
	$(BIN)/python docs/check_links.py

# Other Pythons too: make release-check RELEASE='--python python3.11 python3.12 python3.13'. 6 GB each while it runs.
release-check: $(READY) ## Build sdist and wheel, check them, and try the wheel in an empty environment with each extra alone
	$(BIN)/python -m pip install --quiet --editable '.[release]' 'setuptools>=77'
	$(BIN)/python .ci/release_check.py $(RELEASE)

locks: $(READY) ## Write docker/cpu.lock and docker/gpu.lock anew: what the images hold, as pip resolves pyproject.toml
	$(BIN)/python .ci/make_locks.py

clean: ## Remove what the commands above made, runs/ excepted
	rm -rf $(VENV) $(FLOOR) examples/web/node_modules tests/docs/explorer/axe/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

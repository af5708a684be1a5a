# Two commands do everything on a fresh machine with Python >= 3.11, make and a C++ compiler:
#   make demo    VGG16's first block on an image that does not fit the budget
#   make test    the test suite, a quarter of an hour on two cores
# Before each commit, and before each release (make test-all installs PyTorch):
#   make quick, make test-all   a minute of the suite; all of it, the long sweeps too
# One more takes a few minutes (VGG16_ARGS chooses batch, budget, size and where tensors live):
#   make vgg16   VGG16, forward and backward, on a device that holds a fraction of it
# The documentation as a site in site/, with the tutorials run, and warnings as errors:
#   make docs
# And one installs NVIDIA's cuDNN, 1.6 GB with what it depends on:
#   make test-cudnn   the cuDNN binding, as far as it can be tested without a GPU
# On a machine with a GPU, CuPy and pytest, with its own Python, and no network:
#   make gpu OUT=folder   a first look, tests, calibration and benchmark on that GPU within nine minutes
#                         (ONLY=first,probe,rows,tests,sanitize,calibrate,peers,bench; RESUME=folder goes on from earlier results)
# One more installs SigPy and CuPy:
#   make test-sigpy   unmodified SigPy, whose convolutions use the cudnn module that CuPy removed, with CuPy and without
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
VGG16_ARGS ?= --batch 16 --budget 512MiB
# Compiled modules are kept whatever the environment says: without them, each process that tests start compiles ooc for a second.
unexport PYTHONDONTWRITEBYTECODE
# Nor do NumPy's threads pay in tests: they start with each process, and wait for each other by spinning.
quick test test-all test-sigpy: export OPENBLAS_NUM_THREADS = 1
SOURCES = pyproject.toml setup.py $(wildcard kernels/*.* kernels/*/*.*)

.PHONY: demo vgg16 quick test test-all test-cudnn test-sigpy lint check docs bench calibrate gpu clean

demo: $(VENV)/.demo
	$(BIN)/ooc demo --large

# NumPy checks on one thread: several wait for each other by spinning, which takes three times as long on a busy machine.
vgg16: $(VENV)/.demo
	OPENBLAS_NUM_THREADS=1 $(BIN)/python examples/vgg16.py $(VGG16_ARGS)

# What is fast, and a little of every sweep. A test is in it by the marker `quick`, or the first parameters of a sweep.
quick: $(VENV)/.test
	$(BIN)/python -m pytest -m "quick and not slow" -n 2 --dist worksteal

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

# With the long sweeps, and with PyTorch, which the default suite only compares with where it is installed.
test-all: $(VENV)/.test $(VENV)/.bench
	$(BIN)/python -m pytest

test-cudnn: $(VENV)/.cudnn
	$(BIN)/python -m pytest tests/libcudnn/test_descriptors.py \
	  $(addprefix tests/backends/cuda/test_,cudnn_binding.py backend.py kernels.py) -k "cudnn or compiler"

test-sigpy: $(VENV)/.sigpy
	$(BIN)/python -m pytest -n 2 tests/cudnn/test_sigpy.py
	$(BIN)/python -c "import sys, pytest; sys.modules['cupy'] = None; sys.exit(pytest.main(['tests/cudnn/test_sigpy.py']))"

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# What CI runs, and SigPy.
check: lint test test-sigpy

# TUTORIALS=off: without running them. It fetches nothing from elsewhere. `python -m http.server -d site` serves it with its search. The variable silences a notice of the theme's.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 TUTORIALS=$(TUTORIALS) $(BIN)/mkdocs build --strict

bench: $(VENV)/.bench
	for how in "" --backward; do \
	  $(BIN)/python -m perfmodel bench vgg16 resnet50 unet3d mobilenet $$how --peer torch --mib 64 \
	    --out perfmodel/results/cpu/layers$$how.jsonl || exit 1; done
	$(BIN)/python tools/docs_tables.py --write

calibrate: $(VENV)/.test
	$(BIN)/python -m perfmodel calibrate --out ooc/model/devices/cpu.json

gpu:
	@test -n "$(OUT)" || { echo "make gpu OUT=folder: where should the results go?"; exit 2; }
	$(PYTHON) -m perfmodel gpu --out "$(OUT)" $(if $(ONLY),--only $(ONLY)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RESUME),--resume "$(RESUME)")

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { echo "no venv: on Debian or Ubuntu, apt install python3-venv"; exit 1; }
	$(BIN)/python -m pip install -q --upgrade pip

# The extension is compiled once; what else a target needs is installed beside it. Setuptools' warnings about editable
# installations are silenced, errors are not; that there is no extension, which is no error to pip, is told here.
$(VENV)/.built: $(BIN)/python $(SOURCES)
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q -e .
	@$(BIN)/python -c "from ooc import native; native.kernels or print('no compiled kernels: ooc will be slow; $(BIN)/pip install -v -e . says why')"
	@touch $@

$(VENV)/.%: $(VENV)/.built
	$(BIN)/python -m pip install -q "ooc[$*]"
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info ooc/_kernels*.so

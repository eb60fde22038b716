#!/usr/bin/env bash
# The slow proofs and the benchmarks, in the environment that the README's test command makes. Takes an hour or so.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/pytest -m slow
.venv/bin/python eval/speed/scheduler.py
.venv/bin/python eval/speed/overhead.py
.venv/bin/python eval/speed/loss_head.py
.venv/bin/python -m eval.speed.trl
.venv/bin/python -m eval.study run --quick --output "$(mktemp -d)/study"
.venv/bin/python -m eval.paper all --scale demo --output "$(mktemp -d)/paper"
.venv/bin/python -m eval.paper.classes --quick --output "$(mktemp -d)/classes"

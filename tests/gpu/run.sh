#!/usr/bin/env bash
# Parity, the way of scores to the grammars, and speed on a GPU, as one markdown table each: `tests/gpu/run.sh`, meant to
# take a few minutes on one H200.
# With torch.compile and CUDA graphs beside it, some minutes more: `tests/gpu/run.sh --compile inductor reduce-overhead`.
# Neither the script nor the graphs have run on a GPU yet.
# Nothing is downloaded: the models are random, made on the device. Without a GPU: `tests/gpu/run.sh --device cpu --tiny`.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python -m tests.gpu.run "$@"

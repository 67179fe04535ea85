#!/bin/sh
# Writes banyan/v1 from proto/banyan/v1. Byte-stable: tests run it again and fail on a difference.
set -eu
cd "$(dirname "$0")/.."
out="${1:-.}"
PATH="$(pwd)/.venv/bin:$PATH"
python -m grpc_tools.protoc -I proto --python_out="$out" --grpc_python_out="$out" \
  --mypy_out=quiet:"$out" --mypy_grpc_out=quiet:"$out" proto/banyan/v1/*.proto
touch "$out/banyan/v1/__init__.py"

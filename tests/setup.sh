#!/bin/sh
# Installs what the tests need beside .venv: iproute2 for test hosts in network namespaces; with the argument `slow`, chromium
# for tests of the page (400 MB), prometheus with promtool for those of dashboards and alerts (100 MB), and curl and jq, which
# docs/clients.md shows. Costs nothing when it is there.
set -eu
if ! command -v ip >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq iproute2 >/dev/null
  else
    echo "tests/setup.sh: install iproute2 for the tests of joining across network namespaces" >&2
  fi
fi
if [ "${1:-}" = slow ] && ! [ -x /usr/bin/chromium ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
  else
    echo "tests/setup.sh: install chromium (as /usr/bin/chromium) for the tests of the page" >&2
  fi
fi
if [ "${1:-}" = slow ] && ! { command -v prometheus && command -v promtool; } >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # RUNLEVEL: its package would start a server; the tests start their own.
    apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
  else
    echo "tests/setup.sh: install prometheus and promtool for the tests of dashboards and alerts" >&2
  fi
fi
if [ "${1:-}" = slow ] && ! { command -v curl && command -v jq; } >/dev/null 2>&1; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends curl jq >/dev/null
  else
    echo "tests/setup.sh: install curl and jq for the tests of docs/clients.md" >&2
  fi
fi

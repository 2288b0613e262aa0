#!/usr/bin/env bash
# Every test, in three parts; `make test` installs what they need first. PYTEST has options for pytest.
#
# What uses the light cluster, which all workers share, has the machine to itself. What shows the real one goes on in
# its real time and leaves a part of the processors free: what needs no cluster runs beside it, at the least priority,
# and its output follows. What fails in a part runs once more without others beside it, up to the first that fails
# again: a test that a busy machine starves is listed by its part, and only what fails by itself fails the target.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/tests
eval "given=(${PYTEST:-})"
python=build/venv/bin/python
side_by_side=(--dist loadgroup --no-loadscope-reorder)
light=(light -m "light and not cluster" -n "${WORKERS:-6}" "${side_by_side[@]}")
real=(real -m cluster)
beside=(beside -m "not light and not cluster" -n 3 "${side_by_side[@]}")

options_for() { # PART OPTIONS…: in `options`
	options=(-q --timeout=600 --durations=10 -o "cache_dir=build/tests/$1" "${@:2}" "${given[@]}")
}

worst=5 # what pytest says of a part without a test
again() { # CODE PART OPTIONS…: run what failed once more, and note how the part ended
	local code=$1
	options_for "${@:2}"
	if [ "$code" = 1 ]; then
		echo "[test] what failed of \"$2\" runs once more, alone"
		code=0
		$python -m pytest "${options[@]}" --last-failed --maxfail=1 -n 0 || code=$?
	fi
	case $code in
	0) [ "$worst" != 5 ] || worst=0 ;;
	2) exit 2 ;; # interrupted
	5) ;;
	*) worst=$code ;;
	esac
}

# Tests are collected once while tools are built, so that workers find them compiled: each would compile all of them.
$python -m pytest -q --co >/dev/null 2>&1 &
$python -m lab tools
wait
spent="tools $SECONDS s"

echo "[test] on the light cluster"
began=$SECONDS code=0
options_for "${light[@]}"
$python -m pytest "${options[@]}" --cache-clear || code=$?
again $code "${light[@]}"
spent+=", on the light cluster $((SECONDS - began)) s"

echo "[test] on the real cluster, and beside it what needs none"
began=$SECONDS code=0
options_for "${beside[@]}"
# A session of its own, as Linux shares processors among sessions first (sched_autogroup), and priorities count within one.
setsid nice -n 19 bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null || true; exec "$@"' - \
	$python -m pytest "${options[@]}" --cache-clear >build/tests/beside.txt 2>&1 &
trap "kill $! 2>/dev/null || true" EXIT
options_for "${real[@]}"
$python -m pytest "${options[@]}" --cache-clear || code=$?
again $code "${real[@]}"
code=0
wait $! || code=$?
cat build/tests/beside.txt
again $code "${beside[@]}"
echo "[test] $spent, on the real cluster $((SECONDS - began)) s"
exit "$worst"

#!/usr/bin/env bash
# run.sh FOLDER [STAGE ...]: everything that needs a GPU, on a machine that may reach no package registry.
#
# FOLDER has what such a machine lacks:
#   trt/      TensorRT: lib/ with its libraries, py/ with its Python module
#   wheels/   Headrace for this Python (make wheel), and what it needs and this Python has not
#   models/   ONNX files; those named below get plans
#   load/     the load generator `load` and, in lib/, its libraries (benchmarks/plans.py says how it is called)
#   bare/     bare_tensorrt.py: a loop over TensorRT without a service, the bar for the others
#   commit    a file: the commit that Headrace's wheel was made of
# and gets results/: a JSON file per measurement, and h200.md, the table of them all.
#
# A command on such a machine may be cut off after ten minutes, so the work comes in stages, each of a few
# minutes; without STAGE all run in this order:
#   setup tests memcheck plans bare worker grpc sharing table
set -euo pipefail

folder=$(realpath "${1:?usage: run.sh FOLDER [STAGE ...]}"); shift
here=$(realpath "$(dirname "$0")"); root=$(realpath "$here/../..")
stages=${*:-setup tests memcheck plans bare worker grpc sharing table}
seconds=${SECONDS_EACH:-5}
model=resnet50_u8 # the one whose figures are the bound: images as bytes
python=${PYTHON:-python3}
site=$folder/site results=$folder/results models=$folder/models
mkdir -p "$results"
export PYTHONPATH=$site:$folder/trt/py PYTHONUNBUFFERED=1
export LD_LIBRARY_PATH=$folder/trt/lib:$folder/load/lib:${LD_LIBRARY_PATH:-}

[ ! -e "$folder/commit" ] || HEADRACE_COMMIT=$(cut -c -12 "$folder/commit")
export HEADRACE_COMMIT=${HEADRACE_COMMIT:-}

headrace() { "$python" -P -m service "$@"; }
bench() { (cd "$root/benchmarks" && PYTHONPATH=$root/benchmarks:$PYTHONPATH "$python" -P "$@"); }

setup() {
    "$python" -m pip install --quiet --no-index --no-deps --upgrade --no-compile --target "$site" "$folder"/wheels/*.whl
    headrace doctor
}

pytest() { # a checkout that is the working directory would shadow what is installed
    (cd /tmp && "$@" "$python" -X faulthandler -P -m pytest -q -p no:cacheprovider -c "$root/pyproject.toml" \
        --rootdir "$root" --durations 5 ${PYTEST_ARGS:-} "${PYTEST_FILE:-$here}")
}

tests() { pytest env; }

memcheck() { # a tool that does not attach to this machine's driver ends the stage, and says so
    local tool
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    [ -n "$tool" ] || { echo "compute-sanitizer is not installed"; return; }
    PYTEST_ARGS="-k eight_threads" pytest "$tool" --tool memcheck --report-api-errors no --error-exitcode 86
}

plan() { # plan NAME ONNX FLAGS...: builds NAME.plan, unless it is there
    [ -e "$models/$1.plan" ] || headrace build "$models/$2.onnx" --batch 1,32,128 --timing-cache "$models/timing" \
        -o "$models/$1.plan" "${@:3}"
}

plans() { # what one build timed, the next ones use
    [ -e "$models/$model.npz" ] || "$python" -c "import numpy as np, sys
np.savez(sys.argv[1], input=np.random.default_rng(0).integers(0, 256, (64, 3, 224, 224), dtype=np.uint8))" "$models/$model.npz"
    plan "$model.int8" "$model" --fp16 --int8 --calibration "$models/$model.npz"
    plan "$model.fp16" "$model" --fp16
    plan "$model.fp32" "$model"
    plan resnet50.fp16 resnet50 --fp16
    [ -e "$models/vary.plan" ] || { # y = x + x, of any width
        "$python" -c "import onnx, sys; from onnx import helper as h
x, y = (h.make_tensor_value_info(name, 1, ['n', 'm']) for name in 'xy')
graph = h.make_graph([h.make_node('Add', ['x', 'x'], ['y'])], 'vary', [x], [y])
onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid('', 17)], ir_version=9), sys.argv[1])" "$models/vary.onnx"
        headrace build "$models/vary.onnx" --min-shapes x:1x1 --opt-shapes x:1x1000 --max-shapes x:4x80000000
    }
}

bare() {
    local one=$1 dtype=$2; shift 2
    "$python" "$folder/bare/bare_tensorrt.py" "$models/$one.onnx" input logits 3x224x224 --dtype "$dtype" --plans "$models" \
        --precision "$@" --batch 1 8 32 128 --streams 1 4 | tee "$results/bare_$one.txt"
}

worker() {
    local name
    for name in "$model.fp16" "$model.fp32" "$model.int8" resnet50.fp16; do
        [ -e "$models/$name.plan" ] || continue
        bench worker.py "$models/$name.plan" --setting 128:4:2048 32:4:512 --seconds "$seconds" --out "$results/worker_$name.json"
    done
    bench worker.py "$models/$model.fp16.plan" --setting 1:1:16 128:1:1024 8:1:64 8:4:128 --seconds "$seconds" \
        --out "$results/worker_streams.json"
}

grpc() {
    bench plans.py --plan "$models/$model.fp16.plan" --load "$folder/load/load" --seconds "$seconds" \
        --in-flight 1 64 256 512 1024 1536 --out "$results/grpc.json"
}

sharing() {
    bench sharing.py --busy "$models/$model.fp16.plan" "$models/$model.int8.plan" --greedy "$models/vary.plan" \
        --load "$folder/load/load" --seconds "$seconds" --out "$results/sharing.json"
}

table() { bench h200.py "$results" | tee "$results/h200.md"; }

for stage in $stages; do
    echo "== $stage"
    case $stage in
        bare) bare "$model" uint8 fp16 && bare resnet50 float32 fp16 ;;
        setup | tests | memcheck | plans | worker | grpc | sharing | table) "$stage" ;;
        *) echo "run.sh: no stage '$stage'; expected setup, tests, memcheck, plans, bare, worker, grpc, sharing or table" >&2; exit 2 ;;
    esac
done

#!/usr/bin/env bash
# Everything that only a GPU can show, each part under its own time limit, so that one that hangs does not hide the rest:
# the GPU tests, a memory check of a small case, host times, and the benchmarks whose rows the documentation shows.
#
#   tools/verify_on_gpu.sh [FOLDER]       results go to FOLDER, ./gpu-results by default
#
# Kernels compile on several cores at once; with a warm cache (CUDNN_FRONTEND_COMPILED_CACHE) the whole takes a few
# minutes on an H200.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-gpu-results}")
mkdir -p "$out"
python=${PYTHON:-python3}
failed=0

part() { # part NAME SECONDS COMMAND...: its output goes to NAME.txt
    local name=$1 limit=$2 started=$SECONDS
    shift 2
    timeout "$limit" "$@" >"$out/$name.txt" 2>&1
    local status=$?
    [ $status -eq 0 ] || failed=1
    printf '%-26s status %s, %s s: %s\n' "$name" $status $((SECONDS - started)) "$(tail -1 "$out/$name.txt" | cut -c1-120)"
}

part tests 420 "$python" -m pytest -q -m gpu -n "${WORKERS:-12}" --dist load -p no:cacheprovider packages
# Calls of the driver that fail are not reported: bindings probe for functions that this driver may lack.
part memcheck 90 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 "$python" tools/small_case.py
part host 60 "$python" tools/host_time.py --json "$out/host_time.json"
part gemm 300 "$python" -m cudnn._cli bench matmul --rounds 9 --json "$out/h200_matmul.json"
part swiglu 150 "$python" -m cudnn._cli bench gemm_swiglu_forward --rounds 9 --json "$out/h200_gemm_swiglu_forward.json"
for op in grouped_gemm_forward grouped_gemm_glu_forward grouped_gemm_glu_backward grouped_gemm_wgrad_forward \
    causal_conv1d causal_conv1d_backward causal_conv1d_update \
    block_scale_quantize block_scale_dequantize \
    gemm_amax_forward gemm_srelu_forward gemm_srelu_backward gemm_swiglu_scaled_forward gemm_proj_rope_mxfp8_forward \
    grouped_gemm_glu_scaled_forward grouped_gemm_quant_forward \
    rmsnorm_rht_amax_forward rmsnorm_silu_forward tail_rope_forward vision_rope_backward rope_qdq_inplace_forward \
    engram_gate_saved_forward engram_gate_saved_backward hstu_lmsd_forward hstu_lmsd_backward; do
    part "$op" 90 "$python" -m cudnn._cli bench "$op" --rounds 9 --json "$out/h200_$op.json"
done
part demo 90 "$python" -m cudnn._cli demo
part demo_jax 120 "$python" -m cudnn._cli demo --framework jax
exit $failed

"""Checks of the settings of JAX and XLA that could change a release.

The proof needs three things: float32 arithmetic with NaN, infinities and division as in IEEE 754,
programs that are compiled as they were checked, and errors that do not depend on data. Flags of
XLA and options of JAX can take each of these away. A stream opens, and each of its programs runs,
only where every setting has the value that was reviewed, or is known not to matter.
The options that clipping relies on are also set for each of the door's programs
(`COMPILER_OPTIONS`), so that the environment cannot change them.
"""

import os
import re
import sys
from typing import Any

from sotto.privacy.errors import PrivacyError

COMPILER_OPTIONS: dict[str, bool | int | str] = {
    "xla_cpu_enable_fast_math": False,
    "xla_cpu_fast_math_honor_nans": True,
    "xla_cpu_fast_math_honor_infs": True,
    "xla_cpu_fast_math_honor_division": True,
    "xla_cpu_fast_math_honor_functions": True,
    "xla_gpu_enable_fast_min_max": False,
}
"""Compiler options of every program that people's data passes through."""

_HARMLESS_FLAGS = re.compile(
    r"--(xla_force_host_platform_device_count|xla_cpu_multi_thread_eigen|xla_gpu_cuda_data_dir)"
    r"=[\w./-]+|--xla_backend_optimization_level=[0-3]|intra_op_parallelism_threads=\d+"
    r"|--xla_cpu_use_fusion_emitters=(true|false)|--xla_cpu_parallel_codegen_split_count=\d+"
)
"""Flags of XLA that change neither the arithmetic nor the program. They set the number of devices
and threads, the place of CUDA, and how much the machine code is optimised. They also choose which
of two writers of it is used, and in how many parts it is written at the same time. Either writer
obeys the options of `COMPILER_OPTIONS`, and the door's tests run with both. Optimisation keeps
float32 as in IEEE 754 at every level: what may break it is fast math, which has other flags. A
fused multiply-add rounds once in place of twice. `gaussian.norm_margin` covers both in the clip;
`gaussian.materialised` keeps one result of what comes before."""

_VARIABLES = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
"""Environment variables, beside XLA_FLAGS, that change arithmetic; they must not be set."""

_OTHER_NUMBERS = frozenset(
    {"jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable"}
)
"""Options of JAX that change a person's numbers, but not the sensitivity. Sums that the proof
bounds set their own precision, keys set their own kind (`keys`), and threefry draws for each key
alone in either layout. The ledger records these options."""

_NO_NUMBERS = frozenset(
    {
        *("jax_platforms", "jax_platform_name", "jax_default_device", "jax_num_cpu_devices"),
        *("jax_cuda_visible_devices", "jax_rocm_visible_devices", "jax_cpu_enable_async_dispatch"),
        *("jax_enable_compilation_cache", "jax_compilation_cache_dir"),
        *("jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs"),
        *("jax_persistent_cache_min_entry_size_bytes", "jax_persistent_cache_enable_xla_caches"),
        *("jax_compilation_cache_include_metadata_in_key", "jax_raise_persistent_cache_errors"),
        *("jax_log_compiles", "jax_explain_cache_misses", "jax_logging_level"),
        *("jax_debug_log_modules", "jax_pprint_use_color", "jax_traceback_filtering"),
        *("jax_traceback_in_locations_limit", "jax_include_full_tracebacks_in_locations"),
        *("jax_tracer_error_num_traceback_frames", "jax_check_proxy_envs"),
    }
)
"""Options of JAX for devices, caches and messages, which change no numbers."""

_REVIEWED: dict[str, str] = {
    name: value
    for value, names in {
        "False": (
            "check_vma eager_constant_folding jax2tf_associative_scan_reductions "
            "jax_bcoo_cusparse_lowering jax_check_static_indices jax_check_tracer_leaks "
            "jax_compilation_cache_check_contents jax_compilation_cache_expect_pgle "
            "jax_custom_vjp3 jax_debug_infs jax_debug_key_reuse "
            "jax_debug_leaked_clients_on_clear_backends jax_debug_nans jax_disable_bwd_checks "
            "jax_disable_jit jax_disable_most_optimizations jax_disable_vmap_shmap_error "
            "jax_disallow_mesh_context_manager jax_distributed_debug jax_enable_checks "
            "jax_enable_custom_prng jax_enable_pgle jax_enable_recoverability jax_enable_x64 "
            "jax_experimental_unsafe_xla_runtime_errors jax_export_ignore_forward_compatibility "
            "jax_force_dcn_cross_host_transfers jax_high_dynamic_range_gumbel "
            "jax_log_checkpoint_residuals jax_mosaic_allow_hlo jax_no_execution jax_no_tracing "
            "jax_pallas_enable_debug_checks jax_pallas_poison_buffers jax_pallas_verbose_errors "
            "jax_ragged_dot_use_gpu_pallas_triton_lowering jax_refs_to_pins jax_remat3 "
            "jax_remove_custom_partitioning_ptr_from_cache_key "
            "jax_remove_size_one_mesh_axis_from_type jax_scan3 jax_share_binary_between_hosts "
            "jax_softmax_custom_jvp jax_thread_guard jax_threefry_gpu_kernel_lowering "
            "jax_use_emit_pipeline_primitive jax_use_simplified_jaxpr_constants"
        ),
        "True": (
            "jax2tf_default_native_serialization jax_allow_f16_reductions jax_auto_pcast "
            "jax_compiler_enable_remat_pass jax_enable_preemption_service "
            "jax_include_debug_info_in_dumps jax_mutable_array_checks jax_pallas_use_mosaic_gpu "
            "jax_ragged_dot_use_ragged_dot_instruction jax_sort_devices_by_process_index "
            "jax_use_direct_linearize jax_use_shardy_partitioner"
        ),
        "0": (
            "jax_captured_constants_report_frames jax_random_seed_offset "
            "jax_serialization_version jax_xla_profile_version mock_num_gpu_processes"
        ),
        "10": "jax_compiler_detailed_logging_min_ops jax_export_calling_convention_version",
        "None": (
            "jax_array_garbage_collection_guard jax_cross_host_transfer_timeout_seconds "
            "jax_cross_host_transfer_transfer_size jax_hlo_source_file_canonicalization_regex "
            "jax_pjrt_client_create_options jax_source_url_schema jax_transfer_guard "
            "jax_transfer_guard_device_to_device jax_transfer_guard_device_to_host "
            "jax_transfer_guard_host_to_device"
        ),
        "2000000000": "jax_captured_constants_warn_bytes",
        "32": "jax_embedded_constants_max_bytes",
        "1200000": "jax_share_binary_between_hosts_timeout_ms",
        "3": "jax_pgle_profiling_runs",
        "90": "jax_pgle_aggregation_percentile",
        "1": "jax_explicit_x64_dtypes",
        "standard": "jax_numpy_dtype_promotion",
        "ignore": (
            "jax_error_checking_behavior_divide jax_error_checking_behavior_nan "
            "jax_error_checking_behavior_oob"
        ),
        "allow": "jax_legacy_prng_key jax_numpy_rank_promotion",
        "auto": "jax_use_magma",
        "off": "jax_send_traceback_to_runtime",
        "": (
            "jax_backend_target jax_cross_host_transfer_socket_address "
            "jax_cross_host_transport_addresses jax_dump_ir_to jax_mock_gpu_topology "
            "jax_xla_backend"
        ),
        "0.0": "jax_exec_time_optimization_effort jax_memory_fitting_effort",
        "UNKNOWN": "jax_optimization_level",
        "O2": "jax_memory_fitting_level",
        "gloo": "jax_cpu_collectives_implementation",
        "stablehlo": "jax_dump_ir_modes",
        "all": "jax_oneapi_visible_devices",
        "2": "jax_cpu_get_local_topology_timeout_minutes",
        "5": "jax_cpu_get_global_topology_timeout_minutes",
    }.items()
    for name in names.split()
}
"""All other options of JAX with the values that were reviewed, which are the defaults of
`REVIEWED_JAX`."""


def in_force() -> dict[str, str]:
    """Returns the settings of the present process, for the ledger.

    Every module of the vault that computes with JAX loads JAX before it opens a stream.

    Raises:
        PrivacyError: one of them is not understood; the message names it. Or the caller is inside
            a transformation of JAX.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in flags.split():
        if not _HARMLESS_FLAGS.fullmatch(flag):
            raise PrivacyError(
                f"XLA_FLAGS has {flag.partition('=')[0]}, which is not among the flags known to "
                "leave a release as it is; unset it and start again"
            )
    for name in _VARIABLES:
        if os.environ.get(name, "") not in ("", "0"):
            raise PrivacyError(f"{name} is set and changes arithmetic; unset it and start again")
    jax: Any = sys.modules.get("jax")  # where it is not loaded, nothing is computed with it
    if jax and not jax._src.core.trace_state_clean():
        raise PrivacyError(
            "a stream is opened or charged inside jit, vmap or another transformation of JAX, "
            "which would release many times what is charged and drawn once; call it outside"
        )
    options = jax.config.values if jax else {}
    for name, value in options.items():
        if name in _NO_NUMBERS or name in _OTHER_NUMBERS:
            continue
        if name not in _REVIEWED:
            raise PrivacyError(
                f"jax {jax.__version__} has an option {name}, which this version of sotto has not "
                "reviewed; use the version of jax that sotto was locked with"
            )
        if str(value) != _REVIEWED[name]:
            raise PrivacyError(
                f"the option {name} of jax is {value}, where releases need "
                f"{_REVIEWED[name] or 'it empty'}; set it back"
            )
    compiled_with = " ".join(f"{name}={value}" for name, value in COMPILER_OPTIONS.items())
    recorded = {name: str(options[name]) for name in sorted(_OTHER_NUMBERS) if name in options}
    return {"XLA_FLAGS": flags, "compiler options": compiled_with} | recorded

"""Metrics recorded by the toolkit itself: ``step.observe`` and ``step.update`` write them for any training loop."""

from dataclasses import replace

from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.forward_metrics import FORWARD
from fieldwatch.record.memory.profile_names import under_other_name
from fieldwatch.record.metric import Metric

# The texts below are user-facing: docs/metrics.md, TensorBoard's guide and Parquet column metadata show them.

LOSS = (
    Metric(
        name="Loss/total",
        unit="",
        meaning="Weighted sum of all active loss terms: the scalar that is backpropagated.",
        better="lower",
        expected="decreases; a jump at a phase boundary is normal, because terms or weights change there",
    ),
    Metric(
        name="Loss/component_<term>",
        unit="",
        meaning="Unweighted value of one loss term.",
        better="lower",
        expected="no value, rather than 0, while the term is inactive",
    ),
    Metric(name="Loss/weight_<term>", unit="", meaning="Weight of one loss term at this step."),
    Metric(
        name="Loss/weighted_<term>",
        unit="",
        meaning="Contribution of one loss term to the total: weight times value.",
        better="lower",
    ),
    Metric(
        name="Loss/share_<term>",
        unit="",
        meaning="Weighted term divided by the total loss; NaN if the total is 0 or not finite.",
        better="steady",
        expected="regularizers stay below the data term, except briefly",
    ),
)

GRADIENTS = (
    Metric(
        name="Gradients/total_norm",
        unit="",
        meaning="L2 norm of all gradients, concatenated, before clipping.",
        better="steady",
        expected="0.1 to 10; investigate values below 0.001 or above 100",
    ),
    Metric(
        name="Gradients/<group>_norm",
        unit="",
        meaning="L2 norm of one parameter group's gradients, before clipping.",
        better="steady",
        expected="nonzero while a loss term that depends on the group is active",
    ),
    Metric(
        name="Gradients/clip_scale",
        unit="",
        meaning="Factor by which clipping scaled all gradients: 1 if they were within the limit, else limit / "
        "Gradients/total_norm; absent without a limit for the total norm.",
        better="steady",
        expected="1 at most steps; constantly far below 1, the limit sets the step size",
    ),
    Metric(
        name="Gradients/<group>_clip_scale",
        unit="",
        meaning="Factor by which clipping scaled one group's gradients: 1 if they were within the group's limit, else "
        "limit / Gradients/<group>_norm; absent without a limit for the group.",
        better="steady",
        expected="as of Gradients/clip_scale",
    ),
    Metric(name="Gradients/max", unit="", meaning="Largest absolute gradient entry of all groups.", better="steady"),
    Metric(
        name="Gradients/update_ratio_<group>",
        unit="",
        meaning="L2 norm of the group's update divided by the L2 norm of its parameters before the update.",
        better="steady",
        expected="about 1e-3; above 0.1 the update overwrites the group, below 1e-7 the group is effectively frozen",
    ),
    Metric(
        name="Gradients/first_update_<group>",
        unit="",
        meaning="As Gradients/update_ratio_<group>, at the first update of the run; of small models only.",
        expected="below 0.1; at 1 the initial values are overwritten at once",
    ),
    Metric(
        name="Gradients/share_<group>_<term>",
        unit="",
        meaning="L2 norm of one weighted term's gradient in the group, divided by the sum of these norms over all "
        "terms.",
        better="steady",
    ),
    Metric(
        name="Gradients/cosine_<group>_<term>_<term>",
        unit="",
        meaning="Cosine similarity of two terms' gradients in the group; -1 means that they point in opposite "
        "directions.",
        better="higher",
    ),
)

PARAMETERS = (
    Metric(name="Parameters/<group>_mean", unit="", meaning="Mean of all parameters of the group.", better="steady"),
    Metric(
        name="Parameters/<group>_std",
        unit="",
        meaning="Sample standard deviation (n - 1 in the denominator) of all parameters of the group.",
        better="steady",
    ),
)

GUARD = (
    Metric(name="Guard/refused", unit="", meaning="1 if the guard refused this step's update, else 0.", better="lower"),
    Metric(
        name="Guard/skipped",
        unit="",
        meaning="1 if this step's update was skipped on purpose after a rollback; absent otherwise.",
        better="lower",
    ),
    Metric(
        name="Guard/scaler_skipped",
        unit="",
        meaning="1 if the gradient scaler skipped this step's update because its factor was too large, else 0. Absent "
        "without a scaler.",
        better="steady",
    ),
    Metric(
        name="Guard/loss_scale",
        unit="",
        meaning="Factor by which the gradient scaler multiplied the loss. Absent without a scaler.",
        better="steady",
    ),
    Metric(
        name="Guard/uncleared_gradient",
        unit="",
        meaning="L2 norm of the previous update's gradient that a backward pass added to, in one parameter of an "
        "optimizer. Recorded for some steps if a loop keeps its gradient tensors; 0 if it clears them in place.",
        better="lower",
    ),
    Metric(
        name="Guard/zero_gradient",
        unit="",
        meaning="Fraction of the gradient entries that are exactly 0, from about 4,000 entries per parameter.",
        better="lower",
    ),
    Metric(
        name="Guard/half_gradient",
        unit="",
        meaning="Fraction of the nonzero gradient entries that float16 stores with at most five significant bits: "
        "multiples of 2**-24 below 2**-19, from the same entries. 0 if the gradients are not float16.",
        better="lower",
    ),
    Metric(
        name="Guard/moments",
        unit="",
        meaning="Largest L1 norm of any optimizer state tensor; not finite if any entry is not finite.",
    ),
    Metric(name="Guard/moments_<group>", unit="", meaning="The same for one group, if details are spread over steps."),
    Metric(
        name="Guard/buffers",
        unit="",
        meaning="Largest L1 norm of any buffer of the watched modules; not finite if any entry is not finite.",
    ),
)

TIME = (
    Metric(name="Time/step", unit="ms", meaning="Wall time from the start of this step to the next.", better="lower"),
    Metric(
        name="Performance/processor_ms",
        unit="ms",
        meaning="Processor time of the training's thread per step, the mean since this was recorded last: other "
        "processes hardly change it.",
        better="lower",
    ),
    Metric(
        name="Time/<span>",
        unit="ms",
        meaning="Total time of one named span within the step: wall time on a CPU, time between CUDA events on a GPU.",
        better="lower",
    ),
)

# Despite the suffix _MB, all values are in MiB (2**20 bytes).
MEMORY = (
    Metric(
        name="Memory/allocated_MB",
        unit="MiB",
        meaning="Memory allocated at the end of the step. CUDA: tensors in torch's caching allocator. CPU: resident "
        "memory of the process, sampled every 16th step.",
        better="lower",
        expected="constant between densification steps",
    ),
    Metric(
        name="Memory/peak_MB",
        unit="MiB",
        meaning="Peak of the allocated memory during the step. CPU: every 16th step, the larger of the readings at the "
        "update and at the end of the step.",
        better="lower",
        expected="constant between densification steps; the run is out of memory when it reaches Memory/capacity_MB",
    ),
    Metric(
        name="Memory/reserved_MB",
        unit="MiB",
        meaning="Memory that torch's CUDA allocator has reserved on the device, including its cache; absent on a CPU.",
        better="lower",
    ),
    Metric(
        name="Memory/retries",
        unit="",
        meaning="Cumulative number of CUDA allocations that failed at first and were retried after the cache was "
        "emptied; absent on a CPU.",
        better="lower",
        expected="0; every retry synchronizes the device",
    ),
    Metric(
        name="Memory/capacity_MB",
        unit="MiB",
        meaning="Memory available to this process: what it already uses plus what is free, within its limits; read "
        "every 512 steps.",
        better="higher",
    ),
    Metric(
        name="Memory/parameters_MB",
        unit="MiB",
        meaning="Size of the watched parameters, read every 16th step; their gradients and Adam state take about three "
        "times as much again.",
        better="steady",
    ),
    Metric(name="Model/size", unit="", meaning="Number of primitives, if the pipeline reports it."),
    Metric(
        name="Model/work",
        unit="",
        meaning="Amount of work in the step (ray samples, tile-primitive pairs), if the pipeline reports it.",
    ),
)

# Declared under the default prefix only; `PROFILE` adds the copies under the alternative one.
_USUAL_PROFILE = (
    Metric(
        name="TensorProfiling/Tensor_Category/<category>_MB",
        unit="MiB",
        meaning="Memory by owner at the update: parameters, gradients, optimizer, buffers, data, other (without a "
        "known owner); activations is the step's peak of memory saved for the backward pass.",
        better="lower",
        expected="parameters change only at densification; activations vary with the batch but show no upward trend",
    ),
    Metric(
        name="TensorProfiling/Tensor_DType/<dtype>_MB",
        unit="MiB",
        meaning="Memory of all storages with a known owner, by dtype.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Large_Tensors/count",
        unit="",
        meaning="Number of owned storages of at least 100 MiB (the default threshold).",
    ),
    Metric(
        name="TensorProfiling/Large_Tensors/total_MB",
        unit="MiB",
        meaning="Total size of the storages counted in TensorProfiling/Large_Tensors/count.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Tensor_Count/total",
        unit="",
        meaning="Number of storages that have an owner or are saved for backward, each counted once.",
    ),
    Metric(
        name="TensorProfiling/fragmentation_percent",
        unit="%",
        meaning="(reserved - allocated) / reserved: idle fraction of the reserved memory. Most of it is reusable at "
        "once; TensorProfiling/Fragmentation/ shows how much is actually lost.",
        better="lower",
        expected="10 to 30 %",
    ),
    Metric(
        name="TensorProfiling/Fragmentation/<part>_MB",
        unit="MiB",
        meaning="Idle memory by cause: rounding (added to each request), awaiting_stream (freed, but a stream may "
        "still use it), not_returnable (idle blocks in segments that are in use), returnable (entirely idle segments); "
        "largest_free is the largest idle block.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Component/<group>_MB",
        unit="MiB",
        meaning="Memory of one watched group, including its gradients, optimizer state and buffers, or of one "
        "registered data object.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Peak/<span>_MB",
        unit="MiB",
        meaning="Peak of the allocated memory within one named span of the step.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Account/<part>_MB",
        unit="MiB",
        meaning="Breakdown of the allocated memory at the update: owners, saved, rounding, workspace and unattributed "
        "add up exactly to allocated.",
    ),
)

PROFILE = (
    *_USUAL_PROFILE,
    *(
        replace(metric, name=under_other_name(metric.name), meaning=under_other_name(metric.meaning))
        for metric in _USUAL_PROFILE
    ),
)
"""Tags of the tensor profile, declared under both of their prefixes."""

MACHINE = (
    Metric(
        name="Machine/GPU<number>/<reading>",
        unit="",
        meaning="GPU reading from NVML: memory_used_MB, memory_total_MB, utilisation_percent, power_W, temperature_C, "
        "throttled (1 while the clock is reduced because of power or temperature), others_MB (memory of other "
        "processes).",
    ),
    Metric(
        name="Machine/CPU/<reading>",
        unit="",
        meaning="Host reading: utilisation_percent, memory_used_MB and memory_total_MB of the whole machine; "
        "process_percent (CPU use) and process_MB (resident memory) of this run.",
    ),
)

SCHEDULE = (Metric(name="LearningRate/<group>", unit="", meaning="Learning rate of one parameter group at this step."),)

SAMPLES = (
    Metric(
        name="Sample/<place>/loss",
        unit="",
        meaning="Loss of the sample at this 0-based index of the batch; kept in the journal, not sent to sinks.",
        better="lower",
    ),
)

GUIDE = (Metric(name="Guide/metrics", unit="", meaning="Reference that describes every tag.", kind="text"),)

TOOLKIT = Catalogue(
    (*LOSS, *GRADIENTS, *PARAMETERS, *GUARD, *FORWARD, *TIME, *MEMORY, *PROFILE, *MACHINE, *SCHEDULE, *SAMPLES, *GUIDE)
)
"""All metrics that the toolkit records itself, in any run."""

"""The metrics that the toolkit itself records: what ``step.observe`` and ``step.update`` write for any loop."""

from dataclasses import replace

from fieldwatch.record.catalogue import Catalogue
from fieldwatch.record.memory.profile_names import under_other_name
from fieldwatch.record.metric import Metric

LOSS = (
    Metric(
        name="Loss/total",
        unit="",
        meaning="Sum of all active terms, each times its weight: the number that backward starts from.",
        better="lower",
        expected="falls; a jump at a phase border is the border's",
    ),
    Metric(
        name="Loss/component_<term>",
        unit="",
        meaning="Value of one term before its weight.",
        better="lower",
        expected="absent while the term is switched off, never zero instead",
    ),
    Metric(name="Loss/weight_<term>", unit="", meaning="Weight of one term at this step."),
    Metric(
        name="Loss/weighted_<term>", unit="", meaning="Term times weight: what it adds to the total.", better="lower"
    ),
    Metric(
        name="Loss/share_<term>",
        unit="",
        meaning="Weighted term divided by the total; NaN where the total is 0 or not finite.",
        better="steady",
        expected="no regulariser above the data term for long",
    ),
)

GRADIENTS = (
    Metric(
        name="Gradients/total_norm",
        unit="",
        meaning="Euclidean norm of all gradients together, before clipping.",
        better="steady",
        expected="0.1 to 10; below 0.001 or above 100 deserves a look",
    ),
    Metric(
        name="Gradients/<group>_norm",
        unit="",
        meaning="Euclidean norm of one parameter group's gradients, before clipping.",
        better="steady",
        expected="not exactly 0 while a term that reaches the group is active",
    ),
    Metric(name="Gradients/max", unit="", meaning="Largest absolute gradient entry of all groups.", better="steady"),
    Metric(
        name="Gradients/update_ratio_<group>",
        unit="",
        meaning="Norm of the group's update divided by the norm of its parameters.",
        better="steady",
        expected="about 1e-3; above 0.1 the group is rewritten, below 1e-7 it is frozen",
    ),
    Metric(
        name="Gradients/share_<group>_<term>",
        unit="",
        meaning="Norm of one weighted term's gradient in the group, divided by the sum of all terms' norms there.",
        better="steady",
    ),
    Metric(
        name="Gradients/cosine_<group>_<term>_<term>",
        unit="",
        meaning="Cosine between two terms' gradients in the group; -1 means that they pull against each other.",
        better="higher",
    ),
)

PARAMETERS = (
    Metric(name="Parameters/<group>_mean", unit="", meaning="Mean of all entries of the group.", better="steady"),
    Metric(
        name="Parameters/<group>_std",
        unit="",
        meaning="Sample standard deviation (one degree of freedom less) of all entries of the group.",
        better="steady",
    ),
)

GUARD = (
    Metric(
        name="Guard/refused", unit="", meaning="1 when the update of this step was refused, else 0.", better="lower"
    ),
    Metric(
        name="Guard/skipped",
        unit="",
        meaning="1 when the update of this step was left out on purpose, because the run went back; else absent.",
        better="lower",
    ),
    Metric(
        name="Guard/moments",
        unit="",
        meaning="Largest sum of absolute values of a tensor of the optimizers' state; not finite when an entry is not.",
    ),
    Metric(
        name="Guard/buffers",
        unit="",
        meaning="Largest sum of absolute values of a watched module's buffer; not finite when an entry is not.",
    ),
)

TIME = (
    Metric(name="Time/step", unit="ms", meaning="Wall time from the start of this step to the next.", better="lower"),
    Metric(name="Time/<span>", unit="ms", meaning="Wall time of one named span within the step.", better="lower"),
)

MEMORY = (
    Metric(
        name="Memory/allocated_MB",
        unit="MiB",
        meaning="Memory that tensors held at the end of the step: torch's allocator; on a CPU, of every 16th step, "
        "what the whole process held.",
        better="lower",
        expected="steady but for densification",
    ),
    Metric(
        name="Memory/peak_MB",
        unit="MiB",
        meaning="The most that was allocated at once during the step; on a CPU, of every 16th step, the larger of "
        "update and end.",
        better="lower",
        expected="steady but for densification; where it meets Memory/capacity_MB the run ends",
    ),
    Metric(
        name="Memory/reserved_MB",
        unit="MiB",
        meaning="What torch's CUDA allocator has taken from the device, its cache included; absent on a CPU.",
        better="lower",
    ),
    Metric(
        name="Memory/retries",
        unit="",
        meaning="How often the CUDA allocator had to empty its cache and ask again, so far; absent on a CPU.",
        better="lower",
        expected="0; each one stops the device",
    ),
    Metric(
        name="Memory/capacity_MB",
        unit="MiB",
        meaning="What this process could have: its own memory and what is free beside it; read every 512 steps.",
        better="higher",
    ),
    Metric(
        name="Memory/parameters_MB",
        unit="MiB",
        meaning="Size of the watched parameters, read every 16th step; gradients and Adam take three times more.",
        better="steady",
    ),
    Metric(name="Model/size", unit="", meaning="Number of primitives, where the pipeline says so."),
    Metric(
        name="Model/work",
        unit="",
        meaning="Work of the step (samples on rays, pairs of tile and primitive), where known.",
    ),
)

_USUAL_PROFILE = (
    Metric(
        name="TensorProfiling/Tensor_Category/<category>_MB",
        unit="MiB",
        meaning="Memory by owner at the update: parameters, gradients, optimizer, buffers, data, other (nobody's); "
        "activations: the most that was saved for backward at once in the step.",
        better="lower",
        expected="parameters change at densification only; activations swing with the batch, and do not climb",
    ),
    Metric(
        name="TensorProfiling/Tensor_DType/<dtype>_MB",
        unit="MiB",
        meaning="Owned memory by type of its entries.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Large_Tensors/count", unit="", meaning="Owned storages above the threshold (100 MiB)."
    ),
    Metric(name="TensorProfiling/Large_Tensors/total_MB", unit="MiB", meaning="Their size together.", better="lower"),
    Metric(name="TensorProfiling/Tensor_Count/total", unit="", meaning="Owned and saved storages, each counted once."),
    Metric(
        name="TensorProfiling/fragmentation_percent",
        unit="%",
        meaning="(reserved - allocated) / reserved: the cache's idle share. Most of it can be used again at once; what "
        "is really lost stands under TensorProfiling/Fragmentation/.",
        better="lower",
        expected="10 to 30 %",
    ),
    Metric(
        name="TensorProfiling/Fragmentation/<part>_MB",
        unit="MiB",
        meaning="rounding (added to requests), awaiting_stream (freed, still in use by a stream), not_returnable (idle "
        "pieces of segments in use), returnable (idle whole segments), largest_free (largest idle piece).",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Component/<group>_MB",
        unit="MiB",
        meaning="One watched group with its gradients, optimizer state and buffers, or one kind of registered data.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Peak/<span>_MB",
        unit="MiB",
        meaning="The most that was allocated at once within a named span of the step.",
        better="lower",
    ),
    Metric(
        name="TensorProfiling/Account/<part>_MB",
        unit="MiB",
        meaning="The account at the update: owners, saved, rounding, workspace and unattributed add up to allocated, "
        "to the byte.",
    ),
)

PROFILE = (
    *_USUAL_PROFILE,
    *(
        replace(metric, name=under_other_name(metric.name), meaning=under_other_name(metric.meaning))
        for metric in _USUAL_PROFILE
    ),
)
"""The tensor profile's tags, under both of their names."""

MACHINE = (
    Metric(
        name="Machine/GPU<number>/<reading>",
        unit="",
        meaning="NVML's reading: memory_used_MB, memory_total_MB, utilisation_percent, power_W, temperature_C, "
        "throttled (1 when slowed down by power or heat), others_MB (used by other processes).",
    ),
    Metric(
        name="Machine/CPU/<reading>",
        unit="",
        meaning="utilisation_percent of the machine, process_percent of this run, memory_used_MB and memory_total_MB "
        "of the machine, process_MB (resident memory of this run).",
    ),
)

SCHEDULE = (Metric(name="LearningRate/<group>", unit="", meaning="Learning rate of one parameter group at this step."),)

SAMPLES = (
    Metric(
        name="Sample/<place>/loss",
        unit="",
        meaning="Loss of the sample at this place of the batch (0-based); bookkeeping, kept out of the sinks.",
        better="lower",
    ),
)

GUIDE = (
    Metric(name="Guide/metrics", unit="", meaning="What every tag means, to be read beside the charts.", kind="text"),
)

TOOLKIT = Catalogue(
    (*LOSS, *GRADIENTS, *PARAMETERS, *GUARD, *TIME, *MEMORY, *PROFILE, *MACHINE, *SCHEDULE, *SAMPLES, *GUIDE)
)
"""The metrics that the toolkit records itself, in any run."""

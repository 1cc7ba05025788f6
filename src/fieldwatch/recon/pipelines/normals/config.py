"""Configuration of a normals run, as frozen dataclasses."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fieldwatch import InputError
from fieldwatch.pipeline import AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, Device, formerly, refuse_out_of_bounds
from fieldwatch.recon.pipelines.normals.stages import PAPER_STAGES, TrainingStage, read_stages, refuse_disorder

PoseStart = Literal["dataset", "noisy", "ring"]
"""Initial poses: the dataset's, the dataset's with Gaussian noise, or a ring of cameras around the object."""
GradientMethod = Literal["ad", "fd", "dfd"]
# Those of the readers, which need torch: a help page must not.
Space = Literal["camera", "world"]
Channels = Literal["rgb", "bgr"]
PixelCenter = Literal["half", "whole"]
_AXES = re.compile(r"opengl|opencv|directx|[+-]?[xyz],[+-]?[xyz],[+-]?[xyz]")


def refuse_unknown_axes(axes: str) -> None:
    """Check the form of a description of axes.

    Raises:
        InputError: the text has another form, or an axis occurs twice.
    """
    letters = [letter for letter in axes if letter in "xyz"]
    if not _AXES.fullmatch(axes) or ("," in axes and len(set(letters)) < 3):
        raise InputError(
            f"--axes {axes} is not a description of axes: expected opengl, opencv, directx, auto, or an axis for each "
            "channel, such as x,-y,-z"
        )


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """Architecture of the signed distance field: a hash encoding and a small network (PMNI; Mueller 2022).

    Attributes:
        levels: number of levels of the hash encoding.
        base_resolution: cells along an edge of the coarsest level.
        finest_resolution: cells along an edge of the finest level.
        table_bits: log2 of the maximum number of table rows per level.
        features_per_level: features per table row.
        hidden: width of the network's hidden layers.
        layers: number of hidden layers; a single one runs in the fused kernel.
        radius: radius of the sphere that initializes the field, in units of the scene's sphere.
        first_levels: number of levels active at the start.
        levels_by: nominal iteration by which all levels are active; they are enabled one after the other until then.
    """

    levels: int = 8
    base_resolution: int = 32
    finest_resolution: int = 223
    table_bits: int = 15
    features_per_level: int = 2
    hidden: int = 64
    layers: int = 1
    radius: float = 0.6
    first_levels: float = 0.0
    levels_by: int = 7000

    def __post_init__(self) -> None:
        """Check bounds that do not depend on the encoding, which checks its own."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("levels", "base_resolution", "table_bits", "features_per_level", "hidden", "layers")),
            (*NOT_NEGATIVE, ("first_levels", "levels_by")),
            ("greater than 0 and less than 1", lambda value: 0 < value < 1, ("radius",)),
        )
        # Bounds between two settings are not covered by `refuse_out_of_bounds`, which checks one at a time.
        if self.first_levels > self.levels or self.finest_resolution < self.base_resolution:
            raise InputError(
                "--first-levels must be at most --levels and --base-resolution at most --finest-resolution, got "
                f"levels {self.first_levels:g} of {self.levels}, resolutions {self.base_resolution} to "
                f"{self.finest_resolution}"
            )


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """How rays are marched and rendered (NeuS, PMNI).

    Attributes:
        gradient_method: how gradients of the field are computed: "ad" by automatic differentiation, "fd" by six central
            differences, "dfd" by directional finite differences along rays and between neighboring pixels
            (SuperNormal), which needs ``patch`` >= 3.
        patch: side of the square pixel patches in which rays are sampled; odd.
        finite_step: half the distance between the two points of a central difference ("fd"), in units of the scene's
            sphere.
        first_step: distance between samples at the start, in units of the scene's sphere.
        last_step: distance between samples at the end; it decays geometrically from ``first_step``.
        grid_resolution: occupancy grid cells along each axis.
        grid_threshold: occupancy above which a cell is sampled.
        grid_sharpness: k in a cell's occupancy sigmoid(-k f).
        grid_every: training steps between grid updates; not scaled by ``nominal``.
        grid_warmup: number of initial steps whose grid updates evaluate every cell; not scaled by ``nominal``.
        unseen: transmittance below which samples are dropped; 0 keeps all samples.
        alpha_threshold: opacity below which samples are dropped before blending; 0 keeps all samples.
        sharpness: "learned" trains the deviation (NeuS); "scheduled" raises the sharpness geometrically from
            ``first_sharpness`` to ``last_sharpness``.
        first_sharpness: sharpness s = exp(10 v) at the start, in inverse units of the scene's sphere.
        last_sharpness: sharpness at the end, if it is scheduled.
        most_sharpness: upper bound of the sharpness; a surface much thinner than the sample spacing falls between
            samples.
        empty_samples: number of stratified samples for a ray that the grid gave none; 0 disables them.
        chunk: maximum number of points evaluated at a time outside training; halved after an out-of-memory error.
    """

    gradient_method: GradientMethod = "ad"
    patch: int = 1
    finite_step: float = 1e-3
    first_step: float = 1e-2
    last_step: float = 1e-3
    grid_resolution: int = 128
    grid_threshold: float = 0.1
    grid_sharpness: float = 80.0
    grid_every: int = 8
    grid_warmup: int = 256
    unseen: float = 1e-4
    alpha_threshold: float = 0.0
    sharpness: Literal["learned", "scheduled"] = "learned"
    first_sharpness: float = 148.4
    last_sharpness: float = 500.0
    most_sharpness: float = 2000.0
    empty_samples: int = 64
    chunk: int = 65_536

    def __post_init__(self) -> None:
        """Check the bounds, and the combinations of patch, gradient method and sharpness."""
        lengths = ("finite_step", "first_step", "last_step", "grid_sharpness")
        sharp = ("first_sharpness", "last_sharpness", "most_sharpness")
        refuse_out_of_bounds(
            self,
            (*POSITIVE, (*lengths, *sharp)),
            (*AT_LEAST_ONE, ("patch", "grid_resolution", "grid_every", "chunk")),
            (*NOT_NEGATIVE, ("grid_warmup", "empty_samples")),
            ("at least 0 and less than 1", lambda value: 0 <= value < 1, ("unseen", "alpha_threshold")),
            # A cell on the surface has f = 0 and so occupancy 0.5: a higher threshold would empty the grid.
            ("greater than 0 and less than 0.5", lambda value: 0 < value < 0.5, ("grid_threshold",)),
        )
        # An even patch has no central pixel, along whose ray the patch is marched.
        if self.patch % 2 == 0 or (self.gradient_method == "dfd" and self.patch == 1):
            raise InputError(
                f"--patch must be odd, and at least 3 for dfd, which takes differences between the pixels of a patch; "
                f"got --patch {self.patch} with --gradient-method {self.gradient_method}"
            )
        if not self.first_sharpness <= self.most_sharpness >= self.last_sharpness:
            raise InputError(
                f"--most-sharpness must be at least --first-sharpness {self.first_sharpness:g} and --last-sharpness "
                f"{self.last_sharpness:g}, got {self.most_sharpness:g}"
            )


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Which rays a training step samples.

    Attributes:
        rays: maximum number of rays per step, over all its views.
        rays_per_view: number of rays per view and step; None divides ``rays`` among the views.
        warm_up_rays: maximum number of rays per view in the first iterations, when the blurred surface needs the most
            samples per ray; None for no such limit.
        warm_up_rays_until: nominal iteration at which the limit of ``warm_up_rays`` ends.
        sample_budget: target number of samples per step, to which the number of rays is adapted; None always uses
            ``rays``.
        views_per_step: number of views sampled per step; 0 uses all views, as PMNI does.
        views_per_graph: number of views per autograd graph; a step runs one backward pass for each such group of views.
        inside: fraction of rays sampled inside the mask; the rest is sampled outside. The loss terms are reweighted, so
            this fraction does not bias the silhouette.
    """

    rays: int = 512
    rays_per_view: int | None = None
    warm_up_rays: int | None = None
    warm_up_rays_until: int = 500
    sample_budget: int | None = None
    views_per_step: int = 0
    views_per_graph: int = 1
    inside: float = 0.7

    def __post_init__(self) -> None:
        """Check the bounds, and that the number of rays is set in one way only."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("rays", "rays_per_view", "warm_up_rays", "sample_budget", "views_per_graph")),
            (*NOT_NEGATIVE, ("warm_up_rays_until", "views_per_step")),
            ("greater than 0 and less than 1", lambda value: 0 < value < 1, ("inside",)),
        )
        # Both would set the number of rays, and one of them would be ignored silently.
        if self.rays_per_view is not None and self.sample_budget is not None:
            raise InputError(
                f"--rays-per-view {self.rays_per_view} fixes the number of rays, --sample-budget {self.sample_budget} "
                "adapts it: give only one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class PoseOptions:
    """Initial camera poses, and whether they are optimized (PMNI).

    Attributes:
        pose_start: initial poses: "dataset", "noisy" (the dataset's with Gaussian noise) or "ring" (evenly spaced
            around the object).
        rotation_noise: standard deviation of the rotation noise, in degrees per axis.
        translation_noise: standard deviation of the position noise, in units of the scene's sphere per axis.
        ring_radius: distance of the ring's cameras from the origin, in units of the scene's sphere; None takes that at
            which the masks, seen through the lenses, have the size of an object in the sphere.
        ring_angle: elevation of the ring's cameras above the horizon, in degrees.
        clockwise: views of the ring proceed clockwise, seen from above.
        centered: shift each camera parallel to its image until the center of its mask looks at the origin, where the
            object is. A few degrees of rotation error move the image of a distant camera by half an object; after the
            shift only a rotation about the object remains, which its normals can determine. Ignored for dataset poses.
        learn_rotation: optimize the rotations.
        learn_translation: optimize the positions.
        poses_from: nominal iteration at which pose optimization starts.
        poses_until: nominal iteration at which pose optimization ends; None optimizes to the end of training.
    """

    pose_start: PoseStart = "dataset"
    rotation_noise: float = 5.0
    translation_noise: float = 0.1
    ring_radius: float | None = None
    ring_angle: float = 25.0
    clockwise: bool = False
    centered: bool = field(default=True, metadata=formerly("centred"))
    learn_rotation: bool = False
    learn_translation: bool = False
    poses_from: int = 0
    poses_until: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(
            self,
            (*NOT_NEGATIVE, ("rotation_noise", "translation_noise", "poses_from", "poses_until")),
            ("greater than 1, outside the scene's sphere", lambda value: value > 1, ("ring_radius",)),
            ("between -90 and 90 degrees", lambda value: -90 < value < 90, ("ring_angle",)),
        )

    @property
    def learned(self) -> bool:
        """Whether rotations or positions are optimized."""
        return self.learn_rotation or self.learn_translation


@dataclass(frozen=True, kw_only=True)
class NormalsRateOptions:
    """Learning rates: Adam with a linear warm-up and a cosine decay to ``last_share`` (NeuS, PMNI).

    Attributes:
        lr: learning rate of the network and the deviation.
        lr_table: learning rate of the hash table; None uses ``lr``.
        lr_poses: learning rate of rotations (radians) and positions (units of the scene's sphere).
        lr_poses_late: learning rate of the poses from ``poses_late_from`` on; PMNI halves it.
        poses_late_from: nominal iteration at which ``lr_poses_late`` replaces ``lr_poses``.
        warm_up: nominal iterations over which the learning rates rise linearly from 0.
        last_share: final learning rate as a fraction of the peak.
        clip: maximum gradient norm of table, network and deviation, each clipped separately; 0 disables clipping.
        clip_poses: maximum gradient norm of the poses; 0 disables clipping.
    """

    lr: float = 5e-4
    lr_table: float | None = None
    lr_poses: float = 1e-3
    lr_poses_late: float = 5e-4
    poses_late_from: int = 10_000
    warm_up: int = 500
    last_share: float = 0.05
    clip: float = 1.0
    clip_poses: float = 0.1

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(
            self,
            (*POSITIVE, ("lr", "lr_table", "lr_poses", "lr_poses_late")),
            (*NOT_NEGATIVE, ("warm_up", "poses_late_from", "clip", "clip_poses")),
            (*FRACTION, ("last_share",)),
        )


@dataclass(frozen=True, kw_only=True)
class TermOptions:
    """How the loss terms are computed; their weights are set by the stages.

    Attributes:
        rendered_normals: "blended" compares sum w grad f directly (PMNI), which also raises the opacity of rays in the
            mask and so inflates the surface; "direction" divides by the opacity first, so that only the direction
            counts.
        normal_norm: "l2" squares the differences, "l1" takes absolute values, "robust" squares small ones and takes
            absolute values of large ones.
        robust_from: difference of unit normals from which "robust" grows linearly; None derives it from the noise.
        balanced: weight rays inside and outside the mask by their fraction of the image, independent of ``inside``.
        point_share: fraction of the mask pixels whose depth enters the point-cloud term (PMNI's pc_ratio 2 is 0.5).
    """

    rendered_normals: Literal["direction", "blended"] = "direction"
    normal_norm: Literal["l1", "l2", "robust"] = "l2"
    robust_from: float | None = None
    balanced: bool = True
    point_share: float = 0.5

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(
            self,
            ("greater than 0 and at most 1", lambda value: 0 < value <= 1, ("point_share",)),
            (*POSITIVE, ("robust_from",)),
        )


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """How a run reacts to a lost surface: rebuild the grid, then roll back, then stop.

    Attributes:
        collapse_share: fraction of the mask's rays without samples above which a step counts as bad.
        collapse_patience: number of consecutive bad steps that count as a collapse.
        rebuilds: number of collapses answered by rebuilding the grid before the run is rolled back.
        rollbacks: number of consecutive rollbacks, each with halved learning rates, before the run stops; a new good
            state resets the count.
        good_every: nominal iterations between snapshots of a good state.
        saturated_share: fraction of occupied cells above which the grid counts as saturated; this is reported once, and
            the number of rays is bounded.
    """

    collapse_share: float = 0.5
    collapse_patience: int = 20
    rebuilds: int = 2
    rollbacks: int = 3
    good_every: int = 1000
    saturated_share: float = 0.5

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("collapse_patience", "good_every")),
            (*NOT_NEGATIVE, ("rebuilds", "rollbacks")),
            ("at least 0 and less than 1", lambda value: 0 <= value < 1, ("collapse_share",)),
            (*FRACTION, ("saturated_share",)),
        )


@dataclass(frozen=True, kw_only=True)
class NormalsConfig:
    """Configuration of a normals run. Intervals count ``nominal`` iterations, independent of the number of ``steps``.

    Attributes:
        data: folder of normal maps with cameras; None uses the built-in object.
        normals: name of the subfolder of normal maps; None takes the first known name that exists.
        depth: subfolder of integrated depth; None ignores depth. If a set has none and a term needs it, it is
            integrated from the normals.
        masks: name of the subfolder of masks; "normals" takes the pixels with a normal, "none" uses no silhouettes;
            None takes the first known name that exists, else the pixels with a normal.
        axes: axes of the normal files: opengl, opencv, directx, or the camera (or world) axis of each channel, such as
            x,-y,-z; None or auto finds them from the data.
        space: whether the normals are in camera or world axes; None finds it from the data.
        channels: order of the channels of the normals; None finds it from the data.
        pixel_center: center of the first pixel in the intrinsics: half (0.5, 0.5) or whole (0, 0); None finds it from
            the silhouettes.
        noise: noise of the normals from pixel to pixel in degrees about each of two axes; None estimates it.
        exclude: views to leave out entirely, by number, or by name for photos and frames.
        held_out: hold out every N-th view from training and evaluate it; 0 holds out none.
        fill_holes: fill holes in the masks.
        longer_side: maximum length of the longer image side in pixels; larger maps are scaled down. None keeps all
            sizes.
        views: number of views of the built-in object.
        size: width and height of the built-in object's views in pixels.
        steps: number of training steps.
        nominal: number of iterations the schedule is written for; it is rescaled to any number of steps.
        stages: loss weights by nominal iteration, each as NAME@START[+RAMP] TERM=WEIGHT ...; see `TrainingStage`.
        sdf: architecture of the signed distance field.
        rendering: how rays are marched and rendered.
        rays: which rays a step samples.
        poses: initial camera poses and their optimization.
        rates: learning rates.
        terms: how the loss terms are computed.
        recovery: reaction to a lost surface.
        mesh_resolution: grid nodes along each side of the box for mesh extraction; 512 give cells of 2/511 (PMNI).
        mesh_at: nominal iterations between meshes; 0 extracts one at the end only.
        evaluate_at: nominal iterations between evaluations; the last step is always evaluated.
        pictures_at: nominal iterations between images of normals and depth, in addition to those of every evaluation;
            0 for none.
        poses_at: nominal iterations between entries of the pose timeline.
        turntable: length of the turntable video of the final mesh, in seconds; 0 writes none.
        checkpoint_interval: nominal iterations between checkpoints.
        keep_last: number of newest checkpoints to keep.
        keep_best: number of best checkpoints (by mean angular error) to keep.
        threads: number of CPU threads; 0 keeps torch's default.
        deterministic: use algorithms that repeat to the bit on a GPU, which are slower, and stop at an operation that
            has none.
        device: training device.
        seed: seed of all random numbers.

    Raises:
        ValueError: a value is out of its bounds.
    """

    data: Path | None = None
    normals: str | None = None
    depth: str | None = "integration/depth"
    masks: str | None = None
    axes: str | None = None
    space: Space | None = None
    channels: Channels | None = None
    pixel_center: PixelCenter | None = None
    noise: float | None = None
    exclude: tuple[int | str, ...] = ()
    held_out: int = 0
    fill_holes: bool = False
    longer_side: int | None = None
    views: int = 12
    size: int = 128
    steps: int = 30_000
    nominal: int = 30_000
    stages: tuple[str, ...] = PAPER_STAGES
    sdf: FieldOptions = field(default_factory=FieldOptions)
    rendering: RenderOptions = field(default_factory=RenderOptions)
    rays: RayOptions = field(default_factory=RayOptions)
    poses: PoseOptions = field(default_factory=PoseOptions)
    rates: NormalsRateOptions = field(default_factory=NormalsRateOptions)
    terms: TermOptions = field(default_factory=TermOptions)
    recovery: RecoveryOptions = field(default_factory=RecoveryOptions)
    mesh_resolution: int = 256
    mesh_at: int = 5000
    evaluate_at: int = 5000
    pictures_at: int = 0
    poses_at: int = 2500
    turntable: float = 4.0
    checkpoint_interval: int = 2500
    keep_last: int = 2
    keep_best: int = 1
    threads: int = 0
    deterministic: bool = False
    device: Device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the bounds and the stages."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("steps", "nominal", "longer_side", "size", "keep_last")),
            ("between 2 and 2048", lambda value: 2 <= value <= 2048, ("mesh_resolution",)),
            # Fewer cameras do not determine the similarity that aligns learned poses with the dataset's.
            ("at least 3", lambda value: value >= 3, ("views",)),
            # 1 would hold out every view and leave none for training.
            ("0 (none) or at least 2", lambda value: value == 0 or value >= 2, ("held_out",)),
            (*NOT_NEGATIVE, ("mesh_at", "evaluate_at", "pictures_at", "poses_at", "keep_best")),
            (*NOT_NEGATIVE, ("checkpoint_interval", "turntable")),
            (*NOT_NEGATIVE, ("threads", "seed", "noise")),
        )
        if self.axes not in {None, "auto"}:
            refuse_unknown_axes(str(self.axes))
        # Parsed here only for validation: the schedule parses the stages again when it is built.
        refuse_disorder(self.parsed_stages, self.nominal)

    @property
    def parsed_stages(self) -> tuple[TrainingStage, ...]:
        """The parsed training stages."""
        return read_stages(self.stages)

    @property
    def name(self) -> str:
        """Name of the data in logs."""
        return self.data.resolve().name if self.data else "built-in object"

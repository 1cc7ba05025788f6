"""Everything a normals run depends on, in one frozen value."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fieldwatch import InputError
from fieldwatch.pipeline import AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, Device, refuse_out_of_bounds
from fieldwatch.recon.pipelines.normals.stages import PAPER_STAGES, TrainingStage, read_stages, refuse_disorder

PoseStart = Literal["dataset", "noisy", "ring"]
"""Where poses come from: the data, the data with noise on them, or a ring around the object that knows none of them."""
GradientMethod = Literal["ad", "fd", "dfd"]


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """The signed distance field: a hash encoding and a small network (PMNI; Mueller 2022).

    Attributes:
        levels: lattices of the encoding.
        base_resolution: cells along an edge of the coarsest.
        finest_resolution: of the finest.
        table_bits: log2 of the most rows of a level.
        features_per_level: numbers per row.
        hidden: width of the network.
        layers: hidden layers; 1 runs in the fused kernel.
        radius: of the sphere that the field starts as, in units of the scene's sphere.
        first_levels: levels that count at the start.
        levels_by: nominal iteration at which all levels count; between, they come in one after the other.
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
        """Refuse what is no field; the encoding refuses the rest."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("levels", "base_resolution", "table_bits", "features_per_level", "hidden", "layers")),
            (*NOT_NEGATIVE, ("first_levels", "levels_by")),
            ("above 0 and below 1", lambda value: 0 < value < 1, ("radius",)),
        )
        if self.first_levels > self.levels or self.finest_resolution < self.base_resolution:
            raise InputError(
                f"--first-levels {self.first_levels:g} of --levels {self.levels}, resolutions from "
                f"{self.base_resolution} to {self.finest_resolution}: wanted first <= levels, base <= finest"
            )


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """How rays see the field (NeuS, PMNI).

    Attributes:
        gradient_method: how gradients of the field come about: "ad" exactly, "fd" by six central differences, "dfd" by
            differences along rays and between neighbouring pixels (SuperNormal), which needs ``patch`` 3 or more.
        patch: rays are drawn as squares of so many pixels each way, odd.
        finite_step: half the distance of the differences of "fd", in units of the scene's sphere.
        first_step: distance between samples at the start.
        last_step: at the end; between, it shrinks by the same factor at every iteration.
        grid_resolution: cells of the occupancy grid along each axis.
        grid_threshold: occupancy above which a cell is sampled.
        grid_sharpness: k of a cell's occupancy sigmoid(-k f).
        grid_every: steps between updates of the grid; not scaled.
        grid_warmup: steps whose updates look at every cell; not scaled.
        unseen: samples that less than this share of the light reaches are left out; 0 keeps all.
        alpha_threshold: samples of a lower opacity are left out of blending; 0 keeps all.
        sharpness: "learned" trains the deviation (NeuS); "scheduled" raises it from ``first_sharpness`` to
            ``last_sharpness`` by the same factor at every iteration.
        first_sharpness: s = exp(10 v) at the start, in one over units of the scene's sphere.
        last_sharpness: at the end, where it is scheduled.
        most_sharpness: bound of s; a surface sharper than a few steps is not seen by samples.
        empty_samples: stratified samples that rays get that have none; 0 gives none.
        chunk: points at which the field is evaluated at a time outside training; halved when memory runs out.
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
        """Refuse what cannot be drawn."""
        lengths = ("finite_step", "first_step", "last_step", "grid_sharpness")
        sharp = ("first_sharpness", "last_sharpness", "most_sharpness")
        refuse_out_of_bounds(
            self,
            (*POSITIVE, (*lengths, *sharp)),
            (*AT_LEAST_ONE, ("patch", "grid_resolution", "grid_every", "chunk")),
            (*NOT_NEGATIVE, ("grid_warmup", "empty_samples")),
            ("a share below 1", lambda value: 0 <= value < 1, ("unseen", "alpha_threshold")),
            ("above 0 and below 0.5", lambda value: 0 < value < 0.5, ("grid_threshold",)),
        )
        if self.patch % 2 == 0 or (self.gradient_method == "dfd" and self.patch == 1):
            raise InputError(
                f"--patch is {self.patch} with --gradient-method {self.gradient_method}: wanted an odd number, 3 or "
                "more for dfd, which takes differences between the pixels of a patch"
            )
        if not self.first_sharpness <= self.most_sharpness >= self.last_sharpness:
            raise InputError(
                f"--most-sharpness {self.most_sharpness:g} bounds --first-sharpness {self.first_sharpness:g} and "
                f"--last-sharpness {self.last_sharpness:g}: it must not be below them"
            )


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Which rays a step looks along.

    Attributes:
        rays: in a step, at most, over all its views.
        rays_per_view: in a step, of each view, instead; None shares ``rays`` among the views.
        sample_budget: samples in a step that the number of rays is adapted to; None always takes ``rays``.
        views_per_step: views that a step draws rays from; 0 takes all, as PMNI does.
        views_per_graph: views whose graph is alive at a time; a step goes backward once for each so many.
        inside: share of the rays that are drawn in the mask; the others outside of it. The terms are weighted so that
            the share does not shift the silhouette.
    """

    rays: int = 512
    rays_per_view: int | None = None
    sample_budget: int | None = None
    views_per_step: int = 0
    views_per_graph: int = 1
    inside: float = 0.7

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("rays", "rays_per_view", "sample_budget", "views_per_graph")),
            (*NOT_NEGATIVE, ("views_per_step",)),
            ("above 0 and below 1", lambda value: 0 < value < 1, ("inside",)),
        )
        if self.rays_per_view is not None and self.sample_budget is not None:
            raise InputError(
                f"--rays-per-view {self.rays_per_view} fixes the rays of a step, --sample-budget {self.sample_budget} "
                "adapts them: give one of the two"
            )


@dataclass(frozen=True, kw_only=True)
class PoseOptions:
    """Where the cameras stand, and whether that is learned (PMNI).

    Attributes:
        pose_start: the data's poses, those with noise on them, or a ring.
        rotation_noise: standard deviation of the noise of each rotation, degrees per axis.
        translation_noise: of each position, units of the scene's sphere per axis.
        ring_radius: distance of the ring's cameras from the origin.
        ring_angle: degrees above the horizon.
        clockwise: the views go around clockwise, seen from above.
        centred: shift each camera across its view until the middle of its mask looks at the origin, where the object
            is. A few degrees in the rotation of a camera far away move its picture by half an object; after the
            shift they are a turn about the object, which its normals tell. Not for poses of the data.
        learn_rotation: optimise the rotations.
        learn_translation: optimise the positions.
        poses_from: nominal iteration from which on poses are learned.
        poses_until: at which that ends; None is the end of the training.
    """

    pose_start: PoseStart = "dataset"
    rotation_noise: float = 5.0
    translation_noise: float = 0.1
    ring_radius: float = 4.0
    ring_angle: float = 25.0
    clockwise: bool = False
    centred: bool = True
    learn_rotation: bool = False
    learn_translation: bool = False
    poses_from: int = 0
    poses_until: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        refuse_out_of_bounds(
            self,
            (*NOT_NEGATIVE, ("rotation_noise", "translation_noise", "poses_from", "poses_until")),
            ("above 1, outside the scene's sphere", lambda value: value > 1, ("ring_radius",)),
            ("between -90 and 90 degrees", lambda value: -90 < value < 90, ("ring_angle",)),
        )

    @property
    def learned(self) -> bool:
        """Whether any part of the poses is learned."""
        return self.learn_rotation or self.learn_translation


@dataclass(frozen=True, kw_only=True)
class NormalsRateOptions:
    """How fast each kind of parameter learns: Adam, a linear warm-up, a cosine to ``last_share`` (NeuS, PMNI).

    Attributes:
        lr: of the network and the deviation.
        lr_table: of the hash table; None takes ``lr``.
        lr_poses: of rotations (radians) and positions.
        lr_poses_late: from ``poses_late_from`` on; PMNI halves it.
        poses_late_from: nominal iteration.
        warm_up: nominal iterations over which the rates rise from 0.
        last_share: of the rates at the end.
        clip: limit of the norm of the gradients of table, network and deviation, each by itself; 0 does not clip.
        clip_poses: limit of the norm of the poses' gradients; 0 does not clip.
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
        """Refuse rates that train nothing."""
        refuse_out_of_bounds(
            self,
            (*POSITIVE, ("lr", "lr_table", "lr_poses", "lr_poses_late")),
            (*NOT_NEGATIVE, ("warm_up", "poses_late_from", "clip", "clip_poses")),
            (*FRACTION, ("last_share",)),
        )


@dataclass(frozen=True, kw_only=True)
class TermOptions:
    """How the terms are formed; their weights are in the stages.

    Attributes:
        rendered_normals: "blended" compares sum w grad f as it is (PMNI), which pulls up the opacity of rays in the
            mask and grows the surface; "direction" divides by the opacity first: only the direction counts.
        normal_norm: "l2" squares differences, "l1" takes their absolute values.
        balanced: weigh rays in and outside of the mask as they occur in the picture, whatever ``inside`` draws.
        point_share: of the pixels in the mask whose depth the point-cloud term takes (PMNI's pc_ratio 2 is 0.5).
    """

    rendered_normals: Literal["direction", "blended"] = "direction"
    normal_norm: Literal["l1", "l2"] = "l2"
    balanced: bool = True
    point_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuse shares that are none."""
        refuse_out_of_bounds(self, ("above 0, at most 1", lambda value: 0 < value <= 1, ("point_share",)))


@dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """What is done about a lost surface, in this order: the grid is rebuilt, the run rolled back, the run stopped.

    Attributes:
        collapse_share: share of the rays in the mask without samples above which a step counts as bad.
        collapse_patience: bad steps in a row that make a collapse.
        rebuilds: collapses that are answered by a new grid before the run is rolled back.
        rollbacks: times that the run goes back to its last good state, at half the rate, without a new good one; then
            it stops.
        good_every: nominal iterations between the states that it can go back to.
        saturated_share: share of occupied cells above which the grid saves nothing; it is told, and rays are bounded.
    """

    collapse_share: float = 0.5
    collapse_patience: int = 20
    rebuilds: int = 2
    rollbacks: int = 3
    good_every: int = 1000
    saturated_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what never acts."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("collapse_patience", "good_every")),
            (*NOT_NEGATIVE, ("rebuilds", "rollbacks")),
            ("a share below 1", lambda value: 0 <= value < 1, ("collapse_share",)),
            (*FRACTION, ("saturated_share",)),
        )


@dataclass(frozen=True, kw_only=True)
class NormalsConfig:
    """A normals run. Iterations are nominal: of ``nominal`` ones, whatever number of ``steps`` is trained.

    Attributes:
        data: folder of normal maps with cameras; None takes the built-in object.
        normals: name of the folder of normals in it; None takes the first there is of the usual ones.
        depth: folder of integrated depth; None leaves it out. A set without any gets it integrated, if a term wants it.
        axes: of the normals in the files; None is what the layout has, OpenGL's, and recognised for own captures.
        exclude: numbers of views that are left out of everything.
        held_out: every so many-th view is held out of training and evaluated; 0 holds out none.
        fill_holes: add holes of the masks to them.
        longer_side: pixels; larger maps are scaled down. None keeps their sizes.
        views: of the built-in object.
        size: pixels of the built-in object's views, each way.
        steps: of training.
        nominal: iterations that the schedule counts; a schedule for 30,000 acts within any number of steps.
        stages: weights of the terms by nominal iteration, as NAME@START[+RAMP] TERM=WEIGHT ...; see `Stage`.
        sdf: the signed distance field.
        rendering: how rays see it.
        rays: which rays are looked along.
        poses: where cameras stand.
        rates: learning rates.
        terms: how the terms are formed.
        recovery: what is done about a lost surface.
        mesh_resolution: nodes along a side of the box, of which meshes are made; 512 are cells of 2/511 (PMNI).
        mesh_at: nominal iterations between meshes; 0 makes one at the end only.
        evaluate_at: nominal iterations between evaluations; the end always is.
        pictures_at: nominal iterations between pictures of normals and depths; 0 draws them at every evaluation.
        poses_at: nominal iterations between entries of the poses' timeline.
        turntable: seconds of the film of the mesh at the end; 0 makes none.
        checkpoint_interval: nominal iterations between checkpoints.
        keep_last: newest checkpoints that stay.
        keep_best: best ones (by the mean angular error) that stay.
        threads: CPU threads; 0 leaves torch's own choice.
        device: where to train.
        seed: of everything random.

    Raises:
        ValueError: a value is out of its bounds.
    """

    data: Path | None = None
    normals: str | None = None
    depth: str | None = "integration/depth"
    axes: Literal["opengl", "opencv", "auto"] | None = None
    exclude: tuple[int, ...] = ()
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
    device: Device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, ("steps", "nominal", "longer_side", "size", "keep_last")),
            ("2 to 512", lambda value: 2 <= value <= 512, ("mesh_resolution",)),
            ("3 or more", lambda value: value >= 3, ("views",)),
            ("0 (none), or 2 or more", lambda value: value == 0 or value >= 2, ("held_out",)),
            (*NOT_NEGATIVE, ("mesh_at", "evaluate_at", "pictures_at", "poses_at", "keep_best")),
            (*NOT_NEGATIVE, ("checkpoint_interval", "turntable")),
            (*NOT_NEGATIVE, ("threads", "seed")),
        )
        refuse_disorder(self.parsed_stages, self.nominal)

    @property
    def parsed_stages(self) -> tuple[TrainingStage, ...]:
        """The stages, read."""
        return read_stages(self.stages)

    @property
    def name(self) -> str:
        """What the data is called in logs."""
        return self.data.resolve().name if self.data else "built-in object"

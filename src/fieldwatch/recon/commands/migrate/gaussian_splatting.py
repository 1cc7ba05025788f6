"""Translation of the flags of 3D Gaussian splatting's ``train.py``, and of its ``cfg_args``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fieldwatch.cli.kit import BadInput, dashed, reading_input
from fieldwatch.recon.data import open_splat_folder

RENAMED: Mapping[str, str] = {
    "-s": "--data",
    "--source-path": "--data",
    "-m": "--out",
    "--model-path": "--out",
    "--iterations": "--coarse-iterations",
    "--sh-degree": "--degree",
    "--lambda-dssim": "--dssim",
    "--position-lr-init": "--lr-means",
    "--position-lr-final": "--lr-means-final",
    "--position-lr-max-steps": "--lr-iterations",
    "--opacity-lr": "--lr-opacities",
    "--scaling-lr": "--lr-scales",
    "--rotation-lr": "--lr-quaternions",
    "--densification-interval": "--growth-every",
    "--opacity-reset-interval": "--reset-every",
    "--densify-from-iter": "--growth-from",
    "--densify-until-iter": "--growth-until",
    "--densify-grad-threshold": "--growth-pull",
    "--test-iterations": "--test-iterations",
    "--save-iterations": "--checkpoint-milestones",
    "--checkpoint-iterations": "--checkpoint-milestones",
}
"""Flags of `fieldwatch train splats` by flag of 3DGS."""
# Flags without a counterpart, and what to do instead.
_NONE: Mapping[str, str] = {
    "--start-checkpoint": "a run continues with the same --out, or with `fieldwatch resume RUN`",
    "--random-background": "transparent photos are compared over random colors anyway; --transparency everywhere "
    "compares all photos so",
    "--data-device": "photos stay in host memory; --memory-gb limits them",
    "--train-test-exp": "use --exposure: exposures are fitted on whole photos",
    "--depths": "there is no depth supervision of Gaussians",
    "-d": "there is no depth supervision of Gaussians",
    "--position-lr-delay-mult": "learning rates have no delay",
    "--percent-dense": "--split-size decides between clones and splits",
    "--optimizer-type": "there is one optimizer",
    "--convert-shs-python": "the renderer is chosen by the device",
    "--compute-cov3d-python": "the renderer is chosen by the device",
    "--debug": "a run that fails writes crash/",
    "--debug-from": "a run that fails writes crash/",
    "--detect-anomaly": "steps with values that are not finite are refused and named anyway",
    "--quiet": "redirect the output; the log is RUN/log.txt",
    "--ip": "use `fieldwatch watch RUN` or `fieldwatch tensorboard RUN` instead of the network viewer",
    "--port": "use `fieldwatch watch RUN` or `fieldwatch tensorboard RUN` instead of the network viewer",
    "--disable-viewer": "there is no network viewer",
}


def translate_splatting(group: Sequence[str]) -> list[str]:
    """Translate one flag of 3DGS with its values.

    Raises:
        BadInput: the flag has no counterpart; the message says why.
    """
    flag, equals, value = group[0].partition("=")
    name = dashed(flag).lower()
    values = [value] if equals else list(group[1:])
    if name in _NONE:
        raise BadInput(_NONE[name])
    if name in _SPECIAL:
        return _SPECIAL[name](values)
    return [RENAMED.get(name, name), *values]


def read_settings(path: Path) -> list[str]:
    """Return the 3DGS flags that correspond to the ``cfg_args`` of a trained model.

    Args:
        path: path of the file, or of the model's folder.

    Raises:
        BadInput: the file cannot be read.
    """
    with reading_input():
        settings = open_splat_folder(path if path.is_dir() else path.parent).settings
    words: list[str] = []
    for name, value in settings.items():
        # cfg_args lists all settings: False, None and empty ones were not given.
        if value is True:
            words.append(f"--{name}")
        elif value not in (False, None, ""):
            words += [f"--{name}", str(value)]
    return words


def _images(values: Sequence[str]) -> list[str]:
    if values == ["images"]:
        return []
    raise BadInput(
        "photos are read from images/; --longer-side PIXELS scales them, instead of a folder of smaller ones"
    )


def _resolution(values: Sequence[str]) -> list[str]:
    # -1 is the default of both programs: at most 1600 pixels.
    if values == ["-1"]:
        return []
    raise BadInput("--longer-side PIXELS scales the photos: give the number of pixels")


def _feature_rate(values: Sequence[str]) -> list[str]:
    # 3DGS trains the higher SH bands with a twentieth of this rate.
    return ["--lr-constant", values[0], "--lr-rest", f"{float(values[0]) / 20:.10g}"]


_SPECIAL: Mapping[str, Callable[[Sequence[str]], list[str]]] = {
    "--eval": lambda _: ["--held-out", "8"],
    "-w": lambda _: ["--background", "white"],
    "--white-background": lambda _: ["--background", "white"],
    "--antialiasing": lambda _: ["--antialiased"],
    "-i": _images,
    "--images": _images,
    "-r": _resolution,
    "--resolution": _resolution,
    "--feature-lr": _feature_rate,
}

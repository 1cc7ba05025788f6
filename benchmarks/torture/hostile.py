"""Hostile checkpoints (pickled code, bombs, links) neither run code, take memory nor hang; the previous one is used."""

import base64
import json
import os
import pickle
import resource
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from forked import answer
from rows import Row, judged

from fieldwatch import Guard, Outputs, Run, Saving
from fieldwatch.checkpoint import CheckpointError, Checkpoints
from fieldwatch.checkpoint.manifest import seal

SIZE = 1000
MEMORY = 256 << 20
"""Bytes that opening a small hostile checkpoint may allocate."""
SECONDS = 20.0
"""Seconds after which opening a checkpoint counts as hung."""
MANIFEST = "manifest.json"
SEAL = "manifest.sha256"
TENSORS = "tensors.safetensors"
Forge = Callable[[Path], None]
Fields = dict[str, Any]


class Bite:
    """Runs code when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return os.mkdir, (str(self._canary),)


def rewritten(change: Callable[[Fields], None]) -> Forge:
    """Change the manifest and seal it again, as only its author could."""

    def forge(place: Path) -> None:
        fields = json.loads((place / MANIFEST).read_text())
        change(fields)
        sealed(place, json.dumps(fields).encode())

    return forge


def sealed(place: Path, manifest: bytes) -> None:
    """Write a manifest with a matching hash."""
    (place / MANIFEST).write_bytes(manifest)
    (place / SEAL).write_bytes(seal(manifest))


def with_code(canary: Path) -> dict[str, Forge]:
    """Return checkpoints that carry pickled code, in every place that could hold it."""
    stored = pickle.dumps(Bite(canary))
    text = base64.b64encode(stored).decode()
    forged: dict[str, Forge] = {}
    for form in ("pickle", "object", "reduce", "global", "torch", "numpy", "call", "module"):
        node = {"$": form, "base64": text, "data": text, "value": text, "hex": stored.hex(), "items": [text]}
        forged[f"a value of the form {form}"] = rewritten(lambda fields, node=node: fields["items"].update(x=node))
        forged[f"a note of the form {form}"] = rewritten(lambda fields, node=node: fields.update(note=node))
    forged["a pickle as manifest"] = lambda place: sealed(place, stored)
    forged["a pickle as tensors"] = lambda place: (place / TENSORS).write_bytes(stored) and None
    forged["a torch file as tensors"] = lambda place: torch.save(Bite(canary), place / TENSORS)
    for dtype in ("object", "O", "|O8", "str", "void"):
        forged[f"an array of {dtype}"] = rewritten(lambda fields, d=dtype: fields["tensors"][0].update(dtype=d))
    return forged


def bombs() -> dict[str, Forge]:
    """Return checkpoints that claim to be huge or are malformed."""

    def nested(depth: int) -> Forge:
        return lambda place: sealed(
            place, (place / MANIFEST).read_bytes().replace(b'"note":null', b'"note":' + b"[" * depth + b"]" * depth)
        )

    def header(forged: bytes) -> Forge:
        def forge(place: Path) -> None:
            stored = (place / TENSORS).read_bytes()
            (place / TENSORS).write_bytes(forged + stored[len(forged) :])

        return forge

    def entry(**changed: Any) -> Forge:
        return rewritten(lambda fields: fields["tensors"][-1].update(changed))

    return {
        "a shape of a petabyte": entry(shape=[2**48], nbytes=2**50),
        "a shape that overflows": entry(shape=[2**62, 2**62], nbytes=0),
        "a shape larger than its bytes": entry(shape=[2**33], nbytes=4),
        "a negative shape": entry(shape=[-4], nbytes=-16),
        "an offset beyond the end": entry(offset=2**40),
        "65 dimensions": entry(shape=[1] * 65),
        "lists 60 deep": nested(60),
        "lists 100,000 deep": nested(100_000),
        "a manifest of 300 MB": lambda place: sealed(place, (place / MANIFEST).read_bytes() + b" " * (300 << 20)),
        "a header of exabytes": header(b"\xff" * 7 + b"\x7f"),
        "a header that puts two arrays in one place": header((2**16).to_bytes(8, "little") + b'{"x":{},"x":{}}'),
        "an array that is not there": rewritten(lambda fields: fields["items"].update(x={"$": "tensor", "at": 7})),
        "a format of the future": rewritten(lambda fields: fields.update(version=99)),
        "fields that are missing": rewritten(lambda fields: fields.pop("tensors") and None),
    }


def links(secret: Path) -> dict[str, Forge]:
    """Return checkpoints in which one of the three files is something other than a regular file."""

    def instead(name: str, make: Callable[[Path], Any]) -> Forge:
        def forge(place: Path) -> None:
            content = (place / name).read_bytes()
            (place / name).unlink()
            secret.with_suffix(f".{name}").write_bytes(content)
            make(place / name)

        return forge

    kinds: Mapping[str, Callable[[str], Callable[[Path], Any]]] = {
        "a link to another file": lambda name: lambda path: path.symlink_to(secret.with_suffix(f".{name}")),
        "a pipe": lambda _: os.mkfifo,
        "a folder": lambda _: lambda path: path.mkdir(),
        "a link to /dev/zero": lambda _: lambda path: path.symlink_to("/dev/zero"),
        "a link to itself": lambda _: lambda path: path.symlink_to(path),
    }
    return {
        f"{kind} as {name}": instead(name, make(name))
        for kind, make in kinds.items()
        for name in (MANIFEST, SEAL, TENSORS)
    }


def opened(folder: Path) -> dict[str, Any]:
    """Restore the newest good checkpoint; return the result and the memory that it took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    items = {"x": torch.zeros(SIZE), "n": torch.zeros((), dtype=torch.int64)}
    direct = "opened"
    try:
        Checkpoints(folder).read(2)
    except CheckpointError:
        direct = "refused"
    step = -1
    try:
        step = Checkpoints(folder).restore(items).step
    except CheckpointError as error:
        direct += f", then {error}"[:200]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return {"direct": direct, "step": step, "whole": bool(items["x"].eq(step).all()), "memory": grown}


def attack(folder: Path, name: str, forge: Forge, canary: Path) -> str:
    """Forge step 2 of a copy and open it; return what went wrong, or an empty string."""
    place = folder / "copy"
    shutil.copytree(folder / "good", place, symlinks=True)
    try:
        forge(place / "step_0000000002")
        began = time.monotonic()
        found = answer(lambda: opened(place), SECONDS)
        seconds = time.monotonic() - began
    finally:
        shutil.rmtree(place)
    wrong = list[str]()
    if canary.exists():
        canary.rmdir()
        wrong.append("its code ran")
    if "raised" in found:
        wrong.append(found["raised"])
    elif name == "a format of the future":  # intact, so it is refused and not set aside
        wrong += [] if "newer" in found["direct"] else [f"it was {found['direct']}"]
    else:
        wrong += [] if found["direct"] == "refused" else [f"it was {found['direct']}"]
        wrong += [] if found["step"] == 1 and found["whole"] else [f"step {found['step']} came back"]
    if found.get("memory", 0) > MEMORY:
        wrong.append(f"it took {found['memory'] >> 20} MB")
    if seconds > SECONDS:
        wrong.append("it hung")
    return f"{name}: {', '.join(wrong)}" if wrong else ""


def stopped_run(folder: Path, steps: int) -> None:
    """Train a run that ends with an error after ``steps`` steps, so that it writes all files that a run writes."""
    x = torch.zeros(4)
    with Run(folder, saving=Saving(every=3), guard=Guard(hang_timeout=None), outputs=Outputs(rules=())) as run:
        run.track(x=x)
        run.resume()
        for step in run.steps(100):
            x.add_(1)
            step.record({"Loss/toy": float(step.index)})
            with run.evaluation("evaluation"):
                raise ValueError("planted")
            if step.index == steps:
                raise RuntimeError("planted")


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_links(folder: Path, only: tuple[str, ...] = ()) -> list[Row]:
    """Test run folders from elsewhere (P17): each of their files and folders is a link that leads outside."""
    folder.mkdir(parents=True, exist_ok=True)
    answer(lambda: stopped_run(folder / "good", 8))
    names = sorted(
        str(path.relative_to(folder / "good"))
        for path in (folder / "good").rglob("*")
        if "checkpoints/" not in str(path) and "crash/" not in str(path) and (not only or path.name in only)
    )
    wrong = list[str]()
    for number, name in enumerate(names):
        place = folder / f"run-{number}"
        outside = folder / f"outside-{number}"
        shutil.copytree(folder / "good", place, symlinks=True)
        outside.mkdir()
        (place / name).rename(outside / "taken")
        (place / name).symlink_to(outside / "taken")
        before = contents(outside)
        answer(lambda place=place: stopped_run(place, 14), SECONDS)
        after = contents(outside)
        changed = sorted({file for file, _ in before.items() ^ after.items()})
        wrong += [f"{name}: {', '.join(changed[:3])}"] if changed else []
    return [
        judged(
            *("P17", f"{len(names)} run folders with links: a resume that evaluates, saves and crashes"),
            *("nothing outside the folder changes", f"{len(names) - len(wrong)} of {len(names)}"),
            good=bool(names) and not wrong,
            why="; ".join(wrong)[:400],
        )
    ]


def run_hostile(folder: Path, kinds: tuple[str, ...] = ("code", "bombs", "links", "folders")) -> list[Row]:
    """Return the rows of P17."""
    canary = folder / "canary"
    good = folder / "good"
    good.mkdir(parents=True)

    def save() -> None:
        checkpoints = Checkpoints(good)
        for step in (1, 2):
            checkpoints.save(step, {"x": torch.full((SIZE,), float(step)), "n": torch.tensor(step)})

    answer(save)
    wanted = "no code runs; refused, little memory, previous one used"
    attacks = {
        "code": ("checkpoints with pickled code", with_code(canary)),
        "bombs": ("checkpoints that claim to be huge, or are malformed", bombs()),
        "links": ("checkpoints with links, pipes and folders as files", links(folder / "secret")),
    }
    rows = list[Row]()
    for kind in (kind for kind in kinds if kind in attacks):
        what, forged = attacks[kind]
        wrong = [text for name, forge in forged.items() if (text := attack(folder, name, forge, canary))]
        held = f"{len(forged) - len(wrong)} of {len(forged)}"
        rows.append(
            judged("P17", f"{len(forged)} {what}", wanted, held, good=not wrong, why="; ".join(wrong[:3])[:400])
        )
    return [*rows, *(run_links(folder / "links") if "folders" in kinds else [])]

"""Measure the size of each extra on disk, and the time that it takes to install.

    python benchmarks/install_sizes.py            # sizes, from the metadata of an environment that has all (make env)
    python benchmarks/install_sizes.py --fresh    # sizes and times, in new environments

Sizes and times of extras exclude torch and the toolkit. With ``--fresh``, each extra is installed into a new
environment that sees the packages of another one, which has torch (CPU build) and the toolkit; the versions are those
of constraints.txt, and the times depend on the network and on pip's cache. Without it, packages that are not installed
here are listed, and not counted.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

MIB = 2**20
EXTRAS = ("tensorboard", "parquet", "video", "mesh", "splats", "normals", "photos", "all")
REPOSITORY = Path(__file__).resolve().parents[1]


def requirements() -> dict[str, list[str]]:
    """Return the direct requirements of fieldwatch by extra; those of the toolkit itself under the empty name."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("fieldwatch") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)", line)
        name = re.match(r"[\w.-]+(\[[\w,-]+\])?", line)
        if name is not None:
            found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def size_on_disk(distribution: metadata.Distribution) -> int:
    """Return the bytes of the files of an installed distribution."""
    paths = [file.locate() for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.exists())  # type: ignore[attr-defined]


def closure(names: Iterable[str], direct: dict[str, list[str]], sizes: dict[str, int]) -> dict[str, int]:
    """Return the sizes of distributions and of everything that they require, by name."""
    for name in names:
        base = re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()
        if base == "fieldwatch":
            for extra in name.partition("[")[2].rstrip("]").split(","):
                closure(direct[extra], direct, sizes)
        elif base not in sizes:
            try:
                distribution = metadata.distribution(base)
            except metadata.PackageNotFoundError:
                sys.stderr.write(f"not installed here: {base}\n")
                continue
            sizes[base] = size_on_disk(distribution)
            needed = [
                line for line in distribution.requires or () if "extra ==" not in line and "sys_platform" not in line
            ]
            closure((re.split(r"[ ;<>=!~\[(]", line)[0] for line in needed), direct, sizes)
    return sizes


def print_sizes() -> None:
    """Print the table of sizes from the metadata of this environment."""
    direct = requirements()
    torch = closure(["torch"], direct, {})
    toolkit = closure(direct[""], direct, {})
    print("| installs | MiB | packages | largest |\n|---|---|---|---|")
    rows = [("torch (CPU build)", torch), ("toolkit", {name: toolkit[name] for name in toolkit.keys() - torch.keys()})]
    for extra in EXTRAS:
        every = closure(direct[extra], direct, {})
        rows.append((f"`[{extra}]`", {name: every[name] for name in every.keys() - toolkit.keys()}))
    for label, sizes in rows:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} {sizes[name] / MIB:.0f}" for name in largest)
        print(f"| {label} | {sum(sizes.values()) / MIB:.0f} | {len(sizes)} | {named} |")


def new_environment(folder: Path, beside: Path | None = None) -> Path:
    """Create a virtual environment, and return the folder of its packages.

    Args:
        folder: folder of the environment.
        beside: folder of packages that the environment also sees, as if they were installed in it.
    """
    venv.create(folder, with_pip=True, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Python 3.11 puts an old setuptools into each environment, which an installation may replace: not ours to count.
    subprocess.run(
        [str(folder / "bin" / "python"), "-m", "pip", "uninstall", "-q", "-y", "setuptools"],
        check=True, capture_output=True,
    )  # fmt: skip
    if beside is not None:
        (packages / "beside.pth").write_text(f"{beside}\n")
    return packages


def installed(folder: Path, packages: Path, words: Sequence[str]) -> tuple[float, float, int]:
    """Install packages with pip.

    Returns:
        Time in seconds, MiB that the environment grew by, and the number of new packages.
    """
    before = contents(packages)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--no-warn-script-location"]
    variables = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PIP_CONSTRAINT"}}
    start = time.monotonic()
    subprocess.run([*pip, *words], check=True, env=variables | {"PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt")})
    seconds = time.monotonic() - start
    after = contents(packages)
    new = sum(1 for name in after.keys() - before.keys() if name.endswith(".dist-info"))
    return seconds, (sum(after.values()) - sum(before.values())) / MIB, new


def contents(packages: Path) -> dict[str, int]:
    """Return the bytes of each entry of a folder of packages, without compiled bytecode."""
    return {
        entry.name: sum(
            file.stat().st_size for file in [entry, *entry.rglob("*")] if file.is_file() and file.suffix != ".pyc"
        )
        for entry in packages.iterdir()
    }


def print_fresh() -> None:
    """Install everything into new environments, and print the table of sizes and times."""
    pinned = re.search(r"^torch==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    if pinned is None:
        sys.exit("constraints.txt does not pin torch")
    print("| installs | seconds | MiB | packages |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary, "toolkit")
        packages = new_environment(base)
        build = subprocess.run(
            ["bash", str(REPOSITORY / "scripts" / "torch_build.sh"), pinned[1]],
            check=True, capture_output=True, text=True, env=os.environ | {"PIP": str(base / "bin" / "pip")},
        )  # fmt: skip
        steps = [("torch (CPU build)", build.stdout.split()), ("toolkit", [str(REPOSITORY)])]
        for label, words in steps:
            print_row(label, installed(base, packages, words))
        for extra in EXTRAS:
            folder = Path(temporary, extra)
            own = new_environment(folder, beside=packages)
            # The toolkit itself is installed already, so only its extra is added.
            print_row(f"`[{extra}]`", installed(folder, own, [f"fieldwatch[{extra}]"]))


def print_row(label: str, measured: tuple[float, float, int]) -> None:
    """Print one row of the table."""
    seconds, mebibytes, count = measured
    print(f"| {label} | {seconds:.0f} | {mebibytes:.0f} | {count} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="install each extra into a new environment, and time it")
    if parser.parse_args().fresh:
        print_fresh()
    else:
        print_sizes()


if __name__ == "__main__":
    main()

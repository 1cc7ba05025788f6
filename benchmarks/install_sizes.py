"""The size of each extra on disk, from the metadata of an environment that has them all (`make env`).

    python benchmarks/install_sizes.py

Sizes of extras exclude torch and the toolkit. Packages that are not installed here are listed, and not counted.
"""

import re
import sys
from collections.abc import Iterable
from importlib import metadata

MIB = 2**20
EXTRAS = ("tensorboard", "parquet", "video", "mesh", "splats", "normals", "photos", "all")


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


def main() -> None:
    """Print the table."""
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


if __name__ == "__main__":
    main()

"""The effort of adopting a library: the files of this folder compared with bare.py, line by line.

    python benchmarks/adoption/count.py              the table
    python benchmarks/adoption/count.py --write      ... into docs/adopt.md
    python benchmarks/adoption/count.py --run        train them: do they end like bare.py, also after a SIGTERM?

Only ``--run`` needs the libraries (requirements.txt of this folder); it leaves out those that are not installed.
Lines are lines of code: docstrings, comments and empty lines do not count. Concepts are the names of the library that
the file uses: what it imports, except modules, and the attributes of everything that comes from the library.
"""

import argparse
import ast
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import tokenize
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
PAGE = ROOT / "docs" / "adopt.md"
BEGIN = "<!-- adoption: written by benchmarks/adoption/count.py --write -->\n"
END = "<!-- end adoption -->\n"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Adoption:
    """One file of this folder.

    Attributes:
        title: label of the row.
        package: package whose names are counted.
        gives: features that the loop gains.
        resumes: where a loop continues after a SIGTERM, and whether it ends with the same numbers; ``--run`` tests it.
    """

    title: str
    package: str
    gives: str
    resumes: str


ADOPTIONS = {
    "with_fieldwatch": Adoption(
        title="fieldwatch",
        package="fieldwatch",
        gives="terms, gradients, memory; update guard; findings; checkpoints; report",
        resumes="at the step, same numbers",
    ),
    "with_fieldwatch_objective": Adoption(
        title="fieldwatch, loss as a function",
        package="fieldwatch",
        gives="the same; smaller micro-batches if memory runs out",
        resumes="at the step, same numbers",
    ),
    "with_fabric": Adoption(
        title="Lightning Fabric",
        package="lightning",
        gives="terms; devices, precisions, processes; checkpoints",
        resumes="at the epoch, other numbers",
    ),
    "with_accelerate": Adoption(
        title="Accelerate",
        package="accelerate",
        gives="terms; devices, precisions, processes; checkpoints",
        resumes="at the epoch, same numbers",
    ),
    "with_clu": Adoption(
        title="CLU",
        package="clu",
        gives="terms; steps per second",
        resumes="no",
    ),
}


@dataclass(frozen=True)
class Counted:
    """The difference between a file and bare.py.

    Attributes:
        added: lines that bare.py lacks.
        changed: lines that replace another one.
        removed: lines of bare.py that were removed.
        indented: lines whose indentation alone changed.
        concepts: names of the library, sorted.
    """

    added: int
    changed: int
    removed: int
    indented: int
    concepts: tuple[str, ...]


def code_of(text: str) -> list[str]:
    """Return the lines of code, without trailing white space."""
    tree = ast.parse(text)
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    docstrings = {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            held.update(range(token.start[0], token.end[0] + 1))
    lines = text.splitlines()
    return [lines[number - 1].rstrip() for number in sorted(held - docstrings)]


def compare(bare: str, adopted: str, library: str) -> Counted:
    """Count the differences of two programs. A line with only another indentation does not count as changed."""
    before = code_of(bare)
    after = code_of(adopted)
    counts = {"added": 0, "changed": 0, "removed": 0, "indented": 0}
    matcher = SequenceMatcher(None, [line.strip() for line in before], [line.strip() for line in after], autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            counts["indented"] += sum(old != new for old, new in zip(before[first:last], after[begin:end], strict=True))
            continue
        changed = min(last - first, end - begin)
        counts["changed"] += changed
        counts["added"] += end - begin - changed
        counts["removed"] += last - first - changed
    return Counted(**counts, concepts=tuple(sorted(concepts(adopted, library, bare))))


def concepts(text: str, library: str, bare: str) -> set[str]:
    """Return the names of a library that a program uses: imported ones, and attributes of what comes from it.

    Names that bare.py has, too, belong to torch: `optimizer.step` does, even if a library has wrapped the optimizer.
    """
    tree = ast.parse(text)
    plain = ast.parse(bare)
    known = names_in(plain)
    imported = imported_names(tree, library)
    owned = owned_names(tree, set(imported))
    used: set[str] = set()
    roots: set[str] = set()
    for node in attributes(tree):
        if isinstance(node.value, ast.Name):
            roots.add(node.value.id)
        is_new = node.attr not in {each.attr for each in attributes(plain)}
        is_of_new_variable = isinstance(node.value, ast.Name) and node.value.id not in known
        if owned & names_in(node) and (is_new or is_of_new_variable):
            used.add(node.attr)
    # An imported name that is only the root of attributes is a module: `fw` in `fw.Run`.
    return used | {original for alias, original in imported.items() if alias not in roots}


def attributes(tree: ast.AST) -> list[ast.Attribute]:
    """Yield every attribute access of a program."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]


def imported_names(tree: ast.AST, library: str) -> dict[str, str]:
    """Return the names imported from a library: local name and original name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == library:
            names |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.Import):
            ours = [each for each in node.names if each.name.split(".")[0] == library]
            names |= {each.asname or library: each.name for each in ours}
    return names


def owned_names(tree: ast.AST, owned: set[str]) -> set[str]:
    """Add to the imported names every variable that is bound to a result of one of them, directly or not."""
    bindings: list[tuple[ast.expr, ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            bindings += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.For):
            bindings.append((node.target, node.iter))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            bindings.append((node.optional_vars, node.context_expr))
    while True:
        found = {name for target, value in bindings if owned & names_in(value) for name in names_in(target)}
        if found <= owned:
            return owned
        owned = owned | found


def names_in(node: ast.AST) -> set[str]:
    """Return every variable in an expression."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def counted(name: str) -> Counted:
    """Compare one file of this folder with bare.py."""
    texts = [(FOLDER / f"{each}.py").read_text() for each in ("bare", name)]
    return compare(*texts, ADOPTIONS[name].package)


def table() -> str:
    """Return the table in Markdown."""
    rows = [
        "| | lines added | changed | removed | indented | concepts | gives | resumes |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for name, about in ADOPTIONS.items():
        found = counted(name)
        figures = (found.added, found.changed, found.removed, found.indented, len(found.concepts))
        link = f"[{about.title}](../benchmarks/adoption/{name}.py)"
        rows.append(f"| {link} | {' | '.join(map(str, figures))} | {about.gives} | {about.resumes} |")
    named = [f"* {about.title}: {', '.join(counted(name).concepts)}" for name, about in ADOPTIONS.items()]
    return "\n".join([*rows, "", "The concepts:", "", *named, ""])


def with_table(page: str) -> str:
    """Return a page with the current table between the markers."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"expected {BEGIN.strip()!r} and {END.strip()!r} in the page, got neither")
    return pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", page)


def train(name: str, stop_after: int | None = None) -> None:
    """Train one file in this process, which gets a SIGTERM after this many optimizer steps.

    ``bare+ResumableLoader`` is bare.py with the loader that the files with fieldwatch use.
    """
    loop = importlib.reload(
        importlib.import_module(name.removesuffix("+ResumableLoader"))
    )  # with its original loader again
    if name != loop.__name__:
        loop.DataLoader = importlib.import_module("fieldwatch").ResumableLoader
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    handle = importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(count)
    try:
        loop.main()
    finally:
        handle.remove()


def printed(name: str, folder: str, stop_after: int | None = None) -> list[str]:
    """Train one file in a separate process and folder; return the printed lines."""
    program = f"import count; count.train({name!r}, {stop_after})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])},
        check=stop_after is None,
        stdout=subprocess.PIPE,
        stderr=None if stop_after is None else subprocess.DEVNULL,
        text=True,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("epoch ")]


def try_out() -> None:
    """Train every file completely, and once more with a SIGTERM in the middle of epoch 6; print both results."""
    for name in ["bare", "bare+ResumableLoader", *ADOPTIONS]:
        library = ADOPTIONS[name].package if name in ADOPTIONS else "torch"
        if importlib.util.find_spec(library) is None:
            print(f"{name:26} {library} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            whole = printed(name, folder)
        with tempfile.TemporaryDirectory() as folder:
            printed(name, folder, stop_after=88)
            resumed = printed(name, folder)
        first = " ".join(resumed[0].split()[:2])
        print(f"{name:26} {whole[-1]}; stopped in epoch 6 and started again, from {first} on: {resumed[-1]}")


def main() -> None:
    """Print the table, write it, or run the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/adopt.md")
    parser.add_argument("--run", action="store_true", help="train every file whose library is installed")
    options = parser.parse_args()
    if options.run:
        try_out()
        return
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text()))
    print(table())


if __name__ == "__main__":
    main()

"""MkDocs hooks: add pages that are not in docs/ (README, changelog, linked files), and rewrite links between all pages.

Links are written as on GitHub, from file to file of the repository, and are rewritten to the corresponding pages of the
site. A link to a missing file is left unchanged, so `mkdocs build --strict` fails on it.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGE_OF_FILE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Pages of the site that are made from files outside of docs/."""
PAGE_OF_FOLDER = {"docs/decisions": "decisions/README.md"}
"""Pages that a link to a folder leads to."""
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".conf": "text", "": "text"}
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files of docs/."""
    for source, page in PAGE_OF_FILE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for linked in sorted(linked_files()):
        files.append(File.generated(config, page_of(linked), content=shown(linked)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page."""
    place = page.file.src_uri
    return outside_code(markdown, lambda text: _LINK.sub(lambda link: rewritten(link, place), text))


def rewritten(link: re.Match[str], page: str) -> str:
    """Return a link with the address that it needs on a page of the site."""
    target = repository_path(link[2], source_of(page))
    if target is None:
        return link[0]
    return link[1] + posixpath.relpath(page_of(target), posixpath.dirname(page) or ".") + link[3]


def repository_path(target: str, source: str) -> str | None:
    """Return the repository path that a link in a file refers to; None for a URL or a missing file."""
    if re.match(r"[a-z]+:|/", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def source_of(page: str) -> str:
    """Return the file of the repository that a page of the site is made from."""
    return next((source for source, made in PAGE_OF_FILE.items() if made == page), f"docs/{page}")


def page_of(path: str) -> str:
    """Return the page of the site that shows a file or folder of the repository."""
    known = PAGE_OF_FILE | PAGE_OF_FOLDER
    if path in known:
        return known[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}.md"


def linked_files() -> set[str]:
    """Return the files and folders outside of docs/ that pages link to, and the files in these folders."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    found = {path for page in pages for path in links_of(page)}
    outside = {path for path in found if not path.startswith("docs") and path not in PAGE_OF_FILE}
    inside = {str(file.relative_to(ROOT)) for path in outside for file in (ROOT / path).glob("*.*")}
    return outside | inside


def links_of(page: Path) -> Iterator[str]:
    """Yield the repository paths that a page links to."""
    source = str(page.relative_to(ROOT))
    targets = (link[2] for link in _LINK.finditer(page.read_text()))
    return (path for target in targets if (path := repository_path(target, source)) is not None)


def shown(path: str) -> str:
    """Return the page of a file (its text as code) or of a folder (links to its files)."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.glob("*.*"))
        return f"# {path}\n\n" + "\n".join(f"* [{name}]({file.name}/{name}.md)" for name in names) + "\n"
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{file.read_text().rstrip()}\n````\n"


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Change the text of a page except its code blocks."""
    parts = re.split(r"(^(?P<fence>`{3,}).*?^(?P=fence)\s*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(_changed(parts, change))


def _changed(parts: list[str], change: Callable[[str], str]) -> Iterator[str]:
    # The parts repeat in threes: text, code block, fence of the code block.
    for number, part in enumerate(parts):
        if number % 3 == 0:
            yield change(part)
        elif number % 3 == 1:
            yield part

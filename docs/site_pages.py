"""What the site needs beside docs/*.md: README, changelog, decisions and linked files as pages, links between all.

A link is written as a forge shows it, from file to file of the repository; here it is bent to where the site has that
file. A link to what is not there stays as it is, and `mkdocs build --strict` fails on it.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
WHOLE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/decisions": "decisions/index.md",
}
"""Files of the repository with a place of their own in the site."""
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".conf": "text", "": "text"}
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are no files of docs/."""
    for source in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        files.append(File.generated(config, WHOLE[source], content=(ROOT / source).read_text()))
    files.append(File.generated(config, WHOLE["docs/decisions"], content=decisions()))
    for linked in sorted(linked_files()):
        files.append(File.generated(config, place_of(linked), content=shown(linked)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Bend the links of a page."""
    place = page.file.src_uri
    return outside_code(markdown, lambda text: _LINK.sub(lambda link: bent(link, place), text))


def bent(link: re.Match[str], place: str) -> str:
    """A link as the page at this place of the site has to write it."""
    target = repository_path(link[2], origin(place))
    if target is None:
        return link[0]
    return link[1] + posixpath.relpath(place_of(target), posixpath.dirname(place) or ".") + link[3]


def repository_path(target: str, source: str) -> str | None:
    """Path in the repository of what a file of it links to; None for what is no file of it."""
    if re.match(r"[a-z]+:|/", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def origin(place: str) -> str:
    """The file of the repository that a page of the site was made of."""
    return next((source for source, page in WHOLE.items() if page == place), f"docs/{place}")


def place_of(path: str) -> str:
    """Where the site has a file of the repository."""
    if path in WHOLE:
        return WHOLE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}.md"


def linked_files() -> set[str]:
    """Files and folders outside of docs/ that pages link to, with the files in these folders."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    found = {path for page in pages for path in links_of(page)}
    outside = {path for path in found if not path.startswith("docs") and path not in WHOLE}
    inside = {str(file.relative_to(ROOT)) for path in outside for file in (ROOT / path).glob("*.*")}
    return outside | inside


def links_of(page: Path) -> Iterator[str]:
    """What a page links to in the repository."""
    source = str(page.relative_to(ROOT))
    targets = (link[2] for link in _LINK.finditer(page.read_text()))
    return (path for target in targets if (path := repository_path(target, source)) is not None)


def shown(path: str) -> str:
    """A file as a page: its text as code; a folder: links to what is in it."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.glob("*.*"))
        return f"# {path}\n\n" + "\n".join(f"* [{name}]({file.name}/{name}.md)" for name in names) + "\n"
    language = LANGUAGES.get(file.suffix, "text")
    return f"# {path}\n\n````{language}\n{file.read_text().rstrip()}\n````\n"


def decisions() -> str:
    """A page that lists the decisions by their titles."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    titles = [f"* [{page.read_text().splitlines()[0].lstrip('# ')}]({page.name})" for page in pages]
    head = "# Decisions\n\nWhy it is so: context, decision, consequences, and what was measured.\n\n"
    return head + "\n".join(titles) + "\n"


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Change a page's text, its blocks of code left alone."""
    parts = re.split(r"(^(?P<fence>`{3,}).*?^(?P=fence)\s*$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(_kept(parts, change))


def _kept(parts: list[str], change: Callable[[str], str]) -> Iterator[str]:
    """Text, block, fence of the block, text, ...: the texts changed."""
    for number, part in enumerate(parts):
        if number % 3 == 0:
            yield change(part)
        elif number % 3 == 1:
            yield part

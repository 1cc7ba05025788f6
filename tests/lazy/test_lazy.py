"""Public names of packages are imported lazily."""

import ast
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
PACKAGES = sorted(
    ".".join(path.parent.relative_to(SOURCE).parts)
    for path in SOURCE.rglob("__init__.py")
    if "= lazy_names(__name__)" in path.read_text() and path.parent.name != "lazy"
)


def lazy_imports(package):
    """Return the imports of a package under TYPE_CHECKING: name to module and original name."""
    tree = ast.parse(Path(package.__file__).read_text())
    typed = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname or alias.name: (node.module, alias.name) for node in typed.body for alias in node.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_the_object_of_its_module(name):
    package = importlib.import_module(name)
    homes = lazy_imports(package)
    assert set(homes) <= set(package.__all__) == set(dir(package))
    for public, (home, known_as) in homes.items():
        module = importlib.import_module(home)
        original = getattr(module, known_as, None) or importlib.import_module(f"{home}.{known_as}")
        assert getattr(package, public) is original


@pytest.mark.parametrize("name", PACKAGES)
def test_no_module_hides_a_public_name(name):
    """Importing a module sets it as an attribute of its package, which would hide a lazy name."""
    package = importlib.import_module(name)
    modules = {path.stem for path in Path(package.__file__).parent.iterdir()}
    own = {name for name, (home, _) in lazy_imports(package).items() if home != package.__name__}
    assert modules & own == set()


def test_an_unknown_name_raises_with_the_public_names():
    package = importlib.import_module("fieldwatch.recon.pipelines.video")
    with pytest.raises(AttributeError, match=r"'fieldwatch.recon.pipelines.video'.*'nothing'.*VIDEO_RULES"):
        _ = package.nothing


def test_a_name_is_looked_up_once():
    """A loop may write `fieldwatch.Terms` in every step."""
    package = importlib.import_module("fieldwatch")
    first = package.Terms
    assert vars(package)["Terms"] is first

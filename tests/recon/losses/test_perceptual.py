"""LPIPS against its definition, and the errors for missing or damaged weights."""

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import torch
from torch import nn

from fieldwatch.recon.losses import find_lpips, find_lpips_files

LAYOUT = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]
WIDTHS = (64, 128, 256, 512, 512)
TAPPED = (3, 8, 15, 22, 29)
FEATURES = "vgg16-397923af.pth"


def vgg16():
    """Build the layers of VGG16 with the same indices as torchvision's state dict."""
    layers, channels = [], 3
    for width in LAYOUT:
        if width == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(5)
    return vgg16().eval()


@pytest.fixture(scope="module")
def lines():
    torch.manual_seed(6)
    return [torch.rand(1, width, 1, 1) for width in WIDTHS]


@pytest.fixture(scope="module")
def folder(network, lines, tmp_path_factory):
    """Write both weight files; the first also contains the unused classifier, as on disk."""
    made = tmp_path_factory.mktemp("lpips")
    state = {f"features.{name}": part for name, part in network.state_dict().items()}
    torch.save(state | {"classifier.0.weight": torch.zeros(4, 4)}, made / FEATURES)
    torch.save({f"lin{i}.model.1.weight": line for i, line in enumerate(lines)}, made / "vgg.pth")
    return made


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Hide weights that are installed on this machine."""
    installed = importlib.util.find_spec
    site = str(tmp_path)

    def find_spec(name, package=None):
        # torchmetrics comes with Lightning, and brings weights.
        spec = installed(name, package)
        real = name == "torchmetrics" and spec is not None and not str(spec.origin).startswith(site)
        return None if real else spec

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    for name in ("TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("FIELDWATCH_LPIPS", raising=False)


@pytest.fixture
def no_packages(monkeypatch):
    """Hide the weights in installed packages."""
    monkeypatch.setattr("fieldwatch.recon.losses.perceptual._PACKAGES", {})


def written_down(network, lines, image, photo):
    """Compute eq. 1 of Zhang et al. 2018 per layer and pixel."""
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    seen = [((one * 2 - 1).permute(0, 2, 3, 1) - shift).div(scale).permute(0, 3, 1, 2) for one in (image, photo)]
    total, tap = 0.0, 0
    for place, layer in enumerate(network[: TAPPED[-1] + 1]):
        seen = [layer(one) for one in seen]
        if place in TAPPED:
            unit = [one / (one.pow(2).sum(1, keepdim=True).sqrt() + 1e-10) for one in seen]
            total = total + ((unit[0] - unit[1]).pow(2) * lines[tap]).sum(1).mean((1, 2))
            tap += 1
    return total


def images(batch=2, height=24, width=37):
    return torch.rand(batch, 3, height, width), torch.rand(batch, 3, height, width)


def test_it_is_what_its_paper_says(network, lines, folder, monkeypatch):
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(folder))
    lpips, where = find_lpips()
    assert str(folder) in where
    image, photo = images()
    with torch.no_grad():
        wanted = written_down(network, lines, image, photo)
    torch.testing.assert_close(lpips(image, photo), wanted, rtol=1e-5, atol=1e-7)


def test_it_is_0_for_one_image_the_same_both_ways_and_has_nothing_to_train(folder, monkeypatch):
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(folder))
    lpips, _ = find_lpips()
    image, photo = images(1)
    assert float(lpips(image, image)) == 0
    torch.testing.assert_close(lpips(image, photo), lpips(photo, image))
    assert not list(lpips.parameters())
    assert not lpips.training


def test_images_that_are_too_small_are_refused(folder, monkeypatch):
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(folder))
    lpips, _ = find_lpips()
    with pytest.raises(ValueError, match=r"40x15 pixels.*at least 16 pixels"):
        lpips(*images(1, 15, 40))


@pytest.fixture
def hub(folder, tmp_path):
    """Put the weights of VGG16 where torchvision does."""
    hub = tmp_path / "TORCH_HOME" / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    (hub / FEATURES).symlink_to(folder / FEATURES)
    return hub


@pytest.mark.parametrize("place", ["lpips/weights/v0.1", "torchmetrics/functional/image/lpips_models"])
def test_the_files_are_found_where_torchvision_and_a_package_leave_them(folder, hub, monkeypatch, tmp_path, place):
    package = place.partition("/")[0]
    weights = tmp_path / "site" / place
    weights.mkdir(parents=True)
    (tmp_path / "site" / package / "__init__.py").write_text("raise AssertionError('it must not be imported')")
    monkeypatch.syspath_prepend(tmp_path / "site")
    # Another test of this process may have imported the real package, which would be found before this one.
    monkeypatch.delitem(sys.modules, package, raising=False)
    assert find_lpips()[0] is None
    (weights / "vgg.pth").symlink_to(folder / "vgg.pth")
    lpips, where = find_lpips()
    assert lpips is not None
    assert str(hub) in where
    assert package not in sys.modules


def test_both_files_may_be_in_torchvisions_cache(folder, hub):
    (hub / "vgg.pth").symlink_to(folder / "vgg.pth")
    assert find_lpips()[0] is not None
    files = find_lpips_files()
    assert (files.missing, files.remedy) == ("", "")


@pytest.mark.usefixtures("no_packages")
def test_what_is_missing_is_said(monkeypatch, tmp_path):
    nothing, why = find_lpips()
    hub = tmp_path / "TORCH_HOME" / "hub" / "checkpoints"
    assert nothing is None
    assert FEATURES in why
    assert "vgg.pth" in why
    assert str(hub) in why
    files = find_lpips_files()
    assert f"https://download.pytorch.org/models/{FEATURES} (528 MB) into {hub}" in files.remedy
    assert "$FIELDWATCH_LPIPS" in files.remedy
    assert "pip install --no-deps lpips" in files.remedy
    with pytest.raises(ValueError, match=r"https://download\.pytorch\.org"):
        files.load()
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(tmp_path / "nowhere"))
    assert find_lpips_files().folders == (tmp_path / "nowhere",)
    assert f"in {tmp_path / 'nowhere'}" in find_lpips()[1]


@pytest.mark.usefixtures("no_packages")
def test_only_what_is_missing_is_said(hub, folder):
    files = find_lpips_files()
    assert FEATURES not in files.missing
    assert "https" not in files.remedy
    (hub / FEATURES).unlink()
    (hub / "vgg.pth").symlink_to(folder / "vgg.pth")
    files = find_lpips_files()
    assert "vgg.pth" not in files.missing
    assert "pip" not in files.remedy


def with_files(folder, tmp_path, name, content):
    """Return a folder with one of the two files replaced."""
    for other in (FEATURES, "vgg.pth"):
        (tmp_path / other).symlink_to(folder / other)
    (tmp_path / name).unlink()
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        torch.save(content, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", [FEATURES, "vgg.pth"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        b"PK\x03\x04 cut",
        [torch.zeros(3)],
        {"lin0.model.1.weight": torch.zeros(1, 63, 1, 1)},
        {"features.0.weight": torch.full((64, 3, 3, 3), torch.nan)},
        {"features.0.weight": 3},
    ],
)
def test_a_damaged_file_is_named(folder, tmp_path, monkeypatch, name, content):
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(with_files(folder, tmp_path, name, content)))
    with pytest.raises(ValueError, match=name) as caught:
        find_lpips()
    assert "again" in str(caught.value)


def test_a_file_cut_short_is_damaged(folder, tmp_path, monkeypatch):
    half = (folder / FEATURES).read_bytes()[:100_000]
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(with_files(folder, tmp_path, FEATURES, half)))
    with pytest.raises(ValueError, match=r"vgg16-397923af\.pth cannot be read"):
        find_lpips()


def test_a_package_without_files_is_no_package(monkeypatch, tmp_path):
    """A single-file module named lpips has no weights."""
    module = types.ModuleType("lpips")
    module.__spec__ = ModuleSpec("lpips", None)
    monkeypatch.setitem(sys.modules, "lpips", module)
    hub = tmp_path / "TORCH_HOME" / "hub" / "checkpoints"
    hub.mkdir(parents=True)
    (hub / FEATURES).touch()
    assert find_lpips()[0] is None

"""Somebody opens the page of Gaussians in a browser, without network: it draws the right colors, or says why not."""

import math
import re

import pytest
import torch

from browser import BROWSER, SOFTWARE, open_page
from fieldwatch.recon.data import GaussianCloud, write_gaussian_ply

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.timeout(300),
]

# The color at the center of the canvas, and a key that changes the shading.
LOOK = """
const canvas=figure.querySelector('canvas'),gl=canvas.getContext('webgl2'),pixel=new Uint8Array(4);
gl.readPixels(canvas.width>>1,canvas.height>>1,1,1,gl.RGBA,gl.UNSIGNED_BYTE,pixel);
figure.dataset.center=[...pixel].join(' ');
canvas.dispatchEvent(new KeyboardEvent('keydown',{key:'2',bubbles:true}));
"""


@pytest.fixture
def page(tmp_path, finish):
    """The page of a small red ball on the side of the first view, and a larger blue one behind it."""
    # The first view looks along -(sin yaw cos pitch, sin pitch, cos yaw cos pitch) with yaw 0.6 and pitch 0.26.
    toward = torch.tensor([math.sin(0.6) * math.cos(0.26), math.sin(0.26), math.cos(0.6) * math.cos(0.26)])
    cloud = GaussianCloud(
        # Stored from front to back: whoever does not sort draws blue over red.
        means=torch.stack([toward, -toward]),
        log_scales=torch.tensor([[-0.5], [0.0]]).expand(2, 3),
        quaternions=torch.tensor([[1.0, 0, 0, 0]]).repeat(2, 1),
        opacity_logits=torch.full((2,), 6.0),
        constant=torch.tensor([[1.5, -1.5, -1.5], [-1.5, -1.5, 1.5]]),
        rest=torch.zeros(2, 0, 3),
    )
    write_gaussian_ply(tmp_path / "balls.ply", cloud)
    code, _, complaint = finish(
        "view", tmp_path / "balls.ply", "--page", tmp_path / "balls.html", "--up", "0", "1", "0"
    )
    assert code == 0, complaint
    return tmp_path / "balls.html"


def test_gaussians_are_drawn_from_back_to_front_and_a_key_changes_how(page):
    state, title, _ = open_page(page, *SOFTWARE, script=LOOK)
    assert (state["state"], state["gaussians"], state["shading"]) == ("drawn", "2", "depth")
    red, green, blue, alpha = map(int, state["center"].split())
    assert 0.1 < float(state["covered"]) <= 1
    assert title.startswith("balls.ply: ")
    # The color of an SH constant is 0.5 + 0.282 * 1.5, and the front one hides all but a hundredth.
    assert red == pytest.approx(255 * 0.923, abs=4)
    assert green == pytest.approx(255 * 0.077, abs=4)
    assert blue == pytest.approx(255 * 0.077, abs=6)
    assert alpha > 250


def test_without_webgl2_the_page_says_so(page):
    state, _, text = open_page(page, "--disable-3d-apis")
    assert state == {"state": "failed"}
    assert "need WebGL2" in re.search(r'role="alert"[^>]*>(.*?)</p>', text)[1]


def test_a_damaged_page_says_so(page):
    page.write_text(re.sub(r'("packed":"[^"]{20})[^"]*', r"\1", page.read_text()))
    state, _, text = open_page(page, *SOFTWARE)
    assert state == {"state": "failed"}
    assert "cut short" in re.search(r'role="alert"[^>]*>(.*?)</p>', text)[1]

"""The emulation runs kernels as a GPU would, in any order of threads; launches check their arguments."""

import subprocess
from pathlib import Path

import pytest
import torch

from fake_cuda.emulator import FORWARD, REVERSE, SANITIZED, SHUFFLED
from fieldwatch.recon.render.gpu import MOST_LISTED, KernelFile
from fieldwatch.recon.render.gpu.compilation import SOURCES

pytestmark = pytest.mark.pretended
MACHINE = KernelFile("machine.cu", Path(__file__).parent)


def in_order(device, order, kernel, blocks, *arguments):
    device.emulator.order = order
    MACHINE.launch(kernel, blocks, *arguments)


@pytest.mark.parametrize("order", [FORWARD, REVERSE, SHUFFLED])
def test_phases_and_shared_memory(fake_cuda, order):
    values = torch.arange(70.0, device="cuda")
    out = torch.zeros(70, device="cuda")
    in_order(fake_cuda, order, "reversed_sums", 3, 70, 0.5, values, out)
    padded = torch.cat([torch.arange(70.0), torch.zeros(26)])
    assert torch.equal(out.cpu(), padded.view(3, 32).flip(1).flatten()[:70])


def test_integers_are_added_atomically(fake_cuda):
    values = torch.tensor([1.0, -1.0, 2.0] * 40, device="cuda")
    found = torch.zeros(1, dtype=torch.int32, device="cuda")
    MACHINE.launch("count_positive", 4, 120, values, found)
    assert found.cpu().item() == 80


def test_a_race_shows_in_another_order(fake_cuda):
    ends = []
    for order in (FORWARD, REVERSE, SHUFFLED):
        values = torch.zeros(32, device="cuda")
        in_order(fake_cuda, order, "racing", 1, values)
        ends.append(tuple(values.cpu().tolist()))
    assert len(set(ends)) == 3


def test_a_launch_is_counted_and_does_not_wait(fake_cuda):
    values = torch.zeros(32, device="cuda")
    before = fake_cuda.ledger.copy()
    MACHINE.launch("racing", 1, values)
    counted = fake_cuda.ledger.since(before)
    assert counted.launches == {"racing": 1}
    assert counted.waits.total() == 0
    MACHINE.launch("racing", 0, values)
    assert fake_cuda.ledger.since(before).launches.total() == 1


def test_a_list_is_one_parameter(fake_cuda):
    vectors = [torch.full((32,), float(k), device="cuda") for k in (1, 2, 3)]
    out = torch.empty(32, device="cuda")
    MACHINE.launch("weighted_sum", 1, 3, vectors, [0.5, 0.25, 0.125], out)
    assert out.cpu().tolist() == [1.375] * 32


def test_wrong_lists_are_refused(fake_cuda):
    out = torch.empty(32, device="cuda")
    cases = (
        (ValueError, ([out] * (MOST_LISTED + 1), [1.0])),
        (ValueError, (out, [1.0])),
        (TypeError, ([out.double()], [1.0])),
        (TypeError, ([out], [out])),
        (ValueError, ([torch.zeros(32)], [1.0])),
    )
    for error, (vectors, weights) in cases:
        with pytest.raises(error):
            MACHINE.launch("weighted_sum", 1, 1, vectors, weights, out)
    with pytest.raises(TypeError):
        MACHINE.launch("racing", 1, [out])


def test_wrong_arguments_are_refused(fake_cuda):
    values = torch.zeros(64, device="cuda")
    for wrong, error in {
        (): TypeError,
        (values, values): TypeError,
        (values.long(),): TypeError,
        (3.0,): TypeError,
        (values.cpu(),): ValueError,
        (values[::2],): ValueError,
        (None,): ValueError,
    }.items():
        with pytest.raises(error):
            MACHINE.launch("racing", 1, *wrong)


MAIN = """
#include "machine.cu"
int main(int, char **words) {
    float *values = (float *)malloc(sizeof(float) * (size_t)atoi(words[1]));
    void *arguments[] = {&values};
    run_beyond(1, 0, arguments);
    free(values);
}
"""


def test_an_access_beyond_a_tensor_stops(tmp_path):
    (tmp_path / "main.cpp").write_text(MAIN)
    built = tmp_path / "main"
    folders = [f"-I{folder}" for folder in (SOURCES, MACHINE.folder)]
    subprocess.run(["g++", *SANITIZED, *folders, str(tmp_path / "main.cpp"), "-o", str(built)], check=True)
    subprocess.run([built, "32"], check=True)
    refused = subprocess.run([built, "31"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "heap-buffer-overflow" in refused.stderr

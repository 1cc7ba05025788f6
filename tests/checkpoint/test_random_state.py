# ruff: noqa: NPY002 - the global generators are what is tested
"""All random states are restored, and an evaluation does not change them."""

import random

import numpy as np
import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, RandomState, preserve_random_state, seed_everything


def draws(*generators):
    own = [
        torch.rand(3, generator=one).tolist() if isinstance(one, torch.Generator) else one.random(3).tolist()
        for one in generators
    ]
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(3).tolist(),
        np.random.randn(),
        torch.rand(3).tolist(),
        *own,
    ]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64])
def test_every_generator_goes_back_through_a_checkpoint(tmp_path, kind):
    rays = torch.Generator().manual_seed(3)
    noise = np.random.Generator(kind(5))
    state = RandomState(rays=rays, noise=noise)
    draws(rays, noise)  # leaves a half used Gaussian pair in python's and numpy's generators
    Checkpoints(tmp_path).save(1, {"random": state})
    wanted = draws(rays, noise)
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    assert draws(rays, noise) != wanted
    Checkpoints(tmp_path).restore({"random": state})
    assert draws(rays, noise) == wanted


def test_what_is_drawn_inside_does_not_show_outside():
    rays = torch.Generator().manual_seed(3)
    state = RandomState(rays=rays).state_dict()
    wanted = draws(rays)
    RandomState(rays=rays).load_state_dict(state)
    with pytest.raises(ZeroDivisionError), preserve_random_state(rays=rays):
        draws(rays)[0] / 0
    assert draws(rays) == wanted


def test_other_names_or_kinds_of_generators_are_refused():
    state = RandomState(rays=torch.Generator()).state_dict()
    with pytest.raises(CheckpointError, match=r"generators \['views'\].*has \['rays'\]: .*same names"):
        RandomState(views=torch.Generator()).load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"'rays' .*of torch"):
        RandomState(rays=np.random.default_rng()).load_state_dict(state)
    other = RandomState(rays=np.random.default_rng()).state_dict()
    with pytest.raises(CheckpointError, match=r"'rays' .*of numpy"):
        RandomState(rays=torch.Generator()).load_state_dict(other)
    with pytest.raises(CheckpointError, match=r"'rays' is a Philox.* PCG64's"):
        RandomState(rays=np.random.Generator(np.random.Philox())).load_state_dict(other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without CUDA")
def test_a_state_of_more_cuda_devices_than_here_warns():
    state = RandomState().state_dict() | {"cuda": [torch.zeros(16, dtype=torch.uint8)]}
    with pytest.warns(RuntimeWarning, match="of 1 CUDA.*are 0"):
        RandomState().load_state_dict(state)


def test_cuda_generators_and_tensors_go_back(tmp_path, gpu):
    torch.rand(1, device=gpu)
    state = RandomState()
    Checkpoints(tmp_path).save(1, {"random": state, "x": torch.ones(3, device=gpu)})
    wanted = torch.rand(5, device=gpu)
    target = torch.zeros(3, device=gpu)
    Checkpoints(tmp_path).restore({"random": state, "x": target})
    assert torch.equal(torch.rand(5, device=gpu), wanted)
    assert target.eq(1).all()


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 7])
def test_one_seed_gives_one_state_of_all_global_generators(seed):
    with preserve_random_state():
        random.seed()
        np.random.seed()
        torch.seed()
        drawn = []
        for _ in range(2):
            seed_everything(seed)
            drawn.append((random.random(), np.random.rand(), torch.rand(()).item()))
        torch.manual_seed(seed)
        alone = torch.rand(()).item()
    assert drawn[0] == drawn[1]
    assert drawn[0][2] == alone

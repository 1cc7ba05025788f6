"""What CUDA refuses is refused, what it waits for is counted, and values are those of the CPU."""

import copy

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.pretended


def on_device(*shape, **options):
    return torch.ones(*shape, device="cuda", **options)


REFUSED = {
    "operands of two devices": lambda: on_device(4, 3) + torch.ones(3),
    "a product of two devices": lambda: on_device(4, 3) @ torch.ones(3, 2),
    "a stack with a stray": lambda: torch.stack([on_device(1).sum(), torch.tensor(1.0)]),
    "indices of the device into the host": lambda: torch.ones(3)[torch.tensor([1], device="cuda")],
    "a value of the host put into the device": lambda: on_device(3).index_put_(
        (torch.tensor([1], device="cuda"),), torch.ones(1)
    ),
    "a generator of the host": lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
    "a generator of the device on the host": lambda: torch.rand(3, generator=torch.Generator("cuda")),
    "numpy()": lambda: on_device(3).numpy(),
    "an array": lambda: np.asarray(on_device(3)),
    "gathering by indices of the host": lambda: on_device(3).gather(0, torch.tensor([1])),
    "selecting by indices of the host": lambda: on_device(3).index_select(0, torch.tensor([1])),
}


@pytest.mark.parametrize("wrong", REFUSED.values(), ids=REFUSED.keys())
def test_cuda_refuses(fake_cuda, wrong):
    with pytest.raises((RuntimeError, TypeError)):
        wrong()


WAITS = {
    "item": lambda x: x.sum().item(),
    "a condition": lambda x: bool(x.sum() > 0),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "a mask assigned": lambda x: x.index_put_((x > 0,), x.sum()),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "indices of the host": lambda x: x[torch.tensor([0, 1])],
    "cpu()": lambda x: x.cpu(),
    "numpy by force": lambda x: x.numpy(force=True),
    "a tensor of numbers": lambda x: x.new_tensor([1.0, 2.0]),
    "a pageable upload": lambda _: torch.ones(3).to("cuda", non_blocking=True),
    "a pageable download": lambda x: torch.empty(3).copy_(x, non_blocking=True),
    "synchronize": lambda _: torch.cuda.synchronize(),
    "an event": lambda _: torch.cuda.Event().synchronize(),
}


@pytest.mark.parametrize("act", WAITS.values(), ids=WAITS.keys())
def test_a_wait_is_counted(fake_cuda, act):
    x = on_device(3)
    before = fake_cuda.ledger.waits.total()
    act(x)
    assert fake_cuda.ledger.waits.total() == before + 1


FREE = {
    "arithmetic": lambda x: (x * 2.0 + torch.tensor(1.0)).sum(),
    "views": lambda x: x[1:].reshape(-1, 1).T,
    "integer rows": lambda x: x[torch.zeros(2, dtype=torch.long, device="cuda")],
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "repeat_interleave of known size": lambda x: x.repeat_interleave(x.long(), output_size=3),
    "a pinned upload": lambda _: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "a pinned download": lambda x: torch.empty(3, pin_memory=True).copy_(x, non_blocking=True),
    "a filled tensor": lambda _: torch.full((3,), 2.0, device="cuda"),
}


@pytest.mark.parametrize("act", FREE.values(), ids=FREE.keys())
def test_these_do_not_wait(fake_cuda, act):
    x = on_device(3)
    before = fake_cuda.ledger.waits.total()
    act(x)
    assert fake_cuda.ledger.waits.total() == before


def test_views_launch_nothing_and_operations_do(fake_cuda):
    x = on_device(4, 3)
    before = fake_cuda.ledger.copy()
    x[1:].T.reshape(-1).detach()
    assert fake_cuda.ledger.since(before).launches.total() == 1  # the reshape copies
    torch.addmm(x, x, on_device(3, 3))
    assert fake_cuda.ledger.since(before).launches["addmm"] == 1


def test_sums_in_no_fixed_order_are_counted(fake_cuda):
    rows = torch.tensor([0, 0, 1], device="cuda")
    on_device(2).index_add_(0, rows, on_device(3))
    on_device(3).cumsum(0)
    rows.cumsum(0)
    assert {operation for operation, _ in fake_cuda.ledger.unordered} == {"index_add_", "cumsum"}
    assert fake_cuda.ledger.unordered.total() == 2


def test_gradients_stay_on_the_device(fake_cuda):
    torch.manual_seed(0)
    weights = torch.randn(3, 2)
    wanted = weights.clone().requires_grad_()
    (wanted.square() @ torch.ones(2)).sum().backward()
    leaf = weights.to("cuda").requires_grad_()
    (leaf.square() @ on_device(2)).sum().backward()
    assert leaf.grad.is_cuda
    torch.testing.assert_close(leaf.grad.cpu(), wanted.grad, rtol=0, atol=0)


def test_views_share_memory(fake_cuda):
    x = on_device(4, 3)
    x[1] = 5.0
    x.data[2] = 7.0
    assert x.cpu()[:, 0].tolist() == [1.0, 5.0, 7.0, 1.0]
    assert x[1:].untyped_storage()._cdata == x.untyped_storage()._cdata


def test_a_module_moves(fake_cuda):
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).to("cuda")
    module(on_device(2, 1, 5, 5)).sum().backward()
    assert all(parameter.is_cuda and parameter.grad.is_cuda for parameter in module.parameters())
    assert all(buffer.is_cuda for buffer in module.buffers())
    twin = copy.deepcopy(module)
    assert all(parameter.is_cuda for parameter in twin.parameters())
    assert not any(parameter.is_cuda for parameter in module.cpu().parameters())


def test_the_device_has_random_numbers_of_its_own(fake_cuda):
    torch.manual_seed(3)
    host = torch.get_rng_state()
    state = torch.cuda.get_rng_state()
    first = torch.rand(4, device="cuda").cpu()
    torch.nn.functional.dropout(on_device(8))
    assert torch.equal(torch.get_rng_state(), host)
    torch.cuda.set_rng_state(state)
    torch.testing.assert_close(torch.rand(4, device="cuda").cpu(), first, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
def test_optimizers_step_as_on_the_host(fake_cuda, options):
    results = []
    for device in ("cpu", "cuda"):
        leaf = torch.linspace(-1, 1, 5).to(device).requires_grad_()
        optimizer = torch.optim.Adam([leaf], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            leaf.square().sum().backward()
            optimizer.step()
        results.append(leaf.detach().cpu())
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_an_optimizer_whose_first_state_is_restored_skips_a_refused_step_on_the_device(fake_cuda):
    from fieldwatch.guard import guarded_step, prefer_fused  # noqa: PLC0415  after the hook of the annotation checks

    leaf = torch.ones(3, device="cuda").requires_grad_()
    leaf.grad = on_device(3)
    optimizer = torch.optim.Adam([leaf], lr=0.1)
    first = copy.deepcopy(optimizer.state_dict())
    accepted, refused = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
    for _ in range(2):
        assert prefer_fused(optimizer)
        assert not prefer_fused(optimizer)
        before = leaf.detach().clone()
        guarded_step(optimizer, accepted)
        waits = fake_cuda.ledger.waits.total()
        guarded_step(optimizer, refused)
        assert fake_cuda.ledger.waits.total() == waits
        torch.testing.assert_close((before - leaf.detach()).cpu(), torch.full((3,), 0.1))
        optimizer.load_state_dict(copy.deepcopy(first))  # as a run that goes back to it


def test_nothing_is_left_behind():
    from fake_cuda import FakeCuda  # noqa: PLC0415

    with FakeCuda():
        assert torch.cuda.is_available()
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")


def test_memory_is_what_tensors_and_saved_values_hold(fake_cuda):
    leaf = torch.zeros(1000, device="cuda", requires_grad=True)
    assert torch.cuda.memory_allocated() == 4096  # rounded up to blocks of 512 bytes
    view = leaf.detach()[10:]
    grown = leaf.exp()
    total = grown.sin().sum()
    assert torch.cuda.memory_allocated() == 2 * 4096 + 512  # a view has no memory of its own
    assert torch.cuda.max_memory_allocated() == 3 * 4096 + 512  # the sine was summed, and is gone
    del grown, view
    assert torch.cuda.memory_allocated() == 2 * 4096 + 512  # saved for the backward pass
    total.backward()
    del total
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 2 * 4096  # the leaf and its gradient

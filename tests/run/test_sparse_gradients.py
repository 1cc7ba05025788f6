"""Embeddings with sparse gradients: trained as without a run, recorded, clipped, refused."""

import pytest
import torch
from torch import nn

from fieldwatch import Outputs, Run, Terms, read_history

STEPS = 12


def draw():
    torch.manual_seed(0)
    table = nn.Embedding(20, 4, sparse=True)
    words = torch.randint(20, (STEPS, 16))  # rows that occur twice
    return table, words


def loss_of(table, words):
    return table(words).square().sum(dim=1).mean()


def trained(folder, *, clip=None, spoil=None):
    table, words = draw()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.05)
    with Run(folder, outputs=Outputs(sinks=(), detail_every=4)) as run:
        run.track(table=table, optimizer=optimizer)
        for step in run.steps(STEPS):
            optimizer.zero_grad()
            loss = loss_of(table, words[step.index])
            terms = Terms(fit=(1.0, loss * (torch.nan if step.index == spoil else 1.0)))
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=clip)
    return table.weight.detach()


def test_the_training_is_that_of_the_bare_loop(tmp_path):
    table, words = draw()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.05)
    norms = []
    for each in words:
        optimizer.zero_grad()
        loss_of(table, each).backward()
        norms.append(table.weight.grad.to_dense().norm().item())
        optimizer.step()
    assert torch.equal(trained(tmp_path), table.weight)
    assert read_history(tmp_path)["Gradients/total_norm"].values.tolist() == pytest.approx(norms)


def test_clipping_scales_the_gradient_itself(tmp_path):
    table, words = draw()
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.05)
    for each in words:
        optimizer.zero_grad()
        loss_of(table, each).backward()
        dense = table.weight.grad.to_dense()
        table.weight.grad *= (0.01 / dense.norm()).clamp(max=1.0)
        optimizer.step()
    torch.testing.assert_close(trained(tmp_path, clip=0.01), table.weight.detach())


def test_an_update_that_is_not_finite_is_refused(tmp_path):
    assert trained(tmp_path, spoil=5).isfinite().all()
    assert read_history(tmp_path)["Guard/refused"].values.tolist() == [float(step == 5) for step in range(STEPS)]

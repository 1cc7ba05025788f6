"""Reopening a refinement without its coarse run and its original mesh."""

import shutil
from dataclasses import replace

import pytest
import torch

from fieldwatch.recon.pipelines.splats import (
    RefineConfig,
    evaluate,
    open_drawn_run,
    open_refined_run,
    open_run,
    prepare_refinement,
    refine_mesh,
    stored_refine_config,
)
from fieldwatch.record import NotARun
from fieldwatch.record.config import preset_of_run


def test_it_draws_what_was_evaluated_even_when_run_and_mesh_are_gone(config, tmp_path):
    run = shutil.copytree(config.run, tmp_path / "coarse")
    mesh = shutil.copy(config.mesh, tmp_path / "mesh.ply")
    chosen = replace(config, run=run, mesh=tmp_path / "mesh.ply", iterations=5, gaussians_per_triangle=3)
    outcome = refine_mesh(
        chosen, prepare_refinement(chosen), tmp_path / "refined", preset=replace(chosen, iterations=9)
    )
    shutil.rmtree(run)
    (tmp_path / "mesh.ply").unlink()
    assert mesh
    stored = open_refined_run(outcome.folder)
    again = evaluate(stored.model, stored.scene)
    assert again.metrics["Test/psnr"] == pytest.approx(outcome.evaluation.metrics["Test/psnr"], abs=1e-4)
    assert (stored.step, stored.refine, stored.config.coarse_iterations) == (5, chosen, 10)
    assert stored.bound.per_triangle == 3
    assert stored_refine_config(outcome.folder) == chosen
    assert preset_of_run(outcome.folder, "refined", RefineConfig) == replace(chosen, iterations=9)


def test_each_opener_opens_its_own_and_the_common_one_both(config, tmp_path):
    chosen = replace(config, iterations=1)
    folder = refine_mesh(chosen, prepare_refinement(chosen), tmp_path / "refined").folder
    with pytest.raises(NotARun, match=r"run of refined.*opens splats"):
        open_run(folder)
    with pytest.raises(NotARun, match=r"run of splats.*opens refined"):
        open_refined_run(config.run)
    assert torch.equal(open_drawn_run(folder).model.gaussians.means, open_refined_run(folder).model.gaussians.means)
    assert torch.equal(open_drawn_run(config.run).model.gaussians.means, open_run(config.run).model.gaussians.means)

"""Names of imported runs: the usual loss becomes Loss/total, and the user's names win."""

import pytest

from fieldwatch.report.imports import BadSource, recorded_names


@pytest.mark.parametrize("loss", ["loss", "train_loss", "train/loss", "Loss/train", "training/loss"])
def test_a_usual_loss_becomes_the_total(loss):
    assert recorded_names([loss, "val/loss"]) == {loss: "Loss/total", "val/loss": "val/loss"}


def test_the_most_usual_of_several_losses_is_taken():
    assert recorded_names(["train_loss_epoch", "train_loss"])["train_loss"] == "Loss/total"


@pytest.mark.parametrize("chosen", ["mse=Loss/total", "loss=loss"])
def test_the_users_name_wins(chosen):
    name, _, new = chosen.partition("=")
    names = recorded_names(["loss", "mse"], [chosen])
    assert names == {"loss": "loss", "mse": "mse", name: new}


def test_a_loss_with_our_name_stays():
    names = ["loss", "Loss/total"]
    assert recorded_names(names) == {name: name for name in names}


@pytest.mark.parametrize("chosen", ["loss", "=new", "loss=", "gone=new", "loss=val"])
def test_a_wrong_choice_is_refused(chosen):
    with pytest.raises(BadSource):
        recorded_names(["loss", "val"], [chosen])

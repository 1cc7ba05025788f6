"""Trains the language model of Lightning's demos, with the gradient clipping of the example that it is adapted from."""

import logging

import lightning.pytorch as pl
from lightning.pytorch.demos.transformer import WikiText2
from lstm import LightningLSTM  # pyright: ignore[reportMissingImports]  of the loop's package
from start import finish

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
module = LightningLSTM(vocab_size=WikiText2().vocab_size)
trainer = pl.Trainer(
    max_epochs=3,
    accelerator="cpu",
    gradient_clip_val=0.25,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module)
finish(model=module)

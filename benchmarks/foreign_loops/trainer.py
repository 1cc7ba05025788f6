"""Trains a small model of transformers with the Trainer, whose loop it is."""

from stand_ins import Pairs, tiny_bert
from start import finish
from transformers import Trainer, TrainingArguments

model = tiny_bert()
arguments = TrainingArguments(
    output_dir="output",
    max_steps=120,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    logging_steps=1,
    save_steps=20,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=Pairs(640, 1))
trainer.train()
finish(model=model)

"""Calls the loop of nano-gpt with a small model and the characters of a text."""

from nano_gpt.config import GPTConfig, TrainConfig  # pyright: ignore[reportMissingImports]  of the loop's package
from nano_gpt.model import GPT  # pyright: ignore[reportMissingImports]  of the loop's package
from nano_gpt.trainer import WorkerState, create_optimizer, train  # pyright: ignore[reportMissingImports]  of the loop's package
from stand_ins import Characters
from start import finish

from fieldwatch import ResumableLoader

sizes = GPTConfig(block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=32)
config = TrainConfig(
    total_batch_size=512, micro_batch_size=8, sequence_length=32, max_lr=3e-3, warmup_steps=10, max_steps=240
)
model = GPT(sizes, tokenizer=None)
optimizer = create_optimizer(model, config, None, is_cuda=False)
loader = ResumableLoader(Characters(4500, 32), batch_size=8)
train(model, optimizer, WorkerState("cpu"), config, loader)
finish(model=model)

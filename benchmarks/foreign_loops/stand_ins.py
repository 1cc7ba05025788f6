"""Data and packages that the loops expect, and that cannot be downloaded everywhere: made here, from fixed seeds."""

import pydoc_data.topics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fieldwatch import ResumableLoader

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
"""Segments of a seven-segment display that each digit lights."""
BARS = {
    "a": (slice(4, 7), slice(8, 20)),
    "b": (slice(4, 14), slice(17, 20)),
    "c": (slice(14, 24), slice(17, 20)),
    "d": (slice(21, 24), slice(8, 20)),
    "e": (slice(14, 24), slice(8, 11)),
    "f": (slice(4, 14), slice(8, 11)),
    "g": (slice(12, 15), slice(8, 20)),
}
"""Pixels of each segment."""


class Digits(Dataset):
    """Pictures of 28 x 28 pixels of digits of seven segments, shifted, with noise; like torchvision's ``MNIST``."""

    def __init__(self, root: str, *, train: bool = True, download: bool = False, transform: Any = None) -> None:
        del root, download
        draw = torch.Generator().manual_seed(int(train))
        count = 3000 if train else 500
        self.targets = torch.randint(10, (count,), generator=draw)
        self.data = torch.zeros(count, 28, 28)
        shifts = torch.randint(-4, 5, (count, 2), generator=draw)
        for picture, digit, (down, right) in zip(self.data, self.targets.tolist(), shifts.tolist(), strict=True):
            for segment in SEGMENTS[digit]:
                picture[BARS[segment]] = 1.0
            picture.copy_(picture.roll((down, right), (0, 1)))
        self.data = (self.data + 0.3 * torch.rand(self.data.shape, generator=draw)).clamp(max=1.0)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.data[index][None]
        return (picture if self.transform is None else self.transform(picture)), int(self.targets[index])


def compose(steps: list[Any]) -> Any:
    """Return a function that applies functions one after the other."""

    def apply(picture: Tensor) -> Tensor:
        for step in steps:
            picture = step(picture)
        return picture

    return apply


def resize(size: int) -> Any:
    """Return a function that resizes a picture."""
    return lambda picture: torch.nn.functional.interpolate(picture[None], (size, size), mode="bilinear")[0]


def save_image(pictures: Tensor, path: str, *, normalize: bool = False) -> None:
    """Write pictures side by side."""
    row = torch.cat(list(pictures.detach()[:, 0]), dim=1)
    row = (row - row.min()) / (row.max() - row.min()) if normalize else row
    Image.fromarray((255 * row).byte().numpy()).save(path)


datasets = SimpleNamespace(MNIST=Digits)
transforms = SimpleNamespace(
    Compose=compose,
    Resize=resize,
    ToTensor=lambda: lambda picture: picture,
    Normalize=lambda mean, spread: lambda picture: (picture - mean[0]) / spread[0],
)
utils = SimpleNamespace(save_image=save_image)


def write_names(folder: Path) -> None:
    """Write names of four invented languages, one file each: every language prefers other letters."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    for language, letters in (("Aven", "aelinor"), ("Bruk", "bgkrtuz"), ("Cimo", "cimosty"), ("Dhal", "adhlpvw")):
        names = ("".join(draw.choice(list(letters), 6)) for _ in range(400))
        (folder / f"{language}.txt").write_text("\n".join(names))


def write_text(path: Path, words: int) -> None:
    """Write the beginning of Python's own help."""
    path.parent.mkdir(exist_ok=True)
    text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    path.write_text(" ".join(text.lower().split()[:words]))


class Characters(Dataset):
    """Pieces of Python's own help as indices of characters, each with the piece that is one character later."""

    def __init__(self, count: int, length: int) -> None:
        text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).lower()
        kept = [c for c in text[: count * length + 1] if c in "abcdefghijklmnopqrstuvwxyz .,()=_"]
        letters = {c: index for index, c in enumerate(sorted(set(kept)))}
        self.length = length
        self.data = torch.tensor([letters[c] for c in kept])

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.length
        return self.data[start : start + self.length], self.data[start + 1 : start + self.length + 1]


class Pairs(Dataset):
    """Sequences of words whose label says whether the word 5 occurs more often than the word 6."""

    def __init__(self, count: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.words = torch.randint(1, 12, (count, 16), generator=draw)
        self.labels = ((self.words == 5).sum(1) > (self.words == 6).sum(1)).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.words[index],
            "attention_mask": torch.ones(16, dtype=torch.long),
            "labels": self.labels[index],
        }


def batched(rows: list[dict[str, Tensor]]) -> Any:
    """Return rows as the batch that a tokenizer of transformers makes."""
    from transformers import BatchEncoding  # noqa: PLC0415  only two of the loops need it

    return BatchEncoding({name: torch.stack([row[name] for row in rows]) for name in rows[0]})


def loaders(batch_size: int) -> tuple[ResumableLoader, DataLoader]:
    """Return loaders of training and held-out sequences."""
    train = ResumableLoader(Pairs(640, 1), batch_size, collate_fn=batched)
    return train, DataLoader(Pairs(160, 2), batch_size=32, collate_fn=batched)


def tiny_bert() -> Any:
    """Return a small model of transformers that has not been trained."""
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415  only two of the loops need it

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=16,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
        )
    )


class Accuracy:
    """The metric ``accuracy`` of the package evaluate."""

    def __init__(self) -> None:
        self.hits: list[bool] = []

    def add_batch(self, predictions: Tensor, references: Tensor) -> None:
        """Add the predictions of a batch."""
        self.hits += (predictions == references).tolist()

    def compute(self) -> dict[str, float]:
        """Return the metric, and begin again."""
        result = {"accuracy": sum(self.hits) / len(self.hits)}
        self.hits.clear()
        return result

"""Sound trainings beside those of sets a and b: rare stripes, a distilled network, counting songs, and tastes."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Terms

from .supervised import Parts
from .tasks_b import EpochOrder, generator, stripe_data, stripe_network

RARE = 3
"""Directions from this one on are rare among the stripes."""


def rare_stripes(seed: int, exponent: float = -1.0) -> Parts:
    """Classify stripes of which half of the directions are rare, with weights in the loss.

    Args:
        seed: seed.
        exponent: power of the frequency of a direction that is its weight: -1 for rare ones to count more.
    """
    inputs, labels = stripe_data(seed, 1600)
    kept = (labels < RARE) | (torch.rand(len(labels), generator=generator(seed, 51)) < 1 / 8)
    inputs = inputs[kept]
    labels = labels[kept]
    test_inputs, test_labels = stripe_data(seed, 400, salt=2)
    model = stripe_network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    share = labels.bincount().float() / len(labels)
    weight = share**exponent / (share**exponent).mean()

    def recall() -> float:
        right = model(test_inputs).argmax(1) == test_labels
        return float(torch.stack([right[test_labels == kind].float().mean() for kind in range(6)]).mean())

    return Parts(
        model=model,
        optimizer=optimizer,
        inputs=inputs,
        targets=labels,
        terms=lambda x, y: Terms(loss=(1.0, functional.cross_entropy(model(x), y, weight))),
        measure=lambda: {"val/recall": recall()},
        figure=recall,
        steps=250,
        batch=48,
        every=40,
        draw=EpochOrder(len(inputs), 48, seed),
    )


def distilled(seed: int, logarithms: bool = True) -> Parts:  # noqa: FBT001, FBT002  tasks are made with partial
    """Teach a small network the chances that a larger one gives.

    Args:
        seed: seed.
        logarithms: whether the divergence gets logarithms of chances, as it has to.
    """
    draw = generator(seed, 61)
    large = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 5))
    inputs = torch.randn(1500, 6, generator=draw)
    test = torch.randn(400, 6, generator=draw)
    with torch.no_grad():
        chances = (6 * large(inputs)).softmax(1)
        wanted = (6 * large(test)).softmax(1)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))

    def terms(x: Tensor, y: Tensor) -> Terms:
        said = model(x).log_softmax(1) if logarithms else model(x).softmax(1)
        return Terms(distill=(1.0, functional.kl_div(said, y, reduction="batchmean")))

    def divergence() -> float:
        return float(functional.kl_div(model(test).log_softmax(1), wanted, reduction="batchmean"))

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        inputs=inputs,
        targets=chances,
        terms=terms,
        measure=lambda: {"val/divergence": divergence()},
        figure=lambda: -divergence(),
        steps=300,
        batch=50,
        every=50,
    )


PAD, BEGIN = 0, 1
LONGEST = 9


class Singer(nn.Module):
    """A recurrent model of the next number."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.Embedding(12, 16)
        self.memory = nn.LSTM(16, 48, batch_first=True)
        self.next = nn.Linear(48, 12)

    def forward(self, song: Tensor) -> Tensor:
        """Return one score per number, shape [batch, length, 12]."""
        return self.next(self.memory(self.numbers(song))[0])


def songs(seed: int, count: int, salt: int) -> Tensor:
    """Return songs [n, 10] that begin with a mark, count up by their first number, and end after 4 to 9 numbers."""
    draw = generator(seed, salt)
    first = torch.randint(10, (count, 1), generator=draw)
    place = torch.arange(1, LONGEST + 1)
    length = torch.randint(4, LONGEST + 1, (count, 1), generator=draw)
    numbers = torch.where(place <= length, 2 + (first * place + 3 * place**2) % 10, PAD)
    return torch.cat([torch.full((count, 1), BEGIN), numbers], dim=1)


def counting(seed: int, prompt: str = "as trained") -> Parts:
    """Learn to count on; evaluated is the number behind prompts.

    Args:
        seed: seed.
        prompt: form of the prompts: "as trained", "padded on the left", or "without the mark".
    """
    train = songs(seed, 1500, 71)
    held = songs(seed, 300, 72)
    model = Singer()

    def terms(x: Tensor, y: Tensor) -> Terms:
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=PAD)
        return Terms(next_number=(1.0, loss))

    def score(form: str) -> float:
        right: list[Tensor] = []
        for known in (1, 2):
            given = held[:, : known + 1]
            if form == "padded on the left":
                given = functional.pad(given, (LONGEST - known, 0), value=PAD)
            elif form == "without the mark":
                given = given[:, 1:]
            right.append(model(given)[:, -1].argmax(1) == held[:, known + 1])
        return float(torch.cat(right).float().mean())

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
        inputs=train[:, :-1],
        targets=train[:, 1:],
        terms=terms,
        measure=lambda: {"val/right": score(prompt)},
        figure=lambda: score(prompt),
        steps=240,
        batch=48,
        every=40,
    )


class Tastes(nn.Module):
    """Users and things as vectors, whose product says whether a user likes a thing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(120, width)
        self.things = nn.Embedding(90, width)
        nn.init.normal_(self.users.weight, std=0.2)
        nn.init.normal_(self.things.weight, std=0.2)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return logits of pairs [n, 2]."""
        return (self.users(pairs[:, 0]) * self.things(pairs[:, 1])).sum(1)


def likes(seed: int, *, width: int = 3, steps: int = 400, decay: float = 1e-2) -> Parts:
    """Predict who likes what; evaluated is the gain over a prediction of the mean chance.

    Args:
        seed: seed.
        width: numbers per user and thing.
        steps: number of steps.
        decay: weight decay.
    """
    draw = generator(seed, 81)
    users = torch.randn(120, 2, generator=draw)
    things = torch.randn(90, 2, generator=draw)

    surprise = functional.binary_cross_entropy_with_logits

    def liked(count: int) -> tuple[Tensor, Tensor]:
        pairs = torch.stack(
            [torch.randint(120, (count,), generator=draw), torch.randint(90, (count,), generator=draw)], dim=1
        )
        chance = (2 * (users[pairs[:, 0]] * things[pairs[:, 1]]).sum(1)).sigmoid()
        return pairs, (torch.rand(count, generator=draw) < chance).float()

    pairs, values = liked(8000)
    test, wanted = liked(1200)
    model = Tastes(width)

    def gain() -> float:
        return 1 - float(surprise(model(test), wanted) / surprise(wanted.mean().logit().expand(1200), wanted))

    return Parts(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=decay),
        inputs=pairs,
        targets=values,
        terms=lambda x, y: Terms(surprise=(1.0, surprise(model(x), y))),
        measure=lambda: {"val/gain": gain()},
        figure=gain,
        steps=steps,
        batch=80,
        every=steps // 10,
    )

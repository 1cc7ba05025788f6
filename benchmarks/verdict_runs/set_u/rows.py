"""Sound trainings on rows: much noise, few samples, rare classes, censored times, and losses of all kinds."""

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a perceptron without an activation at its end."""
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), act()]
    return nn.Sequential(*layers[:-1])


def rainfall(folder: Path, seed: int, *, epochs: int = 20) -> float:
    """Fit mean and spread of rain whose noise depends on the place; returns the explained share of the true mean."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(11 * seed + 5)

    def sample(n: int) -> tuple[Tensor, Tensor, Tensor]:
        x = 2 * torch.rand(n, 4, generator=gen) - 1
        mean = 0.5 * (3 * x[:, 0]).sin() + x[:, 1] * x[:, 2]
        sigma = 0.05 + 0.5 * (x[:, 3] + 1) / 2
        return x, mean + sigma * torch.randn(n, generator=gen), mean

    x, y, _ = sample(1600)
    xv, yv, mv = sample(500)
    net = mlp(4, 64, 64, 2, act=nn.SiLU)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

    def nll(features: Tensor, target: Tensor) -> Tensor:
        mu, raw = net(features).unbind(1)
        return functional.gaussian_nll_loss(mu, target, functional.softplus(raw) + 1e-4)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for _ in range(epochs):
            for features, target in loader:
                step = run.begin_step(total=epochs * len(loader))
                loss = nll(features, target)
                opt.zero_grad()
                loss.backward()
                step.observe(Terms(nll=(1.0, loss)))
                step.update(opt)
                run.end_step()
            with torch.no_grad(), run.evaluation("held-out gauges"):
                deviation = (net(xv)[:, 0] - yv).square().mean().sqrt()
                run.record({"val/nll": float(nll(xv, yv)), "val/rmse": float(deviation)})
    with torch.no_grad():
        return 1 - float((net(xv)[:, 0] - mv).square().mean() / mv.var())


def polls(folder: Path, seed: int, *, noise: float = 2.2, loss: str = "mse", epochs: int = 12) -> float:
    """Foretell answers of a poll that are mostly chance; returns the correlation with their true means.

    Args:
        folder: run folder.
        seed: seed.
        noise: noise of the answers; their means have a deviation of about 1.
        loss: "mse", "huber" or "l1".
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(13 * seed + 3)

    def people(n: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(n, 10, generator=gen)
        mean = 0.6 * x[:, 0] - 0.5 * x[:, 1] + 0.6 * (x[:, 2] > 0.3).float() + 0.3 * x[:, 3] * x[:, 4]
        return x, mean + noise * torch.randn(n, generator=gen), mean

    x, y, _ = people(3000)
    xv, yv, mv = people(800)
    model = mlp(10, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    measures = {"mse": functional.mse_loss, "huber": functional.huber_loss, "l1": functional.l1_loss}
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for _ in range(epochs):
            for features, target in loader:
                step = run.begin_step(total=epochs * len(loader))
                value = measures[loss](model(features)[:, 0], target)
                optimizer.zero_grad()
                value.backward()
                step.observe(Terms(**{loss: (1.0, value)}))
                step.update(optimizer)
                run.end_step()
            with torch.no_grad(), run.evaluation("other people"):
                made = model(xv)[:, 0]
                run.record(
                    {
                        f"val/{loss}": measures[loss](made, yv),
                        "val/r2": 1 - (made - yv).square().mean() / yv.var(),
                        "val/mae": (made - yv).abs().mean(),
                    }
                )
    with torch.no_grad():
        return float(torch.corrcoef(torch.stack([model(xv)[:, 0], mv]))[0, 1])


def area(score: Tensor, positive: Tensor) -> float:
    """Return the area under the receiver operating characteristic."""
    yes, no = score[positive], score[~positive]
    return float((yes[:, None] > no[None]).float().mean())


def fraud(folder: Path, seed: int, *, weight: float = 20.0, focal: float = 0.0, total: int = 300) -> float:
    """Find the three of a hundred payments that are fraud; returns the area under the curve on other payments.

    Args:
        folder: run folder.
        seed: seed.
        weight: weight of a fraud in the loss.
        focal: exponent of a focal loss; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(17 * seed + 1)

    def payments(n: int) -> tuple[Tensor, Tensor]:
        y = torch.rand(n, generator=gen) < 0.03
        x = torch.randn(n, 12, generator=gen)
        x[:, :4] += 0.9 * y[:, None]
        x[:, 4] *= 1 + y.float()
        return x, y

    x, y = payments(6000)
    xv, yv = payments(3000)
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)

    def objective(features: Tensor, target: Tensor) -> Tensor:
        logit = net(features)[:, 0]
        each = functional.binary_cross_entropy_with_logits(
            logit, target.float(), pos_weight=torch.tensor(weight), reduction="none"
        )
        if focal:
            right = torch.where(target, logit.sigmoid(), 1 - logit.sigmoid())
            each = (1 - right).pow(focal) * each
        return each.mean()

    def scored() -> dict[str, float]:
        net.eval()
        with torch.no_grad():
            logit = net(xv)[:, 0]
        net.train()
        said = logit > 0
        hit = float((said & yv).sum())
        return {
            "val/auc": area(logit, yv),
            "val/recall": hit / float(yv.sum()),
            "val/precision": hit / max(float(said.sum()), 1.0),
        }

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            index = torch.randint(len(x), (128,))
            value = objective(x[index], y[index])
            opt.zero_grad()
            value.backward()
            step.observe(Terms(bce=(1.0, value)))
            step.update(opt, clip=5.0)
            if step.every(50):
                with run.evaluation("other payments"):
                    step.record(scored())
    return scored()["val/auc"]


def seedlings(folder: Path, seed: int, *, kept: str = "best", epochs: int = 60) -> float:
    """Tell kinds of seedlings from a hundred samples; returns the accuracy on many others.

    Args:
        folder: run folder.
        seed: seed.
        kept: weights that count: the "best" ones on a small validation set, or the "last" ones.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(19 * seed + 2)
    centers = torch.randn(3, 16, generator=gen) * 0.55

    def plants(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(3, (n,), generator=gen)
        return centers[y] + torch.randn(n, 16, generator=gen), y

    x, y = plants(120)
    xv, yv = plants(60)
    xt, yt = plants(2000)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.1)
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    best = right = 0.0
    state = copy.deepcopy(net.state_dict())
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for _ in range(epochs):
            for features, target in loader:
                step = run.begin_step(total=epochs * len(loader))
                loss = functional.cross_entropy(net(features), target)
                opt.zero_grad()
                loss.backward()
                step.observe(Terms(ce=(1.0, loss)))
                step.update(opt)
                run.end_step()
            net.eval()
            with torch.no_grad(), run.evaluation("validation"):
                out = net(xv)
                right = float((out.argmax(1) == yv).float().mean())
                run.record({"val/accuracy": right, "val/loss": float(functional.cross_entropy(out, yv))})
                run.record({"train/accuracy": float((net(x).argmax(1) == y).float().mean())})
            net.train()
            if right > best:
                best = right
                state = copy.deepcopy(net.state_dict())
    if kept == "best":
        net.load_state_dict(state)
    net.eval()
    with torch.no_grad():
        return float((net(xt).argmax(1) == yt).float().mean())


def electricity(folder: Path, seed: int, *, total: int = 300) -> float:
    """Foretell a drifting load for the next day as quantiles; returns the gain on a repetition of the last value.

    The held-out part is the end of the series, whose level is higher than any before.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(23 * seed + 7)
    hours = torch.arange(3000.0)
    level = 0.0006 * hours + 0.3 * torch.randn(3000, generator=gen).cumsum(0) / 30
    series = level + (2 * math.pi * hours / 24).sin() + 0.5 * (2 * math.pi * hours / 168).cos()
    series = series + 0.25 * torch.randn(3000, generator=gen)
    windows = series.unfold(0, 72, 1)
    past, future = windows[:, :48], windows[:, 48:]
    last = past[:, -24:].mean(1, keepdim=True)
    past, future = past - last, future - last
    train = int(0.75 * len(past))
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    net = mlp(48, 96, 3 * 24)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=4e-3, total_steps=total)

    def pinball(made: Tensor, target: Tensor) -> Tensor:
        miss = target[:, None] - made.view(-1, 3, 24)
        return torch.maximum(quantiles[:, None] * miss, (quantiles[:, None] - 1) * miss).mean()

    def judged() -> tuple[float, float, float]:
        with torch.no_grad():
            made = net(past[train + 72 :]).view(-1, 3, 24)
        target = future[train + 72 :]
        inside = ((target > made[:, 0]) & (target < made[:, 2])).float().mean()
        error = (made[:, 1] - target).abs().mean()
        naive = (past[train + 72 :, -24:] - target).abs().mean()
        return float(inside), float(error), float(1 - error / naive)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(train, (64,))
            loss = pinball(net(past[i]), future[i])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(pinball=(1.0, loss)))
            step.update(opt)
            schedule.step()
            if step.every(50):
                inside, error, gain = judged()
                with run.evaluation("the following weeks"):
                    step.record({"test/inside_80": inside, "test/mae": error, "test/gain_on_yesterday": gain})
    return judged()[2]


def remission(folder: Path, seed: int, *, total: int = 200) -> float:
    """Order patients by the time to a relapse, a third of which is censored; returns the concordance of others."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(29 * seed + 4)

    def cohort(n: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(n, 8, generator=gen)
        hazard = (0.7 * x[:, 0] - 0.6 * x[:, 1] + 0.4 * x[:, 2].square() - 0.4).exp()
        time = -torch.rand(n, generator=gen).log() / hazard
        end = -torch.rand(n, generator=gen).log() / 0.4
        return x, torch.minimum(time, end), time < end

    def cox(risk: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        order = time.argsort(descending=True)
        risk, seen = risk[order], seen[order]
        return -(risk - risk.logcumsumexp(0))[seen].mean()

    x, time, seen = cohort(900)
    xv, tv, sv = cohort(300)
    net = mlp(8, 32, 32, 1, act=nn.Tanh)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-4)

    def concordance() -> float:
        with torch.no_grad():
            risk = net(xv)[:, 0]
        pairs = sv[:, None] & (tv[:, None] < tv[None])
        return float((risk[:, None] > risk[None])[pairs].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randperm(900)[:150]
            loss = cox(net(x[i])[:, 0], time[i], seen[i])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(partial_likelihood=(1.0, loss)))
            step.update(opt)
            if step.every(25):
                with run.evaluation("another hospital"):
                    step.record({"val/c_index": concordance()})
    return concordance()


def bookshop(folder: Path, seed: int, *, total: int = 350) -> float:
    """Recommend books with sparse embeddings by pairs; returns the share of held-out books among the ten first.

    The figure is a multiple of the share that ten books drawn at random would reach.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(31 * seed + 6)
    users, books, taste = 300, 200, 6
    love = torch.randn(users, taste, generator=gen) @ torch.randn(books, taste, generator=gen).T
    bought = torch.stack([torch.multinomial(row.softmax(0), 24, generator=gen) for row in love])
    train, held = bought[:, :20], bought[:, 20:]
    of_user = nn.Embedding(users, 16, sparse=True)
    of_book = nn.Embedding(books, 16, sparse=True)
    for table in (of_user, of_book):
        nn.init.normal_(table.weight, std=0.1)
    opt = torch.optim.SparseAdam([*of_user.parameters(), *of_book.parameters()], lr=2e-2)

    def recall() -> float:
        with torch.no_grad():
            scores = (of_user.weight @ of_book.weight.T).scatter(1, train, -1e9)
        top = scores.topk(10).indices
        return float((held[:, :, None] == top[:, None]).any(2).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(users=of_user, books=of_book, opt=opt)
        run.resume()
        for step in run.steps(total):
            u = torch.randint(users, (256,))
            liked = train[u, torch.randint(20, (256,))]
            other = torch.randint(books, (256,))
            margin = (of_user(u) * (of_book(liked) - of_book(other))).sum(1)
            loss = -functional.logsigmoid(margin).mean()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(bpr=(1.0, loss)))
            step.update(opt)
            if step.every(70):
                with run.evaluation("held-out purchases"):
                    step.record({"val/recall_at_10": recall()})
    return recall() / (10 / (books - 20))


def inverse_arm(folder: Path, seed: int, *, total: int = 400) -> float:
    """Fit a mixture density to an inverse with two branches; returns the mean log-density of other pairs."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(37 * seed + 8)

    def pairs(n: int) -> tuple[Tensor, Tensor]:
        y = 2 * torch.rand(n, 1, generator=gen) - 1
        x = y + 0.9 * (2 * math.pi * y).sin() / 2 + 0.05 * torch.randn(n, 1, generator=gen)
        return x, y

    x, y = pairs(2000)
    xv, yv = pairs(500)
    net = mlp(1, 48, 48, 15, act=nn.Tanh)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)

    def log_density(given: Tensor, target: Tensor) -> Tensor:
        logits, mean, spread = net(given).chunk(3, 1)
        component = torch.distributions.Normal(mean, spread.clamp(-4, 2).exp())
        return (logits.log_softmax(1) + component.log_prob(target)).logsumexp(1).mean()

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(2000, (128,))
            loss = -log_density(x[i], y[i])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(negative_log_density=(1.0, loss)))
            step.update(opt)
            if step.every(50):
                with torch.no_grad(), run.evaluation("other pairs"):
                    step.record({"eval/log_density": log_density(xv, yv)})
    with torch.no_grad():
        return float(log_density(xv, yv))


def glass(folder: Path, seed: int, *, total: int = 25) -> float:
    """Tell kinds of glass by LBFGS on all rows, with a penalty; returns the accuracy on others."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(41 * seed + 9)
    w = torch.randn(9, 4, generator=gen)

    def pieces(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 9, generator=gen)
        return x, (x @ w + torch.randn(n, 4, generator=gen)).argmax(1)

    x, y = pieces(400)
    xv, yv = pieces(600)
    model = nn.Linear(9, 4)
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Terms:
        lbfgs.zero_grad()
        terms = Terms(ce=(1.0, functional.cross_entropy(model(x), y)), ridge=(1e-3, model.weight.square().sum()))
        terms.total.backward()
        return terms

    def accuracy() -> float:
        with torch.no_grad():
            return float((model(xv).argmax(1) == yv).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, lbfgs=lbfgs)
        run.resume()
        for step in run.steps(total):
            step.update(lbfgs, closure=closure)
            with run.evaluation("test"):
                step.record({"test/accuracy": accuracy()})
    return accuracy()


def apartments(folder: Path, seed: int, *, epochs: int = 8) -> float:
    """Foretell rent (Huber) and whether pets are allowed with shared layers; returns the mean of both scores."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(43 * seed + 2)

    def flats(n: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(n, 8, generator=gen)
        rent = 900 + 200 * x[:, 0] + 150 * x[:, 1].relu() + 60 * x[:, 2] * x[:, 0]
        heavy = torch.distributions.StudentT(2.5).sample((n,))
        return x, rent + 40 * heavy, (x[:, 3] + x[:, 4] * x[:, 5] + 0.5 * torch.randn(n, generator=gen) > 0).float()

    x, rent, pets = flats(4000)
    xv, rv, pv = flats(800)
    shift, scale = rent.mean(), rent.std()
    body = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    heads = nn.ModuleDict({"rent": nn.Linear(64, 1), "pets": nn.Linear(64, 1)})
    opt = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.05, momentum=0.9, nesterov=True)
    steps = epochs * 16
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=steps)

    def scores() -> dict[str, float]:
        with torch.no_grad():
            h = body(xv)
            made = heads["rent"](h)[:, 0] * scale + shift
            right = ((heads["pets"](h)[:, 0] > 0).float() == pv).float().mean()
        return {"val/rent_mae": float((made - rv).abs().mean()), "val/pets_accuracy": float(right)}

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(body=body, heads=heads, opt=opt, schedule=schedule)
        run.resume()
        for _ in range(epochs):
            for i in torch.randperm(4000).split(256):
                step = run.begin_step(total=steps)
                h = body(x[i])
                terms = Terms(
                    rent=(1.0, functional.huber_loss(heads["rent"](h)[:, 0], (rent[i] - shift) / scale)),
                    pets=(0.5, functional.binary_cross_entropy_with_logits(heads["pets"](h)[:, 0], pets[i])),
                )
                opt.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(opt)
                schedule.step()
                run.end_step()
            with run.evaluation("validation"):
                run.record(scores())
    last = scores()
    return (1 - last["val/rent_mae"] / float((rv - rv.median()).abs().mean()) + last["val/pets_accuracy"]) / 2

"""The loops: where they come from, what makes them run anywhere, what adopts fieldwatch, and the fault that is planted.

Not a line of these loops is part of this repository: edits name fragments of a file, and what stands in their place.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from foreign_loops import stand_ins


@dataclass(frozen=True)
class Edit:
    """A fragment that a file contains once, and its replacement; ``to`` extends the fragment up to a second one."""

    old: str
    new: str
    to: str = ""

    def apply(self, text: str) -> str:
        """Return the edited text.

        Raises:
            ValueError: the text does not contain the fragment exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"expected {self.old!r} once in the file, got it {text.count(self.old)} times")
        before, after = text.split(self.old)
        if self.to:
            _, found, after = after.partition(self.to)
            if not found:
                raise ValueError(f"expected {self.to!r} after {self.old!r}, got no such text")
            after = found + after
        return before + self.new + after


def nothing(_folder: Path) -> None:
    """Prepare no data."""


@dataclass(frozen=True)
class Loop:
    """A loop that somebody else wrote.

    Attributes:
        title: label of its row.
        package: name and version on PyPI of the package that contains it; empty for a script of this folder, whose loop
            is that of a library.
        path: file of the loop within the package's source archive or wheel.
        ports: edits that make the original run: no GPU, no download, no further package, fixed seeds.
        edits: edits that adopt fieldwatch.
        fault: edit that plants the fault, and what it does.
        script: file of this folder that calls the loop; empty if the loop's file is a script.
        arguments: arguments of the script.
        prepare: makes the data in the working folder.
        kill: step at whose end the process is killed.
        saves: whether to save a checkpoint shortly before the kill; the Trainer saves its own.
        script_edits: edits of the script that adopt fieldwatch.
    """

    title: str
    package: str
    path: str
    ports: tuple[Edit, ...]
    edits: tuple[Edit, ...]
    fault: Edit
    fault_does: str
    script: str = ""
    arguments: str = ""
    prepare: Callable[[Path], None] = nothing
    kill: int = 60
    saves: bool = True
    script_edits: tuple[Edit, ...] = field(default=())
    fault_in_script: bool = False


OPACUS = "opacus==1.6.0"
IMPORT = Edit("from tqdm import tqdm\n", "from tqdm import tqdm\nfrom fieldwatch import ResumableLoader, Run, Terms\n")
NO_PRIVACY = Edit("from opacus import PrivacyEngine\n", "")

IMAGES = Loop(
    title="images: a network for digits",
    package=OPACUS,
    path="examples/mnist.py",
    arguments="--disable-dp --device cpu --epochs 2 --batch-size 32",
    ports=(
        NO_PRIVACY,
        Edit("from torchvision import datasets, transforms\n", "from stand_ins import datasets, transforms\n"),
        Edit(
            "    torch.save(run_results, ", "    __import__('start').finish(model=model)\n    torch.save(run_results, "
        ),
    ),
    edits=(
        IMPORT,
        Edit("    train_loader = torch.utils.data.DataLoader(\n", "    train_loader = ResumableLoader(\n"),
        Edit("        batch_size=args.batch_size,\n", "        batch_size=args.batch_size,\n        shuffle=False,\n"),
        Edit(
            "        for epoch in range(1, args.epochs + 1):\n",
            '        run = Run("run").start()\n'
            "        run.track(model=model, optimizer=optimizer, loader=train_loader)\n"
            "        run.resume()\n"
            "        for epoch in range(train_loader.epoch + 1, args.epochs + 1):\n",
        ),
        Edit("optimizer, privacy_engine, epoch):\n", "optimizer, privacy_engine, epoch, run):\n"),
        Edit("optimizer, privacy_engine, epoch)\n", "optimizer, privacy_engine, epoch, run)\n        run.finish()\n"),
        Edit("        optimizer.zero_grad()\n", "        step = run.begin_step()\n        optimizer.zero_grad()\n"),
        Edit("        loss.backward()\n", "        loss.backward()\n        step.observe(Terms(loss=(1.0, loss)))\n"),
        Edit("        optimizer.step()\n", "        step.update(optimizer)\n        run.end_step()\n"),
    ),
    fault=Edit("        optimizer.zero_grad()\n", ""),
    fault_does="`zero_grad()` is missing",
)

NAMES = Loop(
    title="language: an LSTM for names",
    package=OPACUS,
    path="examples/char-lstm-classification.py",
    arguments="--data-root names --disable-dp --device cpu --epochs 4 --batch-size 32 --hidden-size 32 "
    "--learning-rate 0.5",
    prepare=lambda folder: stand_ins.write_names(folder / "names"),
    ports=(
        NO_PRIVACY,
        Edit(
            "from opacus.layers import DPGRU, DPLSTM, DPRNN\n",
            "from torch.nn import GRU as DPGRU, LSTM as DPLSTM, RNN as DPRNN\n",
        ),
        Edit("    torch.save(mean_acc, ", "    __import__('start').finish(model=model)\n    torch.save(mean_acc, "),
    ),
    edits=(
        IMPORT,
        Edit("    train_loader = DataLoader(\n", "    train_loader = ResumableLoader(\n"),
        Edit("        batch_size=args.batch_size,\n", "        batch_size=args.batch_size,\n        shuffle=False,\n"),
        Edit(
            "    for epoch in tqdm(range(args.epochs)):\n",
            '    run = Run("run").start()\n'
            "    run.track(model=model, optimizer=optimizer, loader=train_loader)\n"
            "    run.resume()\n"
            "    for epoch in tqdm(range(train_loader.epoch, args.epochs)):\n",
        ),
        Edit('    target_delta,\n    device="cuda:0",\n):', '    target_delta,\n    run,\n    device="cuda:0",\n):'),
        Edit(
            "            args.delta,\n            device=device,\n",
            "            args.delta,\n            run,\n            device=device,\n",
        ),
        Edit("        logits = model(x)\n", "        step = run.begin_step()\n        logits = model(x)\n"),
        Edit("        loss.backward()\n", "        loss.backward()\n        step.observe(Terms(loss=(1.0, loss)))\n"),
        Edit("        optimizer.step()\n", "        step.update(optimizer)\n"),
        Edit("        losses.append(float(loss))\n", "        losses.append(float(loss))\n        run.end_step()\n"),
        Edit("    mean_acc = test(model,", "    run.finish()\n    mean_acc = test(model,"),
    ),
    fault=Edit("torch.optim.SGD(model.parameters()", "torch.optim.SGD(model.rnn.parameters()"),
    fault_does="two of three layers are not passed to the optimizer",
    kill=70,
)

GAN = Loop(
    title="a GAN: DCGAN",
    package=OPACUS,
    path="examples/dcgan.py",
    arguments="--data-root data --disable-dp --device cpu --workers 0 --batch-size 16 --ngf 8 --ndf 8 --epochs 3 "
    "--manualSeed 1 --outf out",
    ports=(
        NO_PRIVACY,
        Edit("import torchvision.datasets as dset\n", "from stand_ins import datasets as dset\n"),
        Edit("import torchvision.transforms as transforms\n", "from stand_ins import transforms\n"),
        Edit("import torchvision.utils as vutils\n", "from stand_ins import utils as vutils\n"),
        # So that its iterators draw nothing from the generator that the noise comes from.
        Edit("    num_workers=int(opt.workers),\n", "    num_workers=int(opt.workers), generator=torch.Generator(),\n"),
        Edit(
            '    torch.save(netD.state_dict(), "%s/netD_epoch_%d.pth" % (opt.outf, epoch))\n',
            '    torch.save(netD.state_dict(), "%s/netD_epoch_%d.pth" % (opt.outf, epoch))\n'
            "__import__('start').finish(generator=netG, critic=netD)\n",
        ),
    ),
    edits=(
        IMPORT,
        Edit("dataloader = torch.utils.data.DataLoader(\n", "dataloader = ResumableLoader(\n"),
        Edit(
            "    num_workers=int(opt.workers), generator=torch.Generator(),\n",
            "    num_workers=int(opt.workers), shuffle=False,\n",
        ),
        Edit(
            "for epoch in range(opt.epochs):\n",
            'run = Run("run").start()\n'
            "run.track(generator=netG, critic=netD, of_critic=optimizerD, of_generator=optimizerG, loader=dataloader)\n"
            "run.resume()\n"
            "for epoch in range(dataloader.epoch, opt.epochs):\n",
        ),
        Edit(
            "        optimizerD.zero_grad(set_to_none=True)\n\n        real_data",
            "        step = run.begin_step()\n        optimizerD.zero_grad(set_to_none=True)\n\n        real_data",
        ),
        Edit(
            "        errD.backward()\n",
            "        errD.backward()\n        step.observe(Terms(real=(1.0, errD_real), fake=(1.0, errD_fake)))\n",
        ),
        Edit("        optimizerD.step()\n", "        step.update(optimizerD)\n"),
        Edit("        errG.backward()\n", "        errG.backward()\n        step.observe(Terms(fooled=(1.0, errG)))\n"),
        Edit("        optimizerG.step()\n", "        step.update(optimizerG)\n        run.end_step()\n"),
        Edit("__import__('start')", "run.finish()\n__import__('start')"),
    ),
    fault=Edit("        output_g = netD(fake)\n", "        output_g = netD(fake.detach())\n"),
    fault_does="the generator's loss is computed on detached pictures",
    kill=30,
)

GAME = """
class Game:
    def state_dict(self):
        return {"game": torch.frombuffer(bytearray(pickle.dumps((rb, env, obs, episode_reward))), dtype=torch.uint8)}

    def load_state_dict(self, state):
        global rb, env, obs, episode_reward
        rb, env, obs, episode_reward = pickle.loads(state["game"].numpy().tobytes())


"""
AGENT = Loop(
    title="reinforcement learning: DQN",
    package="cleanrl==0.4.8",
    path="cleanrl/dqn.py",
    arguments="--gym-id CartPole-v1 --total-timesteps 1500 --learning-starts 100 --cuda False --buffer-size 1000 "
    "--target-network-frequency 100",
    ports=(
        Edit("import gym\n", "import gymnasium as gym\n"),
        Edit("from gym.wrappers import TimeLimit, Monitor\n", ""),
        Edit(
            "from gym.spaces import Discrete, Box, MultiBinary, MultiDiscrete, Space\n",
            "from gymnasium.spaces import Discrete, Box\n",
        ),
        Edit("env.seed(args.seed)\n", ""),
        Edit("obs = env.reset()\n", "obs = env.reset(seed=args.seed)[0]\n"),
        Edit(
            "next_obs, reward, done, _ = env.step(action)\n",
            "next_obs, reward, ended, cut, _ = env.step(action)\n    done = ended or cut\n",
        ),
        Edit("obs, episode_reward = env.reset(), 0\n", "obs, episode_reward = env.reset()[0], 0\n"),
        Edit(
            "\nwriter.close()\n",
            "\nwriter.close()\n__import__('start').finish(model=q_network, target=target_network)\n",
        ),
    ),
    edits=(
        Edit("import os\n\nif __name__", "import os\nimport pickle\nfrom fieldwatch import Run, Terms\n\nif __name__"),
        Edit(
            "for global_step in range(args.total_timesteps):\n",
            GAME
            + 'run = Run("run").start()\n'
            + "run.track(model=q_network, target=target_network, optimizer=optimizer, game=Game())\n"
            + "run.resume()\n"
            + "for step in run.steps(args.total_timesteps):\n    global_step = step.index\n",
        ),
        Edit("        loss.backward()\n", "        loss.backward()\n        step.observe(Terms(loss=(1.0, loss)))\n"),
        Edit("        optimizer.step()\n", "        step.update(optimizer)\n"),
        Edit(
            '        writer.add_scalar("charts/episode_reward", episode_reward, global_step)\n',
            '        writer.add_scalar("charts/episode_reward", episode_reward, global_step)\n'
            '        step.record({"Episode/reward": float(episode_reward)})\n',
        ),
        Edit("env.close()\n", "run.finish()\nenv.close()\n"),
    ),
    fault=Edit("lr=args.learning_rate)", "lr=1000 * args.learning_rate)"),
    fault_does="the learning rate is 1,000 times as high",
    kill=1000,
)

GPT = Loop(
    title="a small GPT trainer",
    package="nano-gpt==0.1.0",
    path="nano_gpt/trainer.py",
    script="gpt.py",
    ports=(),
    edits=(
        Edit(
            "from .log import LogRecord, create_log\n",
            "from .log import LogRecord, create_log\nfrom fieldwatch import Run, Terms\n",
        ),
        Edit("    backward: bool,\n", "    backward: bool,\n    parts: list | None = None,\n"),
        Edit(
            "        loss = loss / steps\n",
            "        if parts is not None:\n"
            "            parts.append((1 / steps, Terms(loss=(1.0, loss)).detach()))\n"
            "        loss = loss / steps\n",
        ),
        Edit(
            "    train_ds = iter(train_data_loader)\n",
            '    run = Run("run").start()\n'
            "    run.track(model=raw_model, optimizer=optimizer, loader=train_data_loader)\n"
            "    run.resume()\n"
            "    train_ds = run.batches(train_data_loader)\n",
        ),
        Edit(
            "    for step in range(config.step, config.max_steps):\n",
            "    for now in run.steps(config.max_steps):\n        step = now.index\n        parts = []\n",
        ),
        Edit("            backward=True,\n", "            backward=True,\n            parts=parts,\n"),
        Edit("        optimizer.step()\n", "        now.observe(Terms.merged(parts))\n        now.update(optimizer)\n"),
        Edit(
            "            log.log(stats.log_record())\n", "            log.log(stats.log_record())\n    run.finish()\n"
        ),
    ),
    fault=Edit("        x, y = next(ds)\n", "        x, y = next(ds)\n        y = x\n"),
    fault_does="the model is asked for the character that it is given, not for the next one",
)

LIGHTNING = Loop(
    title="Lightning: a language model",
    package="lightning==2.6.6",
    path="src/lightning/pytorch/demos/lstm.py",
    script="lightning_lstm.py",
    prepare=lambda folder: stand_ins.write_text(folder / "data" / "wikitext-2.txt", 30_000),
    ports=(
        Edit("ninp: int = 512, nhid: int = 512, nlayers: int = 4", "ninp: int = 48, nhid: int = 48, nlayers: int = 2"),
        # So that its iterators draw nothing from the generator that dropout draws from.
        Edit("batch_size=20))\n", "batch_size=20), generator=torch.Generator())\n"),
    ),
    edits=(
        Edit(
            "from torch.utils.data import DataLoader, Sampler\n",
            "from torch.utils.data import DataLoader, Sampler, Subset\nfrom fieldwatch import ResumableLoader\n",
        ),
        Edit(
            "        return DataLoader(dataset, batch_sampler=SequenceSampler(dataset, batch_size=20), "
            "generator=torch.Generator())\n",
            "        order = [index for batch in SequenceSampler(dataset, batch_size=20) for index in batch]\n"
            "        return ResumableLoader(Subset(dataset, order), batch_size=20, shuffle=False)\n",
        ),
        Edit(
            "    def prepare_data(self)",
            "    def on_save_checkpoint(self, checkpoint):\n"
            '        checkpoint["hidden"] = self.hidden\n'
            "\n"
            "    def on_load_checkpoint(self, checkpoint):\n"
            '        self.hidden = checkpoint["hidden"]\n'
            "\n"
            "    def prepare_data(self)",
        ),
    ),
    script_edits=(
        Edit(
            "from start import finish\n",
            "from fieldwatch.adapters import LightningCallback\nfrom start import finish\n",
        ),
        Edit(
            "trainer = pl.Trainer(", 'watch = LightningCallback("run")\ntrainer = pl.Trainer(\n    callbacks=[watch],'
        ),
        Edit("trainer.fit(module)\n", "trainer.fit(module, ckpt_path=watch.resume(trainer))\n"),
    ),
    fault=Edit("lr=20.0", "lr=2000.0"),
    fault_does="the learning rate is 100 times as high",
    kill=50,
)

TRAINER = Loop(
    title="Hugging Face: the Trainer",
    package="",
    path="trainer.py",
    ports=(),
    edits=(
        Edit(
            "from start import finish\n",
            "from fieldwatch.adapters import TransformersCallback\nfrom start import finish\n",
        ),
        Edit(
            "trainer = Trainer(model, arguments, train_dataset=Pairs(640, 1))\n",
            'watch = TransformersCallback("run")\n'
            "trainer = Trainer(model, arguments, train_dataset=Pairs(640, 1), callbacks=[watch])\n",
        ),
        Edit("trainer.train()\n", "trainer.train(resume_from_checkpoint=watch.resume(arguments.output_dir))\n"),
    ),
    fault=Edit("learning_rate=3e-3", "learning_rate=3e-10"),
    fault_does="the learning rate is ten million times too low",
    saves=False,
    kill=75,
)

ACCELERATE = Loop(
    title="Accelerate: pairs of sentences",
    package="accelerate==1.15.0",
    path="src/accelerate/test_utils/scripts/external_deps/test_performance.py",
    arguments="--num_epochs 3",
    ports=(
        Edit("import evaluate\n", "import stand_ins\n"),
        Edit("from datasets import load_dataset\n", ""),
        Edit("get_dataloaders(accelerator, batch_size, model_name)\n", "stand_ins.loaders(batch_size)\n"),
        Edit(
            "AutoModelForSequenceClassification.from_pretrained(model_name, return_dict=True, **model_kwargs)",
            "stand_ins.tiny_bert()",
        ),
        Edit('evaluate.load("glue", "mrpc")', "stand_ins.Accuracy()"),
        Edit('"lr": 2e-5', '"lr": 3e-3'),
        Edit(
            "    accelerator.end_training()\n",
            "    accelerator.end_training()\n    __import__('start').finish(model=accelerator.unwrap_model(model))\n",
        ),
    ),
    edits=(
        Edit(
            "from accelerate import Accelerator, DistributedType\n",
            "from accelerate import Accelerator, DistributedType\nfrom fieldwatch.adapters import AccelerateTracker\n",
        ),
        Edit(
            "    accelerator = Accelerator(**accelerator_kwargs)\n",
            '    watch = AccelerateTracker("run")\n'
            "    accelerator = Accelerator(log_with=watch, **accelerator_kwargs)\n",
        ),
        Edit(
            "    starting_epoch = 0\n",
            "    accelerator.register_for_checkpointing(train_dataloader)\n"
            '    accelerator.init_trackers("mine", config)\n'
            "    done = watch.resume(accelerator, optimizer, lr_scheduler, train_dataloader, model=model)\n"
            "    starting_epoch = train_dataloader.epoch\n",
        ),
        # The script asserts the rate of the first update.
        Edit("    lr_scheduler_check_completed = False\n", "    lr_scheduler_check_completed = done > 0\n"),
        Edit(
            "                optimizer.zero_grad()\n",
            '                optimizer.zero_grad()\n                accelerator.log({"loss": loss})\n',
        ),
    ),
    fault=Edit("        model.train()\n", ""),
    fault_does="the model stays in eval mode after the first evaluation",
)

LOOPS = {
    "images": IMAGES,
    "names": NAMES,
    "gan": GAN,
    "agent": AGENT,
    "gpt": GPT,
    "lightning": LIGHTNING,
    "trainer": TRAINER,
    "accelerate": ACCELERATE,
}

"""The one object by which a pipeline joins the toolkit."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fieldwatch.record.config import config_of_run, preset_of_run

Reference = str
"""Code by name, ``package.module:name``: it is imported when it is needed, and not before."""

# A name is typed as a word of a command: no upper case, no underscore, no option's dash in front.
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve(reference: Reference) -> Any:
    """Import what a reference names.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A further command of the program.

    Attributes:
        run: ``run(arguments) -> exit code``, by reference.
        about: one line for ``fieldwatch --help``.
        flags: by reference, the dataclass of its flags, or ``flags(arguments) -> dataclass``. Its module should load no
            torch: ``--help`` and tab completion import it alone. If empty, they call ``run``.
        takes_run: whether its first word is a run folder; tab completion offers some.
    """

    run: Reference
    about: str
    flags: Reference = ""
    takes_run: bool = False


@dataclass(frozen=True, kw_only=True)
class DataKind:
    """A kind of data that ``fieldwatch doctor --data PATH`` checks.

    Attributes:
        name: the word after ``--kind``.
        title: what such data are, in a few words.
        wanted: what such data look like, for messages.
        recognize: by reference, ``recognize(path) -> int``: 0 for other data, else a number that is larger the more
            specific the signs are; the largest wins. Ours answer 1 for any pictures, 2 to 4 for layouts of folders.
        report: by reference, ``report(path, options) -> DataReport``; ``options`` is None where the kind has none.
        options: by reference, a dataclass of further flags.
    """

    name: str
    title: str
    wanted: str
    recognize: Reference
    report: Reference
    options: Reference = ""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The arguments of ``fieldwatch train NAME`` after a pipeline has translated its own spellings.

    Attributes:
        arguments: flags as ``fieldwatch train NAME --help`` lists them.
        config: settings that the flags change; None stands for the preset.
        out: run folder unless ``--out`` names one.
        notes: what the user should know, printed at the start.
    """

    arguments: Sequence[str]
    config: Any = None
    out: Path | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline: what it is called, and where the code for each command lies.

    A package offers it through an entry point of the group ``fieldwatch.pipelines``, whose name is the pipeline's.
    Every command of the program then knows it. Only ``name``, ``about``, ``config`` and ``prepare`` are required.

    Attributes:
        name: the word after ``fieldwatch train``, and ``about["pipeline"]`` of its runs.
        about: one line for ``fieldwatch --help``.
        config: a frozen dataclass of settings: each field is a flag, the text below it its help. It has ``name`` (of
            the data, for logs) and ``threads`` (CPU threads, 0 for torch's choice).
        prepare: ``prepare(config) -> Job`` reads and checks the input; raises `InputError` for what is wrong with it.
        presets: a mapping from names to functions that return settings; it has ``default``.
        help: text of ``fieldwatch train NAME --help``; it should hold an example.
        trained_by: the command that starts a training, where it is not ``fieldwatch train NAME``.
        command_line: ``command_line(arguments) -> CommandLine`` translates other spellings of the flags.
        flags: a dataclass of further flags of ``fieldwatch train NAME``, which ``command_line`` reads.
        main_flags: fields of the settings that ``fieldwatch train NAME --help`` lists, by the title of their group; the
            others are in ``--help-all`` only. Empty lists all.
        inputs: flags that name files or folders which have to exist.
        longer: the flag that lengthens a training.
        check_resumable: ``check_resumable(folder, config)`` raises `InputError` where this machine lacks what the run
            needs to continue.
        evaluate: ``evaluate(request) -> Scores``, for ``fieldwatch eval``.
        evaluate_options: a dataclass of further flags of ``fieldwatch eval``.
        exports: what ``fieldwatch export --to`` writes of a trained model.
        export: ``export(run_flags, to, out, options) -> exit code`` writes one of them.
        export_options: a dataclass of further flags of ``fieldwatch export``.
        rank: ``rank(folder, device, options, tell) -> CheckpointRanking``, for ``fieldwatch compare --checkpoints``.
        rank_options: a dataclass of further flags of it.
        rules: the health rules its runs are examined by.
        metrics: the catalogue of its declared metrics.
        measured: how the tags of its measures of quality begin.
        quality: ``quality(metrics) -> table`` for the terminal; by default all metrics, by tag.
        population: what the model grows and prunes, for the ledger of growth: Gaussians, cells.
        commands: further commands of the program, by the words they are called with.
        data: kinds of data that ``fieldwatch doctor`` checks.
        machine_check: ``machine_check() -> MachineCheck``, for ``fieldwatch doctor``.
        libraries: libraries that ``fieldwatch doctor`` looks for: distribution, what for, how to install it.
    """

    name: str
    about: str
    config: Reference
    prepare: Reference
    presets: Reference = ""
    help: str = ""
    trained_by: str = ""
    command_line: Reference = ""
    flags: Reference = ""
    main_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    inputs: tuple[str, ...] = ("data",)
    longer: str = "--steps"
    check_resumable: Reference = ""
    evaluate: Reference = ""
    evaluate_options: Reference = ""
    exports: tuple[str, ...] = ()
    export: Reference = ""
    export_options: Reference = ""
    rank: Reference = ""
    rank_options: Reference = ""
    rules: Reference = "fieldwatch:GENERAL"
    metrics: Reference = ""
    measured: tuple[str, ...] = ("Eval/",)
    quality: Reference = ""
    population: str = "primitives"
    commands: Mapping[str, Command] = field(default_factory=dict[str, Command])
    data: tuple[DataKind, ...] = ()
    machine_check: Reference = ""
    libraries: tuple[tuple[str, str, str], ...] = ()

    def __post_init__(self) -> None:
        """Check names and references.

        Raises:
            ValueError: one of them cannot be what it should be.
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r}: expected a lower-case word of letters, digits and '-'")
        # The form is checked here, and not the code: importing it would load torch.
        for field_name in _REFERENCES:
            reference = getattr(self, field_name)
            if reference and not _REFERENCE.fullmatch(reference):
                raise ValueError(f"{field_name} {reference!r} of {self.name}: expected 'package.module:name'")

    @property
    def start_command(self) -> str:
        """The command that starts a training."""
        return self.trained_by or f"train {self.name}"

    def load(self, field_name: str) -> Any:
        """Import what one of the fields refers to; None where the field is empty."""
        reference: Reference = getattr(self, field_name)
        return resolve(reference) if reference else None

    def load_presets(self) -> Mapping[str, Any]:
        """Return functions that make settings, by the preset's name."""
        return self.load("presets") or {"default": self.load("config")}

    def stored_config(self, folder: Path) -> Any:
        """Return the settings that a run was started with.

        Raises:
            NotARun: the folder holds no run, one of another pipeline, or a damaged run.json.
        """
        return config_of_run(folder, self.name, self.load("config"))

    def stored_preset(self, folder: Path) -> Any:
        """Return the preset that those settings were derived from.

        Raises:
            NotARun: as in :meth:`stored_config`.
        """
        return preset_of_run(folder, self.name, self.load("config"))


_REFERENCES = (
    "config", "prepare", "presets", "command_line", "flags", "check_resumable", "evaluate", "evaluate_options",
    "export", "export_options", "rank", "rank_options", "rules", "metrics", "quality", "machine_check",
)  # fmt: skip

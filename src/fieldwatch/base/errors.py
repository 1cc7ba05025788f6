"""The base class of every error that is about the user's input and not about our code."""


class InputError(ValueError):
    """The input is unusable: a file, a folder, a flag, or a value inside one of them.

    Raise it (or a subclass) where input is read, with a message that says what was expected, what was found and what
    to do. The command line prints that message and exits with 2. Any other exception is a bug of ours: it keeps its
    traceback.
    """


class MissingPathError(InputError, FileNotFoundError):
    """A file or folder that the user named is missing; callers may catch it as FileNotFoundError."""


class ExistingPathError(InputError, FileExistsError):
    """A file or folder is in the way of what would be written; callers may catch it as FileExistsError."""


class MissingPackageError(InputError, ImportError):
    """An optional package that the user's choice needs is not installed; callers may catch it as ImportError."""

"""What to do about common errors of trainings, by the words of their messages."""

import re

_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"Expected more than 1 value per channel",
        (
            "A batch norm got a batch with a single sample: use DataLoader(..., drop_last=True), since the last "
            "batch of an epoch holds what is left over, or another batch size, or group or layer norm; call "
            "eval() for single samples."
        ),
    ),
    (
        r"does not require grad and does not have a grad_fn",
        (
            "The loss depends on no parameter with a gradient: look for detach(), .item(), .data, argmax or "
            "rounding, for torch.no_grad() or inference_mode() around the forward, and for parameters that are "
            "all frozen: set requires_grad_(True) on those that are to be trained, such as a new head."
        ),
    ),
    (
        r"backward through the graph a second time",
        (
            "A tensor of an earlier step is used again: detach() hidden states, memories, running averages and "
            "fake samples that are kept between steps, and compute what two losses share once and call "
            "backward() on their sum."
        ),
    ),
    (
        r"modified by an inplace operation",
        (
            "A value that the backward pass needs was overwritten: replace x += y, x[...] = y and relu_() by "
            "expressions that make a new tensor, and call optimizer.step() only after all backward passes that "
            "use its parameters."
        ),
    ),
    (
        (
            r"all tensors to be on the same device|should be the same|"
            r"is on cuda:\d, different from other tensors on cpu"
        ),
        (
            "Move the model and every tensor of the batch to one device, model.to(device) and x.to(device), "
            "register constant tensors of modules by register_buffer, and create new ones with device=x.device."
        ),
    ),
    (
        (
            r"Target -?\d+ is out of bounds|index out of range in self|device-side assert|"
            r"index -?\d+ is out of bounds|out of bounds for dimension"
        ),
        (
            "An index is as large as what it selects from, or larger: check that class labels and tokens start "
            "at 0 and stay below the number of outputs (classes) or rows of the embedding (vocabulary), also "
            "those for padding."
        ),
    ),
    (
        r"stack expects each tensor to be equal size",
        ("Samples of a batch have different sizes: pad or crop them in a collate_fn, or resize them in the data set."),
    ),
    (
        (
            r"mat1 and mat2 shapes cannot be multiplied|expected input\S* to have \d+ channels|size mismatch|"
            r"Sizes of tensors must match|must match the size of tensor"
        ),
        (
            "Shapes do not fit: print the shape of the input in front of the layer that the traceback names, "
            "and check the number of features or channels, the order of dimensions and what flatten() keeps."
        ),
    ),
    (
        r"expected scalar type|must have the same dtype|should have the same dtype|found dtype",
        (
            "Types do not fit: class labels of cross_entropy are integers (.long()), targets of a mean of "
            "squares or of a binary cross-entropy are floats (.float()), and numpy's float64 needs .float()."
        ),
    ),
    (
        r"grad can be implicitly created only for scalar outputs",
        ("backward() needs a single number: take the mean or the sum of the losses of all samples first."),
    ),
    (
        r"unscale_\(\) has already been called|No inf checks were recorded",
        (
            "Call scaler.unscale_(optimizer), scaler.step(optimizer) and scaler.update() once each, in this "
            "order and after backward(), or pass step.update(optimizer, scaler=scaler), which does all of it."
        ),
    ),
    (
        r"Can't pickle|cannot pickle|AttributeError: Can't get attribute",
        (
            "Workers of a loader get their data set by pickling: define functions and classes at the top of a "
            "module (no lambda, no local function), open files in the worker, and guard the script by if "
            "__name__ == '__main__'."
        ),
    ),
    (
        r"Cannot re-initialize CUDA in forked subprocess",
        (
            "Keep CUDA out of the data set: return CPU tensors from workers and move batches in the loop, or "
            "use num_workers=0."
        ),
    ),
    (
        (
            r"worker \(pid.*\) (is killed|exited unexpectedly)|bus error|received 0 items of ancdata|"
            r"Too many open files"
        ),
        (
            "A worker of the data loader died: lower num_workers, check the memory (RAM and /dev/shm), and use "
            "torch.multiprocessing.set_sharing_strategy('file_system')."
        ),
    ),
    (
        r"Error\(s\) in loading state_dict|Missing key\(s\)|Unexpected key\(s\)",
        (
            "The stored weights belong to another module: remove or add the prefix of a wrapper ('module.', "
            "'_orig_mod.'), build the model with the settings of the checkpoint, or load with strict=False and "
            "read what is missing."
        ),
    ),
)


def advice_for(error: str) -> str:
    """Return what to do about an error; empty if its message is not known.

    Args:
        error: type and message of an exception.
    """
    return next((advice for words, advice in _ADVICE if re.search(words, error, re.IGNORECASE)), "")

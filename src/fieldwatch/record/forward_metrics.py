"""Metrics of what the tracked modules get and return; the checks of the loop record them in any run."""

from fieldwatch.record.metric import Metric

# The texts below are user-facing, as those of the other metrics of the toolkit.

FORWARD = (
    Metric(
        name="Forward/<module>_input_mean",
        unit="",
        meaning="Mean of the first input of a tracked module in a training forward, from about 2,000 entries; recorded "
        "at the first 32 steps and every 50th (detail_every).",
    ),
    Metric(name="Forward/<module>_input_std", unit="", meaning="Standard deviation of the entries of that input."),
    Metric(
        name="Forward/<module>_input_ratio",
        unit="",
        meaning="Largest standard deviation of a column of that input, divided by the geometric mean of all that vary; "
        "for inputs of floating-point numbers.",
    ),
    Metric(
        name="Forward/<module>_input_mark",
        unit="",
        meaning="Sum of these entries with fixed weights: equal values mean the same batch.",
    ),
    Metric(
        name="Forward/<module>_input_spread",
        unit="",
        meaning="Largest difference between the samples of the batch in any entry of the module's inputs; 0 if all "
        "samples are the same.",
    ),
    Metric(
        name="Forward/<module>_output_spread",
        unit="",
        meaning="Largest difference between the outputs for the samples of the batch, divided by the largest output; 0 "
        "if the module returns the same for every sample.",
    ),
    Metric(
        name="Forward/<module>_output_share",
        unit="",
        meaning="Fraction of the variance of the outputs that is between samples, not between the entries of the mean "
        "output; near 0 if the module returns nearly the same for every sample.",
    ),
    Metric(
        name="Forward/<module>_evaluation_input_mean",
        unit="",
        meaning="As Forward/<module>_input_mean, in the first forward of an evaluation.",
    ),
    Metric(
        name="Forward/<module>_evaluation_input_std",
        unit="",
        meaning="As Forward/<module>_input_std, in the first forward of an evaluation.",
    ),
    Metric(
        name="Forward/<module>_evaluation_input_shift",
        unit="",
        meaning="Mean distance of the input's columns in an evaluation from those of the training, in deviations.",
    ),
    Metric(
        name="Forward/<module>_output_std",
        unit="",
        meaning="Standard deviation of the entries of the output in a training forward.",
    ),
    Metric(
        name="Forward/<module>_evaluation_argument_shift",
        unit="",
        meaning="How far the arguments of the module in an evaluation are from those in training: of numbers behind "
        "the first argument in standard deviations, of integers ten times the fraction that differs.",
    ),
    Metric(
        name="Forward/<module>_evaluation_padding",
        unit="",
        meaning="Fraction of an evaluation's sequences that are padded on the other side than those of the training.",
    ),
    Metric(
        name="Forward/<module>_evaluation_start",
        unit="",
        meaning="Fraction of an evaluation's sequences without the token with which all of the training began.",
    ),
    Metric(
        name="Forward/<module>_evaluation_output_std",
        unit="",
        meaning="As Forward/<module>_output_std, in the first forward of an evaluation.",
    ),
    Metric(
        name="Forward/<module>_evaluation_output_shift",
        unit="",
        meaning="The same of the output's columns, compared with the last training forward that was measured.",
    ),
    Metric(name="Forward/<module>_simple_count", unit="", meaning="Number of samples that tested the simple models."),
    *(
        Metric(name=f"Forward/<module>_{model}_{score}", unit="", meaning=f"{what}, by {words}.")
        for model, words in (("linear", "a linear model of the first batches"), ("nearest", "their nearest neighbors"))
        for score, what in (("hits", "Fraction of the classes found"), ("explained", "Share of the variance explained"))
    ),
    Metric(
        name="Forward/<module>_targets_given",
        unit="",
        meaning="Fraction of the columns of the targets that are columns of the input, in the first batches.",
    ),
    Metric(
        name="Forward/<module>_copied_input",
        unit="",
        meaning="Largest correlation of a single output with one column of the inputs; near 1 if the module passes on "
        "one of its inputs.",
    ),
    Metric(
        name="Forward/<module>_position_spread",
        unit="",
        meaning="Largest difference between the outputs for equal tokens of a sequence, divided by the largest output; "
        "0 if a module with attention does not know positions.",
    ),
    Metric(
        name="Forward/<module>_future_spread",
        unit="",
        meaning="Change of the earlier outputs when the last token of a sequence changes, divided by the largest "
        "output; 0 for causal models. Measured once, in an evaluation.",
    ),
    Metric(
        name="Forward/<module>_class_sum",
        unit="",
        meaning="Sum of the output's gradient over the classes, as a fraction of its size; 0 for a cross-entropy.",
    ),
    Metric(
        name="Forward/<module>_batch_sum",
        unit="",
        meaning="The same over the samples of the batch; 0 if the loss normalizes over the batch.",
    ),
    Metric(
        name="Forward/<module>_hits",
        unit="",
        meaning="Fraction of about 256 training outputs whose largest entry is the one that the gradient raises most: "
        "the training accuracy of a classifier, before the update.",
        better="higher",
    ),
    Metric(
        name="Forward/<module>_implied_loss",
        unit="nats",
        meaning="Cross-entropy of these outputs with the classes that the gradient raises.",
        better="lower",
    ),
    Metric(
        name="Forward/<module>_target_entropy",
        unit="nats",
        meaning="Entropy of these classes over all measured steps: the cross-entropy of the best constant.",
    ),
    Metric(
        name="Forward/<module>_batch_entropy",
        unit="nats",
        meaning="Entropy of these classes within the batch; far below that of all steps if batches are not mixed.",
    ),
    Metric(
        name="Forward/<module>_target_share",
        unit="",
        meaning="Share of the most frequent of these classes: the accuracy of the best constant prediction.",
    ),
    Metric(
        name="Forward/<module>_weight_slope",
        unit="",
        meaning="Exponent of a class's frequency in its weight in the loss: 0 for equal weights, -1 for the inverse.",
    ),
    Metric(
        name="Forward/<module>_softmax_twice",
        unit="",
        meaning="Share of the squared gradient of outputs that a cross-entropy of their softmax, as if these were "
        "logits, does not explain; NaN if one of the outputs themselves does.",
    ),
    Metric(
        name="Forward/<module>_no_logarithm",
        unit="",
        meaning="The same for a loss that is the negative probability of the right class, without its logarithm.",
    ),
    Metric(
        name="Forward/<module>_blank_share",
        unit="",
        meaning="Share of the places at which the most frequent token has the most frequent class, if these agree "
        "everywhere: padding that counts in the loss.",
    ),
    Metric(
        name="Forward/<module>_next_share",
        unit="",
        meaning="Share of the places whose class is the next token of the input: 1 for language models.",
    ),
    Metric(
        name="Forward/<module>_same_share",
        unit="",
        meaning="Share of the places whose class is the token at the same place of the input: 1 for models that "
        "reproduce their input.",
    ),
    Metric(
        name="Forward/<module>_error_square",
        unit="",
        meaning="Mean squared error, if the loss is proportional to one: from the gradient of the output.",
    ),
    Metric(name="Forward/<module>_error_variance", unit="", meaning="Variance of these errors."),
    Metric(name="Forward/<module>_error_covariance", unit="", meaning="Covariance of the outputs and these errors."),
    Metric(
        name="Forward/<module>_output_variance",
        unit="",
        meaning="Variance of the outputs; with the other three, it gives the variance of the targets.",
    ),
    Metric(
        name="Forward/<module>_target_low",
        unit="",
        meaning="Smallest target, if the loss is a mean of squares: from about 4,000 outputs and their gradients.",
    ),
    Metric(name="Forward/<module>_target_high", unit="", meaning="Largest target, if the loss is a mean of squares."),
    Metric(
        name="Forward/<module>_target_fraction",
        unit="",
        meaning="Largest distance of a target from a whole number, if the loss is a mean of squares.",
    ),
    Metric(
        name="Forward/<module>_unused_share",
        unit="",
        meaning="Fraction of the columns of the output that have had no gradient at any measured step so far.",
    ),
    Metric(
        name="Forward/<module>_live_share",
        unit="",
        meaning="Fraction of the samples of the batch whose outputs have a gradient.",
        better="higher",
    ),
    Metric(
        name="Forward/<module>_binary_spread",
        unit="",
        meaning="Relative deviation of the outputs' gradients, in about 4,000 outputs, from those of a binary "
        "cross-entropy; nearly 0 if the loss is one.",
    ),
    Metric(
        name="Forward/<module>_binary_hits",
        unit="",
        meaning="Fraction of these outputs that are on the side (yes or no) to which the gradient moves them: the "
        "training accuracy of yes-or-no targets.",
        better="higher",
    ),
    Metric(
        name="Forward/<module>_binary_share",
        unit="",
        meaning="Fraction of these outputs that the gradient raises: the share of the targets that are yes.",
    ),
    Metric(
        name="Forward/<module>_binary_guess",
        unit="nats",
        meaning="Binary cross-entropy of the best constant for these targets, with the weights that the gradient "
        "shows.",
    ),
    Metric(
        name="Forward/<module>_binary_overlap",
        unit="",
        meaning="Outputs that are yes and should be, divided by those that are yes or should be: the intersection over "
        "union in training.",
        better="higher",
    ),
    Metric(
        name="Forward/<module>_binary_loss",
        unit="nats",
        meaning="Binary cross-entropy of these outputs with the targets and weights that the gradient shows.",
        better="lower",
    ),
    Metric(
        name="Forward/<module>_argument_spread",
        unit="",
        meaning="As Forward/<module>_input_spread, of the argument that differs least; 0 if one of several inputs is "
        "the same for all samples.",
    ),
    Metric(
        name="Forward/<module>_unit_spread",
        unit="",
        meaning="Largest difference between the units (rows) of a weight, divided by its largest entry, for the weight "
        "whose units differ least; 0 if all units of a layer are the same.",
    ),
    Metric(
        name="Forward/<module>_average_way",
        unit="",
        meaning="Distance of a tracked copy of a trained module (an average of its weights) from the module's first "
        "parameters, divided by the distance of the module itself.",
        expected="approaches 1; near 0, the copy is not updated or lags far behind",
    ),
    Metric(
        name="Forward/<module>_input_rounded",
        unit="",
        meaning="Share of the entries of a float32 input that are no whole numbers and are exact in bfloat16, as if "
        "they had been rounded to it; 0 for an input of whole numbers.",
    ),
    Metric(
        name="Forward/<module>_evaluation_seen",
        unit="",
        meaning="Share of the samples of an evaluation that are among those of the measured training batches.",
    ),
    Metric(
        name="Forward/<module>_wrong_pairs",
        unit="",
        meaning="Share of the wrong answers that confuse two classes with each other, in both directions, over the "
        "last measured batches.",
    ),
    Metric(
        name="Forward/<module>_wrong_share",
        unit="",
        meaning="Share of wrong answers over the same batches.",
    ),
)

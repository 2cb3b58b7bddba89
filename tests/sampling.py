"""What is sampled against what is known."""

import numpy as np


def assert_mean_is(expected, mean, error, *, most, sigmas=4.5):
    """A sampled mean is the expected value up to its standard error, which is at most the share
    `most` of that value. Without such a cap a broken sampler passes: its error grows with it."""
    expected, mean, error = (np.asarray(x, float) for x in (expected, mean, error))
    assert (error <= most * abs(expected)).all(), f"the error {error} of a mean {expected} is large"
    assert (abs(mean - expected) <= sigmas * error).all(), f"{mean} +- {error}, not {expected}"


def of_sample(x, axis=0):
    """Mean and standard error of independent draws."""
    x = np.asarray(x, float)
    return x.mean(axis), x.std(axis) / np.sqrt(x.shape[axis])

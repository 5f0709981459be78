"""Measurements of a trained model; each module returns plain values and prints nothing."""

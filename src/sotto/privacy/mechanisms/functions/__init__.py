"""Noise on functions: Gaussian processes, their kernels' sensitivities, and calibration."""

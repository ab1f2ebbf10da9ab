"""The figures of Wang and Hegde 2019."""

"""Parts that several commands share: options, parsing, output, progress and completion."""

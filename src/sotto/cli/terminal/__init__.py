"""Parts that several commands share: options, parsing, progress and completion."""

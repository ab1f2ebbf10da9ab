"""Private RLHF: a language model learns from people's ratings of its texts."""

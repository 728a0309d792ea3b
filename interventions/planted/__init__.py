"""The planted model: a tiny Llama built by hand, whose relation units are known, to grade methods on."""

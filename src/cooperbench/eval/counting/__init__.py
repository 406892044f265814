"""How each test framework prints its results, a module a family. Used through `cooperbench.eval.counts`."""

"""The model that ships with the package, the tools that ship with it, and everything that made them.

`weights/` is an ordinary checkpoint folder (config, tokenizer, safetensors), loaded by the engine like any other.
"""

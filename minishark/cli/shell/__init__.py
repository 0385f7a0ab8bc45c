"""The shell: statements and dot-commands from a prompt, a file or a pipe.

`splitting` and `completion` are pure; `interpreter` runs entries; `prompt` reads them.
"""

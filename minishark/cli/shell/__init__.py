"""The shell: statements and dot-commands from a prompt, a file or a pipe.

`completion` is pure; `interpreter` splits texts into entries and runs them; `prompt` reads them.
"""
